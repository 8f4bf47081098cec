"""Whole episodes, put together from the columns of consecutive slots.

A slot that the recorder missed, a producer that died or a shard that was deleted leaves a hole, and an
episode with a hole in it is not given out. That needs no list of holes: the simulator's host counted the
valid steps of every episode that ended, and an episode is whole if as many were found between two ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consumers.archive import reading
from consumers.archive.blocks import Damaged
from consumers.archive.reading import Record
from consumers.archive.schema import Schema

OPEN_BYTES = 1 << 30  # of episodes that have not ended yet, over all agents
ARRAY_BYTES = 160  # of an array, besides what is in it: most, where segments are short
STEPWISE = ("obs", "action", "logprob", "mask", "reward")

Key = tuple[str, int, int]  # run id, ring, row


@dataclass(frozen=True)
class Episode:
    """One agent's, from its first observation to its end; L valid steps."""

    obs: NDArray
    """[L, ...] what the agent acted on."""
    action: NDArray
    """[L, heads], before it was clipped to its bounds."""
    reward: NDArray
    """[L] raw."""
    logprob: NDArray
    """[L] of the action, by the policy that acted."""
    version: NDArray
    """[L] of its weights."""
    mask: NDArray | None
    """[L, logits] of actions, where there is one."""
    final_obs: NDArray | None
    """Behind the last step of a truncated episode; a terminated one has none."""
    terminated: bool
    """Else it was truncated."""
    ret: float
    """Undiscounted raw return."""
    statistics: NDArray
    """As the schema names them."""
    ring: int
    agent: int
    """Number over the whole run."""
    sequence: int
    """Of the slot in which it ended."""
    ended_unix_ns: int
    """When that slot was committed."""
    schema: Schema = field(repr=False)

    @property
    def length(self) -> int:
        return len(self.reward)


@dataclass
class _Open:
    """An episode under way: its steps so far, and the slot that must come next."""

    epoch: int
    next_sequence: int
    parts: list[dict[str, NDArray]] = field(default_factory=list)
    steps: int = 0
    bytes: int = 0

    def clear(self) -> None:
        self.parts, self.steps, self.bytes = [], 0, 0


class Assembler:
    """Takes records, slots of each ring in order, and gives whole episodes."""

    def __init__(self, open_bytes: int = OPEN_BYTES):
        self.broken = 0
        """Episodes that ended and were not whole."""
        self._most = open_bytes
        self._bytes = 0
        self._open: dict[Key, _Open] = {}

    @property
    def under_way(self) -> set[Key]:
        """Whose episodes have steps and no end yet."""
        return {key for key, one in self._open.items() if one.parts}

    def take(self, schema: Schema, record: Record, only: set[Key] | None = None) -> Iterator[Episode]:
        """The episodes that end in it. `only`: those under way of these agents and no more, each of which is
        taken out of the set once its fate is known."""
        cut, slot = schema.cuts[record.cut], _Slot(schema, record)
        for column, row in enumerate(cut.agents):
            key = schema.run_id, cut.ring, row
            if only is None:
                one = self._follow(key, record)
                yield from self._take(slot, column, row, one)
            elif key in only:
                one = self._follow(key, record)
                if one.parts:
                    yield from self._take(slot, column, row, one, 1)
                if not one.parts:  # it has ended, or there is a hole in it
                    only.discard(key)
            else:
                continue
            if not one.parts:
                self._open.pop(key, None)

    def _take(
        self, slot: _Slot, column: int, row: int, one: _Open, most: int | None = None
    ) -> Iterator[Episode]:
        """`most`: of the ends in the slot."""
        begin, ends, told = 0, slot.ends[column], slot.told.get(row, [])
        for number, end in enumerate(ends[:most]):
            self._add(one, slot, column, begin, end + 1)
            begin = end + 1
            whole = len(told) == len(ends) and one.steps == told[number]["length"]
            episode = slot.episode(column, row, end, one.parts, told[number]) if whole else None
            self.broken += not whole
            self._drop(one)
            if episode is not None:
                yield episode
        if most is None or not ends:
            self._add(one, slot, column, begin, slot.horizon)
        if self._bytes > self._most:
            largest = max(self._open, key=lambda key: self._open[key].bytes)
            self._drop(self._open.pop(largest))

    def _follow(self, key: Key, record: Record) -> _Open:
        one = self._open.get(key)
        if one is None:
            one = self._open[key] = _Open(record.epoch, record.sequence)
        elif (one.epoch, one.next_sequence) != (record.epoch, record.sequence):
            self._drop(one)
        one.epoch, one.next_sequence = record.epoch, record.sequence + 1
        return one

    def _add(self, one: _Open, slot: _Slot, column: int, begin: int, end: int) -> None:
        part, steps = slot.steps(column, begin, end)
        if steps:
            one.parts.append(part)
            one.steps += steps
            size = sum(values.nbytes + ARRAY_BYTES for values in part.values())
            one.bytes += size
            self._bytes += size

    def _drop(self, one: _Open) -> None:
        self._bytes -= one.bytes
        one.clear()


