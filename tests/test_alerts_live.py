"""A real run, a real Prometheus at a scale of 1/60, and real mishaps: each makes the right alerts fire."""

import contextlib
import os
import signal
import threading
import time
from fractions import Fraction

import pytest
from faults import simulator
from prom import Prometheus, needs_prometheus

from monitor.alert_files import files, write

pytestmark = [pytest.mark.soak, needs_prometheus]

SLEEP = "usleep(40000);"  # a step: producers do not wait for training, and are no load for the machine
# What neither these mishaps nor a slow machine explain.
NEVER = {"MetricsAbsent", "CollectorErrors", "StalenessHigh", "SamplesDropped", "NonFinite", "AuditAlarm",
         "ProducerFailed", "MemoryGrowth"}  # fmt: skip


@contextlib.contextmanager
def slowed(run):
    """A learner that is stopped for four seconds after each update."""
    control, rings = run.attach()
    row, pid, over = 1 + len(rings), run.pid("learner"), threading.Event()

    def turns():
        while not over.is_set():
            updates = control.counters(row)["updates"]
            os.kill(pid, signal.SIGCONT)
            while control.counters(row)["updates"] == updates and not over.wait(0.01):
                pass
            os.kill(pid, signal.SIGSTOP)
            over.wait(4.0)

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


def kill_in_a_loop(run, index, times):
    """SIGKILLs a producer as soon as it is back."""
    control, _ = run.attach()
    for _ in range(times):
        before = run.when(lambda: (one := control.process(1 + index)).state == "running" and one)
        os.kill(before.pid, signal.SIGKILL)
        run.when(lambda before=before: control.process(1 + index).epoch > before.epoch)


def test_each_mishap_makes_its_own_alerts_fire(start, tmp_path):
    run = start(f"sim.name={simulator(tmp_path, '1', SLEEP)}", "producers.agents=2", "rollout.horizon=4",
                "learner.minibatches=1", "learner.learning_rate=1e-9", "stop.score=null", "stop.steps=null",
                "checkpoint.interval_seconds=1", "checkpoint.retry_seconds=1")  # fmt: skip
    folder = tmp_path / "prometheus"
    write(folder, files(Fraction(1, 60)))
    target = run.running()["address"].removeprefix("http://")
    prometheus = Prometheus(folder, [target], [folder / "rules.yml", folder / "alerts.yml"])

    def fires(*names):
        return prometheus.until(lambda: {f"Headrace{name}" for name in names} <= set(prometheus.alerts()))

    def silent(*names):
        return prometheus.until(lambda: not {f"Headrace{name}" for name in names} & set(prometheus.alerts()))

    try:
        prometheus.until(lambda: prometheus.query("headrace:learner_updates:rate5m"))
        # Prometheus looks for targets every five seconds: at this scale as long as there may be none.
        silent("MetricsAbsent")
        began = time.monotonic()
        kill_in_a_loop(run, 1, 5)
        fires("ProducerCrashLoop")
        (alert,) = prometheus.alerts()["HeadraceProducerCrashLoop"]
        assert (alert["role"], alert["index"], alert["instance"]) == ("producer", "1", target)

        checkpoints, aside = run.path / "checkpoints", tmp_path / "aside"
        checkpoints.rename(aside)
        checkpoints.touch()
        fires("CheckpointFailing", "CheckpointStale")
        checkpoints.unlink()
        aside.rename(checkpoints)
        silent("CheckpointStale")

        assert "HeadraceRingsFull" not in prometheus.alerts()
        with slowed(run):
            fires("RingsFull")

        run.kill("learner", number=signal.SIGSTOP)
        fires("LearnerStalled", "PublishStuck", "NoThroughput")
        run.kill("learner", number=signal.SIGCONT)
        silent("LearnerStalled", "PublishStuck", "NoThroughput")

        run.process.kill()
        fires("ExporterDown")
        passed = int(time.monotonic() - began)
        fired = prometheus.query(f'max_over_time(ALERTS{{alertstate="firing"}}[{passed}s])')
        assert {labels["alertname"] for labels, _ in fired} & {f"Headrace{name}" for name in NEVER} == set()
    finally:
        prometheus.close()
