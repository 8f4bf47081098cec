"""Whatever dies, the run goes on: real kills of real processes, in every phase of a run."""

import contextlib
import json
import os
import signal
import time
import urllib.request
from random import Random

import pytest
from command import segments
from faults import CRASH, FAIL, simulator
from runs import QUICK, Run

import ringbuf
from monitor import rundir

KILLS = int(os.environ.get("HEADRACE_KILLS", "20"))  # of producers in one run
SOON = ("supervisor.backoff_seconds=0.01", "supervisor.backoff_max_seconds=0.02")


def stop(run):
    """Ends a run in order; its summary, whose books balance."""
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0, run.said()
    return balanced(run)


def balanced(run):
    summary = run.summary()
    slots = summary["slots"]
    assert slots["in_flight"] == 0
    assert slots["committed"] == slots["consumed"] + slots["dropped"]
    return summary


# Producers


@pytest.fixture(scope="module")
def battered(tmp_path_factory):
    """A run whose producers were killed by turns, and what was seen of it."""
    run = Run(tmp_path_factory.mktemp("battered"), *QUICK)
    try:
        run.running()
        control, rings = run.attach()
        run.recovery_seconds = []
        for kill in range(KILLS):
            ring = rings[kill % 2]
            before = ring.books()
            os.kill(control.process(1 + kill % 2).pid, signal.SIGKILL)
            killed = time.monotonic()
            run.when(lambda ring=ring, before=before: ring.books()["epoch"] > before["epoch"])
            base = ring.books()["committed"]
            run.when(lambda ring=ring, base=base: ring.books()["committed"] > base)
            run.recovery_seconds.append(time.monotonic() - killed)
        run.version = run.status()["version"]
        run.until(lambda status: status["version"] > run.version)
        run.until(lambda status: {one["state"] for one in status["processes"]} == {"running"})
        with urllib.request.urlopen(run.status()["address"] + "/metrics", timeout=60) as answer:
            run.metrics = answer.read().decode()
        run.at_end = stop(run)
        yield run
    finally:
        run.close()


def test_producers_may_be_killed_twenty_times_and_the_books_balance(battered):
    assert battered.at_end["restarts"]["producer"] == KILLS
    assert battered.at_end["slots"]["consumed"] > 0


def test_a_killed_producer_writes_again_soon(battered):
    """Each time; the fastest shows what it takes on a machine that has nothing else to do."""
    assert len(battered.recovery_seconds) == KILLS
    assert min(battered.recovery_seconds) < 2


def test_every_death_is_told_and_written_down(battered):
    told = [line for line in battered.told().splitlines() if "died of SIGKILL; starts again" in line]
    assert len(told) == KILLS
    crashed = battered.events("crashed")
    assert [event["signal"] for event in crashed] == ["SIGKILL"] * KILLS
    assert {event["simulator"] for event in crashed} == {"cartpole"}
    assert all(event["last_slot"]["sequence"] >= 0 for event in crashed)


def test_restarts_and_states_are_metrics(battered):
    half = KILLS // 2
    for line in (
        f'headrace_process_restarts_total{{index="1",role="producer"}} {half}.0',
        'headrace_process_restarts_total{index="0",role="learner"} 0.0',
        'headrace_producers{state="running"} 2.0',
        'headrace_producers{state="backoff"} 0.0',
        'headrace_producers{state="hung"} 0.0',
    ):
        assert line in battered.metrics


def test_a_simulator_that_crashes_now_and_then_is_named_and_the_run_goes_on(start, tmp_path):
    run = start(f"sim.name={simulator(tmp_path, 'unlucky() && r->now.steps == 200', CRASH)}", "run.seed=5")
    run.until(lambda status: status.get("restarts", {}).get("producer", 0) >= 3)
    stop(run)
    crashed = run.events("crashed")[0]
    assert (crashed["role"], crashed["index"], crashed["signal"]) == ("producer", 1, "SIGSEGV")
    assert (crashed["simulator"], crashed["phase"]) == ("relay", "step")
    assert crashed["world"] in range(8, 16)
    assert 190 <= crashed["step"] <= 200
    assert crashed["last_slot"]["sequence"] > 0
    where = f"world {crashed['world']} (seed {crashed['seed']}), step {crashed['step']}"
    assert f"{where}; simulator relay, last slot" in run.told()
    assert "starts again at once" in run.told()
    assert f"world {crashed['world']}" in (run.path / "logs/producer-1.log").read_text()


