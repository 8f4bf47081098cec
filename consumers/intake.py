"""A learner's rings: credit for the producers, the gate before a batch, the leases of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringbuf import MAX_PROCESSES, Control, Lease, Ring
from ringbuf.admission import RingView, exact_batch, exact_grant, gate, grants

RUNNING = ("starting", "running")  # states of a producer that will use the credit it gets
LAST_DELIVERY = 3  # a learner that dies with a slot at this delivery leaves it set aside


class SetAside(Exception):
    """A slot of an exact mode's batch was torn or killed its learners: the batch cannot be had any more."""


class Intake:
    """Grants and leases by the rules of docs/architecture.md; what they decide is in ringbuf/admission.py.

    Async: `limit` bounds the lag (None: no bound, then the rings' own size is all that holds producers back);
    slots acted by versions below `floor` are dropped. Exact modes: batch n holds the same sequences of every
    ring, counted from `bases`, acted with version max(base, n - lag); what lies before the bases is dropped.

    Each of several learners has a part of the rings and as large a part of every batch. By the same rules as
    if they were all there is: what holds for the parts holds for the whole.
    """

    def __init__(
        self,
        rings: Sequence[Ring],
        control: Control,
        limit: int | None,
        examine: Callable[[Lease], None] = lambda lease: None,
        every: Sequence[Ring] | None = None,
    ):
        """`examine` is given a slot at its last delivery, before it is trained on beside others. `every`: all
        rings of the run in order, those of other learners to look at; None: there are no others."""
        self.rings = rings
        self.every = rings if every is None else every
        self.floor = 0
        self.bases: list[tuple[int, int]] = []  # exact modes: (sequence, version) of every ring of the run
        self.exact = rings[0].plan.mode == "exact"
        self._plan = rings[0].plan
        self._batch_slots = self._plan.batch_slots * len(rings) // len(self.every)
        self._control = control
        self._limit = limit
        self._examine = examine
        self._leases: list[Lease] = []  # of a batch that a torn slot left incomplete
        self._untested: list[Lease] = []  # of these
        self._processes: dict[int, int] = {}  # ring to its producer's index in the process table

    def begin(self, version: int) -> None:
        """What the rings write first belongs to batch `version`."""
        self.bases = [(ring.plan.start_sequence, version) for ring in self.every]

    def abandon(self, version: int) -> None:
        """What is in flight, or has credit already, belongs to a policy that `version` has taken the place
        of: it will be dropped."""
        if self.exact:
            self.bases = [(ring.observe().granted, version) for ring in self.every]
        else:
            self.floor = version

    def announce(self) -> None:
        """Exact modes: tells the producers where the batches begin; the version is published by then."""
        if self.exact:
            for ring in self.rings:
                ring.set_base(*self.bases[ring.index])

    def grant(self, version: int) -> None:
        """Gives the producers all the credit that is due while `version` is the published one."""
        self._drop_abandoned()
        plan = self._plan
        if self.exact:
            for ring in self.rings:
                base = self.bases[ring.index]
                bound = exact_grant(version, *base, plan.lagged_versions, plan.producers, plan.batch_slots)
                ring.grant(bound - ring.observe().granted)
        elif plan.full == "block":
            slots = [ring.slots for ring in self.rings]
            due = grants(
                [ring.outstanding for ring in self.rings],
                [ring.observe().granted - ring.plan.start_sequence for ring in self.rings],
                slots,
                [self.runs(ring.index) for ring in self.rings],
                self._batch_slots,
                sum(slots) if self._limit is None else self._limit,  # no bound: as much as the rings hold
            )
            for i in due:
                self.rings[i].grant()

    def lease(self, version: int) -> list[Lease] | None:
        """The batch of `version`, in its order, or None: not yet. Raises SetAside."""
        while True:
            wanted = self._exact_batch(version) if self.exact else self._gate(version)
            if wanted is None:
                return None
            # Slots at their last delivery come first: the others are not there when one of them kills.
            if all(self._take(ring, sequence) for _, ring, sequence in sorted(wanted)):
                batch, self._leases = sorted(self._leases, key=self._place), []
                self._untested.clear()
                return batch

    def first_sequences(self, version: int) -> list[int]:
        """Exact modes: where batch `version` begins in each of the learner's rings."""
        return [self._sequences(ring, version).start for ring in self.rings]

    def drop(self, reason: str) -> int:
        """Gives back all that is ready or leased, unread and counted as dropped. Returns how many slots."""
        dropped = self.drop_leased(reason)
        for ring in self.rings:
            for state, sequence, *_ in ring.observe().slots:
                if state == "ready" and ring.drop(sequence, reason):
                    dropped += 1
        return dropped

    def drop_leased(self, reason: str) -> int:
        """Gives back what a batch left incomplete."""
        dropped = len(self._leases)
        self._untested.clear()
        while self._leases:
            self._leases.pop().drop(reason)
        return dropped

    def wake_producers(self) -> None:
        """After a publication."""
        for ring in self.rings:
            ring.ring_producer()

    def runs(self, ring: int) -> bool:
        """Whether the ring's producer is there, or coming."""
        if ring not in self._processes:
            for i in range(MAX_PROCESSES):
                process = self._control.process(i)
                if process.role == "producer":
                    self._processes[process.role_index] = i
        return ring in self._processes and self._control.process(self._processes[ring]).state in RUNNING

    def _take(self, ring: int, sequence: int) -> bool:
        """Leases one slot. False: it is torn, or lost to a producer that drops the oldest; what was leased
        before stays, and the batch is filled up with others."""
        lease = self.rings[ring].lease(sequence)
        if lease is None:
            if self.exact:
                found = self.rings[ring]
                raise SetAside(f"ring {found.index}: slot {sequence} is {found.last_failure}")
            return False
        self._leases.append(lease)
        self._untested.append(lease)
        if lease.deliveries >= LAST_DELIVERY:
            # What a torn slot left incomplete is looked at too, so that nothing untested lies beside this.
            while self._untested:
                tested = self._untested.pop(0)
                self._examine(tested)
                tested.examined()
        return True

    def _place(self, lease: Lease) -> tuple[int, int, int]:
        """Where a slot stands in its batch, whatever the order in which they were leased."""
        if self.exact:
            return lease.sequence - self.bases[lease.ring][0], lease.ring, 0
        return lease.version, lease.sequence, lease.ring

    def _drop_abandoned(self) -> None:
        if not self.exact and self.floor == 0:
            return
        for ring in self.rings:
            for state, sequence, _, acted in ring.observe().slots:
                if state == "ready" and self._is_abandoned(ring, sequence, acted):
                    ring.drop(sequence, "rollback")

    def _is_abandoned(self, ring: Ring, sequence: int, acted: int | None) -> bool:
        if self.exact:
            return sequence < self.bases[ring.index][0]
        return acted is not None and acted < self.floor

    def _gate(self, version: int) -> list[tuple[bool, int, int]] | None:
        """(has been delivered less often, ring, sequence) of the slots to lease."""
        views: list[RingView] = []
        deliveries: dict[tuple[int, int], int] = {}
        for i, ring in enumerate(self.rings):
            seen = ring.observe()
            slots = [(state, sequence, acted) for state, sequence, _, acted in seen.slots]
            views.append(RingView(seen.acting, slots))
            deliveries |= {(i, sequence): count for _, sequence, count, _ in seen.slots}
        chosen = gate(version, views, self._batch_slots, self._limit, self.floor)
        if chosen is None:
            return None
        return [(deliveries[one] < LAST_DELIVERY - 1, *one) for one in chosen]

    def _exact_batch(self, version: int) -> list[tuple[bool, int, int]] | None:
        """The same for all slots of the batch, once all are ready. Raises SetAside."""
        taken = {(lease.ring, lease.sequence) for lease in self._leases}
        wanted, complete = [], True
        for i, ring in enumerate(self.rings):
            slots = ring.observe().slots
            for sequence in self._sequences(ring, version):
                state, held, deliveries, _ = slots[sequence % ring.slots]
                if (ring.index, sequence) in taken:
                    continue
                if held > sequence or (state == "bad" and held == sequence):
                    raise SetAside(f"ring {ring.index}: slot {sequence} was set aside")
                complete = complete and state == "ready" and held == sequence
                wanted.append((deliveries < LAST_DELIVERY - 1, i, sequence))
        return wanted if complete else None

    def _sequences(self, ring: Ring, version: int) -> range:
        """Exact modes: of batch `version`."""
        return exact_batch(version, *self.bases[ring.index], self._plan.producers, self._plan.batch_slots)
