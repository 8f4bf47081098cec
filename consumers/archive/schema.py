"""The first block of every shard: what the others hold, so that a shard can be read by itself, anywhere."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgpack

from consumers.archive import blocks, choice
from consumers.archive.blocks import Block, Damaged
from consumers.archive.choice import AGENTS, Column, Cut
from ringbuf.plan import DTYPES, EPISODE_BYTES, Plan

FORMAT = 1
EPISODES = "episodes"  # the column of episode records, which belongs to no field of that name and shape
MAX_DIMS = 6
MAX_ELEMENTS = blocks.MAX_RAW_BYTES
TEXTS = ("run", "run_id", "sim")
NUMBERS = ("seed", "horizon", "agents", "world_agents", "groups", "episode_bytes", "score")


@dataclass(frozen=True)
class Schema:
    """Of the rings and of what was chosen of them; sizes and shapes as in ringbuf.plan.Plan."""

    run: str
    """Name of the run."""
    run_id: str
    """Of its shared memory; sequences of another one are others."""
    sim: str
    params: dict[str, float]
    seed: int
    fraction: float
    horizon: int
    agents: int
    """Of one ring. Agent `row` of ring r is number r * agents + row of the run."""
    world_agents: int
    groups: int
    choices: tuple[int, ...]
    """Of each head, where actions are discrete."""
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    statistics: tuple[str, ...]
    score: int
    """Which of them is the score."""
    episode_bytes: int
    """Of a record: int64 version, int32 agent (row), int32 length, float32 return, float32 each statistic."""
    columns: tuple[Column, ...]
    cuts: tuple[Cut, ...]

    @classmethod
    def of(
        cls, plans: Sequence[Plan], cuts: Sequence[Cut], *, run: str, run_id: str, fraction: float,
        statistics: Sequence[str],
    ) -> Schema:  # fmt: skip
        """Of rings with these plans. `statistics`: names of the simulator's."""
        plan = plans[0]
        return cls(
            run, run_id, plan.sim, dict(plan.params), plan.run_seed, fraction, plan.horizon, plan.agents,
            plan.world_agents, plan.groups, plan.choices, plan.action_low, plan.action_high,
            tuple(statistics), plan.score, plan.episode_bytes, tuple(choice.columns(plan)), tuple(cuts),
        )  # fmt: skip

    def encode(self, level: int) -> list[bytes]:
        """As a block. The same bytes for the same schema."""
        meta: dict[str, Any] = {"format": FORMAT}
        meta |= {name: getattr(self, name) for name in (*TEXTS, *NUMBERS, "params", "fraction")}
        meta |= {
            name: list(getattr(self, name)) for name in ("choices", "action_low", "action_high", "statistics")
        }
        meta["fields"] = [[column.name, column.dtype, list(column.shape)] for column in self.columns]
        meta["cuts"] = [{"ring": cut.ring, "agents": array("i", cut.agents).tobytes()} for cut in self.cuts]
        return blocks.encode(blocks.SCHEMA, msgpack.packb(meta), [], level)

    @classmethod
    def read(cls, block: Block, file: str, offset: int = 0) -> Schema:
        """Raises Damaged where the block is none, or one of another format."""
        meta = block.meta
        if meta.get("format") != FORMAT:
            raise Damaged(file, offset, f"format {meta.get('format')!r}; this version reads {FORMAT}")
        try:
            schema = cls._checked(meta)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Damaged(file, offset, f"schema: {type(error).__name__}: {error}") from None
        return schema

    @classmethod
    def _checked(cls, meta: Mapping[str, Any]) -> Schema:
        values: dict[str, Any] = {name: _typed(meta, name, str) for name in TEXTS}
        values |= {name: _typed(meta, name, int) for name in NUMBERS}
        for name in NUMBERS[1:-1]:
            if not 1 <= values[name] <= MAX_ELEMENTS:
                raise ValueError(f"{name} is {values[name]}")
        params = _typed(meta, "params", dict)
        values["params"] = {str(key): float(value) for key, value in params.items()}
        values["fraction"] = float(meta["fraction"])
        for name, kind in (
            ("choices", int),
            ("action_low", float),
            ("action_high", float),
            ("statistics", str),
        ):
            values[name] = tuple(kind(value) for value in _typed(meta, name, list))
        if values["episode_bytes"] < EPISODE_BYTES + 4 * len(values["statistics"]):
            raise ValueError(f"records of {values['episode_bytes']} bytes")
        if values["agents"] % values["groups"]:
            raise ValueError(f"{values['groups']} groups")
        values["columns"] = tuple(_column(field, values) for field in _typed(meta, "fields", list))
        names = [column.name for column in values["columns"]]
        if len(set(names)) != len(names) or not {
            "obs",
            "action",
            "logprob",
            "version",
            "reward",
            "terminated",
            "truncated",
            "valid",
        } <= {*names}:
            raise ValueError(f"fields {names}")
        values["cuts"] = tuple(_cut(cut, values["agents"]) for cut in _typed(meta, "cuts", list))
        return cls(**values)


def _typed(meta: Mapping[str, Any], name: str, kind: type) -> Any:
    value = meta[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is a {type(value).__name__}")
    return value


def _column(field: Any, values: Mapping[str, Any]) -> Column:
    """A field as the writer would describe it: names, types and axes that assembling relies on."""
    name, dtype, shape = field
    if name not in choice.COLUMNS or dtype not in DTYPES:
        raise ValueError(f"field {name!r} of {dtype!r}")
    if len(shape) > MAX_DIMS or not all(type(size) is int and (size > 0 or size == AGENTS) for size in shape):
        raise ValueError(f"field {name!r} of shape {shape!r}")
    horizon = values["horizon"]
    if name in choice.WHOLE:
        begins: tuple[int, ...] = (horizon, values["groups"])
    elif name in choice.BATCH_FIRST:
        begins = (AGENTS,)
    else:
        begins = (horizon + (name == "obs"), AGENTS)
    flat = name in (*choice.WHOLE, "logprob", "reward", "terminated", "truncated", "valid")
    kinds = {
        "terminated": "uint8",
        "truncated": "uint8",
        "valid": "uint8",
        "version": "int64",
        "reward": "float32",
    }
    rest = shape[len(begins) :]
    if (
        tuple(shape[: len(begins)]) != begins
        or AGENTS in rest
        or (flat and rest)
        or kinds.get(name, dtype) != dtype
    ):
        raise ValueError(f"field {name!r} of {dtype} {shape!r}")
    if math.prod(map(abs, shape)) * DTYPES[dtype][1] > blocks.MAX_RAW_BYTES:
        raise ValueError(f"field {name!r} of shape {shape!r}")
    return Column(name, dtype, tuple(shape))


def _cut(cut: Any, agents: int) -> Cut:
    ring, rows = cut["ring"], array("i")
    rows.frombytes(cut["agents"])
    if type(ring) is not int or not 0 <= ring < MAX_ELEMENTS or not rows:
        raise ValueError(f"a cut of ring {ring!r}")
    if min(rows) < 0 or max(rows) >= agents or any(a >= b for a, b in pairwise(rows)):
        raise ValueError(f"a cut of agents that ring {ring} does not have")
    return Cut(ring, tuple(rows))
