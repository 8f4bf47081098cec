"""The lag that asynchronous runs really had, laid on the curve of exact lags: does lag explain how they did,
or does something else?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stress.contrasts import LEAST_PAIRS, signed
from stress.inference import LEVEL, holm, t_quantile, t_tail
from stress.records import Arm, Cell, Records

MARGIN = 0.05  # of a solved task's score: what counts as explained


def lay(records: Records) -> list[dict[str, Any]]:
    """One entry an asynchronous arm that was run with exact lags as well: its realised lag, its score beside
    what exact lag gives at that mean, and a verdict after Holm's correction. Both scores are the area under
    the curve over equal steps."""
    found = [
        _beside(arm, cells, curve)
        for arm, cells in records.arms.items()
        if arm.mode == "async" and (curve := _curve(records, arm))
    ]
    judged = [entry for entry in found if "p_equal" in entry]
    equal, differ = (holm([entry[name] for entry in judged]) for name in ("p_equal", "p_differ"))
    for entry, p_equal, p_differ in zip(judged, equal, differ):
        entry["outcome"] = (
            "lag explains it"
            if p_equal <= LEVEL
            else "something else"
            if p_differ <= LEVEL
            else "not decided"
        )
        entry["words"] = _words(entry)
    return found


def _beside(arm: Arm, cells: Sequence[Cell], curve: Mapping[int, Sequence[Cell]]) -> dict[str, Any]:
    """What is compared; with both p values where it can be judged, else with the reason in words."""
    done = [cell for cell in cells if not cell.failed]
    lag = _mean([cell.lag_mean for cell in done])
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
    if not done:
        return entry | {"words": "No run that did not fail."}
    if any(cell.ended_early for cell in done):
        return entry | {"words": "Its score ended these runs before their budget: areas cannot be compared."}
    ends = _around(sorted(curve), lag)
    if ends is None:
        return entry | {"words": f"No exact lags on both sides of {lag:.2f} to compare with."}
    (below, above), share = ends
    if min(len(cells), len(curve[below]), len(curve[above])) < LEAST_PAIRS:
        return entry | {"words": f"Fewer than {LEAST_PAIRS} seeds decide nothing."}
    parts = [(1.0, cells), (share - 1, curve[below]), (-share, curve[above])]
    difference, error, freedom = _combined(parts)
    half = t_quantile(0.025, freedom) * error
    inside = MARGIN - abs(difference)
    return entry | {
        "predicted": entry["area"] - difference,
        "difference": difference,
        "low": difference - half,
        "high": difference + half,
        "p_equal": t_tail(inside / error, freedom) if error else float(inside <= 0),
        "p_differ": 2 * t_tail(abs(difference) / error, freedom) if error else float(difference == 0),
        "rates": sorted({cell.arm.learning_rate for end in (below, above) for cell in curve[end]}),
        "flat": 0 in curve and abs(_mean([c.area for c in curve[0]]) - entry["area"] + difference) <= MARGIN,
    }


def _words(entry: Mapping[str, Any]) -> str:
    lag, difference = f"mean lag of {entry['lag_mean']:.2f}", entry["difference"]
    numbers = f"{signed(difference)} [{signed(entry['low'])}, {signed(entry['high'])}]"
    if entry["outcome"] == "lag explains it":
        said = (
            f"Its {lag} explains how it did: equal within ±{MARGIN:g} to exact lag of that size ({numbers})."
        )
    elif entry["outcome"] == "something else":
        word = "better" if difference > 0 else "worse"
        said = f"Its {lag} does not explain how it did: {word} than exact lag of that size ({numbers})."
    else:
        said = f"Whether its {lag} explains how it did is not decided: {numbers} from exact lag of that size."
    if entry["flat"]:
        said += f" No lag at all gives the same within ±{MARGIN:g}, so there is hardly anything to explain."
    if entry["rates"] != [entry["learning_rate"]]:
        others = " and ".join(f"{rate:g}" for rate in entry["rates"])
        said += f" Their learning rates differ: {entry['learning_rate']:g} against {others}."
    return said


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


def _curve(records: Records, arm: Arm) -> dict[int, list[Cell]]:
    """The cells of exact lags of the same arm, by lag; of several learning rates those of its own."""
    found: dict[int, list[Cell]] = {}
    for exact, cells in records.arms.items():
        own = exact.learning_rate == arm.learning_rate
        if _same(exact, arm) and (own or records.apart(exact) is None):
            found[exact.lag] = cells
    return found


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
