"""Two learners are one: the same weights to the last bit, and together what one would have trained. Whichever
of them dies, and whenever, both go on at the same version."""

import os
import random
import signal
import time

import pytest
import torch
from liverun import LiveRun, equal

from consumers import peers, shelf

TWO = "learner.count=2"
ASYNC = ("mode=async", "staleness.limit=1", "stop.versions=30")
KILLS = int(os.environ.get("HEADRACE_KILLS", "4"))  # at random moments of one run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, zygote):
    """What a run of two learners comes to that nobody disturbs."""
    run = LiveRun(tmp_path_factory.mktemp("whole"), zygote, TWO)
    try:
        run.start()
        assert run.finish() == 0
        run.check_books()
        yield run.saved()
    finally:
        run.close()


def check_equal(run, expected):
    saved = run.saved()
    assert equal(saved.policy, expected.policy)
    for name in ("version", "steps", "updates", "sgd_steps", "samples", "score"):
        assert saved.state[name] == expected.state[name], name
    check_versions(run)


def check_versions(run):
    """Every batch made one version and every version one batch, of slots of both learners."""
    run.check_books()
    counts, saved = run.counters(), run.saved()
    assert counts["version"] == counts["updates"] == saved.version
    assert counts["slots"] == 4 * saved.version
    for ring in run.rings:
        assert ring.books()["consumed"] == 2 * saved.version


def test_two_learners_repeat_bit_for_bit_and_the_weights_are_the_same_in_both(live, uninterrupted):
    run = live(TWO)
    run.start()
    assert run.finish() == 0  # they end by themselves where their weights differ
    check_equal(run, uninterrupted)


WHOLE_BATCH = ("learner.minibatches=1", "learner.normalize_advantage=false", "stop.versions=6")


def test_two_learners_train_what_one_would_but_for_rounding(live):
    found = []
    for count in (1, 2):
        run = live(f"learner.count={count}", *WHOLE_BATCH, "policy.normalize_obs=false")
        run.start()
        assert run.finish() == 0
        found.append(run.saved())
        figures = run.lines()[-1]
        assert (figures["sgd_steps"], figures["samples"]) == (2, 2 * 4 * 8 * 8 - 2 * skipped(run))
    one, two = found
    assert not equal(one.policy, two.policy), "else it would have been one learner"
    assert one.state["steps"] == two.state["steps"]
    assert one.state["score"]["episodes"] == two.state["score"]["episodes"]
    for name, weights in one.policy.items():
        torch.testing.assert_close(two.policy[name], weights, rtol=1e-4, atol=1e-5)


def skipped(run):
    """Agent-steps of the last batch that only reset."""
    lines = run.lines()
    return 4 * 8 * 8 - (lines[-1]["steps"] - lines[-2]["steps"])


POINTS = [
    pytest.param(point, whose, marks=[] if often else pytest.mark.soak)
    for point, whose, often in (
        ("train:1", 0, False), ("train:2", 1, True),
        ("publish:3", 0, True), ("publish:3", 1, False),
        ("published:4", 0, True),  # the other one shows no books
        ("counted:3", 0, False), ("counted:3", 1, True),
        ("ack:4", 0, True), ("ack:4", 1, False),
    )
]  # fmt: skip


@pytest.mark.parametrize(("point", "whose"), POINTS)
def test_whoever_is_killed_at_a_chosen_point_both_go_on_bit_for_bit(live, uninterrupted, point, whose):
    run = live(TWO)
    run.start(point, whose=whose)
    assert not run.until(lambda: False), "it dies at that point"
    assert run.bury() == -9
    run.learner()
    assert run.finish() == 0
    check_equal(run, uninterrupted)
    assert run.counters()["resumes"] == 1