@pytest.mark.soak
def test_a_learner_starts_with_the_settings_in_force_whatever_became_of_their_file(start):
    run = start()
    version = run.running()["version"]
    resolved = run.path / rundir.RESOLVED
    in_force = resolved.read_text()
    resolved.write_text("{ no more")
    run.kill("learner")
    run.until(lambda status: status["restarts"]["learner"] == 1 and status["version"] > version + 10)
    assert resolved.read_text() == in_force
    assert stop(run)["restarts"]["learner"] == 1


def test_what_a_simulator_has_forked_goes_with_its_producer(start, tmp_path):
    """It holds the run's lock and memory, and nobody else knows of it."""
    fork = "if (fork() == 0) for (;;) pause(); raise(SIGKILL);"
    run = start(f"sim.name={simulator(tmp_path, 'unlucky() && r->now.steps == 200', fork)}")
    run.until(lambda status: status.get("restarts", {}).get("producer", 0) >= 3)
    stop(run)


def test_a_run_goes_on_without_a_producer_that_failed_for_good(start, tmp_path):
    run = start(
        f"sim.name={simulator(tmp_path, 'unlucky()', CRASH)}",
        "supervisor.max_failures=3", "supervisor.min_producers=1", *SOON,
        "staleness.limit=0",  # credit for one batch alone: what a dead producer held would be missed
    )
    run.until(lambda status: [one["state"] for one in status["processes"][:2]] == ["running", "failed"])
    version = run.running()["version"]
    run.until(lambda status: status["version"] > version + 10)
    summary = stop(run)
    assert summary["restarts"]["producer"] == 3
    assert "4th time within 600 s without progress (supervisor.max_failures: 3)" in run.told()
    assert "the run goes on with 1 of 2 producers" in run.told()
    assert "producers=1/2" in run.told()
    assert len(run.events("crashed")) == 4


def test_a_run_gives_up_when_it_cannot_do_without_the_producer_that_failed(start, tmp_path):
    """In an exact mode it can do without none; test_restarts.py has the other reasons."""
    run = start(
        f"sim.name={simulator(tmp_path, 'unlucky()', CRASH)}",
        "mode=sync", "supervisor.max_failures=1", "supervisor.min_producers=1", *SOON,
    )
    assert run.end() == 75
    assert "needs slots of every producer: producer 1" in run.said()
    assert "died of SIGSEGV" in run.said()
    assert balanced(run)["state"] == "failed"


# What cannot start


def test_a_simulator_that_refuses_its_first_reset_ends_the_run_with_its_reason(start, tmp_path):
    run = start(f"sim.name={simulator(tmp_path, 'unlucky()', FAIL, place='reset')}")
    assert run.end() == 70
    assert "producer 1" in run.said()
    assert "returned the error -7 at reset: world 8" in run.said()
    assert run.summary()["restarts"]["producer"] == 0


