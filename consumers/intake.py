"""A learner's rings: credit for the producers, the gate before a batch, the leases of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from ringbuf import MAX_PROCESSES, Control, Lease, Ring, RingError
from ringbuf.admission import RingView, exact_batch, exact_grant, gate, grants

RUNNING = ("starting", "running")  # states of a producer that will use the credit it gets


class Intake:
    """Grants and leases by the rules of docs/architecture.md; what they decide is in ringbuf/admission.py.

    Async: `limit` bounds the lag (None: no bound, then the rings' own size is all that holds producers back).
    Exact modes: batch n holds the same sequences of every ring, acted with version max(0, n - lag).
    """

    def __init__(self, rings: Sequence[Ring], control: Control, limit: int | None):
        self.rings = rings
        self._plan = rings[0].plan
        self._control = control
        self._exact = self._plan.mode == "exact"
        self._limit = limit
        self._bases: list[tuple[int, int]] = []  # exact modes: (sequence, version) of each ring
        self._leases: list[Lease] = []  # of a batch that a torn slot left incomplete
        self._processes: dict[int, int] = {}  # ring to its producer's index in the process table

    def begin(self, version: int) -> None:
        """Exact modes: what each ring writes first belongs to batch `version`."""
        if self._exact:
            self._bases = [(ring.plan.start_sequence, version) for ring in self.rings]
            for ring, base in zip(self.rings, self._bases, strict=True):
                ring.set_base(*base)

    def grant(self, version: int) -> None:
        """Gives the producers all the credit that is due while `version` is the published one."""
        plan = self._plan
        if self._exact:
            for ring, base in zip(self.rings, self._bases, strict=True):
                bound = exact_grant(version, *base, plan.lagged_versions, plan.producers, plan.batch_slots)
                ring.grant(bound - ring.observe().granted)
        elif plan.full == "block":
            slots = [ring.slots for ring in self.rings]
            due = grants(
                [ring.outstanding for ring in self.rings],
                [ring.observe().granted - ring.plan.start_sequence for ring in self.rings],
                slots,
                [self._runs(ring.index) for ring in self.rings],
                plan.batch_slots,
                sum(slots) if self._limit is None else self._limit,  # no bound: as much as the rings hold
            )
            for i in due:
                self.rings[i].grant()

    def lease(self, version: int) -> list[Lease] | None:
        """The batch of `version`, in its order, or None: not yet. Raises RingError where a slot is torn
        that the batch cannot do without."""
        while True:
            wanted = self._exact_batch(version) if self._exact else self._gate(version)
            if wanted is None:
                return None
            if all(self._take(ring, sequence) for ring, sequence in wanted):
                batch, self._leases = self._leases, []
                return batch

    def _take(self, ring: int, sequence: int) -> bool:
        """Leases one slot. False: it is torn, or lost to a producer that drops the oldest; what was leased
        before stays, and the batch is filled up with others."""
        lease = self.rings[ring].lease(sequence)
        if lease is None:
            if self._exact:
                raise RingError(f"ring {ring}: slot {sequence} is {self.rings[ring].last_failure}")
            return False
        self._leases.append(lease)
        return True

    def drop(self, reason: str) -> int:
        """Gives back all that is ready or leased, unread and counted as dropped. Returns how many slots."""
        dropped = len(self._leases)
        while self._leases:
            self._leases.pop().drop(reason)
        for ring in self.rings:
            for state, sequence, *_ in ring.observe().slots:
                if state == "ready" and ring.drop(sequence, reason):
                    dropped += 1
        return dropped

    def wake_producers(self) -> None:
        """After a publication."""
        for ring in self.rings:
            ring.ring_producer()

    def _gate(self, version: int) -> list[tuple[int, int]] | None:
        views = []
        for ring in self.rings:
            seen = ring.observe()
            slots = [(state, sequence, version) for state, sequence, _, version in seen.slots]
            views.append(RingView(seen.acting, slots))
        return gate(version, views, self._plan.batch_slots, self._limit)

    def _exact_batch(self, version: int) -> list[tuple[int, int]] | None:
        """All slots of the batch in (sequence, ring) order, once all are ready."""
        plan = self._plan
        taken = {(lease.ring, lease.sequence) for lease in self._leases}
        order = []
        for i, ring in enumerate(self.rings):
            ready = {sequence for state, sequence, *_ in ring.observe().slots if state == "ready"}
            sequences = exact_batch(version, *self._bases[i], plan.producers, plan.batch_slots)
            wanted = [s for s in sequences if (ring.index, s) not in taken]
            if not ready.issuperset(wanted):
                return None
            order += [(s, i) for s in wanted]
        return [(i, s) for s, i in sorted(order)]

    def _runs(self, ring: int) -> bool:
        if ring not in self._processes:
            for i in range(MAX_PROCESSES):
                process = self._control.process(i)
                if process.role == "producer":
                    self._processes[process.role_index] = i
        return ring in self._processes and self._control.process(self._processes[ring]).state in RUNNING
