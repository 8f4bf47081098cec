"""Does memory grow? The private memory of every process of a run and its shared memory, over time.

    python -m bench.memory [RUN.yaml] [section.key=value ...] [--minutes 30] [--json FILE]

Starts the run in a directory of its own, without its stop conditions, and samples RssAnon of each
process and the size of the run's segments in /dev/shm. Prints the slope of each by least squares, over the
second half, since allocators and caches fill up at first; a process that was restarted counts from then on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHM = Path("/dev/shm")
MIB = 1 << 20
SAMPLE_SECONDS = 1.0
STOP_SECONDS = 120.0
ENDLESS = [f"stop.{condition}=null" for condition in ("steps", "seconds", "versions", "score")]


@dataclass(frozen=True)
class Trend:
    """What one process, or the shared memory, came to in the second half of the time watched."""

    name: str
    samples: int
    mib: float  # at the end
    mib_per_hour: float
    range_mib: float  # greatest less smallest


def private_bytes(pid: int) -> int | None:
    """RssAnon; None: it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return None


def processes(path: Path) -> dict[int, str]:
    """The run's processes by pid: role and index as their argv says."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # gone in between
        if str(path) in words and "--role" in words and "--index" in words:
            role, index = (words[words.index(flag) + 1] for flag in ("--role", "--index"))
            found[int(process.name)] = f"{role} {index}"
    return found


def shared_bytes(path: Path) -> int:
    """Pages that the newest attempt's segments occupy."""
    total = 0
    for record in sorted((path / "attempts").glob("*.json"))[-1:]:
        for name in json.loads(record.read_text())["segments"]:
            with contextlib.suppress(OSError):
                total += os.stat(SHM / name.removeprefix("/")).st_blocks * 512
    return total


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of y over x by least squares; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def trend(name: str, points: Sequence[tuple[float, float]]) -> Trend:
    """Of (seconds, bytes), all of them: the second half is chosen here."""
    late = [(x, y) for x, y in points if x >= (points[0][0] + points[-1][0]) / 2]
    sizes = [y for _, y in late]
    return Trend(name, len(late), sizes[-1] / MIB, slope(late) * 3600 / MIB, (max(sizes) - min(sizes)) / MIB)


def watch(supervisor: subprocess.Popen[bytes], path: Path, seconds: float) -> list[Trend]:
    """Samples until the time is over or the run has ended."""
    series: dict[str, list[tuple[float, float]]] = {}
    held: dict[str, int] = {}
    begin = time.monotonic()
    while (now := time.monotonic() - begin) < seconds and supervisor.poll() is None:
        for pid, name in {supervisor.pid: "supervisor 0", **processes(path)}.items():
            size = private_bytes(pid)
            if size is None:
                continue
            if held.get(name) != pid:
                held[name], series[name] = pid, []
            series[name].append((now, size))
        series.setdefault("shared memory", []).append((now, shared_bytes(path)))
        time.sleep(SAMPLE_SECONDS)
    return [trend(name, points) for name, points in sorted(series.items())]


def measure(run_file: Path, overrides: Sequence[str], seconds: float) -> list[Trend]:
    """Raises RuntimeError if the run does not end in order after that time."""
    with tempfile.TemporaryDirectory(prefix="headrace-memory-") as folder:
        path = Path(folder) / "memory"
        command = [sys.executable, str(ROOT / "supervisor.py"), str(run_file), "--plain", f"run.dir={folder}",
                   "run.name=memory", "monitor.port=0", "evaluate.episodes=0", *ENDLESS, *overrides]
        with open(Path(folder) / "out", "w+b") as out:
            supervisor = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
            try:
                trends = watch(supervisor, path, seconds)
                if supervisor.poll() is not None:
                    out.seek(0)
                    raise RuntimeError(f"the run ended early: {out.read().decode(errors='replace')}")
                supervisor.send_signal(signal.SIGTERM)  # in the background SIGINT is ignored
                code = supervisor.wait(STOP_SECONDS)
            finally:
                supervisor.kill()
                supervisor.wait()
            if code != 0:
                out.seek(0)
                raise RuntimeError(f"the run ended with {code}: {out.read().decode(errors='replace')}")
    return trends


def main() -> None:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("run", nargs="?", type=Path, default=ROOT / "run.yaml")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_intermixed_args()
    trends = measure(options.run.absolute(), options.overrides, options.minutes * 60)
    print(f"{options.minutes:g} minutes, slopes over the second half")
    for one in trends:
        print(f"{one.name:16} {one.mib:9.2f} MiB {one.mib_per_hour:+9.3f} MiB/h, "
              f"range {one.range_mib:.2f} MiB")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in trends], indent=1))


if __name__ == "__main__":
    main()
