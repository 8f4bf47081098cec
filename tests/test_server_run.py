"""Whole runs with an inference server, whatever is killed in them."""

import json
import os
import random
import signal
import time

import pytest
import torch
from command import CARTPOLE, ROOT, supervise
from runs import QUICK

from consumers.evaluate import evaluate
from monitor import rundir

SERVED = ("policy.placement=server", "policy.recurrent=mingru", "policy.recurrent_width=8")


def lines(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def is_right(run, code=0):
    """It ended well: the books balance, and whatever was audited has the labels it should have."""
    assert run.end() == code, run.said()
    summary = rundir.read_json(run.path / rundir.SUMMARY)
    slots = summary["slots"]
    assert slots["committed"] == slots["consumed"] + slots["dropped"]
    assert slots["in_flight"] == 0
    audited = [one for one in lines(run) if one["audit_label_error"] is not None]
    assert audited
    assert all(one["audit_label_error"] <= one["audit_label_tolerance"] for one in audited)
    return summary


def kills(run, role, index=0):
    """Kills a process and waits until another is in its place and works; returns how far the run has come."""
    pid = run.kill(role, index)

    def another(status):
        now = [one for one in status["processes"] if (one["role"], one["index"]) == (role, index)]
        return now and now[0]["pid"] not in (0, pid) and now[0]["state"] == "running"

    return run.until(another)["updates"]


def test_a_run_goes_on_whatever_of_its_server_and_producers_is_killed(start):
    run = start(*SERVED, "server.count=1", "checkpoint.interval_seconds=1e9")
    run.running()
    for role, index in (("server", 0), ("producer", 1), ("server", 0)):
        before = kills(run, role, index)
        run.until(lambda status, before=before: status["updates"] > before + 2)
    run.process.send_signal(signal.SIGTERM)
    summary = is_right(run)
    assert (summary["restarts"]["server"], summary["restarts"]["producer"]) == (2, 1)
    assert summary["server"]["rows"] > summary["steps"] > 0
    assert 0 <= summary["lag"]["max"] <= 1


def test_a_module_of_the_users_own_learns_in_a_synchronous_run_whose_server_is_killed(start):
    run = start(
        "policy.module=own_module:Attentive", "policy.recurrent_width=8", "mode=sync",
        "learner.precision=float32", environment={"PYTHONPATH": str(ROOT / "tests")},
    )  # fmt: skip
    run.running()
    before = kills(run, "server")
    run.until(lambda status: status["updates"] > before + 2)
    run.process.send_signal(signal.SIGTERM)
    summary = is_right(run)
    assert summary["restarts"]["server"] == 1
    assert summary["lag"]["max"] == 0
    assert all(one["update_ratio"] > 0 for one in lines(run))
    assert evaluate(run.path, episodes=8, worlds=8, seconds=60)["n"] == 8


@pytest.mark.soak
def test_a_run_goes_on_under_random_kills_and_stops(start):
    """HEADRACE_SOAK_SECONDS of SIGKILL, SIGSTOP and SIGCONT, several servers, all modes by turns."""
    seconds = float(os.environ.get("HEADRACE_SOAK_SECONDS", 60))
    drawn = random.Random(os.environ.get("HEADRACE_SOAK_SEED", "1"))
    for mode in ("async", "sync"):
        run = start(
            *SERVED, f"mode={mode}", "server.count=2", "producers.count=2", "supervisor.max_failures=1000",
            "supervisor.backoff_seconds=0.01", "supervisor.backoff_max_seconds=0.1",
        )  # fmt: skip
        run.running()
        until, killed = time.monotonic() + seconds / 2, 0
        while time.monotonic() < until:
            role, index = drawn.choice(("server", "producer")), drawn.randrange(2)
            pid = run.pid(role, index)
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(drawn.random() * 0.05)
                os.kill(pid, drawn.choice((signal.SIGKILL, signal.SIGCONT)))
                killed += 1
            except ProcessLookupError:
                pass  # it died before, and is not in the file any more
            before = run.status()["updates"]
            if drawn.random() < 0.3:
                run.until(lambda status, before=before: status["updates"] > before)
            time.sleep(drawn.random())
        run.process.send_signal(signal.SIGTERM)
        summary = is_right(run)
        assert killed > 0
        assert sum(summary["restarts"].values()) > 0


@pytest.mark.soak
def test_a_synchronous_run_is_taken_up_bit_for_bit_with_the_state_that_its_server_had(tmp_path):
    settings = (*SERVED, "mode=sync", "policy.recurrent=lstm", "evaluate.episodes=0")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, stops in ((whole, (8,)), (parts, (4, 8))):
        folder.mkdir()
        (folder / "run.yaml").write_text(CARTPOLE)
        for stop in stops:
            again = ["--resume"] if (folder / "runs").exists() else []
            finished = supervise(folder, "run.yaml", *settings, *again, f"stop.versions={stop}")
            assert finished.returncode == 0, finished.stderr
    latest = "runs/toy/checkpoints/latest/policy.pt"
    a, b = (torch.load(folder / latest, weights_only=True) for folder in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.soak
def test_a_run_whose_supervisor_was_killed_goes_on_in_the_memory_that_is_left(start):
    """Servers die with their supervisor; the next one's producers get other lives of them."""
    run = start(*SERVED)
    run.until(lambda status: (status["version"] or 0) > 3)
    run.process.kill()
    run.process.wait()
    finished = supervise(run.folder, "run.yaml", *SERVED, *QUICK, "stop.versions=40")
    assert finished.returncode == 0, finished.stderr
    assert "goes on in memory from version" in finished.stdout
    summary = rundir.read_json(run.path / rundir.SUMMARY)
    assert summary["slots"]["committed"] == summary["slots"]["consumed"] + summary["slots"]["dropped"]


@pytest.mark.soak
def test_a_server_that_is_stopped_is_found_hung_and_replaced(start):
    run = start(*SERVED, "supervisor.hung_seconds=2", "supervisor.abort_seconds=0.5")
    run.running()
    run.kill("server", number=signal.SIGSTOP)
    run.until(lambda status: status["restarts"].get("server"))
    before = run.status()["updates"]
    run.until(lambda status: status["updates"] > before + 2)
    run.process.send_signal(signal.SIGTERM)
    is_right(run)
    assert [one["event"] for one in run.events("hung")] == ["hung"]
