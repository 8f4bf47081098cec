"""The last events of a run, read from events.jsonl as it grows.

The file is set aside when it has grown, other processes append to it at any time, and its lines hold what a
simulator or a library said: so whatever is read is bounded, and a line that is no event is passed over.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from pathlib import Path
from typing import Any

MOST_EVENTS = 200
READ_BYTES = 1 << 18  # at a time
TEXT_CHARACTERS = 400
COMMON = ("time", "role", "index", "event")


class EventLog:
    """The newest events, numbered from 1 in the order they were read in."""

    def __init__(self, path: Path):
        self._path = path
        self._inode = 0
        self._offset = 0
        self._rest = b""  # the beginning of a line whose end is yet to come
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._count = 0

    def look(self) -> None:
        """Reads what was added."""
        try:
            with self._path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:  # begun anew
                    self._inode, self._rest = facts.st_ino, b""
                    self._offset = max(0, facts.st_size - READ_BYTES)
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except OSError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > READ_BYTES:  # no line of ours
            self._rest = b""
        for line in lines:
            if (event := _event(line)) is not None:
                self._count += 1
                self._events.append({"number": self._count, **event})

    def after(self, number: int) -> list[dict[str, Any]]:
        """Those behind a number, oldest first; 0: all that are kept."""
        return [event for event in self._events if event["number"] > number]

    @property
    def last(self) -> int:
        """Number of the newest; 0: there is none."""
        return self._count


def _event(line: bytes) -> dict[str, Any] | None:
    """time, who, what, and everything else as one text."""
    try:
        event = json.loads(line)
        time = float(event["time"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    if not isinstance(event, dict) or not math.isfinite(time):
        return None
    rest = {key: value for key, value in event.items() if key not in COMMON}
    message = rest.pop("message", None)
    parts = [] if message is None else [str(message)]
    parts += [
        f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in rest.items()
    ]
    return {
        "time": time,
        "who": f"{event.get('role', '?')} {event.get('index', '')}".strip()[:TEXT_CHARACTERS],
        "what": str(event.get("event", "?"))[:TEXT_CHARACTERS],
        "text": ", ".join(parts)[:TEXT_CHARACTERS],
    }
