"""A run with real producers and real learners whose supervisor is the test: learners are killed and taken up
as often as it likes."""

import contextlib
import json
import os
import signal
import subprocess
import time
import uuid

import torch

import config
from consumers import checkpoint, shelf
from monitor.status import Table
from producers import native
from producers.prepare import Segments, prepare
from ringbuf import books
from ringbuf.repair import Repair

DEADLINE_SECONDS = 240  # against hanging only

RUN = """\
run: {name: live, seed: 7}
sim: {name: cartpole, max_steps: 30}
mode: sync
producers: {count: 2, agents: 8}
rollout: {horizon: 8}
ring: {slots: 4}
policy: {hidden: [16], activation: tanh, normalize_obs: true}
learner:
  {device: cpu, threads: 1, precision: float32, batch_slots: 4, epochs: 2, minibatches: 4,
   normalize_value: true, learning_rate: {start: 3e-3, end: 0, steps: 100000}}
checkpoint: {interval_seconds: 1e9}
stop: {versions: 14, window: 20}
monitor: {port: 0}
"""


class LiveRun:
    """`overrides` as on the command line. `worlds`: that the producers go on from, one a ring."""

    def __init__(self, folder, zygote, *overrides, text=RUN, worlds=()):
        self.folder, self.zygote = folder, zygote
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "live.yaml").write_text(text)
        self.prepared = prepare(str(folder / "live.yaml"), list(overrides))
        (folder / "config.resolved.yaml").write_text(config.dump_resolved(self.prepared.config))
        self.segments = Segments(self.prepared, uuid.uuid4(), directory=str(folder))
        self.control, self.rings = self.segments.control, self.segments.rings
        for ring, state in zip(self.rings, worlds, strict=False):
            ring.load_state(state)
        self.learners = self.prepared.config.learner.count
        self.table = Table.of(len(self.rings), self.learners)
        self.repair = Repair(self.control, self.segments.weights, self.rings, self.learners)
        self.meeting = os.memfd_create("meeting")
        self.producers: list[subprocess.Popen] = []
        self.pids: list[int] = []  # of the learners
        self.codes: dict[int, int] = {}  # exit codes of those that ended, by pid, in that order
        self.kills = 0

    @property
    def pid(self):
        """Of the first learner."""
        return self.pids[0] if self.pids else None

    # The supervisor's part

    def start(self, faults="", **options):
        self.start_producers()
        self.learner(faults, **options)

    def start_producers(self):
        """Starts them; they wait for a learner."""
        for learner in range(self.learners):
            self.repair.hand_over(learner)
        for index in range(len(self.rings)):
            self._start_producer(index)

    def _identity(self, role, index, slot, parent):
        self.control.set_process(slot, role=role, role_index=index, state="running", epoch=1)
        identity = {"role": role, "index": index, "run": "live", "dir": self.folder, "process": slot}
        channel = {"parent": parent, "control": self.control.fd, "weights": self.segments.weights.fd}
        return [part for name, value in (identity | channel).items() for part in (f"--{name}", str(value))]

    def _start_producer(self, index):
        slot, ring = self.table.producers[index], self.rings[index]
        arguments = self._identity("producer", index, slot, os.getpid())
        arguments += ["--ring", str(ring.fd), "--sim", str(self.prepared.library)]
        fds = (self.control.fd, self.segments.weights.fd, ring.fd)
        with (self.folder / "logs" / f"producer-{index}.log").open("ab") as log:
            self.producers.append(
                subprocess.Popen([str(native.PRODUCER), *arguments], pass_fds=fds, stdout=log, stderr=log)
            )

    def learner(self, faults="", whose=0, **options):
        """Starts the learners, one of which has faults as in zygote.py; `options` of their command line."""
        os.ftruncate(self.meeting, 0)
        self.pids, self.codes = [], {}
        fds = [self.control.fd, self.segments.weights.fd, self.meeting, *(ring.fd for ring in self.rings)]
        for index, slot in enumerate(self.table.learners):
            self.control.reset_pulse(slot)
            self.repair.hand_over(index)
            arguments = self._identity("learner", index, slot, self.zygote.pid)
            arguments += ["--rings", ",".join(str(ring.fd) for ring in self.rings)]
            arguments += ["--learners", self.learners, "--meeting", self.meeting]
            for name, value in options.items():
                arguments += [f"--{name.replace('_', '-')}", value]
            self.zygote.spawn(arguments, fds, faults if index == whose else "")
        self._event(lambda: len(self.pids) == self.learners)

    def _event(self, wanted, seconds=DEADLINE_SECONDS):
        """Takes notice of learners that came and went, until `wanted()`."""
        while not wanted():
            event = self.zygote.event(seconds)
            assert event is not None or seconds < DEADLINE_SECONDS, "the learner neither came nor went"
            if event is None:
                return
            if "code" in event:
                self.codes[event["pid"]] = event["code"]
            else:
                self.pids.append(event["pid"])

    def kill(self, whose=0):
        """A SIGKILL from outside, and the sweep."""
        self.kills += 1
        if self.pids[whose] not in self.codes:
            os.kill(self.pids[whose], signal.SIGKILL)
        return self.bury()

    def bury(self):
        """Waits for the end of the learners, which all end with one that has no clean end, and sweeps what
        they left; returns the exit code of the one that was the first to die, 0: none has."""
        self._event(lambda: any(self.codes.values()) or len(self.codes) == self.learners)
        dead = next((pid for pid, code in self.codes.items() if code), None)
        self._end()
        for index, (pid, slot) in enumerate(zip(self.pids, self.table.learners, strict=True)):
            self.repair.of_learner(slot, index, blameless=pid != dead)
        self.repair.free_bad(lambda *_: None)
        for index in range(self.learners):
            self.control.bell_ring(index)
        return 0 if dead is None else self.codes[dead]

    def _end(self):
        """Kills and awaits the learners that are left."""
        for pid in self.pids:
            if pid not in self.codes:
                with contextlib.suppress(ProcessLookupError):  # ended, and not told of yet
                    os.kill(pid, signal.SIGKILL)
        self._event(lambda: len(self.codes) == len(self.pids))

    def lives(self):
        """Whether all learners do."""
        self._event(lambda: False, 0)
        return not self.codes

    def until(self, condition):
        """Waits while the learner lives; whether it came about."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            if not self.lives():
                return condition()
            time.sleep(0.002)
        return True

    def counters(self):
        return self.control.counters(self.table.learner)

    def phase(self):
        return self.control.process(self.table.learner).phase

    def finish(self, respawn=True):
        """To the end of the run, with a new learner for each that dies; returns the last one's exit code."""
        while True:
            self.until(lambda: self.counters()["stop_request"])
            if self.lives() or not respawn:
                break
            self.bury()
            self.learner()
        return self.stop(self.segments.stop_reasons[self.counters()["stop_request"]] or "signal")

    def stop(self, reason="signal"):
        self.control.set_stop(reason)
        for producer, ring in zip(self.producers, self.rings, strict=True):
            assert producer.wait(DEADLINE_SECONDS) == 0
            ring.sweep_producer()
        self.control.set_producers_gone()
        while (code := self.bury()) == -signal.SIGKILL:
            self.learner()
        return code

    def close(self):
        for producer in self.producers:
            producer.kill()
            producer.wait()
        self._end()
        os.close(self.meeting)
        self.segments.close()

    # What came of it

    def weights(self):
        return checkpoint.load(shelf.latest(self.folder / "checkpoints")).policy

    def saved(self):
        return checkpoint.load(shelf.latest(self.folder / "checkpoints"))

    def check_books(self):
        """Every slot was consumed once or dropped once, and the learner's counters say the same as the
        words."""
        counts = self.counters()
        found = [ring.books() for ring in self.rings]
        for one in found:
            assert books.at_rest(one) == []
            assert one["in_flight"] == 0
        lags, ages = self.control.bins(self.table.learner)
        assert counts["slots"] == sum(one["consumed"] for one in found) == sum(ages)
        assert counts["steps"] == sum(one["consumed_steps"] for one in found) == sum(lags)
        assert counts["lag_sum"] >= sum(lag * n for lag, n in enumerate(lags))

    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def events(self):
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
