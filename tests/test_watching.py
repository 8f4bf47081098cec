"""Viewers see what the evaluator sends, get what they ask for, and cost nothing once they are gone."""

import base64
import contextlib
import http.client
import json
import os
import socket
import threading
import time
import urllib.request
from pathlib import Path
from random import Random

import msgpack
import pytest
from command import DEADLINE_SECONDS
from machines import Machine, serving

from monitor import pages, watching
from monitor.endpoint import watch_line
from monitor.watching import Refused, Watching

WATCHED = ("watch.enabled=true", "stop.score=null", "learner.learning_rate=1e-4")


class Viewer:
    """Reads events from an exporter, in a thread, until it is closed."""

    def __init__(self, address):
        self.events, self.pings, self.changed = [], 0, threading.Condition()
        self._connection = http.client.HTTPConnection(*address, timeout=DEADLINE_SECONDS)
        self._connection.request("GET", "/watch")
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            for line in self.answer:
                with self.changed:
                    if line.startswith(b"data: "):
                        self.events.append(json.loads(line[6:]))
                    self.pings += line.startswith(b":")
                    self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    ended = False

    def until(self, wanted):
        """Waits for an event that fulfils `wanted` and is not older than the call's first look."""
        with self.changed:
            seen = 0
            while True:
                for event in self.events[seen:]:
                    seen += 1
                    if wanted(event):
                        self.events = self.events[seen:]
                        return event
                assert not self.ended, "the stream has ended"
                assert self.changed.wait(DEADLINE_SECONDS), "nothing came"

    def next_frame(self):
        """The next that comes; None: the stream has ended."""
        with self.changed:
            self.events.clear()
            while not any(event["kind"] == "frame" for event in self.events):
                if self.ended:
                    return None
                assert self.changed.wait(DEADLINE_SECONDS), "nothing came"
            return self.events[-1]

    def close(self):
        with contextlib.suppress(OSError, AttributeError):  # it may have ended by itself
            self.answer.fp.raw._sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._thread.join()


class Rig:
    """An exporter whose evaluator is the test."""

    def __init__(self):
        self.theirs, self.ours = watch_line()
        self.watching = Watching(self.ours, 4, lambda: "exited")

    def send(self, **message):
        self.theirs.send(msgpack.packb(message))

    def heard(self):
        """The next wish."""
        self.theirs.settimeout(DEADLINE_SECONDS)
        return msgpack.unpackb(self.theirs.recv(4096))


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setattr(watching, "RENEW_SECONDS", 0.05)  # who has left is noticed as often
    made = Rig()
    yield made
    while made.watching.viewers:
        time.sleep(0.01)
    made.theirs.shutdown(socket.SHUT_WR)
    made.watching.reader.join()
    for end in (made.theirs, made.ours):
        end.close()


@pytest.fixture
def served(rig, tmp_path):
    machine = Machine(tmp_path)
    machine.pages = pages.Pages(machine.collector, machine.live, rig.watching.routes)
    with serving(machine) as address:
        yield address
    machine.close()


