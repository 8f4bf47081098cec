"""Whole runs: from the start to each kind of end, in real processes."""

import json
import os
import shutil
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from command import CARTPOLE, DEADLINE_SECONDS, ROOT, segments, supervise
from native import broken, compile_simulator
from runs import QUICK, Run

import ringbuf
from monitor import rundir


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run that ended by itself, evaluation included: (folder, completed process)."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "run.yaml").write_text(CARTPOLE)
    # A simulator of the user's own, named by a path that only holds here.
    shutil.copy(ROOT / "sims/cartpole/cartpole.so", folder / "mine.so")
    settings = "sim.name=./mine.so", "stop.versions=6", "checkpoint.interval_seconds=0.5"
    return folder, supervise(folder, "run.yaml", *settings)


# A run that ends by itself


def test_a_run_ends_by_its_condition_with_exit_code_0(done):
    folder, finished = done
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    assert finished.stdout.splitlines()[-1].startswith("done: ")
    summary = rundir.read_json(folder / "runs/toy" / rundir.SUMMARY)
    assert (summary["state"], summary["version"], summary["message"]) == ("done", 6, None)
    assert 0 < summary["steps"] <= 6 * 2 * 16 * 16
    assert summary["seconds"] > 0
    assert summary["steps_per_second"] == pytest.approx(summary["steps"] / summary["seconds"], rel=0.01)


def test_a_run_that_is_done_was_evaluated(done):
    evaluated = rundir.read_json(done[0] / "runs/toy" / rundir.SUMMARY)["score"]["evaluated"]
    for policy in (evaluated, evaluated["argmax"]):
        assert policy["n"] == 8
        assert 1 <= policy["low"] <= policy["mean"] <= policy["high"] <= 500


def test_the_books_of_a_run_balance(done):
    slots = rundir.read_json(done[0] / "runs/toy" / rundir.SUMMARY)["slots"]
    assert slots["consumed"] == 12
    assert slots["in_flight"] == 0
    assert slots["committed"] == slots["consumed"] + slots["dropped"]


def test_no_process_spent_more_time_than_there_was(done):
    spent = rundir.read_json(done[0] / "runs/toy" / rundir.SUMMARY)["time"]
    assert 0 < sum(spent["producer"].values()) <= 1.01
    assert 0 < sum(spent["learner"].values()) <= 1.01


def test_the_lag_stays_within_its_limit(done):
    lag = rundir.read_json(done[0] / "runs/toy" / rundir.SUMMARY)["lag"]
    assert lag["limit"] == 1
    assert 0 <= lag["mean"] <= lag["max"] <= 1


def test_the_run_directory_holds_what_it_promises(done):
    path = done[0] / "runs/toy"
    for name in (
        "lock",
        "run.yaml",
        "config.resolved.yaml",
        "manifest.json",
        "status.json",
        "summary.json",
        "events.jsonl",
        "metrics.jsonl",
        "attempts/0001.json",
        "logs/learner-0.log",
        "logs/producer-1.log",
        "checkpoints/latest/policy.pt",
        "checkpoints/latest/state.json",
    ):
        assert (path / name).exists(), name
    assert (path / "run.yaml").read_text() == CARTPOLE
    assert rundir.read_json(path / "status.json") == rundir.read_json(path / "summary.json")
    manifest = rundir.read_json(path / "manifest.json")
    assert (manifest["seed"], manifest["packages"]["torch"].partition("+")[0]) == (1, "2.13.0")
    assert rundir.read_json(path / "attempts/0001.json")["state"] == "done"
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    assert {"started", "stopping", "ended", "done"} <= {event["event"] for event in events}


def test_status_has_the_fields_that_readers_rely_on(done):
    status = rundir.read_json(done[0] / "runs/toy/status.json")
    assert {
        "state",
        "steps",
        "seconds",
        "steps_per_second",
        "version",
        "score",
        "solved_at_seconds",
        "lag",
        "slots",
        "bytes",
        "restarts",
        "processes",
    } <= status.keys()
    assert {"mean", "best", "episodes", "evaluated"} <= status["score"].keys()
    assert {"mean", "p50", "p99", "max", "limit"} <= status["lag"].keys()
    assert {"committed", "consumed", "dropped", "redelivered", "in_flight"} <= status["slots"].keys()
    assert int(status["bytes"]["packed"]) > 0
    assert int(status["bytes"]["unpacked"]) > 0
    assert [(one["role"], one["index"]) for one in status["processes"]] == [
        ("producer", 0),
        ("producer", 1),
        ("learner", 0),
        ("exporter", 0),
    ]
    assert {"role", "index", "pid", "state", "cpu", "core"} <= status["processes"][0].keys()


