"""What watching costs: the throughput of a run while it is watched, against the same run while it is not.

    python -m bench.observers [RUN.yaml] [--pairs N] [--seconds S] [--json FILE] [section.key=value ...]

One run, whose observers are stopped and let go on by turns, so that a pair of windows differs in nothing
else: the exporter, scraped and with one viewer of the live page; the recorder of 1 % of the agents; the
evaluator, which stands by. Then what ten more viewers cost the exporter, and a scrape of 64 producers.

The ratio of a pair is its own; their median comes with the interval that holds it 95 times in 100 whatever
their distribution. Where other programs take cores away by turns, that interval is wide. Then steps per
CPU-second of producers and learners tell whether observers slow these down, and the observers' own CPU
seconds how much of the cores they take.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from bench import scrape
from bench.run import ENDLESS, ROOT
from monitor import procfs, rundir
from monitor.lines import Follower

OBSERVED = ["archive.enabled=true", "archive.fraction=0.01", "watch.enabled=auto", "monitor.port=0",
            "supervisor.hung_seconds=1e6", "evaluate.episodes=0"]  # fmt: skip
ROLES = ("exporter", "recorder", "evaluator", "sink")
WORKERS = ("producer", "learner", "server")
SETTLE_SECONDS = 1.5  # between two windows: what was held back in one must not be done in the other
SCRAPE_SECONDS = 5.0  # three times as often as monitor/prometheus/prometheus.yml
START_SECONDS = 300.0
MORE_VIEWERS = 10


class Audience:
    """A scraper and viewers of the live page, in a thread of this process."""

    def __init__(self, address: str):
        """`address`: of the exporter, http://host:port."""
        self._address = address
        self._viewers = selectors.DefaultSelector()
        self._over = threading.Event()
        self.looks = False
        """Whether it scrapes."""
        self.failures = self.messages = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def view(self, count: int) -> list[socket.socket]:
        """So many viewers more, until `leave`."""
        place = urlsplit(self._address)
        made = []
        for _ in range(count):
            viewer = socket.create_connection((place.hostname or "", place.port or 0))
            viewer.sendall(f"GET /events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            self._viewers.register(viewer, selectors.EVENT_READ)
            made.append(viewer)
        return made

    def leave(self, viewers: Sequence[socket.socket]) -> None:
        for viewer in viewers:
            self._viewers.unregister(viewer)
            viewer.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.leave([key.fileobj for key in list(self._viewers.get_map().values())])  # type: ignore[misc]
        self._viewers.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.wait(0.2):
            if self._viewers.get_map():
                for key, _ in self._viewers.select(0):
                    with contextlib.suppress(OSError):
                        self.messages += key.fileobj.recv(1 << 20).count(b"data: ")  # type: ignore[union-attr]
            if self.looks and time.monotonic() >= due:
                due = time.monotonic() + SCRAPE_SECONDS
                try:
                    urllib.request.urlopen(f"{self._address}/metrics", timeout=SCRAPE_SECONDS).read()
                except OSError:
                    self.failures += 1


class Window(NamedTuple):
    """A span of time, from one Unix time to another."""

    begin: float
    end: float
    work_seconds: float
    """CPU time of those who work in it."""


class Watched:
    """A run under way."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]):
        self.path = path
        status = _until(path, process)
        self.address = str(status["address"])
        pids = {f"{one['role']} {one['index']}": int(one["pid"]) for one in status["processes"]}
        self.observers = {name: pid for name, pid in pids.items() if name.startswith(ROLES)}
        self._workers = {name: pid for name, pid in pids.items() if name.startswith(WORKERS)}

    def send(self, number: signal.Signals) -> None:
        """To all observers."""
        for pid in self.observers.values():
            os.kill(pid, number)

    def cpu_seconds(self) -> dict[str, float]:
        """Of each observer so far."""
        return _cpu_seconds(self.observers)

    def work_seconds(self) -> float:
        """CPU time of all who simulate, act and train, so far."""
        return sum(_cpu_seconds(self._workers).values())

    def steps_in(self, window: Window) -> float:
        """Steps trained on; of an update that was under way at an end of it in proportion."""
        with contextlib.closing(Follower(self.path / rundir.METRICS)) as follower:
            lines = [(line["time"], line["steps"]) for line in follower.lines()]
        when, steps = zip(*lines)
        first, last = np.interp((window.begin, window.end), when, steps)
        return float(last - first)


def _cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    found = {name: procfs.usage(pid) for name, pid in pids.items()}
    return {name: used.cpu_seconds for name, used in found.items() if used is not None}


def _until(path: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """status.json, once all are at work and torch is warm."""
    until = time.monotonic() + START_SECONDS
    while True:
        status = rundir.read_json(path / rundir.STATUS) or {}
        at_work = all(one["state"] == "running" for one in status.get("processes", ()))
        if status.get("state") == "running" and status["updates"] >= 10 and at_work:
            return status
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"observers: the run did not come up: {status.get('state')}")
        time.sleep(0.2)


@contextlib.contextmanager
def watched(run_file: str, overrides: Sequence[str]) -> Iterator[Watched]:
    """A run of its own, which is ended in order."""
    with tempfile.TemporaryDirectory(prefix="headrace-observers-") as folder:
        place = [f"run.dir={folder}", "run.name=bench", *ENDLESS, "stop.seconds=null"]
        command = [sys.executable, "supervisor.py", run_file, "--plain", *place, *OBSERVED, *overrides]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        run = None
        try:
            run = Watched(Path(folder) / "bench", process)
            yield run
        finally:
            if run is not None:
                run.send(signal.SIGCONT)
            process.terminate()  # SIGINT is ignored by what a shell runs in the background
            process.wait()


def pairs(run: Watched, audience: Audience, count: int, seconds: float) -> dict[str, Any]:
    """Ratios of steps/s with observers to those without, and what the observers used meanwhile."""
    windows: list[dict[bool, Window]] = []
    used: dict[str, float] = dict.fromkeys(run.observers, 0.0)
    for _ in range(count):
        pair: dict[bool, Window] = {}
        for on in random.sample((True, False), 2):
            audience.looks = on
            run.send(signal.SIGCONT if on else signal.SIGSTOP)
            time.sleep(SETTLE_SECONDS)
            before, worked, begin = run.cpu_seconds(), run.work_seconds(), time.time()
            time.sleep(seconds)
            pair[on] = Window(begin, time.time(), run.work_seconds() - worked)
            if on:
                after = run.cpu_seconds()
                used = {name: used[name] + after[name] - before[name] for name in used}
        windows.append(pair)
    run.send(signal.SIGCONT)
    time.sleep(2 * SETTLE_SECONDS)  # the last lines are written
    steps = {on: [run.steps_in(pair[on]) for pair in windows] for on in (True, False)}
    rates = {on: [n / (w[on].end - w[on].begin) for n, w in zip(steps[on], windows)] for on in (True, False)}
    worth = {on: [n / w[on].work_seconds for n, w in zip(steps[on], windows)] for on in (True, False)}
    return {
        "ratios": [a / b for a, b in zip(rates[True], rates[False])],
        "work_ratios": [a / b for a, b in zip(worth[True], worth[False])],
        "steps_per_second": {"on": rates[True], "off": rates[False]},
        "cores": {name: one / (count * seconds) for name, one in used.items()},
    }


def viewers(run: Watched, audience: Audience, count: int, seconds: float) -> list[float]:
    """Cores that the exporter uses more, with `MORE_VIEWERS` viewers more; one figure a pair of windows."""
    found = []
    for _ in range(count):
        each = {}
        for many in random.sample((0, MORE_VIEWERS), 2):
            made = audience.view(many)
            time.sleep(SETTLE_SECONDS)
            before = run.cpu_seconds()["exporter 0"]
            time.sleep(seconds)
            each[many] = (run.cpu_seconds()["exporter 0"] - before) / seconds
            audience.leave(made)
        found.append(each[MORE_VIEWERS] - each[0])
    return found


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """What holds the median 95 times in 100, by order alone; with fewer than six values all of them."""
    n = len(values)
    below = 0
    while sum(math.comb(n, i) for i in range(below + 1)) / 2**n <= 0.025:
        below += 1
    ordered = sorted(values)
    return ordered[max(0, below - 1)], ordered[n - max(1, below)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN.yaml", nargs="?", default="realm.yaml")
    parser.add_argument("overrides", metavar="section.key=value", nargs="*")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_intermixed_args()
    figures: dict[str, Any] = {"run": options.run, "load": os.getloadavg()[0]}
    with watched(options.run, options.overrides) as run:
        audience = Audience(run.address)
        try:
            audience.view(1)
            figures |= pairs(run, audience, options.pairs, options.seconds)
            figures["viewers_cores"] = viewers(run, audience, max(3, options.pairs // 3), options.seconds)
        finally:
            audience.close()
    figures |= {"failed_scrapes": audience.failures, "messages": audience.messages}
    figures["scrape"] = scrape.measure(64, 20)
    print("\n".join(told(figures)))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def told(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    ratios, work, scraped = figures["ratios"], figures["work_ratios"], figures["scrape"]
    more = figures["viewers_cores"]
    low, high = median_interval(ratios)
    cores = ", ".join(f"{name} {share:.2%}" for name, share in figures["cores"].items())
    return [
        f"{figures['run']}, load {figures['load']:.1f} before; {os.cpu_count()} cores",
        f"watched / not watched: {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] of the steps/s, "
        f"{len(ratios)} pairs",
        f"per CPU-second of producers and learners: {statistics.median(work):.3f} "
        "[{:.3f}, {:.3f}]".format(*median_interval(work)),
        f"{figures['messages']} messages seen by viewers, {figures['failed_scrapes']} failed scrapes",
        f"of a core meanwhile: {cores}; together {sum(figures['cores'].values()):.2%}",
        f"{MORE_VIEWERS} viewers more: {statistics.median(more):.2%} of a core "
        f"({min(more):.2%} to {max(more):.2%}), in the exporter",
        f"a scrape of 64 producers: {scraped['cpu_seconds'] * 1e3:.1f} ms of CPU, "
        f"{scraped['seconds'] * 1e3:.1f} ms passed",
    ]


if __name__ == "__main__":
    main()