def post(address, wish, **headers):
    connection = http.client.HTTPConnection(*address, timeout=DEADLINE_SECONDS)
    connection.request("POST", "/watch", json.dumps(wish), {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_a_viewer_wakes_the_evaluator_and_gets_its_frames(rig, served):
    viewer = Viewer(served)
    assert rig.heard()["watch"] is True
    rig.send(kind="frame", png=b"\x00\xff", step=3, text="┌")
    event = viewer.until(lambda _: True)
    assert base64.b64decode(event["png"]) == b"\x00\xff"
    assert (event["kind"], event["step"], event["text"], event["worlds"]) == ("frame", 3, "┌", 4)
    second = Viewer(served)
    assert second.until(lambda _: True)["step"] == 3, "the newest, at once, though it is paused"
    viewer.close()
    rig.send(kind="frame", png=None, step=4)
    assert second.until(lambda event: event["step"] == 4)
    second.close()
    while rig.heard()["watch"]:
        pass
    third = Viewer(served)
    rig.send(kind="frame", png=None, step=9)
    assert third.until(lambda _: True)["step"] == 9, "and no frame of before"
    third.close()


def test_a_wish_reaches_the_evaluator_and_all_who_watch(rig, served):
    viewer = Viewer(served)
    rig.heard()
    assert post(served, {"world": 3, "speed": 30, "greedy": True, "agent": 5}) == (200, "ok\n")
    while (wish := rig.heard())["world"] != 3:
        pass
    assert (wish["speed"], wish["greedy"], wish["agent"]) == (30, True, 5)
    post(served, {"step": 2})
    post(served, {"step": 1})
    while (wish := rig.heard())["steps"] < 3:
        pass
    assert (wish["steps"], wish["paused"], wish["world"]) == (3, True, 3)
    rig.send(kind="waiting", text="")
    assert viewer.until(lambda _: True)["wish"]["paused"] is True
    viewer.close()


@pytest.mark.parametrize(
    ("wish", "needed"),
    [
        ({"world": 4}, "world: needs a whole number below 4"),
        ({"world": True}, "world"),
        ({"speed": 0.5}, "speed: needs a number from 1 to 60"),
        ({"speed": float("nan")}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"paused": 1}, "paused: needs true or false"),
        ({"step": 0}, "step"),
        ({"step": 10**9}, "step"),
        ({"agent": -1}, "agent"),
        ({"watch": False}, "watch: needs one of world"),
        ([], "an object"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_and_changes_nothing(rig, wish, needed):
    before = dict(rig.watching._wish)
    with pytest.raises(Refused, match=needed):
        rig.watching.command(json.dumps(wish).encode())
    assert rig.watching._wish == before


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 4000])
def test_what_is_no_json_is_refused(rig, body):
    with pytest.raises(Refused, match="needs JSON"):
        rig.watching.command(body)


def test_no_page_of_somebody_elses_may_wish_for_anything(served):
    assert post(served, {"paused": True}, Origin="http://elsewhere.example")[0] == 403
    assert post(served, {"paused": True, "x": "y"})[0] == 400
    assert post(served, {"\ud800": True})[0] == 400


def test_the_lease_is_renewed_while_somebody_watches(rig, served):
    viewer = Viewer(served)
    assert [rig.heard()["watch"] for _ in range(5)] == [True] * 5
    viewer.close()


def test_an_evaluator_that_says_nothing_is_told_of(rig, served, monkeypatch):
    monkeypatch.setattr(watching, "QUIET_SECONDS", 0.2)
    viewer = Viewer(served)
    told = viewer.until(lambda _: True)
    assert (told["kind"], told["text"]) == ("absent", "nothing is heard of the evaluator, which is exited")
    rig.send(kind="frame", png=None, step=1)
    assert viewer.until(lambda event: event["kind"] == "frame")
    viewer.close()


def test_no_more_than_some_may_watch(rig, served, monkeypatch):
    monkeypatch.setattr(watching, "VIEWERS", 1)
    first, second = Viewer(served), Viewer(served)
    assert (first.status, second.status) == (200, 503)
    for viewer in (first, second):
        viewer.close()


def test_a_page_offers_to_watch_only_where_there_is_an_evaluator(rig, tmp_path):
    machine = Machine(tmp_path)
    offered = '<section id="watch">'
    assert offered not in machine.page()
    machine.pages = pages.Pages(machine.collector, machine.live, rig.watching.routes)
    assert offered in machine.page()
    machine.close()


def address_of(run):
    host, port = run.status()["address"].removeprefix("http://").rsplit(":", 1)
    return host, int(port)


def ticks(pid):
    """CPU time of a process, in the kernel's unit of some milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_run_is_watched_through_the_deaths_of_evaluator_and_exporter(start):
    run = start(*WATCHED)
    run.running()
    run.until(lambda status: all(one["state"] == "running" for one in status["processes"]))
    roles = [(one["role"], one["index"]) for one in run.status()["processes"]]
    assert roles[-2:] == [("exporter", 0), ("evaluator", 0)]
    pid = run.pid("evaluator")
    assert "numpy" not in Path(f"/proc/{pid}/maps").read_text()
    before = ticks(pid)
    time.sleep(2)
    assert ticks(pid) - before <= 1, "a tick is a hundred of its heartbeats"

    address = address_of(run)
    viewer = Viewer(address)
    first = viewer.until(lambda event: event["kind"] == "frame")
    assert first["text"]
    assert first["png"] is not None
    assert sum(first["heads"][0]["probabilities"]) == pytest.approx(1)
    assert isinstance(first["value"], float)
    viewer.until(lambda event: event.get("version", 0) > first["version"])

    post(address, {"world": 2, "speed": 60})
    viewer.until(lambda event: event["kind"] == "frame" and event["world"] == 2)
    run.kill("evaluator")
    run.until(lambda status: status["restarts"]["evaluator"] == 1)
    again = viewer.until(lambda event: event["kind"] == "frame" and event["step"] < 2)
    assert again["world"] == 2, "the next one learns what is wanted"

    run.kill("exporter")
    viewer.close()
    run.until(lambda status: status["restarts"]["exporter"] == 1)
    viewer = Viewer(address)
    frame = viewer.until(lambda event: event["kind"] == "frame")
    assert (frame["world"], frame["wish"]["speed"]) == (2, 60), "what was wanted is not forgotten"
    viewer.close()
    metrics = urllib.request.urlopen(run.status()["address"] + "/metrics", timeout=60).read().decode()
    assert 'headrace_process_restarts_total{index="0",role="evaluator"} 1.0' in metrics
    assert 'headrace_process_resident_memory_bytes{index="0",role="evaluator"}' in metrics

    assert "torch" not in Path(f"/proc/{run.pid('evaluator')}/maps").read_text()
    run.process.terminate()
    assert run.end() == 0, run.said()
    assert run.summary()["state"] == "stopped"


@pytest.mark.soak
def test_a_final_evaluation_is_no_evaluator_that_is_watched(start):
    run = start("watch.enabled=true", "stop.versions=3", "evaluate.episodes=8")
    assert run.end() == 0, run.said()
    summary = run.summary()
    assert summary["score"]["evaluated"]["n"] == 8
    assert summary["restarts"]["evaluator"] == 0


@pytest.mark.soak
def test_viewers_see_the_agent_again_whatever_dies_or_stands_still(start):
    """For a while: evaluator and exporter, killed or stopped at random, before two who watch."""
    run = start(
        *WATCHED, "supervisor.hung_seconds=2", "supervisor.abort_seconds=0.2",
        "supervisor.backoff_max_seconds=1",
    )  # fmt: skip
    run.running()
    address, random = address_of(run), Random(int(os.environ.get("HEADRACE_SEED", "1")))
    viewers = [Viewer(address), Viewer(address)]
    for _ in range(8):
        with contextlib.suppress(ProcessLookupError):
            run.kill(random.choice(["evaluator", "exporter"]), number=random.choice([9, 9, 19]))
        time.sleep(random.choice([0.0, 0.3, 2.0]))
        for i, viewer in enumerate(viewers):
            frame = None
            while frame is None:
                frame = viewer.next_frame()
                if frame is None:
                    viewer.close()
                    viewer = viewers[i] = Viewer(address)
        assert run.process.poll() is None, run.said()
    for viewer in viewers:
        viewer.close()
    run.process.terminate()
    assert run.end() == 0, run.said()
