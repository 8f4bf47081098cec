"""Alarms of real runs: processes killed in a loop, a checkpoint that fails, a learner that stands still.

The clock of the exporter's messages decides, less what a busy machine kept the exporter from looking, so that
no load makes an alarm late.
"""

import http.client
import json
import os
import signal
import threading
import time
from urllib.parse import urlsplit

import pytest

from monitor.alarms import Thresholds

pytestmark = pytest.mark.soak
LATE_SECONDS = 3.0
LIMITS = Thresholds()


class Viewer:
    """Collects what the page would be told."""

    def __init__(self, run):
        self.run = run
        address = urlsplit(run.running()["address"])
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=300)
        self._connection.request("GET", "/events")
        self._answer = self._connection.getresponse()
        self.messages = []
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self):
        while line := self._answer.readline():
            if line.startswith(b"data: "):
                self.messages.append(json.loads(line[6:]))

    def until(self, kind, *, stands=True):
        """Waits until an alarm of a kind stands, or does no longer; returns that message."""
        begun = len(self.messages)

        def found():
            new = self.messages[begun:]
            return next((one for one in new if (kind in kinds(one)) == stands), None)

        return self.run.when(found)

    def lateness(self, kind, condition_unix):
        """Seconds from a condition to the first message that tells of it."""
        return next(one["time"] for one in self.messages if kind in kinds(one)) - condition_unix

    def close(self):
        self._thread.join()
        self._answer.close()
        self._connection.close()


def kinds(message):
    return {alarm["kind"] for alarm in message["alarms"]}


def started(run):
    """The starts of the first producer, oldest first."""
    return [one for one in run.events("started") if (one["role"], one["index"]) == ("producer", 0)]


def test_each_alarm_of_a_spoiled_run_is_shown_within_three_seconds(start):
    run = start("checkpoint.interval_seconds=1", "checkpoint.retry_seconds=1", "supervisor.hung_seconds=120")
    viewer = Viewer(run)
    late = {}

    for kill in range(1, LIMITS.restarts + 2):
        slots = run.status()["producers"][0]["slots"]
        run.until(lambda status, least=slots: status["producers"][0]["slots"] > least)
        os.kill(started(run)[-1]["pid"], signal.SIGKILL)
        run.when(lambda least=kill: len(started(run)) > least)
    viewer.until("crash loop")
    restarted = started(run)[LIMITS.restarts + 1]["time"]
    late["crash loop"] = viewer.lateness("crash loop", restarted)

    checkpoints = run.path / "checkpoints"
    checkpoints.rename(run.path / "aside")
    checkpoints.write_text("in the way")
    viewer.until("checkpoint failing")
    failed = run.events("checkpoint_failed")[0]["time"]
    late["checkpoint failing"] = viewer.lateness("checkpoint failing", failed)
    checkpoints.unlink()
    (run.path / "aside").rename(checkpoints)
    viewer.until("checkpoint failing", stands=False)

    learner = run.kill("learner", number=signal.SIGSTOP)
    control, _ = run.attach()
    time.sleep(0.5)
    row = next(i for i in range(1, 10) if control.process(i).role == "learner")
    stopped = control.counters(row)["last_update_unix_ns"] / 1e9
    viewer.until("learner stalled")
    late["learner stalled"] = viewer.lateness("learner stalled", stopped + LIMITS.stalled_seconds)
    os.kill(learner, signal.SIGCONT)
    viewer.until("learner stalled", stands=False)

    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 0
    viewer.close()
    assert viewer.messages[-1]["status"]["state"] == "stopped", "the last word reaches the page"
    gaps = [b["time"] - a["time"] for a, b in zip(viewer.messages, viewer.messages[1:], strict=False)]
    slack = max(gaps) - 1.0  # of a machine that kept the exporter waiting
    assert {kind: seconds for kind, seconds in late.items() if seconds > LATE_SECONDS + slack} == {}
    assert min(late.values()) > -1.0, "none comes before its condition"
    print({kind: round(seconds, 2) for kind, seconds in late.items()})


def test_the_past_outlives_an_exporter_that_is_killed(start):
    run = start()
    viewer = Viewer(run)
    run.when(lambda: len(viewer.messages) > 3)
    before = viewer.messages[-1]["time"]
    killed = run.kill("exporter")
    viewer.close()
    run.until(
        lambda status: any(
            one["role"] == "exporter" and one["pid"] not in (0, killed) for one in status["processes"]
        )
    )
    again = Viewer(run)
    run.when(lambda: again.messages)
    address = urlsplit(run.status()["address"])
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=300)
    connection.request("GET", "/history.json?seconds=300")
    with connection.getresponse() as answer:
        past = json.loads(answer.read())
    connection.close()
    assert len([time for time in past["times"] if time < before]) >= 3
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 0
    again.close()
