"""What the exporter answers, path by path, apart from HTTP itself."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from monitor import report, rundir
from monitor.collector import RunCollector
from monitor.live import SPANS, Live

HEARTBEAT_SECONDS = 30.0
FOLDER = Path(__file__).resolve().parent / "page"
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
HTML, SCRIPT, STYLE = "text/html; charset=utf-8", "text/javascript; charset=utf-8", "text/css; charset=utf-8"
FILES = {
    "/page.js": SCRIPT,
    "/charts.js": SCRIPT,
    "/tables.js": SCRIPT,
    "/words.js": SCRIPT,
    "/watch.js": SCRIPT,
    "/uplot.js": SCRIPT,
    "/page.css": STYLE,
    "/watch.css": STYLE,
    "/uplot.css": STYLE,
    "/icon.svg": "image/svg+xml",
}
"""The only files that are served, by path; each has that name in the folder."""
FIGURES = "<!-- figures -->"
WATCH = '<section id="watch" hidden>'  # shown where there is somebody to watch

Answer = tuple[int, str, bytes]
Route = Callable[[Any], None]


class Pages:
    """`routes`: (method, path) of whom the answer is left to, who gets the handler."""

    def __init__(
        self, collector: RunCollector, live: Live, routes: Mapping[tuple[str, str], Route] | None = None
    ):
        self.collector, self.live = collector, live
        self.directory = collector.facts.directory
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)
        self.tick = live.tick
        self._routes = {("GET", "/events"): self._follow, **(routes or {})}
        self._files = {path: (FOLDER / path[1:]).read_bytes() for path in FILES}
        self._index = (FOLDER / "index.html").read_text()
        if self.route("GET", "/watch") is not None:
            self._index = self._index.replace(WATCH, WATCH.replace(" hidden", ""))

    def route(self, method: str, path: str) -> Route | None:
        return self._routes.get((method, path))

    def answer(self, target: str) -> Answer:
        """(status, content type, body). `target`: path and query."""
        path, _, query = target.partition("?")
        if path in self._files:
            return 200, FILES[path], self._files[path]
        if path == "/metrics":
            # Whatever is asked for: OpenMetrics, which every client takes this for, costs half as much again.
            return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.registry)
        plain = {
            "/": self._page, "/status.json": self._status, "/healthz": self._healthy, "/readyz": self._ready,
        }  # fmt: skip
        if path in plain:
            return plain[path]()
        if path == "/history.json":
            return self._history(query)
        return 404, TEXT, b"no such page\n"

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

    def _healthy(self) -> Answer:
        return 200, TEXT, b"ok\n"

    def _ready(self) -> Answer:
        problems = self.not_ready()
        return (503, TEXT, "\n".join([*problems, ""]).encode()) if problems else (200, TEXT, b"ok\n")

    def _status(self) -> Answer:
        try:
            return 200, JSON, (self.directory / rundir.STATUS).read_bytes()
        except OSError:
            return 503, JSON, b'{"state": "starting"}\n'

    def _page(self) -> Answer:
        """The live page, with the figures of this moment for whoever runs no scripts."""
        status = report.read(self.directory) or {"state": "starting"}
        alarms = [(f"alarm, {one.severity}", f"{one.kind}: {one.text}") for one in self.live.alarms]
        page = self._index.replace(FIGURES, rows(alarms + flatten(status)))
        return 200, HTML, page.encode(errors="replace")

    def _history(self, query: str) -> Answer:
        asked = parse_qs(query).get("seconds", [str(SPANS[0])])[-1]
        if asked not in map(str, SPANS):
            known = ", ".join(map(str, SPANS))
            return 400, TEXT, f"seconds: one of {known}\n".encode()
        return 200, JSON, self.live.history_json(int(asked))

    def _follow(self, handler: Any) -> None:
        """Server-sent events, one a second."""
        stream = self.live.stream
        if not stream.enter():
            handler.answer(503, TEXT, b"too many viewers\n")
            return
        try:
            handler.stream_headers()
            stream.follow(handler.wfile.write)
        finally:
            stream.leave()


def rows(figures: Sequence[tuple[str, str]]) -> str:
    """A table's rows of names and texts."""
    return "".join(f"<tr><th scope=row>{html.escape(name)}<td>{html.escape(text)}" for name, text in figures)


def flatten(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and texts of all figures; lists of objects become one line each."""
    found: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            found += flatten(item, f"{prefix}{key}.")
        elif isinstance(item, list) and item and all(isinstance(entry, dict) for entry in item):
            found += [(f"{prefix}{key}", ", ".join(f"{k} {v}" for k, v in entry.items())) for entry in item]
        else:
            found.append((prefix + key, item if isinstance(item, str) else json.dumps(item)))
    return found
