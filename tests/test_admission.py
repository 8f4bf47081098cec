"""The rules of admission, searched: every interleaving of small cases, and what each rule is for.

The model takes the steps of docs/architecture.md one load or store of shared memory at a time. A producer
waits, shows its version, looks again, claims, commits, clears and rings; the learner arms its bell, reads
every ring (acting version, then words), grants, trains, publishes and acks, or sleeps. Versions are kept as
ages (published minus version), so the reachable states are finitely many and the search covers runs of any
length. Grants and gate are the functions under test. """

from collections import deque
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringbuf import admission

FREE, WRITING, LEASED = "free", "writing", "leased"  # of a slot; a ready one is the age of its acting version
N = 50  # stands for the published version where ages become versions


class Case(NamedTuple):
    """What is searched. The rules are on by default; each can be taken away."""

    slots: tuple[int, ...]  # of each ring
    batch: int
    limit: int
    looks_again: bool = True  # at the published version, after showing the acting one
    acting_first: bool = True  # the learner reads it before the words
    announces_late: bool = True  # only when there are credit and room
    counts_room: bool = True  # no ring is granted more than it holds
    clears_before_ringing: bool = True
    publishes_before_acking: bool = True
    extra_credit: int = 0  # versions
    gate: Any = admission.gate


class Producer(NamedTuple):
    """`at`: wait, show, look, claim, commit, clear, ring. `slots` begins with the one to be written next,
    which is also the oldest one if it is occupied."""

    at: str
    age: int | None
    acting: int | None
    credit: int  # granted - sequence
    slots: tuple


class Learner(NamedTuple):
    """`at`: arm, read, grant, train, publish, ack, sleep."""

    at: str
    views: tuple  # what was read so far: acting and words of ring 0, of ring 1, ...
    batch: tuple  # ready slots to lease, by ring
    waiting: bool
    rung: bool


def producer_steps(case, learner, p):
    """(learner, producer) after the one step that the producer can take, if it can."""
    ready = p.credit > 0 and p.slots[0] == FREE
    if p.at == "wait" and (ready or not case.announces_late):
        yield learner, p._replace(at="show", age=0)
    elif p.at == "show":
        yield learner, p._replace(at="look", acting=p.age)
    elif p.at == "look":
        if case.looks_again and p.age != 0:
            yield learner, p._replace(at="show", age=0)
        else:
            yield learner, p._replace(at="claim")
    elif p.at == "claim" and ready:
        yield learner, p._replace(at="commit", slots=(WRITING, *p.slots[1:]))
    elif p.at == "commit":
        yield learner, p._replace(at="clear" if case.clears_before_ringing else "ring", age=None,
                                  credit=p.credit - 1, slots=(*p.slots[1:], p.age))
    elif p.at == "clear":
        yield learner, p._replace(at="ring" if case.clears_before_ringing else "wait", acting=None)
    elif p.at == "ring":
        woken = learner._replace(waiting=False, rung=True) if learner.waiting else learner
        yield woken, p._replace(at="wait" if case.clears_before_ringing else "clear")


def seen(case, views):
    """What the learner read, as the gate takes it; sequences count from the oldest slot of each ring."""
    out = []
    for acting, slots in zip(views[::2], views[1::2]) if case.acting_first else zip(views[1::2], views[::2]):
        words = [("writing", len(slots), None) if slot == WRITING else ("ready", k, N - slot)
                 for k, slot in enumerate(slots) if slot != FREE]
        out.append(admission.RingView(None if acting is None else N - acting, words))
    return out


