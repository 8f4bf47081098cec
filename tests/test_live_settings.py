"""What SIGHUP takes over from a run file that was edited, and what needs a restart."""

import contextlib
import os
import signal
import threading

import pytest
from command import CARTPOLE
from test_arbiter import stop

import config


def read(tmp_path, *overrides):
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    return config.read(tmp_path / "run.yaml", overrides, cores=2).config


def said(old, new):
    return [str(change) for change in config.changes(old, new)]


def test_changes_name_each_key_with_both_values(tmp_path):
    old = read(tmp_path)
    new = read(tmp_path, "learner.learning_rate=1e-4", "stop.steps=1000", "checkpoint.keep=7")
    assert said(old, old) == []
    assert said(old, new) == [
        "learner.learning_rate: 0.0003 -> 0.0001",
        "checkpoint.keep: 3 -> 7",
        "stop.steps: null -> 1000",
    ]
    assert config.take_over(old, new) == new


def test_a_schedule_is_one_value(tmp_path):
    new = read(tmp_path, "learner.learning_rate={start: 1e-3, end: 0, steps: 100}")
    (change,) = config.changes(read(tmp_path), new)
    assert change.live
    assert config.take_over(read(tmp_path), new).learner.learning_rate.start == 1e-3


@pytest.mark.parametrize(
    "override",
    ["run.seed=2", "producers.agents=32", "learner.epochs=2", "learner.batch_slots=4", "monitor.port=1",
     "monitor.interval_seconds=9", "sim.max_steps=9", "mode=sync", "weights.pickup=slot", "producers.count=4",
     "learner.count=2"],
)
def test_what_cannot_change_in_a_live_run_is_named_and_stays(tmp_path, override):
    """Nor does what follows from it by default, such as supervisor.min_producers."""
    old, new = read(tmp_path), read(tmp_path, override)
    assert all(change.endswith(" (needs a restart)") for change in said(old, new))
    assert said(old, new)
    assert config.take_over(old, new) == old


@pytest.mark.parametrize(
    "override",
    ["stop.score=3", "monitor.log_bytes=1MiB", "monitor.log_files=1", "monitor.log_level=warning",
     "supervisor.hung_seconds=3", "learner.entropy_coef=0.5", "checkpoint.interval_seconds=1"],
)
def test_what_may_change_is_taken_over(tmp_path, override):
    old, new = read(tmp_path), read(tmp_path, override)
    assert old != new
    assert config.take_over(old, new) == new


def test_live_keys_that_do_not_fit_those_that_stay_are_refused(tmp_path):
    """Four producers of which three must run: fine in the file, impossible for the two that run."""
    new = read(tmp_path, "producers.count=4", "supervisor.min_producers=3")
    with pytest.raises(config.ConfigError, match=r"supervisor\.min_producers: 3 of 2 producers"):
        config.take_over(read(tmp_path), new)


def test_sighup_takes_over_what_it_can_and_prints_the_difference(start):
    run = start("stop.seconds=100000")
    run.running()

    def rewrite(text, answer):
        (run.folder / "run.yaml").write_text(text)
        run.process.send_signal(signal.SIGHUP)
        run.when(lambda: answer in run.told())

    resolved = run.path / "config.resolved.yaml"
    before = resolved.read_text()
    rewrite("run: {name: [", "nothing was changed")
    rewrite(CARTPOLE + "stop: {score: many}\n", "stop.score")
    rewrite(CARTPOLE.replace("cartpole", "nothing-there"), "no simulator 'nothing-there'")
    assert resolved.read_text() == before
    rewrite(CARTPOLE, "SIGHUP: no change")
    assert resolved.read_text() == before
    wanted = CARTPOLE.replace("epochs: 1", "epochs: 2, learning_rate: 1.25e-4")
    wanted = wanted.replace("agents: 16", "agents: 32")
    # `stop.seconds` is an override, which the file does not change.
    rewrite(wanted + "stop: {seconds: 1}\n", "learner.learning_rate: 0.0003 -> 0.000125")
    told = run.told()
    assert "producers.agents: 16 -> 32 (needs a restart)" in told
    assert "learner.epochs: 1 -> 2 (needs a restart)" in told
    assert "stop.seconds:" not in told
    settings = config.load_resolved(resolved)
    assert (settings.learner.learning_rate, settings.learner.epochs) == (1.25e-4, 1)
    assert settings.producers.agents == 16
    run.until(lambda status: status["losses"]["learning_rate"] == 1.25e-4)
    # A learner that is started again knows the new value too.
    run.kill("learner")
    run.until(lambda status: status["restarts"]["learner"] == 1)
    version = run.status()["version"]
    run.until(lambda status: status["version"] > version + 2)
    assert run.status()["losses"]["learning_rate"] == 1.25e-4
    rewrite(CARTPOLE + "stop: {versions: 1}\n", "stop.versions: null -> 1")  # which is long met
    assert run.end() == 0, run.said()
    assert run.summary()["state"] == "done"


def test_a_lost_terminal_does_no_harm(start):
    """SIGHUP comes first, then every write fails."""
    master, slave = os.openpty()
    run = start(terminal=slave, environment={"TERM": "xterm"})
    os.close(slave)
    reader = threading.Thread(target=drain, args=(master,), daemon=True)
    reader.start()
    run.running()
    os.kill(run.process.pid, signal.SIGSTOP)  # so that nobody reads while it is closed
    os.close(master)
    run.process.send_signal(signal.SIGHUP)
    os.kill(run.process.pid, signal.SIGCONT)
    version = run.status()["version"]
    run.until(lambda status: status["version"] > version)
    run.when(lambda: run.events("settings"))
    stop(run)


def test_a_terminal_that_is_not_read_holds_up_nothing(start):
    """As after Ctrl-S: deaths are seen to, and signals heard."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 512)
    os.set_blocking(writer, True)
    run = start(terminal=writer)
    run.running()
    run.kill("producer")
    run.until(lambda status: status["restarts"]["producer"] == 1)
    stop(run)
    os.close(reader)
    os.close(writer)


def drain(terminal):
    """What stands in for the person in front of it."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
