"""SIGKILL at single machine instructions of every operation: nothing torn, nothing lost, books exact.

A child runs the operation and is killed after k instructions; then the supervisor sweeps, twice, and a new
producer and a new learner go on. All k are for `-m soak`; the usual run takes every 13th.
"""

import numpy as np
import pytest
from rings import consume, produce
from stepper import Stepper

from ringbuf import RingError, books

pytestmark = pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.soak)])


VALID_STEPS = 16  # of each slot that is written here


def exact(found):
    """The books balance, in slots and in steps."""
    assert books.at_rest(found) == []
    steps = {name: VALID_STEPS * n for name, n in found["dropped"].items()}
    assert (found["consumed_steps"], found["dropped_steps"]) == (VALID_STEPS * found["consumed"], steps)
    assert found["in_flight_steps"] == VALID_STEPS * found["in_flight"]


def recover(run, listed=()):
    """What the supervisor does, and does again because it died in between."""
    for _ in range(2):
        run.ring.sweep_producer()
        run.ring.sweep_learner(None, listed)


def drain(run):
    """A new learner frees whatever is set aside and consumes whatever is ready, checking each payload."""
    learner = run.learner()
    taken = []
    for state, sequence, _, _ in sorted(run.ring.observe().slots, key=lambda slot: slot[1]):
        if state == "bad":
            assert run.ring.drop(sequence, "bad")
        if state == "ready":
            consume(learner, sequence)
            taken.append(sequence)
    learner.close()
    return taken


def goes_on(run):
    """A new producer writes one more slot, which arrives."""
    producer = run.producer()
    learner = run.learner()
    learner.grant(4)
    assert producer.claimable() == "claimable"
    sequence = produce(producer)
    consume(learner, sequence)
    exact(run.ring.books())
    producer.close()
    learner.close()
    return sequence


def prepared(rig, slots_written, **plan):
    """A run with version 0 published and that many slots committed, all processes gone and swept."""
    run = rig(slots=3, horizon=2, worlds=2, obs_shape=(8,), grant=9, **plan)
    run.writer().publish(0, np.zeros(8, np.float32))
    producer = run.producer()
    for _ in range(slots_written):
        produce(producer)
    producer.close()
    run.ring.sweep_producer()
    return run


@pytest.mark.parametrize("full", ["block", "drop_oldest"])
def test_produce(rig, every, full):
    written = 3 if full == "drop_oldest" else 1
    run = prepared(rig, written, full=full)
    seen = set()
    with Stepper(every, run, "produce") as stepper:
        for _ in stepper.kills():
            recover(run)
            found = run.ring.books()
            exact(found)
            assert run.ring.observe().acting is None
            committed, overwritten = found["committed"], found["dropped"]["overwritten"]
            seen.add((committed, overwritten))
            taken = drain(run)
            assert len(taken) == committed - overwritten
            assert goes_on(run) == committed
    # Before the claim, after it (the overwritten slot is gone), after the commit
    lost = written - 2 if full == "drop_oldest" else 0
    assert seen == {(written, 0), (written, lost), (written + 1, lost)}


def test_give_up(rig, every):
    run = prepared(rig, 1)
    with Stepper(every, run, "give_up") as stepper:
        for _ in stepper.kills():
            recover(run)
            exact(run.ring.books())
            assert drain(run) == [0]
            assert goes_on(run) == 1


def test_skip(rig, every):
    run = prepared(rig, 3, full="drop_newest")
    seen = set()
    with Stepper(every, run, "skip") as stepper:
        for _ in stepper.kills():
            recover(run)
            found = run.ring.books()
            exact(found)
            assert found["offered"] == 3 + found["not_written"]
            seen.add(found["not_written"])
            assert drain(run) == [0, 1, 2]
            assert goes_on(run) == found["offered"]
    assert seen == {0, 1}