def learner_steps(case, learner, producers):
    """(learner, producers) after each step that the learner can take."""
    rings = range(len(producers))
    if learner.at == "arm":
        yield Learner("read", (), (), True, False), producers
    elif learner.at == "read":
        ring, second = divmod(len(learner.views), 2)
        acting = case.acting_first != bool(second)
        views = (*learner.views, producers[ring].acting if acting else producers[ring].slots)
        if len(views) < 2 * len(producers):
            yield learner._replace(views=views), producers
            return
        batch = case.gate(N, seen(case, views), case.batch, case.limit) or ()
        counts = tuple(sum(r == ring for r, _ in batch) for ring in rings) if batch else ()
        yield Learner("grant", (), counts, learner.waiting, learner.rung), producers
    elif learner.at == "grant":
        outstanding = [p.credit + sum(slot not in (FREE, WRITING) for slot in p.slots) for p in producers]
        room = [len(p.slots) if case.counts_room else 10**6 for p in producers]
        # However the ties fall: any ring may have been granted more than another so far.
        histories = {tuple(9 * ((r + k) % len(rings)) for r in rings) for k in rings} | {(0,) * len(rings)}
        after = learner._replace(at="train" if learner.batch else "sleep")
        for outcome in {tuple(admission.grants(outstanding, history, room, [True] * len(rings), case.batch,
                                               case.limit + case.extra_credit)) for history in histories}:
            yield after, tuple(p._replace(credit=p.credit + outcome.count(r))
                               for r, p in enumerate(producers))
    elif learner.at == "train":
        leased = []
        for p, count in zip(producers, learner.batch):
            slots = list(p.slots)
            for k in [k for k, slot in enumerate(slots) if isinstance(slot, int)][:count]:
                assert slots[k] <= case.limit, f"lag {slots[k]} above {case.limit}"
                slots[k] = LEASED
            leased.append(p._replace(slots=tuple(slots)))
        after = learner._replace(at="publish" if case.publishes_before_acking else "ack", batch=())
        yield after, tuple(leased)
    elif learner.at == "publish":
        def aged(age):
            return min(age + 1, case.limit + 2) if isinstance(age, int) else age
        yield learner._replace(at="ack" if case.publishes_before_acking else "arm"), tuple(
            p._replace(age=aged(p.age), acting=aged(p.acting), slots=tuple(map(aged, p.slots)))
            for p in producers)
    elif learner.at == "ack":
        for r, p in enumerate(producers):
            if LEASED in p.slots:
                k = p.slots.index(LEASED)
                freed = p._replace(slots=(*p.slots[:k], FREE, *p.slots[k + 1:]))
                yield learner, (*producers[:r], freed, *producers[r + 1:])
                return
        yield learner._replace(at="arm" if case.publishes_before_acking else "publish"), producers
    elif learner.at == "sleep" and learner.rung:
        yield learner._replace(at="arm"), producers


def search(case):
    """Visits every reachable state; returns their number. AssertionError: a promise is broken."""
    start = (Learner("arm", (), (), False, False),
             tuple(Producer("wait", None, None, 0, (FREE,) * slots) for slots in case.slots))
    known, todo = {start}, deque([start])
    while todo:
        learner, producers = todo.popleft()
        following = list(learner_steps(case, learner, producers))
        for i, p in enumerate(producers):
            following += [(changed, (*producers[:i], stepped, *producers[i + 1:]))
                          for changed, stepped in producer_steps(case, learner, p)]
        assert following, f"deadlock: {learner} {producers}"
        new = set(following) - known
        known |= new
        todo += new
    return len(known)


CASES = [Case((2,), 1, 0), Case((3,), 2, 1), Case((4,), 2, 2), Case((2, 2), 2, 0), Case((1, 3), 3, 0),
         Case((2, 2), 1, 1), Case((2, 2), 2, 1), Case((2, 1), 1, 2)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.slots} K={case.batch} limit={case.limit}")
def test_no_step_is_older_than_the_limit_and_nobody_waits_for_ever(case):
    assert search(case) > 20


def oldest_ready(version, views, batch_slots, limit):
    """The batch without the condition on what stays outside."""
    return admission.gate(version, views, batch_slots, None)


def blind_to_acting(version, views, batch_slots, limit):
    """The gate without the announced versions."""
    blind = [admission.RingView(None, view.slots) for view in views]
    return admission.gate(version, blind, batch_slots, limit)


WITHOUT = {
    "a second look at published a step gets too old": ("lag", Case((2, 2), 1, 1, looks_again=False)),
    "reading acting before the words a step gets too old": ("lag", Case((2, 2), 1, 1, acting_first=False)),
    "the gate a step gets too old": ("lag", Case((2, 2), 1, 1, gate=oldest_ready)),
    "the acting version at the gate a step gets too old": ("lag", Case((2, 2), 1, 1, gate=blind_to_acting)),
    "waiting before announcing all wait": ("deadlock", Case((2, 2), 2, 0, announces_late=False)),
    "counting the room of a ring all wait": ("deadlock", Case((1, 3), 3, 0, counts_room=False)),
    "clearing before ringing all wait": ("deadlock", Case((2, 2), 1, 1, clears_before_ringing=False)),
    "the limit of credit all wait": ("deadlock", Case((2, 2), 1, 1, extra_credit=1)),
}


@pytest.mark.parametrize(("how", "case"), WITHOUT.values(), ids=list(WITHOUT))
def test_a_promise_breaks_without(how, case):
    with pytest.raises(AssertionError, match=how):
        search(case)