def test_a_learner_that_cannot_boot_ends_the_run_with_its_reason(start, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('no torch for you')\n")
    run = start(environment={"PYTHONPATH": str(tmp_path)})
    assert run.end() == 70
    assert "learner 0" in run.said()
    assert "no torch for you" in run.said()
    assert run.summary()["restarts"]["learner"] == 0


# Learner, exporter, evaluator


def test_a_killed_learner_goes_on_at_its_version_also_in_a_stop(start):
    run = start()
    run.running()
    control, rings = run.attach()
    versions = []

    def version():
        versions.append(control.counters(3)["version"])
        return versions[-1]

    for kill in range(2):
        before = version()
        run.kill("learner")
        run.until(lambda status, kill=kill: version() and status["restarts"]["learner"] == kill + 1)
        run.when(lambda before=before: version() > before + 2)
    os.kill(run.pid("producer", 1), signal.SIGSTOP)  # so that the stop waits in its first phase
    run.process.send_signal(signal.SIGINT)
    run.until(lambda status: status["state"] == "stopping")
    run.kill("learner")
    run.until(lambda status: status["restarts"]["learner"] == 3)
    assert not control.producers_gone
    run.kill("producer", 1)  # in a stop: swept, and not started again
    run.when(lambda: control.producers_gone)
    run.kill("learner")
    assert run.end() == 0, run.said()
    summary = balanced(run)
    assert versions == sorted(versions)
    assert summary["version"] >= versions[-1]
    assert (summary["restarts"]["learner"], summary["restarts"]["producer"]) == (4, 0)
    saved = json.loads((run.path / "checkpoints/latest/state.json").read_text())
    assert saved["version"] == summary["version"]
    for ring in rings:
        assert ringbuf.books.at_rest(ring.books()) == []


@pytest.mark.soak
def test_a_machine_that_is_paused_in_a_stop_misses_no_deadline(start):
    run = start("supervisor.deadline_seconds=20")
    run.running()
    pids = [one["pid"] for one in run.status()["processes"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    run.when(lambda: run.events("stopping"))
    os.kill(run.process.pid, signal.SIGSTOP)
    time.sleep(24)
    for pid in [*pids, run.process.pid]:
        os.kill(pid, signal.SIGCONT)
    assert run.end() == 0, run.said()
    assert run.summary()["state"] == "stopped"


def test_a_killed_exporter_comes_back_on_the_same_port(start):
    run = start()
    run.running()
    address = run.status()["address"]
    run.kill("exporter")
    run.until(lambda status: status["restarts"]["exporter"] == 1)
    with urllib.request.urlopen(address + "/healthz", timeout=60) as answer:
        assert answer.read() == b"ok\n"
    run.until(lambda status: status["processes"][-1]["state"] == "running")
    stop(run)


@pytest.mark.soak
def test_a_run_that_has_a_result_has_no_memory_any_more(start):
    """It may be killed at once, and no further attempt would clear up."""
    run = start()
    run.running()
    assert run.segments() <= segments()
    run.kill("exporter", number=signal.SIGSTOP)  # holds up the end
    run.process.send_signal(signal.SIGTERM)
    run.when(lambda: run.summary() is not None)
    assert run.segments() & segments() == set()
    assert run.end() == 0


def test_an_evaluator_that_dies_is_tried_once_more(start):
    run = start("stop.versions=2", "evaluate.episodes=8")
    line = run.when(lambda: [one for one in run.alive() if "consumers.evaluate" in one])
    assert len(line) == 1
    first = run.when(lambda: [event for event in run.events("started") if event["role"] == "evaluator"])
    os.kill(first[0]["pid"], signal.SIGKILL)
    assert run.end() == 0, run.said()
    assert run.summary()["score"]["evaluated"]["n"] == 8
    assert "the evaluator died of SIGKILL; it is started once more" in run.told()


@pytest.mark.soak
def test_a_run_survives_random_kills_and_stops(start):
    """For HEADRACE_SOAK_SECONDS: any process, killed or stopped; then a stop under fire."""
    seconds = float(os.environ.get("HEADRACE_SOAK_SECONDS", "60"))
    random = Random(int(os.environ.get("HEADRACE_SEED", "1")))
    run = start(
        "producers.count=3", "supervisor.hung_seconds=4", "supervisor.abort_seconds=0.2",
        "checkpoint.interval_seconds=1", "supervisor.max_failures=1000000", *SOON,
    )
    run.running()
    control, rings = run.attach()
    versions = []

    def shoot():
        slot = random.choice([1, 1, 2, 2, 3, 3, 4, 5])  # three producers, learner, exporter
        pid, state = control.process(slot).pid, control.process(slot).state
        if pid and state in ("starting", "running", "stopping"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, random.choice([signal.SIGKILL] * 5 + [signal.SIGSTOP]))

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        shoot()
        time.sleep(random.choice([0.0, 0.05, 0.5, 4.0]))
        versions.append(control.counters(4)["version"])
        assert run.process.poll() is None, run.said()
    version = control.counters(4)["version"]
    run.when(lambda: control.counters(4)["version"] > version + 2)
    assert versions == sorted(versions)
    run.process.send_signal(signal.SIGINT)
    for _ in range(4):
        time.sleep(random.random())
        shoot()
    assert run.end() == 0, run.said()
    balanced(run)
    for ring in rings:
        assert ringbuf.books.at_rest(ring.books()) == []
