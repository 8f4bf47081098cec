"""How soon a run works again after a death: real kills in a real run.

    python -m bench.recovery [RUN.yaml] [section.key=value ...] [--producers 20] [--learners 3]

Kills a producer with SIGKILL, waits until the next one has committed a slot and the learner has made an
update, and so on; then the same with the learner. Prints the seconds from each kill to the next commit and to
the next update, and beside them the seconds that a process takes to import torch. Without a kill, updates
come at the pace shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ringbuf

ROOT = Path(__file__).resolve().parent.parent
SHM = Path("/dev/shm")
DEADLINE_SECONDS = 300.0
ENDLESS = [f"stop.{condition}=null" for condition in ("steps", "seconds", "versions", "score")]


class Watched:
    """A run and the counters it leaves in shared memory, read from outside."""

    def __init__(self, run_file: Path, overrides: Sequence[str], folder: Path):
        self.path = folder / "recovery"
        command = [sys.executable, str(ROOT / "supervisor.py"), str(run_file), "--plain", f"run.dir={folder}",
                   "run.name=recovery", "monitor.port=0", "evaluate.episodes=0", *ENDLESS, *overrides]
        with open(folder / "out", "wb") as out:
            self.supervisor = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        self.wait(lambda: self._status().get("state") == "running")
        attempt = json.loads((self.path / "attempts" / "0001.json").read_text())
        control, _, *rings = attempt["segments"]
        with open(SHM / control[1:], "rb+") as file:
            self.control = ringbuf.Control.attach(file.fileno(), 0)
        self.rings = []
        for name in rings:
            with open(SHM / name[1:], "rb+") as file:
                self.rings.append(ringbuf.Ring.attach(file.fileno(), self.control, role="monitor"))
        self.rows = {
            (info.role, info.role_index): row
            for row in range(len(rings) + 3)
            if (info := self.control.process(row)).pid
        }

    def _status(self) -> dict:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.path / "status.json").read_text()))
        return {}

    def wait(self, condition: Callable[[], bool]) -> float:
        """Seconds until the condition holds. Raises RuntimeError where it does not come to hold."""
        begin = time.monotonic()
        while not condition():
            passed = time.monotonic() - begin
            if self.supervisor.poll() is not None or passed > DEADLINE_SECONDS:
                raise RuntimeError(f"the run ended or stands still; see {self.path / 'logs'}")
            time.sleep(0.001)
        return time.monotonic() - begin

    def kill(self, role: str, index: int) -> tuple[float, float]:
        """Seconds from the kill to the next commit of that producer (of any, where a learner dies) and to the
        next update that began after it."""
        rings = [self.rings[index]] if role == "producer" else self.rings
        row = self.rows[role, index]
        pid = self.control.process(row).pid
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: self.control.process(row).pid not in (0, pid))
        commits, updates = self._commits(rings), self._updates()
        self.wait(lambda: self._commits(rings) > commits)
        committed = time.monotonic() - begin
        self.wait(lambda: self._updates() > updates)
        return committed, time.monotonic() - begin

    def pace(self) -> float:
        """Seconds of an update, undisturbed."""
        first, begin = self._updates(), time.monotonic()
        time.sleep(5.0)
        return (time.monotonic() - begin) / max(1, self._updates() - first)

    def _commits(self, rings: Sequence[ringbuf.Ring]) -> int:
        return sum(ring.books()["committed"] for ring in rings)

    def _updates(self) -> int:
        return self.control.counters(self.rows["learner", 0])["updates"]

    def stop(self) -> int:
        self.supervisor.send_signal(signal.SIGTERM)
        return self.supervisor.wait(DEADLINE_SECONDS)


def line(what: str, seconds: Sequence[float]) -> str:
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{what:44} {low:6.2f} {middle:6.2f} {high:6.2f} s (min, median, max of {len(seconds)})"


def import_seconds() -> float:
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - begin


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("run", nargs="?", type=Path, default=ROOT / "run.yaml")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--producers", type=int, default=20)
    parser.add_argument("--learners", type=int, default=3)
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(prefix="headrace-recovery-") as folder:
        run = Watched(options.run.absolute(), options.overrides, Path(folder))
        try:
            print(f"an update, undisturbed {run.pace():.3f} s")
            count = len(run.rings)
            kills = {
                "producer": [run.kill("producer", i % count) for i in range(options.producers)],
                "learner": [run.kill("learner", 0) for _ in range(options.learners)],
            }
            for role, found in kills.items():
                if found:
                    print(line(f"{role} killed, to the next commit", [one for one, _ in found]))
                    print(line(f"{role} killed, to the next update", [one for _, one in found]))
            print(line("import torch, beside the run", [import_seconds() for _ in range(3)]))
            code = run.stop()
        finally:
            run.supervisor.kill()
            run.supervisor.wait()
    print(f"the run ended with {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
