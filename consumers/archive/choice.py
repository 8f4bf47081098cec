"""Which agents are recorded, and where their columns lie in a slot.

Users of recorded data want whole episodes, and those lie along the columns of consecutive slots; so a
fraction of the agents is recorded all the time, not a fraction of the slots. Worlds are taken whole, one
after the other in an order drawn from the run's seed, and of the last one as many agents as are still wanted:
agents that met each other stay together, and a small share touches few rings.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ringbuf.plan import DTYPES, Field, Plan

CUT_BYTES = 1 << 20  # of one slot, where one agent is not more
BATCH_FIRST = ("state0",)  # fields without a step axis
WHOLE = ("version",)  # fields that belong to groups of agents
TIMED = ("obs", "action", "logprob", "mask", "reward", "terminated", "truncated", "valid")
COLUMNS = (*TIMED, *WHOLE, *BATCH_FIRST)
AGENTS = -1


@dataclass(frozen=True)
class Cut:
    """Agents of one ring whose columns stand together in one record."""

    ring: int
    agents: tuple[int, ...]
    """Rows in the ring's slots, ascending."""


def agent_bytes(plan: Plan) -> int:
    """Of one agent's columns of one slot, what belongs to its group included."""
    own = sum(
        plan.fields[name].bytes // plan.agents for name in (*TIMED, *BATCH_FIRST) if name in plan.fields
    )
    return own + sum(plan.fields[name].bytes for name in WHOLE)


def choose(plans: Sequence[Plan], fraction: float, seed: int) -> list[Cut]:
    """The cuts of a `fraction` of all agents of these rings, at least one agent, by ring and agent. The same
    for the same plans and seed."""
    worlds = [(plan.ring, world) for plan in plans for world in range(plan.worlds)]
    each = plans[0].world_agents
    draw = random.Random(seed)
    draw.shuffle(worlds)
    left = max(1, math.ceil(round(fraction * len(worlds) * each, 6)))
    chosen: dict[int, list[int]] = {}
    for ring, world in worlds:
        members = sorted(draw.sample(range(each), min(each, left)))
        chosen.setdefault(ring, []).extend(world * each + member for member in members)
        left -= len(members)
        if left == 0:
            break
    most = max(1, CUT_BYTES // agent_bytes(plans[0]))
    return [
        Cut(ring, tuple(agents[start : start + most]))
        for ring, agents in sorted((ring, sorted(agents)) for ring, agents in chosen.items())
        for start in range(0, len(agents), most)
    ]


@dataclass(frozen=True)
class Column:
    """One field of a cut's record: [T, agents, ...], observations with T+1 rows, of BATCH_FIRST without the
    T; of WHOLE as in the slot. The number of agents, which differs from cut to cut, is AGENTS in `shape`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def shape_of(self, agents: int) -> tuple[int, ...]:
        return tuple(agents if size == AGENTS else size for size in self.shape)

    def bytes_of(self, agents: int) -> int:
        return prod(self.shape_of(agents)) * DTYPES[self.dtype][1]


def columns(plan: Plan) -> list[Column]:
    """In the order in which they are stored."""
    found = []
    for name in COLUMNS:
        field = plan.fields.get(name)
        if field is not None:
            axis = 0 if name in BATCH_FIRST else 1
            shape = field.shape if name in WHOLE else (*field.shape[:axis], AGENTS, *field.shape[axis + 1 :])
            found.append(Column(name, field.dtype, shape))
    return found


def pieces(plan: Plan, cuts: Sequence[Cut]) -> array[int]:
    """What `Ring.tap` copies to have the cuts' columns one behind the other: pairs (offset in the payload,
    bytes)."""
    made: array[int] = array("Q")
    for cut in cuts:
        for column in columns(plan):
            for offset, size in _ranges(plan.fields[column.name], column.name, plan.agents, cut.agents):
                made.extend((offset, size))
    return made


def _ranges(field: Field, name: str, agents: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    if name in WHOLE or len(chosen) == agents:
        yield field.offset, field.bytes
        return
    rows = 1 if name in BATCH_FIRST else field.shape[0]
    each = field.bytes // (rows * agents)
    for row in range(rows):
        for first, count in _runs(chosen):
            yield field.offset + (row * agents + first) * each, count * each


def _runs(numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(first, how many) of each run of consecutive numbers."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield numbers[start], end - start
            start = end
