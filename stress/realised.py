"""The lag that asynchronous runs really had, laid on the curve of exact lags: does lag explain how they did,
or does something else?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stress.inference import LEVEL, t_quantile, t_tail
from stress.records import Arm, Cell, Records

MARGIN = 0.05  # of a solved task's score: what counts as explained


def lay(records: Records) -> list[dict[str, Any]]:
    """One entry an asynchronous arm: its realised lag, its score beside what exact lag gives at that mean,
    and a verdict. Both scores are the area under the curve over equal steps."""
    found = []
    for arm, cells in records.arms.items():
        if arm.mode == "async":
            found.append(_one(records, arm, cells))
    return found


def _one(records: Records, arm: Arm, cells: Sequence[Cell]) -> dict[str, Any]:
    done = [cell for cell in cells if not cell.failed]
    lag = _mean([cell.lag_mean for cell in done])
    curve = {a.lag: c for a, c in records.arms.items() if _same(a, arm)}
    entry: dict[str, Any] = {
        **arm._asdict(),
        "seeds": len(cells),
        "lag_mean": lag,
        "lag_p50": _mean([_lag(cell, "p50") for cell in done]),
        "lag_p99": _mean([_lag(cell, "p99") for cell in done]),
        "lag_max": max((_lag(cell, "max") for cell in done), default=math.nan),
        "histogram": _histogram(done),
        "area": _mean([cell.area for cell in cells]),
        "predicted": math.nan,
        "difference": math.nan,
        "low": math.nan,
        "high": math.nan,
        "outcome": "not decided",
        "curve": [{"lag": k, "area": _mean([cell.area for cell in c])} for k, c in sorted(curve.items())],
    }
    ends = _around(sorted(curve), lag)
    if any(cell.ended_early for cell in done):
        entry["words"] = "Its score ended these runs before their budget did: their areas cannot be compared."
        return entry
    if ends is None or len(cells) < 2:
        entry["words"] = (
            f"No exact lags on both sides of {lag:.2f} to compare with." if done else "No run yet."
        )
        return entry
    (below, above), share = ends
    parts = [(1.0, cells)]
    parts += [(share - 1, curve[below]), (-share, curve[above])] if below != above else [(-1.0, curve[below])]
    difference, error, freedom = _combined(parts)
    half = t_quantile(0.025, freedom) * error if error else 0.0
    entry |= {
        "predicted": entry["area"] - difference, "difference": difference,
        "low": difference - half, "high": difference + half,
    }  # fmt: skip
    entry["outcome"] = outcome = _judge(difference, error, freedom)
    entry["words"] = {
        "lag explains "
        "it": f"Its mean lag of {lag:.2f} explains how it did: equal within ±{MARGIN:g} to exact "
        "lag of that size.",
        "something else": f"Its mean lag of {lag:.2f} does not explain how it did: it is "
        f"{'better' if difference > 0 else 'worse'} than exact lag of that size by {abs(difference):.3f} "
        f"[{difference - half:+.3f}, {difference + half:+.3f}].",
        "not decided": f"Whether its mean lag of {lag:.2f} explains how it did is not decided: "
        f"{difference:+.3f} [{difference - half:+.3f}, {difference + half:+.3f}] from exact lag of that "
        "size.",
    }[outcome]
    return entry


def _judge(difference: float, error: float, freedom: float) -> str:
    if error == 0:
        return "lag explains it" if abs(difference) < MARGIN else "something else"
    if t_tail((MARGIN - abs(difference)) / error, freedom) <= LEVEL:
        return "lag explains it"
    return "something else" if 2 * t_tail(abs(difference) / error, freedom) <= LEVEL else "not decided"


def _combined(parts: Sequence[tuple[float, Sequence[Cell]]]) -> tuple[float, float, float]:
    """The sum of the weighted means of independent samples, its standard error and degrees of freedom (Welch
    and Satterthwaite)."""
    value, variance, below = 0.0, 0.0, 0.0
    for weight, cells in parts:
        areas = np.sort([cell.area for cell in cells])
        value += weight * float(areas.mean())
        if areas.size > 1:
            part = weight**2 * float(areas.var(ddof=1)) / areas.size
            variance += part
            below += part**2 / (areas.size - 1)
    return value, math.sqrt(variance), variance**2 / below if below else 1.0


def _same(exact: Arm, arm: Arm) -> bool:
    return (exact.mode, exact.task, exact.correction, exact.epochs) == (
        "lagged", arm.task, arm.correction, arm.epochs,
    ) and exact.learners in (1, arm.learners)  # fmt: skip


def _around(lags: Sequence[int], lag: float) -> tuple[tuple[int, int], float] | None:
    """The neighbours of a lag among those that were run, and how far it lies between them."""
    below = [k for k in lags if k <= lag]
    above = [k for k in lags if k >= lag]
    if not below or not above:
        return None
    low, high = below[-1], above[0]
    return (low, high), 0.0 if low == high else (lag - low) / (high - low)


def _histogram(cells: Sequence[Cell]) -> list[float]:
    """Shares of all trained steps by lag 0, 1, ..."""
    bins = [(cell.record.get("lag_steps") or {}).get("bins") or [] for cell in cells]
    width = max(map(len, bins), default=0)
    total = np.zeros(width)
    for counts in bins:
        total[: len(counts)] += counts
    return list((total / max(1.0, float(total.sum()))).tolist())


def _lag(cell: Cell, name: str) -> float:
    facts: Mapping[str, Any] = cell.record.get("lag_steps") or {}
    return math.nan if facts.get(name) is None else float(facts[name])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.sort(values))) if len(values) else math.nan
