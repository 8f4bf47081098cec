"""A supervisor under way, for tests that watch it, kill what it started and look at what is left."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from command import CARTPOLE, DEADLINE_SECONDS, SHM, command, segments

import ringbuf
from monitor import rundir

QUICK = ("evaluate.episodes=0", "monitor.interval_seconds=0.1")


class Run:
    """A supervisor under way in a directory of its own."""

    def __init__(self, folder, *overrides, environment=None, terminal=None):
        """`terminal`: a descriptor that takes the place of the files stdout and stderr."""
        (folder / "run.yaml").write_text(CARTPOLE)
        self.folder, self.path = folder, folder / "runs" / "toy"
        self.output, self.errors = folder / "stdout", folder / "stderr"
        with self.output.open("w") as output, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command("run.yaml", *overrides), cwd=folder, stdout=terminal or output,
                stderr=terminal or errors, env=os.environ | (environment or {}),
            )
        self._attached = []
        self._segments = set()

    def status(self):
        return rundir.read_json(self.path / rundir.STATUS) or {
            "state": "starting",
            "processes": [],
            "version": None,
        }

    def until(self, wanted):
        """Waits until status.json fulfils `wanted`; returns it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not wanted(status := self.status()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, status
            time.sleep(0.02)
        return status

    def running(self):
        return self.until(lambda status: status["state"] == "running")

    def pid(self, role, index=0):
        return next(
            one["pid"] for one in self.status()["processes"] if (one["role"], one["index"]) == (role, index)
        )

    def end(self):
        """The exit code, once nothing is left: no process and no segment."""
        code = self.process.wait(DEADLINE_SECONDS)
        assert self.alive() == []
        assert self.segments() & segments() == set()
        return code

    def segments(self):
        """Names of this run's shared memory, remembered in case that its directory goes."""
        for attempt in (self.path / "attempts").glob("*.json"):
            names = (rundir.read_json(attempt) or {}).get("segments", ())
            self._segments |= {name.removeprefix("/") for name in names}
        return self._segments

    def summary(self):
        return rundir.read_json(self.path / rundir.SUMMARY)

    def said(self):
        """What stands on stderr."""
        return self.errors.read_text()

    def told(self):
        """What stands on stdout."""
        return self.output.read_text()

    def events(self, *names):
        """The lines of events.jsonl of these events."""
        path = self.path / rundir.EVENTS
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for line in lines if (event := json.loads(line))["event"] in names]

    def when(self, condition):
        """Waits until `condition()`, without which the run must not end; returns what it gave."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (found := condition()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.status()
            time.sleep(0.02)
        return found

    def attach(self):
        """The control block and the rings of the run, to look at."""
        if not self._attached:
            names = [f"/{name}" for name in self.segments()]
            control = next(name for name in names if name.endswith("-control"))
            rings = sorted(name for name in names if "-ring-" in name)
            with open(SHM / control[1:], "rb+") as file:
                self._attached.append(ringbuf.Control.attach(file.fileno(), 0))
            for name in rings:
                with open(SHM / name[1:], "rb+") as file:
                    ring = ringbuf.Ring.attach(file.fileno(), self._attached[0], role="monitor")
                    self._attached.append(ring)
        return self._attached[0], self._attached[1:]

    def kill(self, role, index=0, number=signal.SIGKILL):
        """Sends a signal to a process of the run; returns its pid."""
        pid = self.pid(role, index)
        os.kill(pid, number)
        return pid

    def alive(self):
        """Command lines of the processes of this run, which hold its directory."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (process / "cmdline").read_bytes().split(b"\0")
                if str(self.path).encode() in line:
                    found.append(b" ".join(line).decode())
        return found

    def close(self):
        """Ends what a test has left; a killed supervisor leaves its segments to the next start."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for name in self.segments() & segments():
            (SHM / name).unlink(missing_ok=True)
