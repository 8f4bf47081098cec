"""A learner may be killed at any moment: its successor goes on at the same version, as if nothing had
happened. In `mode: sync` that can be seen in every bit of the final weights."""

import mmap
import os
import random
import signal
import time

import pytest
from liverun import LiveRun, equal

from consumers import shelf, snapshot

KILLS = int(os.environ.get("HEADRACE_KILLS", "8"))  # at random moments of one run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, zygote):
    """Final weights and steps of a run that nobody disturbs, by its overrides."""
    known = {}

    def of(*overrides):
        if overrides not in known:
            run = LiveRun(tmp_path_factory.mktemp("whole"), zygote, *overrides)
            try:
                run.start()
                assert run.finish() == 0
                run.check_books()
                saved = run.saved()
                known[overrides] = saved.policy, saved.state
            finally:
                run.close()
        return known[overrides]

    return of


def check_equal(run, expected, overrides=()):
    policy, state = expected(*overrides)
    saved = run.saved()
    for name in ("version", "steps", "updates", "sgd_steps", "samples", "score"):
        assert saved.state[name] == state[name], name
    assert equal(saved.policy, policy)
    run.check_books()
    assert run.counters()["steps"] == run.counters()["run_steps"] == state["steps"]
    assert run.counters()["updates"] == state["updates"]
    assert run.counters()["sgd_steps"] == state["sgd_steps"]