@pytest.mark.parametrize("mode", [(), ASYNC], ids=["sync", "async"])
def test_killed_by_turns_at_random_moments_no_version_is_lost(live, mode):
    rng = random.Random(7)
    run = live(TWO, *mode, f"stop.versions={6 * KILLS}")
    run.start()
    for kill in range(KILLS):
        version = run.counters()["version"]
        assert run.until(lambda version=version: run.counters()["version"] > version)
        if run.counters()["stop_request"]:
            break
        time.sleep(rng.random() * 0.03)
        run.kill(kill % 2)
        run.learner()
    assert run.kills > 2
    assert run.finish() == 0
    check_versions(run)
    assert run.counters()["lag_max"] <= len(mode)


def test_a_slot_that_kills_its_learner_is_set_aside_and_none_of_the_others(live):
    run = live(TWO, *ASYNC)
    poison = "poison:2"  # sequence 2 of ring 0
    run.start(poison)
    deaths = 0
    while not run.until(lambda: run.counters()["updates"] > 6):
        assert run.bury() == -9
        deaths += 1
        run.learner(poison)
    assert deaths == 3
    assert run.finish() == 0
    assert [ring.books()["dropped"]["bad"] for ring in run.rings] == [1, 0]
    run.check_books()


def test_a_part_of_a_batch_that_cannot_be_had_any_more_is_a_roll_back_of_all(live):
    run = live(TWO)
    poison = "poison:6"
    run.start(poison)
    while not run.until(lambda: run.counters()["rollbacks"]):
        assert run.bury() == -9
        run.learner(poison)
    assert run.finish() == 0
    run.check_books()
    told = [event for event in run.events() if event["event"] == "rolled_back"]
    assert [(event["from_version"], event["version"], event["steps"]) for event in told] == [(3, 4, 0)]
    assert (run.saved().version, run.counters()["rollbacks"]) == (14, 1)


@pytest.mark.parametrize("whose", [0, 1], ids=["leader", "follower"])
def test_steps_that_are_not_finite_for_one_are_skipped_and_taken_back_by_both(live, whose):
    run = live(TWO, *ASYNC, "learner.nonfinite_steps=5", "learner.nonfinite_rollbacks=1")
    run.start("nan:3", whose=whose)
    assert not run.until(lambda: False)
    assert run.bury() == 75
    assert "1 roll-backs" in (run.folder / "logs" / "learner-0.log").read_text()
    assert run.counters()["rollbacks"] == 1
    slots = [event["slots"] for event in run.events() if event["event"] == "nonfinite"]
    assert all({ring for ring, _ in one} == {0, 1} for one in slots), "of both, whose minibatch it was"
    assert run.saved().version == 0, "no checkpoint of what is not good"


def test_from_a_checkpoint_with_worlds_two_learners_go_on_bit_for_bit(live, uninterrupted):
    first = live(TWO, "stop.versions=6")
    first.start()
    assert first.finish() == 0
    saved = first.saved()
    assert (saved.version, saved.state["worlds"]) == (6, "exact")
    run = live(TWO, after=first, worlds=saved.worlds)
    run.start(resume=shelf.latest(first.folder / "checkpoints"))
    assert run.finish() == 0
    assert equal(run.saved().policy, uninterrupted.policy)
    assert run.saved().state["score"] == uninterrupted.state["score"]


@pytest.mark.soak
def test_one_learner_goes_on_where_two_have_been_and_the_other_way_round(live):
    first = live(TWO, *ASYNC[:2], "stop.versions=4")
    first.start()
    assert first.finish() == 0
    second = live(*ASYNC[:2], "stop.versions=10", after=first)
    second.start(resume=shelf.latest(first.folder / "checkpoints"))
    assert second.finish() == 0
    third = live(TWO, *ASYNC[:2], "stop.versions=14", after=second)
    third.start(resume=shelf.latest(second.folder / "checkpoints"))
    assert third.finish() == 0
    assert third.saved().state["updates"] == third.saved().version - 2, "two roll-backs made one each"
    third.check_books()


