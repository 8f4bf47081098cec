"""The finished cells of a study as the report sees them: normalised, measured, and judged for whether they
mean anything.

Scores are (raw - floor) / (solved - floor) throughout: 0 is a random policy, 1 a solved task.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stress import packing

Array = NDArray[np.float64]

FINAL_SHARE = 0.1  # of the steps, the last: their mean score is the final one
COLLAPSE = 0.5  # final below this share of the run's own best ...
COLLAPSE_FROM = 0.25  # ... which has passed this share of the solved score
RATIO_APART = 1e-3  # rounding alone takes ratios without lag up to 2e-5 from 1
UNCONTROLLED = "none"  # the arm that ignores who acted


@dataclass(frozen=True)
class Task:
    """What the scores of a task mean."""

    name: str
    solved: float
    floor: float
    threshold: float
    steps: int
    slow_tail: bool

    def normalized(self, score: float) -> float:
        return (score - self.floor) / (self.solved - self.floor)


class Arm(NamedTuple):
    """All that cells have in common which differ by nothing but their seed."""

    task: str
    mode: str
    lag: int
    correction: str
    epochs: int
    learners: int
    purpose: str
    learning_rate: float

    @property
    def family(self) -> tuple[Any, ...]:
        """What stays the same when the lag is changed, and the learning rate tuned to it."""
        return self.task, self.mode, self.correction, self.epochs, self.learners, self.purpose


@dataclass(frozen=True)
class Cell:
    """One finished run. A failed one has the scores of a random policy, and never reached anything."""

    record: Mapping[str, Any]
    task: Task
    arm: Arm

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @property
    def failed(self) -> bool:
        return bool(self.record["status"] != "done")

    @cached_property
    def curve(self) -> tuple[Array, Array, Array]:
        """Environment steps, seconds and scores, without the points before the first finished episodes.
        Dropped steps count as steps."""
        curve = {} if self.failed else self.record.get("curve") or {}
        columns = [curve.get(name) or [] for name in ("steps", "seconds", "score")]
        rows = [row for row in zip(*columns) if row[2] is not None]
        steps, seconds, scores = np.array(rows, np.float64).reshape(-1, 3).T
        trained, dropped = self.record.get("steps") or 0, self.record.get("dropped_steps") or 0
        return steps * (1 + dropped / max(1, trained)), seconds, self._normalized(scores)

    def _normalized(self, scores: Array) -> Array:
        return (scores - self.task.floor) / (self.task.solved - self.task.floor)

    @cached_property
    def final(self) -> float:
        """The mean score over the last tenth of the steps within the budget."""
        steps, _, scores = self.curve
        if not steps.size:
            return 0.0
        end = min(float(steps[-1]), max(float(self.task.steps), float(steps[0])))
        last = (steps > (1 - FINAL_SHARE) * end) & (steps <= end)
        return float(scores[last].mean()) if last.any() else float(np.interp(end, steps, scores))

    @cached_property
    def area(self) -> float:
        """The mean score over all steps of the budget: 0 before the first finished episodes; a run that
        ended before keeps its last score."""
        steps, _, scores = self.curve
        if not steps.size:
            return 0.0
        budget = float(self.task.steps)
        grid = np.unique(np.clip(np.concatenate([steps, [budget]]), steps[0], budget))
        return float(np.trapezoid(np.interp(grid, steps, scores), grid) / budget) if grid.size > 1 else 0.0

    @cached_property
    def best(self) -> float:
        """The highest point of the curve."""
        return float(self.curve[2].max(initial=0.0))

    @property
    def evaluated(self) -> float | None:
        """The mean score of episodes that were played at the end for nothing but their score."""
        found = self.record.get("evaluated")
        mean = None if self.failed or not found else found.get("mean")
        return None if mean is None else self.task.normalized(float(mean))

    @property
    def collapsed(self) -> bool:
        """Whether it ended far below a best that was worth something."""
        return self.best > COLLAPSE_FROM and self.final < COLLAPSE * self.best

    @cached_property
    def fell_at(self) -> float | None:
        """The first step at which its score was below half of its best so far, which was worth something; it
        may have recovered. None: it never fell."""
        steps, _, scores = self.curve
        best = np.maximum.accumulate(scores)
        fallen = np.flatnonzero((best > COLLAPSE_FROM) & (scores < COLLAPSE * best))
        return float(steps[fallen[0]]) if fallen.size else None

    @cached_property
    def drawdown(self) -> float:
        """The largest fall from a point of the curve to a later one."""
        scores = self.curve[2]
        return float((np.maximum.accumulate(scores) - scores).max(initial=0.0))

    def reached(self, unit: str) -> tuple[float, bool]:
        """When the score had reached the task's threshold in two windows without a common episode, in `steps`
        or `seconds`; and True. If it never had, what the run spent, and False."""
        dropped = float(self.record.get("dropped_steps") or 0) if unit == "steps" else 0.0
        spent = float(self.record.get(unit) or 0.0)
        at = None if self.failed else self.record.get(f"solved_at_{unit}")
        if at is None:
            return spent + dropped, False
        return float(at) * (1 + dropped / max(1.0, spent)), True

    @property
    def seconds(self) -> float:
        return float(self.record.get("seconds") or 0.0)

    @property
    def lag_mean(self) -> float:
        """The mean lag of the steps it trained on, in versions; the set one where it was not measured."""
        mean = (self.record.get("lag_steps") or {}).get("mean")
        return float(self.arm.lag) if mean is None else float(mean)

    @property
    def ended_early(self) -> bool:
        """Whether its score ended it before its budget of steps did."""
        return not self.failed and float(self.record["steps"]) < 0.95 * self.task.steps

    @property
    def means_nothing(self) -> str | None:
        """Why a finished run tells nothing, by itself."""
        if self.failed:
            return None
        gates = self.record.get("gates") or {}
        if gates.get("grad_norm_max") == 0:
            return "all its gradients were zero"
        apart = gates.get("ratio_apart_max")
        if self.arm.mode != "sync" and self.lag_mean > 0 and apart is not None and apart < RATIO_APART:
            return "its ratios were 1 but for rounding although it lagged"
        return None


@dataclass
class Records:
    """A study, as far as it is finished."""

    study: dict[str, Any]
    tasks: dict[str, Task]
    cells: list[Cell] = field(default_factory=list)
    """That count: failed ones too, but none that was thrown out or was for tuning."""
    tuning: list[Cell] = field(default_factory=list)
    thrown_out: list[tuple[Cell, str]] = field(default_factory=list)
    """With the reason."""
    left_out: list[str] = field(default_factory=list)
    """Files that could not be read."""
    foreign: int = 0
    """Cells of the store that the study, as it is now, does not ask for."""

    @classmethod
    def load(cls, folder: Path) -> Records:
        """From a study's folder, whatever of it is there, or from a packed one. Raises FileNotFoundError
        without a study."""
        study = json.loads((folder / "study.resolved.json").read_text())
        if (packed := folder / packing.FILE).exists():
            return cls.of(study, packing.unpack(packed))
        found, unreadable = [], []
        for path in sorted((folder / "cells").glob("*.json")):
            try:
                found.append(json.loads(path.read_text()))
            except ValueError:
                unreadable.append(path.name)
        return cls.of(study, found, unreadable)

    @classmethod
    def of(
        cls, study: dict[str, Any], found: Iterable[dict[str, Any]], unreadable: Iterable[str] = ()
    ) -> Records:
        tasks = {name: _task(name, facts) for name, facts in study["tasks"].items()}
        records = cls(study, tasks, left_out=list(unreadable))
        cells = []
        planned = study.get("cells")
        for record in found:
            if record["task"] not in tasks or (planned is not None and record["id"] not in planned):
                records.foreign += 1
                continue
            arm = Arm(*(record[name] for name in Arm._fields))
            cells.append(Cell(record, tasks[arm.task], arm))
        cells.sort(
            key=lambda cell: (cell.arm.correction != UNCONTROLLED, cell.arm, cell.seed, cell.record["id"])
        )
        twins = _identical(cells)
        for cell in cells:
            reason = cell.means_nothing or twins.get(cell.record["id"])
            if reason is not None:
                records.thrown_out.append((cell, reason))
            elif cell.arm.purpose == "tuning":
                records.tuning.append(cell)
            else:
                records.cells.append(cell)
        return records

    @cached_property
    def arms(self) -> dict[Arm, list[Cell]]:
        """The cells of each arm, by seed."""
        found: dict[Arm, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.arm, []).append(cell)
        return found

    @cached_property
    def _several(self) -> set[tuple[Any, ...]]:
        """Arms but for the learning rate of which there are several."""
        counts = Counter(arm[:-1] for arm in self.arms)
        return {arm.family for arm in self.arms if counts[arm[:-1]] > 1}

    def apart(self, arm: Arm) -> float | None:
        """The arm's learning rate, where the study compares several at some lag; None: it has one a lag,
        which may have been tuned."""
        return arm.learning_rate if arm.family in self._several else None

    def name(self, arm: Arm) -> str:
        """The arm's correction, and in what else it differs from most of its task and mode."""
        fellows = [a for a in self.arms if (a.task, a.mode, a.purpose) == (arm.task, arm.mode, arm.purpose)]
        extra = []
        for key in ("epochs", "learners"):
            own, most = getattr(arm, key), Counter(getattr(a, key) for a in fellows).most_common(1)[0][0]
            if own != most:
                extra.append(f"{own} {key if own != 1 else key.removesuffix('s')}")
        rate = [] if self.apart(arm) is None else [f"rate {arm.learning_rate:g}"]
        return ", ".join([arm.correction, *extra, *rate])

    @property
    def hours(self) -> float:
        """Of training, in all cells that count or were for tuning."""
        return sum(cell.seconds for cell in (*self.cells, *self.tuning)) / 3600

    @property
    def missing(self) -> int | None:
        """How many planned cells are not finished; None: it is not known how many were planned."""
        planned = self.study.get("planned_cells")
        finished = len(self.cells) + len(self.tuning) + len(self.thrown_out)
        return None if planned is None else max(0, int(planned) - finished)


def _task(name: str, facts: Mapping[str, Any]) -> Task:
    threshold = facts.get("threshold")
    return Task(
        name,
        float(facts["solved"]),
        float(facts["floor"]),
        float(facts["solved"] if threshold is None else threshold),
        int(facts["steps"]),
        bool(facts.get("slow_tail")),
    )


def _identical(cells: list[Cell]) -> dict[str, str]:
    """Why cells are thrown out of which two arms ended with the same weights although both lagged, by id: one
    of the corrections was not in force."""
    seen: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        weights = (cell.record.get("gates") or {}).get("weights_sha256")
        if weights and not cell.failed and cell.arm.mode != "sync" and cell.arm.lag >= 1:
            key = cell.arm._replace(correction="", purpose=""), cell.seed, weights
            seen.setdefault(key, []).append(cell)
    return {
        cell.record["id"]: f"its weights are bit for bit those of {', '.join(others)}"
        for twins in seen.values()
        for cell in twins
        if (others := sorted({other.arm.correction for other in twins} - {cell.arm.correction}))
    }


def is_number(value: Any) -> bool:
    """Whether it is finite and no flag."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
