"""How several learners begin, end and outlive a batch together, searched: every interleaving of small cases
with deaths and a stop at any moment, and what each rule is for.

One ring a learner, one slot of each in a batch. Learners wait for a slot, say what they have, and only by
what all have said do they train or end; learner 0 publishes, then all give back. Meetings are one step: who
leaves one that others have not left yet, or dies in it, does so in the step after. The supervisor kills the
others when it sees a death, sweeps when nobody is left, and starts all again."""

from typing import NamedTuple

import pytest

NONE, READY, LEASED, CONSUMED, DROPPED = "-rlcd"  # a slot; NONE: not written yet


class Rules(NamedTuple):
    """Each can be taken away."""

    says_before_it_ends: bool = True  # a learner that sees the stop flag, to the others
    judges_by_what_was_said: bool = True  # and not by what the flags are when it judges
    looks_after_the_producers_end: bool = True  # at its ring, before it says that it has no slot
    acks_what_it_knows_published: bool = True
    kills_before_it_sweeps: bool = True  # the supervisor, all that live
    kills_the_others: bool = True
    starts_the_ended_again: bool = True


class Learner(NamedTuple):
    """`at`: wait, met (has said what it has), reduce, told (batch trained and its slots known to all),
    publish, ack, drop, ended, dead."""

    at: str
    slot: int | None = None  # leased
    told: tuple = ()  # by each learner: what it has leased


class State(NamedTuple):
    learners: tuple[Learner, ...]
    rings: tuple[tuple[str, ...], ...]
    newest: frozenset = frozenset()  # slots (ring, sequence) on the published list
    listed: frozenset = frozenset()  # on any
    stop: bool = False
    gone: bool = False
    deaths: int = 1  # that may still come
    swept: int | None = None  # too early, by a supervisor without that rule


def put(items, i, value):
    return (*items[:i], value, *items[i + 1 :])


def step(state, i, at, slot=None):
    """Learner i is elsewhere."""
    return state._replace(learners=put(state.learners, i, Learner(at, slot)))


def mark(state, ring, sequence, word):
    return state._replace(rings=put(state.rings, ring, put(state.rings[ring], sequence, word)))


def locally(state, i, rules):
    """What learner i can do by itself."""
    at, slot, _ = state.learners[i]
    if at == "wait":
        ready = [s for s, word in enumerate(state.rings[i]) if word == READY][:1]
        may_lease = not state.stop or state.gone  # and where the deadline is near, it need not
        for s in ready if may_lease else ():
            yield step(mark(state, i, s, LEASED), i, "met", s)
        if state.stop and (state.gone or not rules.looks_after_the_producers_end):
            yield step(state, i, "met" if rules.says_before_it_ends else "drop")
    elif at == "publish":
        slots = frozenset(enumerate(state.learners[i].told))
        assert not slots & state.listed, "trained on twice"
        shown = state._replace(newest=slots, listed=state.listed | slots)
        yield step(shown, i, "shown" if rules.acks_what_it_knows_published else "ack", slot)
    elif at == "ack":
        yield step(mark(state, i, slot, CONSUMED), i, "wait")
    elif at == "drop":
        words = tuple(DROPPED if word in (READY, LEASED) else word for word in state.rings[i])
        yield step(state._replace(rings=put(state.rings, i, words)), i, "ended")


def together(state, rules):
    """The meeting that all have come to."""
    ats, slots, _ = zip(*state.learners, strict=True)
    if set(ats) == {"met"}:
        go = all(slot is not None for slot in slots)
        if rules.judges_by_what_was_said:
            at = "reduce" if go else "drop"
            yield state._replace(learners=tuple(Learner(at, slot) for slot in slots))
        else:  # one of them after the flag came
            yield state._replace(learners=tuple(Learner("judge", slot) for slot in slots))
    elif set(ats) == {"reduce"}:
        after = "told" if rules.acks_what_it_knows_published else "ack"
        yield state._replace(
            learners=tuple(
                Learner("publish" if i == 0 else after, slot, slots) for i, slot in enumerate(slots)
            )
        )
    elif ats[0] == "shown" and set(ats[1:]) == {"told"}:
        yield state._replace(learners=tuple(Learner("ack", slot) for slot in slots))


