"""The lines of a file of JSON objects, one a line, that is written to and set aside meanwhile: each once,
oldest first."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from config.rotate import set_aside

LINE_BYTES = 1 << 20  # what is longer is no line of ours
CHUNK_BYTES = 1 << 18


class Follower:
    """Reads NAME and what was set aside of it, in memory for one line, however large they are."""

    def __init__(self, path: Path):
        self.damaged = 0
        """Lines so far that were no objects."""
        self._path = path
        self._files: deque[BinaryIO] = deque()  # oldest first; the first is the one being read
        self._begun = b""  # a line whose end is not there yet

    def lines(self) -> Iterator[dict[str, Any]]:
        """Those that are whole by now and were not given before. What is damaged is left out and counted.
        Raises OSError."""
        while True:
            # Looked for before the last one is read to its end: once it was set aside nobody writes there.
            newer = self._newer()
            if self._files:
                yield from self._rest_of(self._files[0])
            self._files.extend(newer)
            if not newer and len(self._files) < 2:
                return
            if len(self._files) > len(newer):
                self._files.popleft().close()
                self._break_off()

    def close(self) -> None:
        while self._files:
            self._files.pop().close()

    def _newer(self) -> list[BinaryIO]:
        """Opens all files that are newer than the newest one that is open, oldest first.

        A file that is set aside meanwhile is met again under its next name, and while one is being renamed
        there is a gap of one number.
        """
        last = self._files[-1] if self._files else None
        found: list[BinaryIO] = []
        gap = False
        for number in itertools.count():
            try:
                file = open(set_aside(self._path, number) if number else self._path, "rb")  # noqa: SIM115
            except FileNotFoundError:
                if gap:
                    break
                gap = True
                continue
            gap = False
            if last is not None and _same(file, last):
                file.close()
                break
            if any(_same(file, one) for one in found):
                file.close()
            else:
                found.append(file)
        return found[::-1]

    def _rest_of(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        while chunk := file.read(CHUNK_BYTES):
            *whole, begun = (self._begun + chunk).split(b"\n")
            self._begun = begun[:LINE_BYTES]  # cut off it is no object any more
            for text in whole:
                line = parse(text)
                if line is not None:
                    yield line
                elif text.strip():
                    self.damaged += 1

    def _break_off(self) -> None:
        """Nothing more will be written where a file ended."""
        self.damaged += bool(self._begun.strip())
        self._begun = b""


def parse(text: bytes) -> dict[str, Any] | None:
    """The object in a line; None: there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def number(value: Any) -> float | None:
    """A finite number, from what may be anything; None: it is none."""
    if not isinstance(value, int | float):
        return None
    try:
        made = float(value)
    except OverflowError:
        return None
    return made if math.isfinite(made) else None


def _same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())
