"""Real producers with a hand-driven consumer in place of the learner, for benchmarks and tests."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from producers import native
from producers.prepare import Prepared, Segments, prepare
from ringbuf import Control, Lease, Ring, Weights

LEARNER_SLOT = 1  # row of the process table; 0 is the supervisor's, and means nobody in a slot word


class Rig:
    """The shared memory of a run and its producers; the caller is the learner.

    `path` is a run file, `overrides` as on the command line. Use as a context manager: it leaves no process
    and no shared memory behind.
    """

    def __init__(self, path: Path, overrides: Sequence[str] = (), *, producer: Path = native.PRODUCER):
        self.prepared: Prepared = prepare(str(path), list(overrides))
        self.executable = producer
        self.segments = Segments(self.prepared, uuid.uuid4())
        self.children: list[subprocess.Popen[bytes]] = []
        created = self.segments
        settings = self.prepared.config
        self.supervisor: Control = created.control
        self.supervisor.set_process(LEARNER_SLOT, role="learner", role_index=0, state="running")
        self.control = Control.attach(created.control.fd, LEARNER_SLOT)
        self.weights = Weights.attach(created.weights.fd, role="writer")
        self.rings = [Ring.attach(ring.fd, self.control, role="learner", learner=0) for ring in created.rings]
        for ring in created.rings:
            ring.set_owner(0)
        self.exact = settings.exact

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def spawn(self, directory: Path = Path("/"), errors: IO[Any] | None = None) -> None:
        """Starts every producer, pinned as the run file says; `errors` takes what they say (None: ours)."""
        created, cores = self.segments, self.prepared.placement.cores
        for index, ring in enumerate(created.rings):
            slot = LEARNER_SLOT + 1 + index
            created.control.set_process(slot, role="producer", role_index=index, state="running")
            command = [
                str(self.executable),
                "--role",
                "producer",
                "--index",
                str(index),
                "--run",
                "rig",
                "--dir",
                str(directory),
            ]
            command += ["--sim", str(self.prepared.library), "--process", str(slot)]
            command += ["--control", str(created.control.fd), "--weights", str(created.weights.fd)]
            command += ["--ring", str(ring.fd), "--core", str(cores[index])]
            fds = (created.control.fd, created.weights.fd, ring.fd)
            self.children.append(subprocess.Popen(command, pass_fds=fds, stderr=errors or sys.stderr))

    def publish(self, version: int, weights: npt.NDArray[np.float32]) -> None:
        """Publishes weights [count] as `version` and wakes the producers."""
        self.weights.publish(version, weights)
        for ring in self.rings:
            ring.ring_producer()

    def grant(self) -> None:
        """All the credit that the rings have room for."""
        for ring in self.rings:
            room = ring.slots - ring.outstanding
            if room > 0:
                ring.grant(room)
                ring.ring_producer()

    def leases(self, deadline_seconds: float = 60.0) -> Iterator[Lease]:
        """Committed slots, oldest first a ring, for ever. Raises TimeoutError if none comes in time."""
        deadline = time.monotonic() + deadline_seconds
        while True:
            seen = self.control.bell_value(0)
            found = False
            for ring in self.rings:
                ready = sorted(s[1] for s in ring.observe().slots if s[0] == "ready")
                for sequence in ready:
                    lease = ring.lease(sequence)
                    if lease is not None:
                        found = True
                        yield lease
            if found:
                deadline = time.monotonic() + deadline_seconds
            elif time.monotonic() > deadline:
                raise TimeoutError(f"no slot within {deadline_seconds:g} s")
            else:
                self.control.bell_wait(0, seen, 0.1)

    def close(self) -> None:
        """Stops the producers and removes the shared memory."""
        self.supervisor.set_stop("signal")
        for child in self.children:
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.segments.close()