def granted_in_turns(grant, rings, batch, limit, rounds):
    """Slots granted to each ring when producers use credit at once and the learner takes the oldest slots."""
    total, queue = [0] * rings, []
    for _ in range(rounds):
        outstanding = [queue.count(r) for r in range(rings)]
        given = grant(outstanding, total, [2] * rings, [True] * rings, batch, limit)
        for ring in given:
            total[ring] += 1
            queue.append(ring)
        del queue[:batch]
    return total


def test_every_ring_gets_its_share():
    total = granted_in_turns(admission.grants, 3, 1, 0, 30)
    assert total == [10, 10, 10]


def test_with_ties_by_number_the_other_rings_starve():
    def by_number(outstanding, granted_total, *rest):
        return admission.grants(outstanding, [0] * len(outstanding), *rest)
    assert granted_in_turns(by_number, 3, 1, 0, 30) == [30, 0, 0]


RINGS = st.integers(1, 5).flatmap(lambda n: st.tuples(
    st.lists(st.integers(0, 4), min_size=n, max_size=n), st.lists(st.integers(0, 99), min_size=n, max_size=n),
    st.lists(st.integers(1, 4), min_size=n, max_size=n), st.lists(st.booleans(), min_size=n, max_size=n)))


@given(RINGS, st.integers(1, 6), st.integers(0, 3))
def test_grants_go_to_running_rings_with_room_until_the_credit_is_used_up(rings, batch, limit):
    outstanding, total, slots, running = rings
    given_to = admission.grants(outstanding, total, slots, running, batch, limit)
    after = [out + given_to.count(r) for r, out in enumerate(outstanding)]
    for ring in given_to:
        assert running[ring]
        assert after[ring] <= slots[ring]
    left = (limit + 1) * batch - sum(outstanding)
    room = sum(max(0, slots[r] - out) for r, out in enumerate(outstanding) if running[r])
    assert len(given_to) == max(0, min(left, room))


def view(acting, *slots):
    """Ready slots by version, 'w' for one being written, 'l' for a leased and 'b' for a bad one."""
    states = {"w": "writing", "l": "leased", "b": "bad"}
    return admission.RingView(acting, [(states.get(slot, "ready"), k, slot if isinstance(slot, int) else None)
                                       for k, slot in enumerate(slots)])


def test_the_batch_is_the_oldest_slots_oldest_first():
    assert admission.gate(5, [view(None, 5, 5), view(None, 4, 5)], 2, None) == [(1, 0), (0, 0)]
    assert admission.gate(5, [view(None, 5), view(None, 5)], 3, None) is None


def test_the_gate_waits_for_an_old_slot_that_is_announced_or_being_written():
    ready = view(None, 5, 5)
    assert admission.gate(5, [ready, view(None)], 2, 1) is not None
    assert admission.gate(5, [ready, view(4)], 2, 1) is None
    assert admission.gate(5, [ready, view(4, "w")], 2, 1) is None
    assert admission.gate(5, [ready, view(5, "w")], 2, 1) is not None
    assert admission.gate(5, [ready, view(None, "w")], 2, 0) is None  # as version 5, and none may be left
    assert admission.gate(5, [ready, view(4, "w")], 2, None) is not None


def test_leased_slots_belong_to_the_batch_and_bad_ones_to_nobody():
    assert admission.gate(5, [view(None, "l", "b", 5, 4)], 2, 1) == [(0, 3)]
    assert admission.gate(5, [view(None, "l", "b")], 2, 1) is None


def test_what_is_below_the_floor_does_not_count():
    views = [view(3, 3, 9, 9), view(None, 8)]
    assert admission.gate(9, views, 2, 0) is None
    assert admission.gate(9, views, 2, 0, floor=9) == [(0, 1), (0, 2)]
    assert admission.gate(9, views, 3, 1, floor=9) is None


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**40), st.integers(0, 50),
       st.integers(0, 60))
def test_in_exact_modes_grants_end_where_the_batch_after_the_last_allowed_one_begins(
        lag, producers, each, base_sequence, base_version, ahead):
    published, slots = base_version + ahead, producers * each
    base = (base_sequence, base_version)
    bound = admission.exact_grant(published, *base, lag, producers, slots)
    assert bound == admission.exact_batch(published + lag + 1, *base, producers, slots).start
    assert len(admission.exact_batch(published, *base, producers, slots)) == each
    assert admission.exact_grant(None, *base, lag, producers, slots) == base_sequence
