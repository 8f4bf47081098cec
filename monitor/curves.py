"""Curves of a run's figures, of bounded size however many updates the run has made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_POINTS = 512  # then neighbours are joined, so that there are half as many or more


@dataclass
class Point:
    """The mean of lines that follow one another."""

    first: float
    """By the number that grows."""
    x: float
    steps: float
    seconds: float
    """These three of the last of them."""
    lines: int
    sums: list[float]
    counts: list[int]
    """Of each figure: a line may be without it."""


class Curve:
    """Figures by a number that grows from line to line: the run's steps, or its seconds.

    Where it steps back, since the run went back to a checkpoint, what was lost goes from the curve.
    """

    def __init__(self, width: int, most: int = MOST_POINTS):
        """Of so many figures."""
        self._width, self._most = width, most
        self._lines_each = 1
        self._points: list[Point] = []

    def add(self, x: float, steps: float, seconds: float, figures: Sequence[float | None]) -> None:
        """One line. All numbers are finite."""
        points = self._points
        while points and (points[-1].first >= x or points[-1].x > x):
            points.pop()
        if not points or points[-1].lines >= self._lines_each:
            if len(points) >= self._most:
                self._halve()
            points.append(Point(x, x, steps, seconds, 0, [0.0] * self._width, [0] * self._width))
        point = points[-1]
        point.x, point.steps, point.seconds = x, steps, seconds
        point.lines += 1
        for i, figure in enumerate(figures):
            if figure is not None:
                point.sums[i] += figure
                point.counts[i] += 1

    def _halve(self) -> None:
        """Joins every point with the one behind it."""
        points = self._points
        for first, second in zip(points[::2], points[1::2]):
            second.first = first.first
            second.lines += first.lines
            second.sums = [a + b for a, b in zip(first.sums, second.sums)]
            second.counts = [a + b for a, b in zip(first.counts, second.counts)]
        points[:] = points[1::2] + points[len(points) & ~1 :]
        self._lines_each *= 2

    @property
    def x(self) -> Array:
        """[points], none smaller than the one before."""
        return np.array([point.x for point in self._points])

    def figure(self, index: int) -> Array:
        """[points] means of a figure; NaN where no line had it."""
        pairs = [(point.sums[index], point.counts[index]) for point in self._points]
        return np.array([total / count if count else np.nan for total, count in pairs])

    def steps_per_second(self) -> Array:
        """[points] steps between a point and the one before it over the time between them; NaN where the run
        went back."""
        steps = np.diff([point.steps for point in self._points], prepend=0.0)
        seconds = np.diff([point.seconds for point in self._points], prepend=0.0)
        there = (seconds > 0) & (steps >= 0)
        return np.divide(steps, seconds, out=np.full(len(steps), np.nan), where=there)
