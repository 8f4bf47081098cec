"""The exporter process: metrics, status, health and a plain page, on the supervisor's socket.

It reads the shared counters and the run directory and writes nothing. The listening socket is the
supervisor's: an exporter that is started again goes on where the last one stopped, on the same port.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import signal
import socket
import sys
import time
import tomllib
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

import config
import ringbuf
from config.rotate import reopen_when_told
from monitor import procfs, rundir
from monitor.collector import Facts, RunCollector
from monitor.status import Table
from monitor.totals import Totals

ROOT = Path(__file__).resolve().parent.parent
HEARTBEAT_SECONDS = 30.0
REQUEST_SECONDS = 10.0
REFRESH_SECONDS = 5
SECURITY = "default-src 'none'; style-src 'unsafe-inline'"


class Pages:
    """What the exporter answers, apart from HTTP itself."""

    def __init__(self, collector: RunCollector):
        self.collector = collector
        self.directory = collector.facts.directory
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes] | None:
        """(status, content type, body); None: no such page."""
        if path == "/metrics":
            encode, kind = choose_encoder(accept)
            return 200, kind, encode(self.registry)
        if path == "/status.json":
            return self._status()
        if path == "/healthz":
            return 200, "text/plain; charset=utf-8", b"ok\n"
        if path == "/readyz":
            problems = self.not_ready()
            body = "ok\n" if not problems else "\n".join(problems) + "\n"
            return (503 if problems else 200), "text/plain; charset=utf-8", body.encode()
        if path == "/":
            return (
                200,
                "text/html; charset=utf-8",
                page(rundir.read_json(self.directory / rundir.STATUS)).encode(),
            )
        return None

    def not_ready(self) -> list[str]:
        """Why the run is not at work: no update yet, or a process without a fresh heartbeat."""
        control, table = self.collector.control, self.collector.table
        problems = []
        if not control.counters(table.learner)["updates"]:
            problems.append("no update yet")
        for index in (*table.producers, *table.learners):
            info = control.process(index)
            age = (time.monotonic_ns() - info.heartbeat_ns) / 1e9
            if info.state != "running":
                problems.append(f"{info.role} {info.role_index} is {info.state}")
            elif age > HEARTBEAT_SECONDS:
                problems.append(f"{info.role} {info.role_index}: last heartbeat {age:.0f} s ago")
        return problems

    def _status(self) -> tuple[int, str, bytes]:
        try:
            return 200, "application/json", (self.directory / rundir.STATUS).read_bytes()
        except OSError:
            return 503, "application/json", b'{"state": "starting"}\n'


def page(status: dict[str, Any] | None) -> str:
    """The status as a page without scripts: every figure of status.json, and links to the rest."""
    status = status or {"state": "starting"}
    rows = "".join(
        f"<tr><th scope=row>{html.escape(key)}<td>{html.escape(value)}" for key, value in flatten(status)
    )
    name = html.escape(str(status.get("name", "headrace")))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<meta http-equiv=refresh content={REFRESH_SECONDS}>"
        f"<title>{name}: {html.escape(status['state'])}</title>"
        "<style>:root{color-scheme:light dark}body{font:1em system-ui;margin:2em;max-width:60em}"
        "th{text-align:left;font-weight:normal;padding-right:2em;vertical-align:top}td{overflow-wrap:anywhere}</style>"
        f"<h1>{name}</h1><p>{html.escape(status['state'])}"
        "<p><a href=/metrics>metrics</a> <a href=/status.json>status.json</a> <a href=/healthz>healthz</a> "
        f"<a href=/readyz>readyz</a><table>{rows}</table></html>\n"
    )


def flatten(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and texts of all figures; lists of objects become one line each."""
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            rows += flatten(item, f"{prefix}{key}.")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            rows += [(f"{prefix}{key}", ", ".join(f"{k} {v}" for k, v in entry.items())) for entry in item]
        else:
            rows.append((prefix + key, item if isinstance(item, str) else json.dumps(item)))
    return rows


def handler(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version = "headrace"
        sys_version = ""

        def do_GET(self) -> None:
            answer = pages.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            status, kind, body = answer or (404, "text/plain; charset=utf-8", b"no such page\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", SECURITY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """A scrape every few seconds for weeks is not worth a line each."""

    return Handler


class Server(ThreadingHTTPServer):
    """Serves an inherited socket that listens already."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, pages: Pages):
        self._control = pages.collector.control
        self._turns = 0
        address = listening.getsockname()
        super().__init__(address[:2], handler(pages), bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def service_actions(self) -> None:
        """Twice a second, or after a request: the heartbeat of the loop that accepts them."""
        self._turns += 1
        self._control.pulse("step", self._turns)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that hangs up is no news; anything else is for the log."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


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
        before=Totals.from_json(attempt.get("before")),
    )
    return facts, settings


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
    options = parser.parse_args(arguments)
    procfs.die_with_parent(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    reopen_when_told(options.dir / rundir.LOGS / f"{options.role}-{options.index}.log")
    facts, settings = build_facts(options.dir)
    control = ringbuf.Control.attach(options.control, options.process)
    rings = [ringbuf.Ring.attach(int(fd), control, role="monitor") for fd in options.rings.split(",")]
    table = Table.of(int(settings.producers.count), settings.learner.count, settings.servers)
    server = Server(socket.socket(fileno=options.socket), Pages(RunCollector(control, rings, table, facts)))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
