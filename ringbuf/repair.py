"""What the dead leave in the segments of a run, put in order: the supervisor's whole hand in them.

Every step may be repeated, so a supervisor that dies half-way leaves nothing that its successor's does not
complete. docs/architecture.md, "After a death", says what is found and what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ringbuf._ring import Control, Ring, Weights
from ringbuf.admission import owned


class Repair:
    """Of one run. Nobody's dead are touched before they were reaped: only the kernel tells that no store of
    theirs is to come."""

    def __init__(self, control: Control, weights: Weights, rings: Sequence[Ring], learners: int = 1):
        self._control = control
        self._weights = weights
        self._rings = rings
        self._learners = learners

    def of_producer(self, ring: int) -> None:
        """The slot it was writing is free again; its next life writes the same sequence."""
        self._rings[ring].sweep_producer()

    def of_learner(self, process: int, learner: int = 0, *, blameless: bool = False) -> None:
        """The slots it held: consumed if the published version is made of them, else ready again. Not before
        every learner is dead that had no clean end: they might publish what one of them has held.
        `blameless`: it was ended because another died."""
        consumed = self._weights.consumed_list() if self._weights.published is not None else []
        for ring in self.rings_of(learner):
            self._rings[ring].sweep_learner(process, consumed, blameless)
            self._rings[ring].set_owner(None)

    def of_server(self, server: int) -> None:
        """Its producers give up the slots they are writing."""
        for ring in self._rings:
            if ring.plan.server == server + 1:
                ring.sweep_server()

    def hand_over(self, learner: int) -> None:
        """To a learner that is about to start: its rings, always the same."""
        for ring in self.rings_of(learner):
            self._rings[ring].set_owner(learner)

    def rings_of(self, learner: int) -> range:
        """Their numbers."""
        return owned(learner, len(self._rings), self._learners)

    def take_back_credit(self, ring: int) -> None:
        """From a producer that does not run: else the whole run waits for it. In the exact modes its slots
        are due from it alone, and nobody else could use the credit."""
        if self._rings[ring].plan.mode != "exact":
            self._rings[ring].lower_granted_to_head()

    def free_bad(self, keep: Callable[[Ring, int], Any]) -> None:
        """Gives slots that were set aside back, each after `keep(ring, sequence)`."""
        for ring in self._rings:
            if not ring.books()["bad"]:
                continue
            for state, sequence, *_ in ring.observe().slots:
                if state == "bad":
                    keep(ring, sequence)
                    ring.drop(sequence, "bad")

    def drop_ready(self) -> None:
        """When nobody is left to train on them."""
        for ring in self._rings:
            ring.set_owner(None)  # it may be that of a learner that could not be started
            for state, sequence, *_ in ring.observe().slots:
                if state == "ready":
                    ring.drop(sequence, "shutdown")

    def written(self, ring: int) -> int:
        """Segments that the producers of a ring have stepped to their end, one after the other."""
        books = self._rings[ring].books()
        return int(books["committed"] + books["not_written"])

    def last_header(self, ring: int) -> dict[str, Any]:
        """Of the slot that was committed last; of the first where there was none yet."""
        one = self._rings[ring]
        return one.header(max(one.plan.start_sequence, one.books()["head"] - 1))
