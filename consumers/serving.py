"""Groups of agents as the inference server sees them: their questions, and where the answers are written.

The rows of a group are looked at and written where they lie in the producer's ring; a server writes into a
slot only between a question and its answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringbuf import Ring


class Question(NamedTuple):
    """As ringbuf/serving.h has it: one step of one group."""

    number: int
    epoch: int
    sequence: int
    t: int
    step: int
    noise_key: int
    version: int
    carried: int


class Group:
    """One group of a producer's agents, and what the server knows of it. `place`: its first row in the
    lane's."""

    def __init__(self, ring: Ring, index: int, place: int = 0):
        self.ring, self.index, self.place = ring, index, place
        self.plan = plan = ring.plan
        begin, end = plan.group_agents[index]
        self.rows = end - begin
        self.life = ring.server_life
        """Of this server, as the ring counts it: a sweep that was broken off has raised it in some rings
        only."""
        self.first_agent = plan.first_agent + begin
        self.epoch: int | None = None
        """Life of the producer whose agents' recurrent state the server has; None: of none."""
        self.acting: int | None = None
        """Version that acts the slot under way, once it has begun."""
        self.midway = False
        """Whether the slot under way has steps left, which the producer will ask about."""
        self.seen_ns = 0
        """When the question at hand was seen."""
        memory: NDArray[np.uint8] = np.frombuffer(ring, np.uint8)  # type: ignore[call-overload]
        stride, reset, carry = ring.serving_parts()

        def field(slot: int, name: str) -> NDArray[Any] | None:
            found = plan.fields.get(name)
            if found is None:
                return None
            start = slot * stride + found.offset
            whole = memory[start : start + found.bytes].view(found.dtype).reshape(found.shape)
            if name == "version":
                return whole[:, index]
            return whole[begin:end] if name == "state0" else whole[:, begin:end]

        names = ("obs", "action", "logprob", "mask", "version", "state0")
        self._fields = [{name: field(slot, name) for name in names} for slot in range(ring.slots)]
        self.reset_before = memory[reset + begin : reset + end]
        width = 4 * plan.state_width
        self.carry = memory[carry + begin * width : carry + end * width].view(np.float32)
        self.carry = self.carry.reshape(self.rows, plan.state_width)

    def question(self) -> Question | None:
        """What it asks this life of the server."""
        asked = self.ring.question(self.index, self.life)
        return None if asked is None else Question(*asked)

    def field(self, question: Question, name: str) -> NDArray[Any]:
        """Of the slot under way: obs [T+1, n, ...], action [T, n, heads], logprob [T, n], mask [T, n,
        logits], version [T], state0 [n, S]."""
        found = self._fields[question.sequence % self.ring.slots][name]
        assert found is not None, name
        return found

    def answer(self, question: Question, *, refused: bool = False) -> None:
        self.ring.answer(self.index, question.number, refused)
        self.midway = not refused and question.t + 1 < self.plan.horizon


def lanes_of(rings: list[Ring]) -> list[list[Group]]:
    """Groups that are answered together, two lanes of them where there are two groups at all: while one lane
    is computed the worlds of the other step."""
    groups = [(ring, index) for ring in rings for index in range(ring.plan.groups)]
    halves = rings[0].plan.groups if rings[0].plan.groups > 1 else min(2, len(rings))
    lanes: list[list[Group]] = []
    for half in range(halves):
        lane: list[Group] = []
        for number, (ring, index) in enumerate(groups):
            if number % halves == half:
                lane.append(Group(ring, index, sum(one.rows for one in lane)))
        lanes.append(lane)
    return lanes