POINTS = ["train:1", "train:8", "publish:2", "publish:9", "published:2", "published:9", "counted:9", "ack:8"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_chosen_point_it_goes_on_bit_for_bit(live, uninterrupted, point):
    run = live()
    run.start(point)
    assert not run.until(lambda: False), "it dies at that point"
    assert run.bury() == -9
    run.learner()
    assert run.finish() == 0
    check_equal(run, uninterrupted)
    assert run.counters()["resumes"] == 1
    assert [e["how"] for e in run.events() if e["event"] == "resumed"] == ["hot"]


def test_killed_at_random_moments_it_goes_on_bit_for_bit(live, uninterrupted):
    overrides = (f"stop.versions={6 * KILLS}",)
    rng = random.Random(5)
    run = live(*overrides)
    run.start()
    for _ in range(KILLS):
        # A batch that kills its learner three times is set aside; one that made a version cannot be it.
        version = published(run)
        assert run.until(lambda version=version: published(run) > version or run.counters()["stop_request"])
        if run.counters()["stop_request"]:
            break
        time.sleep(rng.random() * 0.05)
        run.kill()
        run.learner()
    assert run.kills > 3
    assert run.finish() == 0
    check_equal(run, uninterrupted, overrides)


ASYNC = ("mode=async", "staleness.limit=1", "stop.versions=30")


def die_in(run, faults):
    """A learner that has the fault; what is left of it is swept."""
    run.learner(faults)
    assert not run.until(lambda: False)
    assert run.bury() == -9


def test_slots_that_two_learners_died_with_are_examined_and_training_is_the_same(live, uninterrupted):
    run = live()
    run.start("train:3")
    assert not run.until(lambda: False)
    run.bury()
    die_in(run, "train:1")
    run.learner()
    assert run.finish() == 0
    assert run.counters()["examined_slots"] == 4, "all slots of that batch, and only those"
    check_equal(run, uninterrupted)


def test_an_examined_slot_counts_as_delivered_once(live, uninterrupted):
    """Deaths that have nothing to do with a slot do not condemn it in the end."""
    run = live()
    run.start("train:3")
    assert not run.until(lambda: False)
    run.bury()
    for _ in range(4):
        die_in(run, "train:1")
    run.learner()
    assert run.finish() == 0
    assert sum(ring.books()["dropped"]["bad"] for ring in run.rings) == 0
    assert run.counters()["examined_slots"] == 8
    check_equal(run, uninterrupted)


def test_a_slot_that_kills_every_learner_is_set_aside_alone(live):
    run = live(*ASYNC)
    run.start("poison:2")  # sequence 2 of ring 0
    deaths = 0
    while not run.until(lambda: run.counters()["updates"] > 4):
        assert run.bury() == -9
        deaths += 1
        run.learner("poison:2")
    assert deaths == 3
    assert run.finish() == 0
    assert [ring.books()["dropped"]["bad"] for ring in run.rings] == [1, 0]
    assert sum(ring.books()["dropped"]["rollback"] for ring in run.rings) == 0
    run.check_books()


def test_a_slot_that_kills_every_learner_of_an_exact_mode_costs_a_roll_back_and_no_more(live):
    run = live()
    run.start("poison:6")
    deaths = 0
    while not run.until(lambda: run.counters()["rollbacks"]):
        assert run.bury() == -9
        deaths += 1
        run.learner("poison:6")
    assert deaths == 3
    assert run.finish() == 0
    books = [ring.books() for ring in run.rings]
    assert [one["dropped"]["bad"] for one in books] == [1, 0]
    assert sum(one["dropped"]["rollback"] for one in books) == 3, "the rest of that batch"
    told = [event for event in run.events() if event["event"] == "rolled_back"]
    assert [(event["from_version"], event["version"], event["steps"]) for event in told] == [(3, 4, 0)]
    run.check_books()
    assert run.saved().version == 14
    assert run.counters()["run_updates"] == 10
    assert run.counters()["updates"] == 13


@pytest.mark.parametrize("point", ["saving", "saved"])
@pytest.mark.parametrize("times", [1, 3])
def test_killed_while_it_saves_it_goes_on_bit_for_bit_and_has_a_checkpoint(
    live, uninterrupted, point, times
):
    run = live("checkpoint.interval_seconds=1e-6")
    run.start(f"{point}:{times}")
    assert not run.until(lambda: run.counters()["stop_request"])
    assert run.bury() == -9
    run.learner()
    assert run.finish() == 0
    check_equal(run, uninterrupted)
    assert run.saved().state["worlds"] == "exact"


def test_killed_before_its_first_checkpoint_it_makes_one_before_it_trains(live):
    run = live()
    run.start("saving:1")
    assert not run.until(lambda: False)
    run.bury()
    run.learner()
    assert run.until(lambda: run.counters()["updates"] > 0)
    assert [folder.name for folder in shelf.versions(run.folder / "checkpoints")] == ["version-000000000"]
    assert run.finish() == 0


@pytest.mark.parametrize("point", ["rolling_back", "rolled_back"])
@pytest.mark.parametrize("mode", [(), ASYNC], ids=["sync", "async"])
def test_killed_in_a_roll_back_it_goes_back_once(live, mode, point):
    run = live(*mode, "learner.nonfinite_steps=3")
    run.start(f"nan:4 {point}:1")
    assert not run.until(lambda: False)
    assert run.bury() == -9
    run.learner()
    assert run.finish() == 0
    counts = run.counters()
    assert counts["rollbacks"] == 1
    assert counts["nonfinite_steps"] == 8
    assert counts["updates"] - counts["run_updates"] == 4, "three good ones and the one that was lost"
    assert counts["updates"] == run.saved().version - 1
    assert mode or counts["lag_max"] == 0
    run.check_books()


def test_from_a_checkpoint_with_worlds_a_new_run_goes_on_bit_for_bit(live, uninterrupted):
    first = live("stop.versions=6")
    first.start()
    assert first.finish() == 0
    saved = first.saved()
    assert saved.state["worlds"] == "exact"
    run = live(after=first, worlds=saved.worlds)
    run.start(resume=shelf.latest(first.folder / "checkpoints"), seconds_before=1000.0)
    assert run.finish() == 0
    policy, state = uninterrupted()
    saved = run.saved()
    assert equal(saved.policy, policy)
    for name in ("version", "steps", "updates", "sgd_steps", "samples", "score"):
        assert saved.state[name] == state[name], name
    assert saved.state["seconds"] > 1000
    counts = run.counters()
    assert (counts["run_updates"], counts["updates"], counts["resumes"]) == (14, 8, 1)
    assert (counts["run_steps"], counts["rollbacks"]) == (state["steps"], 0)
    run.check_books()


def test_a_stop_that_comes_before_the_worlds_do_leaves_a_checkpoint_with_worlds(live, uninterrupted):
    first = live()
    first.start_producers()
    os.kill(first.producers[1].pid, signal.SIGSTOP)
    first.learner()
    assert first.until(lambda: first.rings[0].state_sequence is not None)
    first.control.set_stop("signal")
    assert first.until(lambda: first.counters()["checkpoints"] == 1)
    os.kill(first.producers[1].pid, signal.SIGCONT)
    assert first.stop() == 0
    saved = first.saved()
    assert (saved.version, saved.state["worlds"]) == (0, "exact")
    run = live(after=first, worlds=saved.worlds)
    run.start(resume=shelf.latest(first.folder / "checkpoints"))
    assert run.finish() == 0
    check_equal(run, uninterrupted)


def test_from_checkpoint_0_with_worlds_too(live, uninterrupted):
    first = live()
    first.start("train:1")
    assert not first.until(lambda: False)
    saved = first.saved()
    assert (saved.version, saved.state["worlds"]) == (0, "exact")
    run = live(after=first, worlds=saved.worlds)
    run.start(resume=shelf.latest(first.folder / "checkpoints"))
    assert run.finish() == 0
    check_equal(run, uninterrupted)


def test_from_a_checkpoint_async_training_goes_on_above_all_versions_there_were(live):
    first = live(*ASYNC)
    first.start()
    assert first.finish() == 0
    steps = first.saved().state["steps"]
    run = live(*ASYNC[:2], "stop.versions=60", after=first)
    run.start(resume=shelf.latest(first.folder / "checkpoints"), above=49)
    assert run.until(lambda: run.counters()["ready"])
    assert published(run) >= 50
    assert run.segments.weights.floor == 50
    assert run.finish() == 0
    saved = run.saved()
    assert saved.version == 60
    assert saved.state["updates"] == 30 + 10
    assert saved.state["steps"] == steps + run.counters()["steps"]
    assert run.counters()["lag_max"] <= 1
    run.check_books()


def test_a_condition_that_was_met_before_asks_for_a_stop_at_once(live):
    first = live()
    first.start()
    assert first.finish() == 0
    run = live(after=first, worlds=first.saved().worlds)
    run.start(resume=shelf.latest(first.folder / "checkpoints"))
    assert run.finish() == 0
    assert run.counters()["updates"] == 0
    assert run.saved().version == 14
    assert all(ring.books()["offered"] == 0 for ring in run.rings)


def test_a_hot_snapshot_that_cannot_be_read_is_a_roll_back_to_the_checkpoint(live):
    run = live("checkpoint.interval_seconds=1e-6")
    run.start("train:6")
    assert not run.until(lambda: False)
    run.bury()
    version = published(run)
    spoil(run)
    run.learner()
    assert run.finish() == 0
    assert run.counters()["rollbacks"] == 1
    events = [event for event in run.events() if event["event"] in ("snapshot_unreadable", "resumed")]
    assert [event["event"] for event in events] == ["snapshot_unreadable", "resumed"]
    assert events[1]["version"] == version + 1
    run.check_books()


def spoil(run):
    """Changes a byte in every hot snapshot."""
    fd = run.segments.weights.fd
    with mmap.mmap(fd, 0) as memory:
        at = memory.find(snapshot.MAGIC)
        while at >= 0:
            memory[at + 100] ^= 1
            at = memory.find(snapshot.MAGIC, at + 1)


def test_training_that_fails_however_often_it_goes_back_gives_up_and_says_what_it_saw(live):
    run = live(*ASYNC, "learner.nonfinite_steps=5", "learner.nonfinite_rollbacks=2")
    run.start("nan:3")
    assert not run.until(lambda: False)
    assert run.bury() == 75
    said = (run.folder / "logs" / "learner-0.log").read_text()
    for part in ("2 roll-backs", "nonfinite_rollbacks", "loss_policy nan", "learning_rate 0.00", "slots [("):
        assert part in said
    assert run.counters()["rollbacks"] == 2
    assert [event["event"] for event in run.events()].count("rolled_back") == 2
    assert run.saved().version == 0, "no checkpoint of what is not good"


def test_a_log_set_aside_is_begun_anew_and_a_hanging_learner_says_where_it_is(live):
    run = live("stop.versions=1e9")
    run.start()
    assert run.until(lambda: run.counters()["updates"] > 0)
    log = run.folder / "logs" / "learner-0.log"
    log.rename(log.with_suffix(".1"))
    os.kill(run.pid, signal.SIGUSR1)
    assert run.until(log.exists)
    os.kill(run.pid, signal.SIGABRT)
    assert not run.until(lambda: False)
    assert run.bury() == -signal.SIGABRT
    assert "learner.py" in log.read_text()
    assert "Aborted" not in log.with_suffix(".1").read_text()


def published(run):
    version = run.segments.weights.published
    return -1 if version is None else version
