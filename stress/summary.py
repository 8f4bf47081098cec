"""What each arm came to over its seeds: scores, times, collapses, curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stress.records import Arm, Cell, Records
from stress.statistics import (
    RESAMPLES,
    bootstrap,
    bootstrap_curves,
    expected_time,
    iqm,
    lower_tail,
    optimality_gap,
    performance_profile,
)

CURVE_POINTS = 41
PROFILE = tuple(round(0.1 * i, 1) for i in range(11))  # thresholds, in units of a solved task's score


def summarize(records: Records, *, resamples: int = RESAMPLES) -> list[dict[str, Any]]:
    """One entry an arm, in order."""
    return [_summary(records, arm, cells, resamples) for arm, cells in records.arms.items()]


def _summary(records: Records, arm: Arm, cells: Sequence[Cell], resamples: int) -> dict[str, Any]:
    final, area = (column([getattr(cell, name) for cell in cells]) for name in ("final", "area"))
    evaluated = [cell.evaluated for cell in cells if cell.evaluated is not None]
    done = [cell for cell in cells if not cell.failed]
    collapsed = [cell for cell in done if cell.collapsed]
    return {
        **arm._asdict(),
        "name": records.name(arm),
        "seeds": [cell.seed for cell in cells],
        "failed": len(cells) - len(done),
        "final": bootstrap(final, iqm, resamples=resamples),
        "area": bootstrap(area, iqm, resamples=resamples),
        "optimality_gap": bootstrap(final, optimality_gap, resamples=resamples),
        "final_mean": _mean([cell.final for cell in cells]),
        "evaluated_mean": _mean(evaluated),
        "worst": float(min(cell.final for cell in cells)),
        "worst_quarter": float(lower_tail(final)),
        "profile": performance_profile(final, PROFILE).tolist(),
        "collapsed": len(collapsed),
        "collapsed_share": (len(collapsed) + len(cells) - len(done)) / len(cells),
        "fell": sum(cell.fell_at is not None for cell in done),
        "drawdown": _mean([cell.drawdown for cell in done]),
        "reached": sum(cell.reached("steps")[1] for cell in cells),
        "steps_to_threshold": _expected(cells, "steps"),
        "seconds_to_threshold": _expected(cells, "seconds"),
        "lag_mean": _mean([cell.lag_mean for cell in done]),
        "lag_max": max((_of_lag(cell, "max") for cell in done), default=math.nan),
        "steps_per_second": _mean([float(cell.record.get("steps_per_second") or 0) for cell in done]),
        "seconds": sum(cell.seconds for cell in cells),
        "dropped_steps": sum(int(cell.record.get("dropped_steps") or 0) for cell in cells),
        "exclusive": all(cell.record.get("exclusive") for cell in cells),
        "curve": curve(cells, "steps"),
        "curve_by_seconds": curve(cells, "seconds") if arm.purpose == "wall" else None,
    }


def tuned(records: Records) -> list[dict[str, Any]]:
    """The runs in which learning rates were chosen: an entry for each task, arm and lag, with the mean area
    of each rate over the tuning seeds, the best, and whether it was the smallest or largest tried."""
    groups: dict[Arm, dict[float, list[float]]] = {}
    for cell in records.tuning:
        rates = groups.setdefault(cell.arm._replace(learning_rate=0.0), {})
        rates.setdefault(cell.arm.learning_rate, []).append(cell.area)
    found = []
    for arm, areas in sorted(groups.items()):
        means = {rate: _mean(areas[rate]) for rate in sorted(areas)}
        best = max(means, key=means.__getitem__)
        found.append({
            "task": arm.task, "correction": arm.correction, "lag": arm.lag, "epochs": arm.epochs,
            "seeds": max(map(len, areas.values())), "areas": [[rate, mean] for rate, mean in means.items()],
            "best": best, "at_edge": best in (min(means), max(means)),
        })  # fmt: skip
    return found


def curve(cells: Sequence[Cell], unit: str) -> dict[str, list[float]] | None:
    """The interquartile mean over seeds with its 95 % interval, at points evenly spread over the budget in
    steps, or over the time that half of the runs took. A run keeps its last score, a failed one has none of
    its own and counts as a random policy; before its first finished episodes a run counts as that too."""
    runs = [cell.curve for cell in cells]
    axis = 0 if unit == "steps" else 1
    ends = [float(run[axis][-1]) for run in runs if run[0].size]
    if not ends:
        return None
    end = float(cells[0].task.steps) if unit == "steps" else float(np.median(ends))
    x = np.linspace(0, end, CURVE_POINTS)
    rows = [
        np.interp(x, np.r_[0.0, run[axis]], np.r_[0.0, run[2]]) if run[0].size else np.zeros(CURVE_POINTS)
        for run in runs
    ]
    estimate, low, high = bootstrap_curves(np.array(rows)).tolist()
    return {"x": x.tolist(), "estimate": estimate, "low": low, "high": high}


def column(values: Sequence[float]) -> np.ndarray:
    """One task's scores as statistics take them: [seeds, 1]."""
    return np.array(values, np.float64).reshape(-1, 1)


def _expected(cells: Sequence[Cell], unit: str) -> float:
    found = [cell.reached(unit) for cell in cells]
    return float(expected_time([time for time, _ in found], [there for _, there in found]))


def _of_lag(cell: Cell, name: str) -> float:
    value = (cell.record.get("lag_steps") or {}).get(name)
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.sort(values))) if len(values) else math.nan
