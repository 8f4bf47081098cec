"""What the live page is told once a second: a look at the counters, kept, judged, and made into a message."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monitor import history, report, rundir
from monitor.alarms import Alarm, Context, Watchman
from monitor.eventlog import EventLog
from monitor.points import SERIES, point
from monitor.readings import Process, Reader, Reading
from monitor.status import RATE_WINDOW_SECONDS
from monitor.stream import Stream

TICK_SECONDS = 1.0
MOST_VIEWERS = 32
LAST_WORDS_SECONDS = 1.0
SPANS = (300, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
"""Seconds that may be asked for."""
HIDDEN = ("totals", "processes", "producers", "losses", "ratio", "time")
"""Of status.json: what is told more closely beside it, or is too long for every second."""
EVERY_MESSAGE = 20
"""Events that each message has the last of, in case that one before it was missed."""


class Live:
    """Looks at a run once a second. All but `history_json` belongs to one thread."""

    def __init__(self, reader: Reader, directory: Path, settings: Callable[[], Mapping[str, Any]]):
        """`settings`: reads what the page shows of them, `lag_limit` and `checkpoint_seconds` among it; it is
        called again when they have changed."""
        self.stream = Stream(MOST_VIEWERS)
        self.alarms: list[Alarm] = []
        self.status: dict[str, Any] = {}
        """The last status.json; {} before the first."""
        self._reader, self._directory, self._read_settings = reader, directory, settings
        self._settings: Mapping[str, Any] = settings()
        self._settings_seen = reader.control.settings
        self._history = history.History(SERIES, directory / history.NAME)
        self._events = EventLog(directory / rundir.EVENTS)
        self._watchman = Watchman()
        self._readings: deque[Reading] = deque()  # of the last RATE_WINDOW_SECONDS
        self._next = 0.0

    def tick(self) -> None:
        """To be called often; looks once a second."""
        now = time.monotonic()
        if now >= self._next:
            self._next += TICK_SECONDS
            if self._next <= now:  # looks that were missed are not made up for
                self._next = now + TICK_SECONDS
            self.look()

    def look(self) -> None:
        """Looks, whatever the time."""
        try:
            reading = self._reader.read()
            self._reread_settings()
        except OSError:  # the run directory is gone, and the run as good as over
            return
        self.status = report.read(self._directory) or self.status
        self._events.look()
        processes = self._processes(reading)
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and reading.monotonic - readings[1].monotonic >= RATE_WINDOW_SECONDS:
            readings.popleft()
        figures = point(readings[0], reading, processes)
        self._history.add(reading.unix, figures)
        context = Context(
            state=self.status.get("state", "starting"), message=self.status.get("message"),
            reported_unix=self.status.get("updated_unix"), lag_limit=self._settings["lag_limit"],
            checkpoint_interval_seconds=self._settings["checkpoint_seconds"],
        )  # fmt: skip
        self.alarms = self._watchman.look(reading, context)
        if self.stream.viewers:
            self.stream.publish(_json(self._message(reading, figures, processes)))

    def _reread_settings(self) -> None:
        """What SIGHUP may have changed."""
        written = self._reader.control.settings
        if written != self._settings_seen:
            self._settings, self._settings_seen = self._read_settings(), written

    def close(self) -> None:
        """The last look, of a run that is over, reaches the viewers."""
        self.look()
        self.stream.close(LAST_WORDS_SECONDS)
        self._history.close()

    def history_json(self, seconds: int) -> bytes:
        """The last `seconds`, and the events that are kept."""
        return _json({**self._history.since(time.time(), seconds), "events": self._events.after(0)})

    def _message(
        self, reading: Reading, figures: Mapping[str, float], processes: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "time": reading.unix,
            "point": {name: value for name, value in figures.items() if math.isfinite(value)},
            "alarms": [alarm.to_json() for alarm in self.alarms],
            "status": {key: value for key, value in self.status.items() if key not in HIDDEN},
            "facts": self._settings,
            "rings": [
                {
                    "slots": ring.slots, "writing": ring.writing, "ready": ring.ready, "leased": ring.leased,
                    "bad": ring.bad, "committed": ring.committed, "consumed": ring.consumed,
                    "dropped": ring.dropped, "redelivered": ring.redelivered,
                }
                for ring in reading.rings
            ],
            "processes": processes,
            "disk": {"free_bytes": reading.free_bytes, "size_bytes": reading.size_bytes},
            "events": self._events.after(self._events.last - EVERY_MESSAGE),
        }  # fmt: skip

    def _processes(self, reading: Reading) -> list[dict[str, Any]]:
        """What each says of itself, and what the supervisor's report says of its use of the machine."""
        reported = {(one.get("role"), one.get("index")): one for one in self.status.get("processes", ())}
        known = (one for one in reading.processes if one.role)
        return [_process(one, reported.get((one.role, one.index), {})) for one in known]


def _process(process: Process, reported: Mapping[str, Any]) -> dict[str, Any]:
    same = reported.get("pid") == process.pid
    silent = process.silent_seconds
    return {
        "role": process.role,
        "index": process.index,
        "pid": process.pid,
        "state": process.state,
        "phase": process.phase,
        "core": process.core,
        "restarts": process.restarts,
        "cpu": reported.get("cpu", 0.0) if same else 0.0,
        "resident_bytes": reported.get("resident_bytes", 0) if same else 0,
        "silent_seconds": None if silent is None else round(silent, 1),
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
