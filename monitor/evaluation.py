"""The evaluation of a run that is done: a process of its own, with a deadline, tried twice."""

from __future__ import annotations

import sys
import time
from typing import Any

from monitor.children import Children
from monitor.rundir import EVALUATION, LOGS, RunDirectory, read_json

START_SECONDS = 60.0  # importing torch from a slow disk, on top of the evaluation's own deadline
TRIES = 2


class Evaluation:
    """`wanted`: whether there is to be one; a signal may drop it at any time."""

    def __init__(self, children: Children, directory: RunDirectory, seconds: float):
        self._children = children
        self._directory = directory
        self._seconds = seconds
        self._tries = 0
        self.deadline = float("inf")
        self.wanted = False
        self.result: dict[str, Any] | None = None

    def begin(self) -> None:
        """Raises OSError."""
        self._tries += 1
        self.deadline = time.monotonic() + self._seconds + START_SECONDS
        path = self._directory.path
        command = [sys.executable, "-m", "consumers.evaluate", str(path), "--json", str(path / EVALUATION)]
        self._children.start("evaluator", 0, [*command, "--log", str(path / LOGS / "evaluator-0.log")])

    @property
    def overdue(self) -> bool:
        """Whether a process that still runs is to be killed."""
        return not self.wanted or time.monotonic() > self.deadline

    def again(self, returncode: int) -> bool:
        """Whether a process that ended so was the first, and its death nobody's wish."""
        return returncode != 0 and self.wanted and self._tries < TRIES

    def read(self) -> bool:
        """Takes in the result. Whether it is as wanted: there, or not asked for."""
        if self.wanted:
            self.result = read_json(self._directory.path / EVALUATION)
        return not self.wanted or self.result is not None