@pytest.mark.parametrize("listed", [False, True])
def test_consume(rig, every, listed):
    run = prepared(rig, 3)
    seen = set()
    with Stepper(every, run, "consume", 1) as stepper:
        for _ in stepper.kills():
            recover(run, [(0, 1)] if listed else [])
            found = run.ring.books()
            exact(found)
            taken = drain(run)
            assert taken == ([0, 2] if found["consumed"] else [0, 1, 2])
            seen.add((found["consumed"], found["redelivered"]))
            assert goes_on(run) == 3
    assert {consumed for consumed, _ in seen} == {0, 1}
    assert seen <= ({(0, 0), (1, 0)} if listed else {(0, 0), (0, 1), (1, 0)})


@pytest.mark.parametrize("full", ["block", "drop_oldest", "drop_newest"])
def test_drop(rig, every, full):
    run = prepared(rig, 3, full=full)
    seen = set()
    with Stepper(every, run, "drop", 1) as stepper:
        for _ in stepper.kills():
            recover(run)
            found = run.ring.books()
            exact(found)
            assert drain(run) == ([0, 2] if found["dropped"]["rollback"] else [0, 1, 2])
            seen.add(found["dropped"]["rollback"])
            assert goes_on(run) == 3
    assert seen == {0, 1}


def test_drop_while_the_producer_goes_on_and_wants_the_same_slot(rig, every):
    run = prepared(rig, 3, full="drop_oldest")
    seen = set()
    with Stepper(every, run, "drop", 1) as stepper:
        for _ in stepper.kills():
            producer = run.producer()
            for _ in range(3):
                if producer.claimable() == "skip":
                    producer.skip()
                else:
                    produce(producer)
            producer.close()
            recover(run)
            found = run.ring.books()
            exact(found)
            seen.add((found["dropped"]["rollback"], found["dropped"]["overwritten"], found["not_written"]))
            drain(run)
            assert goes_on(run) == 6
    assert seen == {(0, 3, 0), (0, 2, 1), (1, 2, 0)}


def test_sweep(rig, every):
    """The supervisor is killed in its sweep of a slot under way, one on the list and one to give back."""
    run = prepared(rig, 2)
    raw, learner = run.raw(), run.learner()
    learner.lease(0)
    learner.lease(1)
    run.producer().claim(0)
    raw["acting"] = 0
    with Stepper(every, run, "sweep", 1) as stepper:
        for _ in stepper.kills():
            recover(run, [(0, 1)])
            found = run.ring.books()
            exact(found)
            assert (found["consumed"], found["redelivered"], found["in_flight"]) == (1, 1, 1)
            assert raw.words() == [("ready", 0), ("free", 4), ("free", 2)]
            assert drain(run) == [0]
            assert goes_on(run) == 2


def test_train(rig, every):
    """A batch of two is leased, published, acked: each is on the published list or delivered again."""
    run = prepared(rig, 3)
    seen = set()
    with Stepper(every, run, "train", 1) as stepper:
        for _ in stepper.kills():
            listed = [entry[:2] for entry in run.channel.consumed_list()]
            assert listed == ([(0, 1), (0, 2)] if run.channel.published else [])
            recover(run, listed)
            found = run.ring.books()
            exact(found)
            assert found["consumed"] == len(listed)
            seen.add((found["consumed"], found["redelivered"]))
            assert drain(run) == ([0] if listed else [0, 1, 2])
            assert goes_on(run) == 3
    assert {consumed for consumed, _ in seen} == {0, 2}
    assert seen <= {(0, 0), (0, 1), (0, 2), (2, 0)}


def test_examine(rig, every):
    """Killed in its examination a slot is set aside; once that is over, its learner's death tells nothing."""
    run = prepared(rig, 2)
    raw = run.raw()
    raw.set_word("ready", 1, deliveries=2)
    seen = set()
    with Stepper(every, run, "examine", 1) as stepper:
        for _ in stepper.kills():
            recover(run)
            exact(run.ring.books())
            state, _, deliveries, _ = raw.word(1)
            seen.add((state, deliveries))
            assert drain(run) == ([0] if state == "bad" else [0, 1])
            assert goes_on(run) == 2
    assert {("ready", 2), ("bad", 3)} <= seen <= {("ready", 2), ("bad", 3), ("ready", 1)}


