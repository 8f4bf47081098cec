"""Runs of two learners by the real supervisor: killed, stopped, hung, interrupted, taken up again."""

import contextlib
import os
import signal
import time
from random import Random

import pytest
from test_arbiter import balanced, stop

import ringbuf

TWO = "learner.count=2"
FIRST = 3  # of the learners in the process table, behind two producers


def both_up(run):
    """Waits until every process of the run works."""
    run.running()
    run.until(lambda status: {one["state"] for one in status["processes"]} == {"running"})


def goes_on(run, control):
    """Waits until there are newer versions than now; returns the newest."""
    version = control.counters(FIRST)["version"]
    run.when(lambda: control.counters(FIRST)["version"] > version + 2)
    return control.counters(FIRST)["version"]


@pytest.mark.soak
def test_two_learners_train_to_a_score_and_either_may_be_killed_on_the_way(start):
    run = start(
        TWO, "sim.max_steps=200", "rollout.horizon=32", "learner.epochs=2", "learner.learning_rate=3e-3",
        "policy.activation=tanh", "stop.score=60", "stop.window=32", "evaluate.episodes=8",
    )
    both_up(run)
    control, _ = run.attach()
    versions = []
    for kill in range(2):
        versions.append(goes_on(run, control))
        run.kill("learner", kill)
        run.until(lambda status, kill=kill: status["restarts"]["learner"] == 2 * (kill + 1))
    versions.append(goes_on(run, control))
    assert run.end() == 0, run.said()
    summary = balanced(run)
    assert versions == sorted(versions)
    assert (summary["state"], summary["score"]["best"] >= 60) == ("done", True)
    assert summary["score"]["evaluated"]["n"] == 8
    assert summary["restarts"] == {"producer": 0, "learner": 4, "exporter": 0}
    assert summary["updates"] == summary["version"]
    assert summary["slots"]["consumed"] == 2 * summary["version"], "each batch made one version"
    assert summary["lag"]["max"] <= 1
    roles = [(one["role"], one["index"]) for one in summary["processes"]]
    assert roles == [("producer", 0), ("producer", 1), ("learner", 0), ("learner", 1), ("exporter", 0)]
    assert "learner 1" in run.told()
    assert "died of SIGKILL; all learners start again at once" in run.told()


def test_learners_that_do_not_come_up_end_the_run_and_none_is_started_again(start):
    run = start(TWO, "supervisor.start_seconds=0.3")
    assert run.end() == 70
    assert "published nothing within 0.3 s (supervisor.start_seconds)" in run.said()
    assert [one for one in run.events("crashed") if one["role"] == "learner"] == []
    assert run.summary()["restarts"]["learner"] == 0


@pytest.mark.soak
def test_a_hung_learner_is_found_beside_one_that_waits_for_it(start):
    run = start(TWO, "supervisor.hung_seconds=6", "supervisor.abort_seconds=0.5")
    both_up(run)
    control, _ = run.attach()
    for hangs, index in enumerate((1, 0)):
        run.kill("learner", index, signal.SIGSTOP)
        run.until(lambda status, hangs=hangs: status["restarts"]["learner"] == 2 * (hangs + 1))
        goes_on(run, control)
    assert [(one["role"], one["index"]) for one in run.events("hung")] == [("learner", 1), ("learner", 0)]
    summary = stop(run)
    assert summary["state"] == "stopped"
    assert summary["slots"]["consumed"] == 2 * summary["version"]


@pytest.mark.soak
def test_two_learners_killed_in_a_stop_still_end_in_order(start):
    run = start(TWO)
    both_up(run)
    control, _ = run.attach()
    os.kill(run.pid("producer", 1), signal.SIGSTOP)  # so that the stop waits in its first phase
    run.process.send_signal(signal.SIGINT)
    run.until(lambda status: status["state"] == "stopping")
    for kill in range(2):
        run.kill("learner", kill)
        run.until(lambda status, kill=kill: status["restarts"]["learner"] == 2 * (kill + 1))
    run.kill("producer", 1)
    run.when(lambda: control.producers_gone)
    run.kill("learner", 1)
    assert run.end() == 0, run.said()
    summary = balanced(run)
    assert summary["restarts"]["learner"] == 6
    assert summary["slots"]["consumed"] == 2 * summary["version"]


@pytest.mark.soak
def test_a_second_signal_ends_two_learners_at_once(start):
    run = start(TWO)
    both_up(run)
    os.kill(run.pid("learner", 1), signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    run.until(lambda status: status["state"] == "stopping")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert balanced(run)["state"] == "failed"


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_run_of_two_learners_outlives_its_supervisor(start, mode):
    overrides = (TWO, f"mode={mode}", "checkpoint.interval_seconds=0.2")
    run = start(*overrides)
    both_up(run)
    control, _ = run.attach()
    version = goes_on(run, control)
    run.process.kill()
    run.process.wait()
    again = start(*overrides)
    again.until(lambda status: status.get("attempt") == 2)  # what stands there else is of the first
    both_up(again)
    resume = again.status()["resume"]
    assert resume["kind"] == {"async": "attached", "sync": "checkpoint"}[mode]
    assert resume["exact"] == (mode == "sync")
    if mode == "async":
        assert resume["version"] >= version
    version = again.status()["version"]
    again.until(lambda status: status["version"] > version + 2)
    stop(again)


@pytest.mark.soak
def test_a_run_of_two_learners_survives_random_kills_and_stops(start):
    """For HEADRACE_SOAK_SECONDS: any process, killed or stopped; then a stop under fire."""
    seconds = float(os.environ.get("HEADRACE_SOAK_SECONDS", "60"))
    random = Random(int(os.environ.get("HEADRACE_SEED", "1")))
    run = start(
        TWO, "supervisor.hung_seconds=6", "supervisor.abort_seconds=0.2", "checkpoint.interval_seconds=1",
        "supervisor.max_failures=1000000", "supervisor.backoff_seconds=0.01",
        "supervisor.backoff_max_seconds=0.02",
    )  # fmt: skip
    both_up(run)
    control, rings = run.attach()
    versions = []

    def shoot():
        slot = random.choice([1, 2, FIRST, FIRST, FIRST + 1, FIRST + 1])
        pid, state = control.process(slot).pid, control.process(slot).state
        if pid and state in ("starting", "running", "stopping"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, random.choice([signal.SIGKILL] * 5 + [signal.SIGSTOP]))

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        shoot()
        time.sleep(random.choice([0.0, 0.05, 0.5, 8.0]))
        versions.append(control.counters(FIRST)["version"])
        assert run.process.poll() is None, run.said()
    goes_on(run, control)
    assert versions == sorted(versions)
    run.process.send_signal(signal.SIGINT)
    for _ in range(4):
        time.sleep(random.random())
        shoot()
    assert run.end() == 0, run.said()
    summary = balanced(run)
    assert summary["updates"] <= summary["version"]
    for ring in rings:
        assert ringbuf.books.at_rest(ring.books()) == []