def test_a_recurrent_policy_trains_with_two_learners(live):
    run = live(TWO, "policy.recurrent=mingru", "policy.recurrent_width=8", "stop.versions=6")
    run.start("train:3", whose=1)
    assert not run.until(lambda: False)
    assert run.bury() == -9
    run.learner()
    assert run.finish() == 0
    check_versions(run)
    lines = run.lines()
    assert all(line["update_ratio"] > 0 for line in lines)
    audited = [line for line in lines if line["audit_label_steps"]]
    assert audited
    assert all(line["audit_label_error"] <= line["audit_label_tolerance"] for line in audited)


def test_a_learner_that_loses_another_waits_to_be_ended_and_says_why(live):
    run = live(TWO, "stop.versions=1000000")
    run.start()
    assert run.until(lambda: run.counters()["updates"] > 2)
    os.kill(run.pids[1], signal.SIGKILL)
    log = run.folder / "logs" / "learner-0.log"
    deadline = time.monotonic() + 240
    while "learner 0 has lost another one" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    before = run.control.process(run.table.learner).heartbeat_ns
    while run.control.process(run.table.learner).heartbeat_ns == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert run.bury() == -9
    run.learner()
    assert run.stop() == 0
    run.check_books()


def test_learners_without_a_loopback_device_say_so_and_one_whose_fellow_is_gone_is_lost(monkeypatch):
    """The first ends the run, which no restart would help; the second is for the supervisor to end."""

    def refuse(error):
        def refused(*_, **__):
            raise error

        return refused

    meeting = os.memfd_create("meeting")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(peers.socket, "create_connection", refuse(OSError("unreachable")))
            with pytest.raises(OSError, match="loopback device, which is down: unreachable"):
                peers.join(meeting, 0, 2)
        with monkeypatch.context() as patch:
            patch.setattr(torch.distributed, "init_process_group", refuse(RuntimeError("closed")))
            with pytest.raises(peers.Lost, match="before they had met: closed"):
                peers.join(meeting, 0, 2)
    finally:
        os.close(meeting)


def test_settings_that_change_on_the_way_hold_for_both_from_the_same_version_on(live):
    """Else their weights would differ, and they would end by themselves."""
    run = live(TWO, *ASYNC[:2], "stop.versions=1000000", "learner.learning_rate=1e-3")
    run.start()
    path = run.folder / "config.resolved.yaml"
    resolved = path.read_text()
    assert "learning_rate: 0.001" in resolved
    for waits, rate in ((0, 3e-4), (1, 2e-4)):
        assert run.until(lambda: run.counters()["updates"] > 2)
        hold(run, waits)
        path.write_text(resolved.replace("learning_rate: 0.001", f"learning_rate: {rate!r}"))
        run.control.announce_settings()  # one has its part of a batch, the other waits for it and is woken
        time.sleep(0.2)
        os.kill(run.producers[waits].pid, signal.SIGCONT)
        assert run.until(lambda rate=rate: shown(run, "learning_rate") == rate)
    updates = run.counters()["updates"]
    assert run.until(lambda: run.counters()["updates"] > updates + 2)
    assert run.stop() == 0
    run.check_books()


def hold(run, waits):
    """Stops a producer so that its learner lacks its part of a batch and the other has its own. Stopped at
    another moment it may show a version that closes the gate with both parts there."""

    def lacks():
        return leased(run.rings[1 - waits]) and not leased(run.rings[waits])

    while True:
        os.kill(run.producers[waits].pid, signal.SIGSTOP)
        until = time.monotonic() + 1.0
        run.until(lambda until=until: lacks() or time.monotonic() > until)
        if lacks():
            return
        os.kill(run.producers[waits].pid, signal.SIGCONT)
        time.sleep(0.01)


def leased(ring):
    return any(state in ("leased", "ready") for state, *_ in ring.observe().slots)


def shown(run, gauge):
    return run.control.gauges(run.table.learner)[gauge]