class _Slot:
    """One record, looked through for all its agents at once."""

    def __init__(self, schema: Schema, record: Record):
        self._schema, self._record = schema, record
        columns = record.columns
        self._columns = {name: columns[name] for name in STEPWISE if name in columns} | {
            "obs": columns["obs"][:-1]
        }
        self._valid = columns["valid"] != 0
        self._terminated = columns["terminated"] != 0
        self.horizon = len(self._valid)
        self.ends: list[list[int]] = [[] for _ in range(self._valid.shape[1])]
        """Of each agent, the steps that end an episode."""
        over = (self._terminated | (columns["truncated"] != 0)) & self._valid
        for step, column in zip(*np.nonzero(over), strict=True):
            self.ends[column].append(int(step))
        self.told: dict[int, list[np.void]] = {}
        """The records of finished episodes, in order, by agent."""
        for told in record.episodes:
            self.told.setdefault(int(told["agent"]), []).append(told)
        self._group_agents = schema.agents // schema.groups

    def steps(self, column: int, begin: int, end: int) -> tuple[dict[str, NDArray], int]:
        """Copies of an agent's valid steps in a range, since the block may go; and their number."""
        valid = self._valid[begin:end, column]
        count = int(np.count_nonzero(valid))
        if count == 0:
            return {}, 0
        chosen: Any = slice(begin, end) if count == end - begin else np.flatnonzero(valid) + begin
        group = self._schema.cuts[self._record.cut].agents[column] // self._group_agents
        found = {name: values[chosen, column].copy() for name, values in self._columns.items()}
        return found | {"version": self._record.columns["version"][chosen, group].copy()}, count

    def episode(
        self, column: int, row: int, end: int, parts: list[dict[str, NDArray]], told: np.void
    ) -> Episode:
        """That ended at step `end`."""
        steps: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        schema, record = self._schema, self._record
        terminated = bool(self._terminated[end, column])
        final = None if terminated else record.columns["obs"][end + 1, column].copy()
        ring = schema.cuts[record.cut].ring
        return Episode(
            **{"mask": None, **steps}, final_obs=final, terminated=terminated, ret=float(told["ret"]),
            statistics=told["statistics"].copy(), ring=ring, agent=ring * schema.agents + row,
            sequence=record.sequence, ended_unix_ns=record.commit_unix_ns, schema=schema,
        )  # fmt: skip


class Reader:
    """The whole episodes of some shards, in the order in which they ended."""

    def __init__(self, paths: Sequence[Path], *, strict: bool = False, open_bytes: int = OPEN_BYTES):
        """`paths`: shards, archives or run directories. `strict`: the first damage is raised; else it is
        noted, and reading goes on with the next shard."""
        self.shards = reading.find(paths)
        self.strict, self.open_bytes = strict, open_bytes
        self.damage: list[Damaged] = []
        self.broken = 0

    def episodes(self, part: int = 0, parts: int = 1) -> Iterator[Episode]:
        """Those that begin in the part-th of `parts` equal parts of the shards, so that parts together give
        every episode once."""
        count = len(self.shards)
        first, last = part * count // parts, (part + 1) * count // parts
        assembler = Assembler(self.open_bytes)
        for path in self.shards[first:last]:
            for schema, record in self._records(path):
                yield from assembler.take(schema, record)
        self.broken += assembler.broken
        left = assembler.under_way
        for path in self.shards[last:]:
            for schema, record in self._records(path):
                if not left:
                    return
                yield from assembler.take(schema, record, left)

    def _records(self, path: Path) -> Iterator[tuple[Schema, Record]]:
        try:
            yield from reading.records_of(path)
        except FileNotFoundError:  # of an archive that is being written: deleted, or sealed
            if path.suffix == ".open":
                yield from self._records(path.with_suffix(".zst"))
        except Damaged as damage:
            if self.strict:
                raise
            self.damage.append(damage)