def test_announce(rig, every):
    run = prepared(rig, 1)
    with Stepper(every, run, "announce") as stepper:
        for _ in stepper.kills():
            recover(run)
            assert run.ring.observe().acting is None
            exact(run.ring.books())
            assert drain(run) == [0]
            assert goes_on(run) == 1


def test_grant(rig, every):
    """Credit is derived from the words, so that it does not matter where a grant broke off."""
    run = prepared(rig, 1)
    seen = set()
    with Stepper(every, run, "grant") as stepper:
        for _ in stepper.kills():
            recover(run)
            found = run.ring.books()
            exact(found)
            seen.add(found["granted"])
            learner = run.learner()
            assert learner.outstanding == found["granted"]
            learner.close()
            assert drain(run) == [0]
            assert goes_on(run) == 1
    assert seen <= {9, 10}
    assert 10 in seen


@pytest.mark.parametrize("operation", ["lower_granted", "set_owner"])
def test_what_the_supervisor_does_to_a_ring_in_back_off(rig, every, operation):
    """Killed in it, the next supervisor does it again: the credit is back, learner and producer are rung."""
    run = prepared(rig, 1)
    raw = run.raw()
    control = run.process(1)
    with Stepper(every, run, operation, 0) as stepper:
        for _ in stepper.kills():
            seen, bell = control.bell_value(0), raw["bell"] & 0xFFFFFFFF
            recover(run)
            run.ring.lower_granted_to_head()
            run.ring.set_owner(0)
            assert control.bell_wait(0, seen, 0)
            assert raw["bell"] & 0xFFFFFFFF != bell
            found = run.ring.books()
            exact(found)
            assert (found["granted"], found["owner"]) == (1, 0)
            assert drain(run) == [0]
            assert goes_on(run) == 1


def test_a_reader_of_weights_leaves_nothing_behind(rig, every):
    run = prepared(rig, 1)
    with Stepper(every, run, "read") as stepper:
        for _ in stepper.kills():
            assert [bytes(memory) for memory in stepper.memory] == stepper.saved


@pytest.mark.parametrize("deliveries", [1, 3])
def test_sweep_of_a_lease_that_is_on_no_list(rig, every, deliveries):
    """The supervisor is killed while it gives a slot back, or sets it aside."""
    run = prepared(rig, 2)
    run.raw().set_word("leased", 1, deliveries=deliveries, owner=1)
    with Stepper(every, run, "sweep", 99) as stepper:
        for _ in stepper.kills():
            recover(run)
            found = run.ring.books()
            exact(found)
            aside = deliveries == 3
            assert (found["redelivered"], found["bad"]) == (not aside, aside)
            assert drain(run) == ([0] if aside else [0, 1])
            assert goes_on(run) == 2


def test_free_bad(rig, every):
    run = prepared(rig, 2)
    run.raw().set_word("bad", 1, deliveries=3)
    with Stepper(every, run, "free_bad", 1) as stepper:
        for _ in stepper.kills():
            recover(run)
            run.ring.drop(1, "bad")
            found = run.ring.books()
            exact(found)
            assert (found["dropped"]["bad"], found["in_flight"]) == (1, 1)
            assert drain(run) == [0]
            assert goes_on(run) == 2


def test_publish(rig, every):
    """The writer is killed while it publishes: readers have the old version or the new one, whole."""
    run = prepared(rig, 0)
    run.writer().publish(1, np.ones(8, np.float32), snapshot=b"snapshot", consumed=[(0, 1, 1)])
    reader = run.reader()
    with Stepper(every, run, "publish", 2) as stepper:
        seen = set()
        for _ in stepper.kills():
            version, weights = reader.read()
            assert weights.tolist() == [version] * 8
            assert reader.snapshot() == b"snapshot"
            assert reader.consumed_list() == [(0, version, 1)]
            seen.add(version)
    assert seen == {1, 2}


