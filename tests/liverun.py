"""A run with real producers and real learners whose supervisor is the test: learners are killed and taken up
as often as it likes."""

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
        self.table = Table.of(len(self.rings))
        self.producers: list[subprocess.Popen] = []
        self.pid = None  # of the learner
        self.code = None  # its exit code; None: it lives
        self.kills = 0

    # The supervisor's part

    def start(self, faults="", **options):
        self.start_producers()
        self.learner(faults, **options)

    def start_producers(self):
        """Starts them; they wait for a learner."""
        for ring in self.rings:
            ring.set_owner(0)
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

    def learner(self, faults="", **options):
        """Starts a learner with faults as in zygote.py; `options` of its command line."""
        self.control.reset_pulse(self.table.learner)
        for ring in self.rings:
            ring.set_owner(0)
        arguments = self._identity("learner", 0, self.table.learner, self.zygote.pid)
        arguments += ["--rings", ",".join(str(ring.fd) for ring in self.rings)]
        for name, value in options.items():
            arguments += [f"--{name.replace('_', '-')}", value]
        fds = [self.control.fd, self.segments.weights.fd, *(ring.fd for ring in self.rings)]
        self.zygote.spawn(arguments, fds, faults)
        self.code = None
        self.pid = self._event()["pid"]

    def _event(self, seconds=DEADLINE_SECONDS):
        event = self.zygote.event(seconds)
        assert event is not None or seconds < DEADLINE_SECONDS, "the learner neither came nor went"
        return event

    def kill(self):
        """A SIGKILL from outside, and the sweep."""
        self.kills += 1
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.bury()

    def bury(self):
        """Waits for the learner's end and sweeps what it left; returns its exit code."""
        if self.code is None:
            self.code = self._event()["code"]
        self._sweep()
        return self.code

    def _sweep(self):
        weights = self.segments.weights
        consumed = weights.consumed_list() if weights.published is not None else []
        for ring in self.rings:
            ring.sweep_learner(self.table.learner, consumed)
            ring.set_owner(None)
            for state, sequence, *_ in ring.observe().slots:
                if state == "bad":
                    assert ring.drop(sequence, "bad")
        self.control.bell_ring(0)

    def lives(self):
        if self.code is None:
            event = self._event(0)
            self.code = None if event is None else event["code"]
        return self.code is None

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
        if self.pid is not None and self.lives():
            self.kill()
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

    def events(self):
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
