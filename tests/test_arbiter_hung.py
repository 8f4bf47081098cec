"""Hung is not dead: what stands still is asked for its stack, killed and started again."""

import os
import signal

import pytest
from command import CARTPOLE
from faults import HANG, simulator
from test_arbiter import stop

SOON = ("supervisor.hung_seconds=4", "supervisor.abort_seconds=0.5")


def hung(run, role, index=0):
    """Waits for the event; the first."""
    return run.when(
        lambda: [one for one in run.events("hung") if (one["role"], one["index"]) == (role, index)]
    )[0]


def test_stopped_processes_are_found_and_started_again(start):
    run = start(*SOON)
    run.running()
    control, rings = run.attach()
    run.until(lambda status: [one["state"] for one in status["processes"]] == ["running"] * 4)
    pids = [run.pid(role) for role in ("producer", "learner", "exporter")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for role, pid in zip(("producer", "learner", "exporter"), pids, strict=True):
        event = hung(run, role)
        assert event["pid"] == pid
        assert event["heartbeat_seconds"] >= 4
        assert {"phase", "progress"} <= event.keys()
    run.until(lambda status: min(status["restarts"].values()) >= 1)
    version, epoch = control.counters(3)["version"], rings[0].books()["epoch"]
    assert epoch >= 1
    run.when(lambda: control.counters(3)["version"] > version + 2)
    # The learner says where it stood.
    assert 'File "' in (run.path / "logs/learner-0.log").read_text()
    told = run.told()
    assert "warning: producer 0" in told
    assert "hung in phase" in told
    assert "died of SIGABRT, since it was hung; starts again" in told
    stop(run)


@pytest.mark.soak
def test_a_simulator_that_loops_for_ever_is_named_in_its_log(start, tmp_path):
    library = simulator(tmp_path, "unlucky() && r->now.steps == 100", HANG)
    run = start(f"sim.name={library}", *SOON)
    event = hung(run, "producer", 1)
    assert event["phase"] == "step"
    crashed = run.when(lambda: run.events("crashed"))[0]
    assert (crashed["role"], crashed["index"], crashed["signal"]) == ("producer", 1, "SIGABRT")
    assert crashed["world"] in range(8, 16)
    assert 90 <= crashed["step"] <= 100
    assert f"world {crashed['world']}" in (run.path / "logs/producer-1.log").read_text()
    run.until(lambda status: status["restarts"]["producer"] >= 1)
    stop(run)


@pytest.mark.soak
def test_a_process_that_ignores_the_request_for_its_stack_is_killed(start, tmp_path):
    deaf = f"signal(SIGABRT, SIG_IGN); {HANG}"
    library = simulator(tmp_path, "unlucky() && r->now.steps == 100", deaf)
    run = start(f"sim.name={library}", *SOON)
    crashed = run.when(lambda: run.events("crashed"))[0]
    assert (crashed["role"], crashed["signal"]) == ("producer", "SIGKILL")
    assert "died of SIGKILL, since it was hung" in run.told()
    stop(run)


@pytest.mark.soak
def test_a_restarted_process_that_does_not_come_up_is_hung_too(start, tmp_path):
    """Its second life hangs in the first reset of its worlds; the third is as the first."""
    once = f'access("{tmp_path}/hang", F_OK) == 0 && unlink("{tmp_path}/hang") == 0'
    library = simulator(tmp_path, once, HANG, place="reset")
    run = start(f"sim.name={library}")
    run.running()
    # Only now: the learner's first start takes as long as it takes.
    (run.folder / "run.yaml").write_text(CARTPOLE + "supervisor: {start_seconds: 3, abort_seconds: 0.5}\n")
    run.process.send_signal(signal.SIGHUP)
    run.when(lambda: run.events("settings"))
    (tmp_path / "hang").touch()
    run.kill("producer")
    run.when(lambda: run.events("slow start"))
    run.until(lambda status: status["restarts"]["producer"] >= 2)
    stop(run)