STATE_HEAD = 64
STEP = slice(32, 40)  # in the head of a saved state


def saved_state(run):
    """What the whole state consists of, or None where there is none."""
    learner = run.learner()
    try:
        if run.ring.state_sequence is None:
            with pytest.raises(RingError, match="no complete state"):
                learner.state()
            return None
        state = learner.state()
        pattern = state[STATE_HEAD]
        assert state[STATE_HEAD:] == bytes([pattern]) * (len(state) - STATE_HEAD)
        assert int.from_bytes(state[STEP], "little") == pattern
        return pattern
    finally:
        learner.close()


def with_state(rig):
    """A run in which a state of ones lies."""
    run = prepared(rig, 1, mode="exact", world_state_bytes=24)
    with Stepper(1 << 20, run, "save", 1) as stepper:
        for _ in stepper.stops():
            stepper.go()
            break
    run.ring.sweep_producer()
    assert saved_state(run) == 1
    return run


def test_save(rig, every):
    """The producer is killed while it saves: there is the old state, none, or the new one, whole."""
    run = with_state(rig)
    with Stepper(every, run, "save", 2) as stepper:
        seen = {saved_state(run) for _ in stepper.kills()}
    assert seen == {1, None, 2}


def test_load(rig, every):
    """The supervisor is killed while it lays a state down: nothing is taken up that is not whole."""
    run = with_state(rig)
    raw, seen = run.raw(), set()
    with Stepper(every, run, "load", 2) as stepper:
        for _ in stepper.kills():
            seen.add((saved_state(run), raw["state_load"]))
    between = {(2, 0)}  # whole, and not yet to be taken up: one instruction long
    assert seen | between == {(1, 0), (None, 0), (2, 0), (2, 1)}


SERVED = {"server": 1, "groups": 2}


def asks_and_is_answered(run):
    """A new producer's question reaches a server of the life that now is, and its answer the producer."""
    producer, server, life = run.producer(), run.server(), run.ring.server_life
    for group in (0, 1):
        number = producer.ask(group, life, 0, 4, 5, 6)
        assert server.question(group, life)[0] == number
        assert server.question(group, life + 1) is None
        assert producer.answered(group, number, life) == "unanswered"
        server.answer(group, number)
        assert producer.answered(group, number, life) == "answered"
        assert server.question(group, life) is None
    producer.close()
    server.close()


def test_ask(rig, every):
    """A question is seen whole or not at all, and the next producer's is another one."""
    run = prepared(rig, 0, **SERVED)
    server = run.server()
    seen = set()
    with Stepper(every, run, "ask") as stepper:
        for _ in stepper.kills():
            question = server.question(0, 0)
            assert question is None or question[2:5] == (7, 1, 9)
            seen.add(question is None)
            recover(run)
            asks_and_is_answered(run)
    assert seen == {True, False}


def test_answer(rig, every):
    """The server was killed while it answered: the producer has the answer, or learns of the death."""
    run = prepared(rig, 0, **SERVED)
    producer = run.producer()
    number = producer.ask(0, 0, 1, 9, 0, 0)
    seen = set()
    with Stepper(every, run, "answer") as stepper:
        for _ in stepper.kills():
            for _ in range(2):
                run.ring.sweep_server()
            seen.add(found := producer.answered(0, number, 0))
            assert found in ("answered", "server_died")
            run.ring.sweep_producer()
            asks_and_is_answered(run)
    assert seen == {"answered", "server_died"}


def test_sweep_of_a_server(rig, every):
    run = prepared(rig, 0, **SERVED)
    producer = run.producer()
    number = producer.ask(0, 0, 1, 9, 0, 0)
    with Stepper(every, run, "sweep_server") as stepper:
        for _ in stepper.kills():
            run.ring.sweep_server()
            assert producer.answered(0, number, 0) == "server_died"
            run.ring.sweep_producer()
            asks_and_is_answered(run)
