"""Admission: who may begin a slot, and when a batch may be trained, so that no step is older than the limit.

Pure functions without I/O. Three rules together keep the lag of every trained step within `limit` versions
without throwing anything away; tests/test_admission.py searches all interleavings of small cases and shows
what each rule is for.

    credit   outstanding(ring) = granted - start - done        from the words
             grant while  sum of outstanding < (limit + 1) * batch_slots
    acting   a producer shows the version it acts with before it claims, and shows it again until no newer one
             was published meanwhile
    gate     train the batch_slots oldest ready slots at version n only if, for every d in 0 .. limit, at most
             d * batch_slots slots outside the batch have an acting version <= n - limit + d
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ringbuf._ring import Observation


class RingView(NamedTuple):
    """A ring as the gate sees it; what `Ring.observe()` returns is one too."""

    acting: int | None  # must have been read before the slots
    slots: Sequence[tuple[Any, ...]]  # (state, sequence, ..., acting version of a ready slot)


def grants(outstanding: Sequence[int], granted_total: Sequence[int], slots: Sequence[int],
           running: Sequence[bool], batch_slots: int, limit: int) -> list[int]:
    """Which rings get credit for one more slot each, in order (a ring may come several times).

    outstanding: granted - start - done of each ring; granted_total: granted - start; slots: capacity;
    running: whether its producer runs. The ring with the fewest outstanding comes first, ties go to the one
    granted least so far: by number, the first rings would starve the others."""
    now, total, given = list(outstanding), list(granted_total), []
    while sum(now) < (limit + 1) * batch_slots:
        open_rings = [r for r in range(len(now)) if running[r] and now[r] < slots[r]]
        if not open_rings:
            break
        ring = min(open_rings, key=lambda r: (now[r], total[r], r))
        now[ring] += 1
        total[ring] += 1
        given.append(ring)
    return given


def gate(version: int, views: Sequence[RingView | Observation], batch_slots: int, limit: int | None,
         floor: int = 0) -> list[tuple[int, int]] | None:
    """The slots (ring, sequence) to lease for the batch of `version`, oldest acting version first, or None to
    wait.

    Slots leased already (after a torn one was set aside, the others stay) belong to the batch: only what is
    missing is returned. Slots and acting versions below `floor` are from an abandoned policy; they are
    dropped elsewhere and do not count. A slot being written counts as its announced version, or as `version`
    where none is announced, since a producer that announces from now on sees that. `limit` None: no bound.
    """
    ready, outside, leased = [], [], 0
    for ring, view in enumerate(views):
        if view.acting is not None and view.acting >= floor:
            outside.append(view.acting)
        for state, sequence, *_, acted in view.slots:
            if state == "leased":
                leased += 1
            elif state == "writing" and view.acting is None:
                outside.append(version)
            elif state == "ready" and acted is not None and acted >= floor:
                ready.append((acted, sequence, ring))
    missing = batch_slots - leased
    if len(ready) < missing:
        return None
    ready.sort()
    if limit is not None:
        outside += [acted for acted, _, _ in ready[missing:]]
        for ahead in range(limit + 1):
            if sum(acted <= version - limit + ahead for acted in outside) > ahead * batch_slots:
                return None
    return [(ring, sequence) for _, sequence, ring in ready[:missing]]


def owned(learner: int, rings: int, learners: int) -> range:
    """The rings of one learner of several: equally many neighbours, the same as long as the run lives."""
    each = rings // learners
    return range(learner * each, (learner + 1) * each)


def exact_grant(published: int | None, base_sequence: int, base_version: int, lag: int, producers: int,
                batch_slots: int) -> int:
    """Exact modes: the sequence below which a ring may write: the slots of batches <= published + lag."""
    if published is None:
        return base_sequence
    return base_sequence + max(0, published + lag - base_version + 1) * (batch_slots // producers)


def exact_batch(version: int, base_sequence: int, base_version: int, producers: int,
                batch_slots: int) -> range:
    """Exact modes: the sequences of batch `version`, the same in every ring."""
    each = batch_slots // producers
    first = base_sequence + (version - base_version) * each
    return range(first, first + each)
