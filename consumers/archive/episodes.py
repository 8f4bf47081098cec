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
        cut = schema.cuts[record.cut]
        for column, row in enumerate(cut.agents):
            key = schema.run_id, cut.ring, row
            if only is None or key in only:
                yield from self._take(schema, record, column, row, key, only)

    def _take(
        self, schema: Schema, record: Record, column: int, row: int, key: Key, only: set[Key] | None
    ) -> Iterator[Episode]:
        steps = _steps(schema, record, column, row)
        valid = record.columns["valid"][:, column] != 0
        terminated = (record.columns["terminated"][:, column] != 0) & valid
        ends = np.flatnonzero(terminated | ((record.columns["truncated"][:, column] != 0) & valid))
        told = record.episodes[record.episodes["agent"] == row]
        one = self._follow(key, record)
        if only is not None and not one.parts:  # what it waits for has a hole
            only.discard(key)
            return
        begin = 0
        for number, end in enumerate(map(int, ends)):
            self._add(one, steps, valid, begin, end + 1)
            begin = end + 1
            if len(told) == len(ends) and one.steps == told[number]["length"]:
                final = None if terminated[end] else record.columns["obs"][end + 1, column].copy()
                yield _episode(schema, record, row, one, told[number], bool(terminated[end]), final)
            else:
                self.broken += 1
            self._drop(one)
            if only is not None:
                only.discard(key)
                return
        self._add(one, steps, valid, begin, len(valid))
        if self._bytes > self._most:
            self._drop(max(self._open.values(), key=lambda other: other.bytes))

    def _follow(self, key: Key, record: Record) -> _Open:
        one = self._open.get(key)
        if one is None:
            one = self._open[key] = _Open(record.epoch, record.sequence)
        elif (one.epoch, one.next_sequence) != (record.epoch, record.sequence):
            self._drop(one)
        one.epoch, one.next_sequence = record.epoch, record.sequence + 1
        return one

    def _add(self, one: _Open, steps: dict[str, NDArray], valid: NDArray, begin: int, end: int) -> None:
        chosen = np.flatnonzero(valid[begin:end]) + begin
        if len(chosen):
            part = {name: values[chosen] for name, values in steps.items()}  # a copy: the block may go
            one.parts.append(part)
            one.steps += len(chosen)
            size = sum(values.nbytes for values in part.values())
            one.bytes += size
            self._bytes += size

    def _drop(self, one: _Open) -> None:
        self._bytes -= one.bytes
        one.clear()


def _steps(schema: Schema, record: Record, column: int, row: int) -> dict[str, NDArray]:
    """What is kept of each step of one agent, [T, ...]."""
    group = row // (schema.agents // schema.groups)
    found = {name: record.columns[name][:, column] for name in STEPWISE if name in record.columns}
    found["obs"] = found["obs"][:-1]
    return found | {"version": record.columns["version"][:, group]}


def _episode(
    schema: Schema,
    record: Record,
    row: int,
    one: _Open,
    told: np.void,
    terminated: bool,
    final: NDArray | None,
) -> Episode:
    steps: dict[str, Any] = {
        name: np.concatenate([part[name] for part in one.parts]) for name in one.parts[0]
    }
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