def test_a_run_needs_none_of_the_standard_streams(tmp_path):
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert supervise(tmp_path, "run.yaml", "stop.versions=2", *QUICK, prefix=closed).returncode == 0
    assert rundir.read_json(tmp_path / "runs/toy" / rundir.SUMMARY)["version"] == 2


def test_a_finished_run_started_again_says_so_and_fresh_keeps_it(done):
    folder, _ = done
    again = supervise(folder, "run.yaml")
    assert again.returncode == 0
    assert again.stdout.startswith("done: ")
    assert "--fresh" in again.stdout
    # From the copy of its run file, which moves aside with it.
    fresh = supervise(folder, "runs/toy/run.yaml", "--fresh", "stop.versions=1", *QUICK)
    assert fresh.returncode == 0, fresh.stderr
    assert rundir.read_json(folder / "runs/toy.1" / rundir.SUMMARY)["version"] == 6
    assert rundir.read_json(folder / "runs/toy" / rundir.SUMMARY)["version"] == 1
    assert (folder / "runs/toy/run.yaml").read_text() == CARTPOLE


@pytest.mark.soak
def test_a_lagged_run_has_exactly_the_lag_it_asks_for(start):
    run = start("mode=lagged", "staleness.exact=1", "stop.versions=5")
    assert run.end() == 0, run.said()
    summary = run.summary()
    assert (summary["state"], summary["version"]) == ("done", 5)
    # The first batch is acted by version 0, as is the second; from then on every one by the version before.
    assert (summary["lag"]["max"], summary["lag"]["mean"]) == (1, pytest.approx(0.8, abs=0.05))
    assert summary["slots"]["consumed"] == 10