def sweep(state, ring):
    words = tuple(
        word if word != LEASED else CONSUMED if (ring, s) in state.newest else READY
        for s, word in enumerate(state.rings[ring])
    )
    return state._replace(rings=put(state.rings, ring, words))


def supervisor(state, rules):
    dead = [i for i, one in enumerate(state.learners) if one.at == "dead"]
    if dead:
        if not rules.kills_before_it_sweeps and state.swept is None:
            yield sweep(state, dead[0])._replace(swept=dead[0])
            return
        ended = {i for i, one in enumerate(state.learners) if one.at == "ended"}
        gone = set(dead) if not rules.kills_the_others else set(range(len(state.learners)))
        again = gone if rules.starts_the_ended_again else gone - ended
        learners = tuple(Learner("wait") if i in again else one for i, one in enumerate(state.learners))
        repaired = state._replace(learners=learners, swept=None)
        for i in gone - {state.swept}:
            repaired = sweep(repaired, i)
        yield repaired
    if not state.stop:
        yield state._replace(stop=True)
    elif not state.gone:
        yield state._replace(gone=True)


def successors(state, rules):
    for i, one in enumerate(state.learners):
        if one.at == "judge":
            yield step(state, i, "drop" if state.stop or one.slot is None else "reduce", one.slot)
        yield from locally(state, i, rules)
        if state.deaths and one.at not in ("ended", "dead"):
            yield step(state, i, "dead")._replace(deaths=state.deaths - 1)
    yield from together(state, rules)
    yield from supervisor(state, rules)
    if not state.gone:  # told to stop, a producer ends after the slot under way at the latest
        for r, ring in enumerate(state.rings):
            if NONE in ring:
                yield mark(state, r, ring.index(NONE), READY)


def check_end(state):
    for r, ring in enumerate(state.rings):
        for s, word in enumerate(ring):
            assert word not in (READY, LEASED), "in flight at the end"
            assert (word == CONSUMED) == ((r, s) in state.listed), "consumed, and in no version, or not"


def search(rules=None, *, learners=2, slots=2, deaths=1):
    """Every state that can be reached; AssertionError where one is wrong or leads to no end."""
    rules = rules or Rules()
    first = State((Learner("wait"),) * learners, ((NONE,) * slots,) * learners, deaths=deaths)
    before, frontier, ends = {first: set()}, [first], []
    while frontier:
        state = frontier.pop()
        if all(one.at == "ended" for one in state.learners):
            check_end(state)
            ends.append(state)
            continue
        for after in successors(state, rules):
            if after not in before:
                before[after] = set()
                frontier.append(after)
            before[after].add(state)
    leading, frontier = set(ends), ends
    while frontier:
        for state in before[frontier.pop()] - leading:
            leading.add(state)
            frontier.append(state)
    assert len(leading) == len(before), "learners that wait for ever"
    return len(before)


@pytest.mark.parametrize(("learners", "slots", "deaths"), [(2, 2, 2), (3, 1, 1)])
def test_whoever_dies_and_whenever_it_stops_all_learners_end_and_every_slot_is_counted_once(
    learners, slots, deaths
):
    assert search(learners=learners, slots=slots, deaths=deaths) > 1000


WITHOUT = {
    "says_before_it_ends": "for ever",
    "judges_by_what_was_said": "for ever|in flight",
    "looks_after_the_producers_end": "in flight",
    "acks_what_it_knows_published": "in no version",
    "kills_before_it_sweeps": "twice|in no version",
    "kills_the_others": "for ever|twice|in no version",
    "starts_the_ended_again": "for ever",
}


@pytest.mark.parametrize(("rule", "finds"), WITHOUT.items())
def test_no_rule_of_the_rendezvous_can_be_left_out(rule, finds):
    with pytest.raises(AssertionError, match=finds):
        search(Rules()._replace(**{rule: False}))
