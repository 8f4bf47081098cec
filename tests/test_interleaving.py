"""Two sides at once: one is stopped at any machine instruction, the other acts, then the first goes on.

What must hold between a store of one and a load of the other is seen at every point where it could break. All
stops are for `-m soak`; the usual run takes every 5th.
"""

import numpy as np
import pytest
from rings import produce
from stepper import Stepper

from ringbuf import MAX_LEARNERS, Weights

pytestmark = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])


@pytest.fixture
def run(rig):
    """A ring of two slots with credit for one, version 0 published, no processes but the learner."""
    run = rig(slots=2, horizon=2, worlds=2, obs_shape=(8,), grant=1)
    run.writer().publish(0, np.zeros(8, np.float32))
    return run


def test_a_learner_that_looks_during_a_commit_sees_the_slot_or_is_woken(run, every):
    learner, control = run.learner(), run.process(1)
    saw, slept = 0, 0
    with Stepper(every, run, "produce") as stepper:
        for _ in stepper.stops():
            seen = control.bell_value(0)
            observed = learner.observe()
            stepper.go()
            if observed.acting is None and observed.slots[0][0] == "ready":
                saw += 1
            else:
                assert control.bell_wait(0, seen, 0)
                slept += 1
            assert learner.observe()[::2] == (None, (("ready", 0, 0, 3), ("free", 1, 0, None)))
    assert saw > 0
    assert slept > 0


def test_a_learner_that_looks_during_an_abort_sees_nothing_acting_or_is_woken(run, every):
    learner, control = run.learner(), run.process(1)
    with Stepper(every, run, "give_up") as stepper:
        for _ in stepper.stops():
            seen = control.bell_value(0)
            observed = learner.observe()
            stepper.go()
            if observed.acting is not None or observed.slots[0][0] == "writing":
                assert control.bell_wait(0, seen, 0)


def test_a_producer_acts_with_the_new_version_if_the_learner_that_published_it_saw_nothing_acting(run, every):
    learner = run.learner()
    writer = Weights.attach(run.channel.fd, "writer")
    unseen, shown = 0, 0
    with Stepper(every, run, "announce") as stepper:
        for _ in stepper.stops():
            ended = not stepper.stopped
            writer.publish(1, np.ones(8, np.float32))
            acting = learner.observe().acting
            stepper.go()
            if acting is None:
                assert learner.observe().acting == 1
                unseen += 1
            else:
                assert learner.observe().acting in ((0,) if ended else (0, 1))
                shown += 1
    writer.close()
    assert unseen > 0
    assert shown > 0


@pytest.mark.parametrize("operation", ["consume", "drop", "grant"])
def test_a_producer_that_looks_while_room_or_credit_comes_sees_it_or_is_woken(run, every, operation):
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    learner.grant(1)
    produce(producer)
    produce(producer)
    if operation != "grant":
        learner.grant(1)
    waits, then = ("wait_credit", "wait_full") if operation == "grant" else ("wait_full", "claimable")
    saw, slept = 0, 0
    with Stepper(every, run, operation, 0) as stepper:
        for _ in stepper.stops():
            bell = raw["bell"] & 0xFFFFFFFF
            raw["bell"] = bell | 1 << 32  # P4: the producer arms; then it looks
            why = producer.claimable()
            stepper.go()
            if why == waits:
                assert raw["bell"] & 0xFFFFFFFF != bell
                slept += 1
            else:
                assert why == then
                saw += 1
    assert saw > 0
    assert slept > 0


@pytest.fixture
def saving(rig):
    """A ring that keeps a state, without credit, its processes gone but the learner."""
    return rig(slots=2, horizon=2, worlds=2, obs_shape=(8,), mode="exact", world_state_bytes=8)


def test_a_producer_that_looks_while_its_state_is_asked_for_sees_it_or_is_woken(saving, every):
    producer, raw = saving.producer(), saving.raw()
    saw, slept = 0, 0
    with Stepper(every, saving, "request", 0) as stepper:
        for _ in stepper.stops():
            bell = raw["bell"] & 0xFFFFFFFF
            raw["bell"] = bell | 1 << 32  # P4: the producer arms; then it looks
            why = producer.claimable()
            stepper.go()
            if why == "wait_credit":
                assert raw["bell"] & 0xFFFFFFFF != bell
                slept += 1
            else:
                assert why == "save"
                saw += 1
    assert saw > 0
    assert slept > 0


def test_a_learner_that_looks_during_a_save_sees_the_whole_state_or_is_woken(saving, every):
    learner, control = saving.learner(), saving.process(1)
    saw, slept = 0, 0
    with Stepper(every, saving, "save", 5) as stepper:
        for _ in stepper.stops():
            seen = control.bell_value(0)
            if learner.state_sequence == 0:
                assert set(learner.state()[64:]) == {5}
                saw += 1
                stepper.go()
            else:
                stepper.go()
                assert control.bell_wait(0, seen, 0)
                slept += 1
    assert saw > 0
    assert slept > 0


def test_a_server_that_looks_while_it_is_asked_sees_the_question_or_is_woken(rig, every):
    run = rig(slots=2, horizon=2, worlds=2, server=1, groups=2)
    server, control = run.server(), run.process(90)
    saw, slept = 0, 0
    with Stepper(every, run, "ask") as stepper:
        for _ in stepper.stops():
            seen = control.bell_value(MAX_LEARNERS)
            question = server.question(0, 0)
            stepper.go()
            if question is not None:
                assert question[2:5] == (7, 1, 9)
                saw += 1
            else:
                assert control.bell_wait(MAX_LEARNERS, seen, 0)
                slept += 1
    assert saw > 0
    assert slept > 0


def test_a_producer_that_looks_while_it_is_answered_sees_the_answer_or_is_woken(rig, every):
    run = rig(slots=2, horizon=2, worlds=2, server=1, groups=2)
    producer = run.producer()
    number = producer.ask(0, 0, 1, 9, 0, 0)
    with Stepper(every, run, "answer") as stepper:
        for _ in stepper.stops():
            assert producer.answered(0, number, 0) in ("answered", "unanswered")
            stepper.go()
            assert producer.wait_answer(0, number, 0, 0)
            assert producer.answered(0, number, 0) == "answered"