# A run under way


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A run under way."""
    run = Run(tmp_path_factory.mktemp("live"), *QUICK)
    try:
        run.until(lambda status: {one["state"] for one in status["processes"]} == {"running"})
        run.running()
        yield run
    finally:
        run.close()


@pytest.fixture(scope="module")
def stopped(live):
    """The run that was under way, after one SIGINT; what needs it alive stands above in this file."""
    live.process.send_signal(signal.SIGINT)
    live.code = live.end()
    return live


def test_the_supervisor_stays_small(live):
    text = Path(f"/proc/{live.process.pid}/status").read_text()
    status = dict(line.split(":\t") for line in text.splitlines())
    assert int(status["RssAnon"].split()[0]) < 60 * 1024, status["RssAnon"]
    assert int(status["Threads"]) == 1
    maps = Path(f"/proc/{live.process.pid}/maps").read_text()
    assert "torch" not in maps
    assert "numpy" not in maps


def test_every_child_names_its_role_its_run_and_its_directory(live):
    lines = live.alive()
    assert len(lines) == 4
    for line in lines:
        for text in ("--role ", "--run toy ", f"--dir {live.path} "):
            assert text in line


def test_the_endpoint_serves_a_live_run(live):
    address = live.status()["address"]

    def get(path):
        with urllib.request.urlopen(address + path, timeout=60) as answer:
            return answer.read()

    assert get("/healthz") == get("/readyz") == b"ok\n"
    assert json.loads(get("/status.json"))["name"] == "toy"
    assert b'headrace_ring_committed_slots_total{ring="1"}' in get("/metrics")


# Signals


def training(start):
    """A run that trains."""
    run = start()
    run.running()
    return run


def test_a_signal_stops_the_run_in_order(stopped):
    assert stopped.code == 0, stopped.said()
    summary = stopped.summary()
    assert (summary["state"], summary["score"]["evaluated"]) == ("stopped", None)
    assert summary["slots"]["in_flight"] == 0
    assert summary["slots"]["committed"] == summary["slots"]["consumed"] + summary["slots"]["dropped"]
    saved = rundir.read_json(stopped.path / "checkpoints/latest/state.json")
    assert (saved["version"], saved["steps"]) == (summary["version"], summary["steps"])


def test_a_signal_before_the_first_version_stops_the_run_too(start):
    run = start()
    run.until(lambda status: status["processes"])
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 0, run.said()
    assert run.summary()["state"] == "stopped"


@pytest.mark.soak
def test_a_stop_does_not_wait_for_worlds_that_are_slow_to_reset(start, tmp_path):
    text = (ROOT / "tests/data/relay.c").read_text()
    begin = "static int reset(void *world, const sim_io *io) {\n"
    slow = "#include <unistd.h>\n" + broken(text, begin, begin + "    sleep(600);\n")
    run = start(f"sim.name={compile_simulator(slow, tmp_path / 'relay.so')}")
    run.until(lambda status: status["version"] == 0)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0
    assert run.summary()["state"] == "stopped"


def test_a_second_signal_forces_the_end(start):
    run = start()
    run.running()
    os.kill(run.pid("learner"), signal.SIGSTOP)  # so that the first signal cannot be obeyed
    run.process.send_signal(signal.SIGINT)
    run.until(lambda status: status["state"] == "stopping")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert "killed by a second SIGINT" in run.said()
    assert run.summary()["state"] == "failed"


@pytest.mark.soak
def test_a_second_signal_forces_the_end_of_a_start_too(start):
    run = start()
    run.until(lambda status: status["processes"])
    os.kill(run.pid("learner"), signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    run.until(lambda status: status["state"] == "stopping")
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143
    assert "killed by a second SIGTERM" in run.said()


def evaluating(start):
    """A run in its evaluation, which would take very long."""
    run = start("stop.versions=2", "evaluate.episodes=1000000", "evaluate.seconds=100000")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not any("consumers.evaluate" in line for line in run.alive()):
        assert time.monotonic() < deadline, run.status()
        time.sleep(0.02)
    return run


def test_a_signal_during_the_evaluation_ends_it_and_keeps_the_run_done(start):
    run = evaluating(start)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0, run.said()
    assert (run.summary()["state"], run.summary()["score"]["evaluated"]) == ("done", None)


# Deaths


def test_a_slot_that_a_killed_producer_was_writing_is_undone(start):
    run = start("producers.agents=2048", "rollout.horizon=128", "learner.minibatches=1")
    run.running()
    _, (ring, _) = run.attach()
    pid = run.pid("producer")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:  # stopped at any moment, until the moment is right
        os.kill(pid, signal.SIGSTOP)
        if "writing" in [slot[0] for slot in ring.observe().slots]:
            break
        os.kill(pid, signal.SIGCONT)
        assert time.monotonic() < deadline
        time.sleep(0.003)
    epoch = ring.books()["epoch"]
    os.kill(pid, signal.SIGKILL)
    run.when(lambda: ring.books()["epoch"] > epoch)
    run.process.send_signal(signal.SIGINT)
    # Unswept, the slot would be neither free nor in the books, and the message would say so.
    assert run.end() == 0, run.said()
    assert "writing" not in [slot[0] for slot in ring.observe().slots]
    assert ringbuf.books.at_rest(ring.books()) == []


@pytest.mark.parametrize("moment", [pytest.param(training, marks=pytest.mark.soak), evaluating])
def test_the_children_of_a_killed_supervisor_die_and_the_next_start_sweeps(start, tmp_path, moment):
    run = moment(start)
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while run.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert run.alive() == []
    left = run.segments() & segments()
    assert left, "the next start has nothing to sweep: this test is blind"
    # Sweeping comes first, so the next run need not get far.
    again = supervise(tmp_path, "run.yaml", "--fresh", "supervisor.start_seconds=0.01", *QUICK)
    assert again.returncode == 70
    assert "learner 0 published nothing within 0.01 s (supervisor.start_seconds)" in again.stderr
    assert left & segments() == set()


def test_what_the_learner_refuses_is_the_answer_of_the_run(start):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    run = start("learner.device=cuda")
    assert run.end() == 69
    assert "learner 0" in run.said()
    assert "cuda" in run.said().lower()


def test_a_run_whose_final_checkpoint_is_refused_has_failed(start):
    run = start()
    run.running()
    (run.path / "checkpoints").rename(run.path / "aside")
    (run.path / "checkpoints").write_text("no directory")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 69
    assert "learner 0" in run.said()
    assert run.summary()["state"] == "failed"


def test_a_process_that_does_not_stop_is_killed_at_the_deadline(start):
    run = start("supervisor.deadline_seconds=2")
    run.running()
    os.kill(run.pid("producer", 1), signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 70
    assert (
        "the shutdown deadline of 2 s (supervisor.deadline_seconds) passed: killed producer 1" in run.said()
    )
    assert run.summary()["slots"]["in_flight"] == 0


@pytest.mark.soak
def test_a_run_directory_that_vanishes_leaves_nothing_behind(start):
    run = start()
    run.running()
    mine = run.segments()
    shutil.rmtree(run.path, ignore_errors=True)
    assert run.end() == 70
    assert "internal error" in run.said()
    assert mine & segments() == set()
