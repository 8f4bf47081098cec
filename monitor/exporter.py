"""The exporter process: metrics, status, health and the live page, on the supervisor's socket.

It reads the shared counters and the run directory, and writes nothing there but the page's history. The
listening socket is the supervisor's: an exporter that is started again goes on where the last one stopped, on
the same port.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import config
import ringbuf
from config.rotate import reopen_when_told
from monitor import procfs, rundir
from monitor.collector import Facts, RunCollector
from monitor.live import Live
from monitor.pages import Pages
from monitor.readings import Reader
from monitor.server import POLL_SECONDS, Server
from monitor.status import Table
from monitor.totals import Totals
from monitor.watching import Watching

ROOT = Path(__file__).resolve().parent.parent


def build_facts(directory: Path) -> tuple[Facts, config.Config]:
    settings = config.load_resolved(directory / rundir.RESOLVED)
    manifest = rundir.read_json(directory / rundir.MANIFEST) or {}
    attempt = rundir.last_attempt(directory)
    torch = str((manifest.get("packages") or {}).get("torch") or "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    build = {
        "version": project["version"],
        "commit": str((manifest.get("git") or {}).get("commit") or ""),
        "python": str(manifest.get("python", "")),
        "torch": torch,
        # torch names its build behind the plus: cpu, cu128, ...
        "cuda": torch.partition("+")[2].removeprefix("cpu"),
    }
    facts = Facts(
        build=build,
        run_id=str(manifest.get("run_id", "")),
        config_sha256=str(manifest.get("config_sha256", "")),
        lag_limit=settings.lag_limit,
        checkpoint_interval_seconds=settings.checkpoint.interval_seconds,
        directory=directory,
        attempt=int(attempt.get("attempt", 1)),
        began_unix=float(attempt.get("started_unix") or 0.0),
        before=Totals.from_json(attempt.get("before")),
    )
    return facts, settings


def shown(settings: config.Config) -> dict[str, Any]:
    """What the live page says of the settings."""
    return {
        "mode": settings.mode,
        "lag_limit": settings.lag_limit,
        "correction": settings.learner.correction,
        "placement": settings.policy.placement,
        "ring_full": settings.ring.full,
        "checkpoint_seconds": settings.checkpoint.interval_seconds,
        "stop": {name: value for name, value in settings.stop.model_dump().items() if value is not None},
    }


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="monitor.exporter", description="Started by the supervisor.")
    for name in ("role", "run"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "weights", "process", "socket", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rings", required=True)
    parser.add_argument("--watch", type=int)
    options = parser.parse_args(arguments)
    procfs.die_with_parent(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    reopen_when_told(options.dir / rundir.LOGS / f"{options.role}-{options.index}.log")
    facts, settings = build_facts(options.dir)
    control = ringbuf.Control.attach(options.control, options.process)
    rings = [ringbuf.Ring.attach(int(fd), control, role="monitor") for fd in options.rings.split(",")]
    table = Table.of_run(settings)
    resolved = options.dir / rundir.RESOLVED
    live = Live(
        Reader(control, rings, table, options.dir), options.dir, lambda: shown(config.load_resolved(resolved))
    )
    routes = {}
    if options.watch is not None and table.evaluator is not None:
        evaluator = table.evaluator
        channel = socket.socket(fileno=options.watch)
        watching = Watching(channel, settings.watch.worlds, lambda: control.process(evaluator).state)
        routes = watching.routes
    pages = Pages(RunCollector(control, rings, table, facts), live, routes)
    try:
        Server(socket.socket(fileno=options.socket), pages).serve_forever(POLL_SECONDS)
    finally:
        live.close()
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
