"""Real producers and real recorders on the memory of a run whose supervisor and learner are the test."""

import os
import signal
import subprocess
import sys
import time
import uuid

import numpy as np

import config
from monitor.status import Table
from producers import native
from producers.prepare import Segments, prepare
from ringbuf import Ring, Weights
from ringbuf.repair import Repair

DEADLINE_SECONDS = 120  # against hanging only

RUN = """\
run: {name: taped, seed: 7}
sim: {name: cartpole, max_steps: 30}
producers: {count: 2, agents: 8}
rollout: {horizon: 8}
ring: {slots: 4}
policy: {hidden: [16], activation: tanh}
learner: {device: cpu, threads: 1, batch_slots: 2}
monitor: {port: 0}
watch: {enabled: false}
archive: {enabled: true, fraction: 1, free_bytes: 1MB, sync_seconds: 0.1}
"""


class Recording:
    def __init__(self, folder, *overrides):
        self.folder = folder
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "taped.yaml").write_text(RUN)
        prepared = prepare(str(folder / "taped.yaml"), list(overrides))
        self.config = prepared.config
        (folder / "config.resolved.yaml").write_text(config.dump_resolved(self.config))
        self.segments = Segments(prepared, uuid.uuid4(), directory=str(folder))
        self.control, self.rings = self.segments.control, self.segments.rings
        self.table = Table.of_run(self.config)
        self.library = prepared.library
        self.repair = Repair(self.control, self.segments.weights, self.rings, 1)
        self.repair.hand_over(0)
        self.learners = [
            Ring.attach(ring.fd, self._process(self.table.learner), "learner") for ring in self.rings
        ]
        weights = Weights.attach(self.segments.weights.fd, "writer")
        weights.publish(0, np.zeros(prepared.program.count, np.float32))
        self.children, self.learned = {}, 0
        for index in range(len(self.rings)):
            self._start("producer", index, self.table.producers[index], [str(native.PRODUCER)], [
                "--ring", str(self.rings[index].fd), "--sim", str(self.library)])  # fmt: skip

    def _process(self, slot):
        from ringbuf import Control

        return Control.attach(self.control.fd, slot)

    def _start(self, role, index, slot, command, rest):
        self.control.set_process(slot, role=role, role_index=index, state="running", epoch=1)
        identity = {"role": role, "index": index, "run": "taped", "dir": self.folder, "process": slot,
                    "parent": os.getpid(), "control": self.control.fd,
                    "weights": self.segments.weights.fd}  # fmt: skip
        arguments = [part for name, value in identity.items() for part in (f"--{name}", str(value))]
        fds = [self.control.fd, self.segments.weights.fd, *(ring.fd for ring in self.rings)]
        with (self.folder / "logs" / f"{role}-{index}.log").open("ab") as log:
            self.children[role, index] = subprocess.Popen(
                [*command, *arguments, *rest], pass_fds=fds, stdout=log, stderr=log, cwd=native.ROOT
            )

    def record(self):
        """Starts a recorder, and waits until it looks at the rings."""
        self.control.reset_pulse(self.table.recorder)
        rings = ",".join(str(ring.fd) for ring in self.rings)
        self._start(
            "recorder",
            0,
            self.table.recorder,
            [sys.executable, "-m", "consumers.recorder"],
            ["--rings", rings],
        )
        self.until(lambda: self.control.process(self.table.recorder).phase == "step")

    @property
    def counts(self):
        return self.control.counters(self.table.recorder)

    def until(self, condition):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "logs" / "recorder-0.log").read_text()
            time.sleep(0.002)

    def learn(self, slots, *, wait=True):
        """Grants, leases and acks so many slots of each ring, as many at once as it holds. `wait`: for the
        recorder in between."""
        most = self.rings[0].slots
        for begin in range(self.learned, self.learned + slots, most):
            some = range(begin, min(begin + most, self.learned + slots))
            for learner in self.learners:
                learner.grant(len(some))
            for sequence in some:
                for learner in self.learners:
                    self._ack(learner, sequence)
            if wait:
                self.until(lambda some=some: self.looked == some.stop * len(self.rings))
        self.learned += slots

    def _ack(self, learner, sequence):
        leases = []
        self.until(lambda: leases.append(learner.lease(sequence)) or leases[-1] is not None)
        leases[-1].ack()

    @property
    def looked(self):
        """Slots that the recorder is through with."""
        return self.counts["slots_copied"] + self.counts["slots_missed"]

    def kill(self, role, index=0, number=signal.SIGKILL):
        child = self.children[role, index]
        child.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            return child.wait(DEADLINE_SECONDS)
        return None

    def stop(self):
        """Ends the recorder in order; its exit code."""
        return self.kill("recorder", number=signal.SIGTERM)

    def close(self):
        for child in self.children.values():
            child.kill()
            child.wait()
        self.segments.close()
