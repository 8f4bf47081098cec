"""The past of a run for the live page: an hour by the second, a week by the minute, in a file of fixed size.

Row r of a tier of C rows, s seconds each, is that of the times t with floor(t / s) = r (mod C), and begins
with its own floor(t / s): so a row says itself whether it is of the span asked for, whoever was dead
meanwhile, and there is nothing else to keep in order. Memory holds the truth; the file, a copy for the next
exporter, may be lost, damaged or full.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "history.bin"
HEADER_BYTES = 4096
MOST_POINTS = 720  # of an answer
DIGITS = 6


@dataclass(frozen=True)
class Series:
    """A figure over time. `peak`: of a span its largest value is shown and not its mean."""

    name: str
    peak: bool = False


@dataclass(frozen=True)
class Tier:
    seconds: int
    """Of one row."""
    rows: int

    @property
    def span_seconds(self) -> int:
        return self.seconds * self.rows


TIERS = (Tier(1, 3600), Tier(60, 7 * 24 * 60))


class History:
    """Written by one thread, asked by any."""

    def __init__(self, series: Sequence[Series], path: Path | None = None, tiers: Sequence[Tier] = TIERS):
        """`path`: the file, whose rows are taken up if it is of the same series and tiers; None: none."""
        self.series, self.tiers = tuple(series), tuple(tiers)
        self._width = 1 + len(self.series)
        self._rows = [array("d", [math.nan]) * (tier.rows * self._width) for tier in self.tiers]
        self._means = [_Mean(self.series) for _ in self.tiers]
        self._lock = threading.Lock()
        self._fd: int | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                self._fd = self._open(path)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def add(self, unix: float, point: Mapping[str, float]) -> None:
        """The figures at a time; NaN or absent: none."""
        values = [point.get(one.name, math.nan) for one in self.series]
        with self._lock:
            for number, (tier, mean) in enumerate(zip(self.tiers, self._means, strict=True)):
                slot = math.floor(unix / tier.seconds)
                row = array("d", [slot, *mean.of(slot, values)])
                at = slot % tier.rows * self._width
                self._rows[number][at : at + self._width] = row
                self._write(number, at, row)

    def since(self, now: float, seconds: float) -> dict[str, Any]:
        """The figures of the last `seconds` for JSON: `step` (seconds a point), `times` (Unix, of the points'
        beginnings), and a list a series; null: none. At most `MOST_POINTS` points."""
        number = next((n for n, tier in enumerate(self.tiers) if tier.span_seconds >= seconds), -1)
        tier = self.tiers[number]
        last = math.floor(now / tier.seconds)
        rows = max(1, min(tier.rows, math.ceil(seconds / tier.seconds)))
        each = math.ceil(rows / MOST_POINTS)  # rows a point
        times, columns = [], [[] for _ in self.series]  # type: ignore[var-annotated]
        with self._lock:
            table = self._rows[number][:]
        # Points begin at whole multiples of their step: they stay the same from one answer to the next.
        for first in range((last - rows + 1) // each * each, last + 1, each):
            found = [row for slot in range(first, first + each) if (row := self._row(table, tier, slot))]
            if found:
                times.append(first * tier.seconds)
                for column, one, values in zip(columns, self.series, zip(*found, strict=True), strict=True):
                    column.append(_round(_together(one, values)))
        return {
            "step": each * tier.seconds,
            "times": times,
            "series": {one.name: column for one, column in zip(self.series, columns, strict=True)},
        }

    def _row(self, table: array[float], tier: Tier, slot: int) -> array[float] | None:
        """The figures of a slot of time; None: nobody looked then."""
        at = slot % tier.rows * self._width
        return table[at + 1 : at + self._width] if table[at] == slot else None

    # The file

    def _open(self, path: Path) -> int:
        """Takes up what a file holds, or begins it anew. Raises OSError."""
        shape = [[tier.seconds, tier.rows] for tier in self.tiers]
        names = [one.name for one in self.series]
        header = json.dumps({"headrace_history": 1, "tiers": shape, "series": names}).encode()
        header = header.ljust(HEADER_BYTES)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            if os.pread(fd, HEADER_BYTES, 0) == header:
                for number, rows in enumerate(self._rows):
                    size = len(rows) * rows.itemsize
                    data = os.pread(fd, size, self._offset(number)).ljust(size, b"\xff")  # all ones: NaN
                    self._rows[number] = array("d", data)
            else:
                os.ftruncate(fd, 0)
                os.pwrite(fd, header, 0)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _offset(self, number: int) -> int:
        return HEADER_BYTES + sum(8 * tier.rows * self._width for tier in self.tiers[:number])

    def _write(self, number: int, at: int, row: array[float]) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # a full disk: memory has it
                os.pwrite(self._fd, row, self._offset(number) + 8 * at)


class _Mean:
    """The figures of a row in the making: all that were added while its time lasts."""

    def __init__(self, series: Sequence[Series]):
        self._series = series
        self._slot: int | None = None
        self._values: list[tuple[float, int]] = []

    def of(self, slot: int, values: Sequence[float]) -> list[float]:
        """With `values` among them."""
        if slot != self._slot:
            self._slot, self._values = slot, [(math.nan, 0)] * len(values)
        for number, (one, value) in enumerate(zip(self._series, values, strict=True)):
            if math.isfinite(value):
                total, count = self._values[number]
                if count and one.peak:
                    value = max(total, value)
                elif count:
                    value = total + (value - total) / (count + 1)
                self._values[number] = value, count + 1
        return [value for value, _ in self._values]


def _together(series: Series, values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan
    return max(finite) if series.peak else sum(finite) / len(finite)


def _round(value: float) -> float | None:
    """JSON has no NaN, and a chart needs no more digits."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
