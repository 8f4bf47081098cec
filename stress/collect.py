"""What came of a cell: from its counters, its rings and its metrics.jsonl to the figures of its file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from monitor.status import Table, quantile
from producers.prepare import Segments

POINTS = 64  # of a curve, at most
DIGITS = 6  # significant ones
BOOKKEEPING = {
    "version", "time", "steps", "episodes", "score_mean", "score_best", "samples", "masked", "skipped",
    "sgd_steps", "learning_rate", "entropy_coef",
}  # fmt: skip
AUDITS = ("label", "ratio", "target", "precision")
NOTHING: dict[str, Any] = {
    "steps": 0, "versions": 0, "sgd_steps": 0, "seconds": 0.0, "steps_per_second": 0.0, "dropped_steps": 0,
    "evaluated": None, "solved_at_steps": None, "solved_at_seconds": None,
    "curve": {"steps": [], "seconds": [], "score": []}, "diagnostics": {}, "lag_steps": None,
    "lag_spread_max": None, "gates": None, "audits": None,
}  # fmt: skip
"""Of a cell that failed."""


def measured(
    segments: Segments, table: Table, lines: Sequence[Mapping[str, Any]], stopped_ns: int
) -> dict[str, Any]:
    """Of a cell whose processes have ended. `lines`: of its metrics.jsonl; `stopped_ns`: CLOCK_MONOTONIC of
    the stop flag."""
    from ringbuf import Weights  # not before it is known to be built

    control = segments.control
    counters, bins = control.counters(table.learner), control.bins(table.learner)[0]
    books = [ring.books() for ring in segments.rings]
    first = min((one["first_commit_ns"] for one in books if one["first_commit_ns"]), default=stopped_ns)
    seconds, steps = (stopped_ns - first) / 1e9, counters["run_steps"]
    # What lay in the rings at the end is not part of the budget: nobody had the time to train on it.
    dropped = sum(n for one in books for cause, n in one["dropped_steps"].items() if cause != "shutdown")
    reader = Weights.attach(segments.weights.fd)
    _, weights = reader.read()
    reader.close()
    return {
        "steps": steps,
        "versions": counters["version"],
        "sgd_steps": counters["sgd_steps"],
        "seconds": rounded(seconds),
        "steps_per_second": rounded(steps / seconds if seconds > 0 else 0.0),
        "dropped_steps": dropped,
        **curves(lines),
        "lag_steps": {
            "mean": rounded(counters["lag_sum"] / counters["steps"]) if counters["steps"] else None,
            "p50": quantile(bins, 0.5),
            "p99": quantile(bins, 0.99),
            "max": counters["lag_max"],
            "bins": trimmed(bins),
        },
        "lag_spread_max": largest(lines, "lag_spread"),
        "gates": {
            "grad_norm_max": largest(lines, "grad_norm"),
            "ratio_apart_max": ratio_apart(lines),
            "weights_sha256": hashlib.sha256(weights.tobytes()).hexdigest(),
        },
        "audits": {name: counters.get(f"audit_{name}_alarms", 0) for name in AUDITS},
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """metrics.jsonl, a line an update."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def curves(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The learning curve and the diagnostics on its grid: up to POINTS points, evenly over the steps.

    A point of the curve is the last update before it; a diagnostic is the mean since the point before, or
    the largest value where its name says so."""
    names = sorted({name for line in lines for name, value in line.items() if is_diagnostic(name, value)})
    curve: dict[str, list[Any]] = {"steps": [], "seconds": [], "score": []}
    diagnostics: dict[str, list[Any]] = {name: [] for name in names}
    for group in grouped(lines):
        last = group[-1]
        curve["steps"].append(last["steps"])
        curve["seconds"].append(rounded(last["seconds"]))
        curve["score"].append(rounded(last["score_mean"]))
        for name in names:
            values = [line[name] for line in group if line.get(name) is not None]
            fold = max if name.endswith("_max") else fmean
            diagnostics[name].append(rounded(fold(values)) if values else None)
    return {"curve": curve, "diagnostics": diagnostics}


def grouped(lines: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The lines between one point of the grid and the next."""
    groups: dict[int, list[Mapping[str, Any]]] = {}
    total = lines[-1]["steps"] if lines else 0
    points = min(POINTS, len(lines))
    for line in lines:
        groups.setdefault(math.ceil(line["steps"] * points / total) if total else 0, []).append(line)
    return [groups[place] for place in sorted(groups)]


def is_diagnostic(name: str, value: Any) -> bool:
    if name in BOOKKEEPING or (name.endswith("_seconds") and name != "age_seconds"):
        return False
    return name != "seconds" and isinstance(value, int | float) and not isinstance(value, bool)


def solved_at(lines: Sequence[Mapping[str, Any]], threshold: float, window: int) -> dict[str, Any]:
    """Steps and seconds after which the mean score had reached `threshold` in two windows of `window`
    episodes that share none; nulls where it never did. A learner that stops at this score knows it to the
    episode; else it is known to the update."""
    first: int | None = None
    for line in lines:
        if line.get("solved_at_seconds") is not None:
            return {"solved_at_steps": line["steps"], "solved_at_seconds": rounded(line["solved_at_seconds"])}
        if line["score_mean"] is None or line["score_mean"] < threshold:
            continue
        if first is None:
            first = line["episodes"]
        elif line["episodes"] >= first + window:
            return {"solved_at_steps": line["steps"], "solved_at_seconds": rounded(line["seconds"])}
    return {"solved_at_steps": None, "solved_at_seconds": None}


def largest(lines: Sequence[Mapping[str, Any]], name: str) -> Any:
    return rounded(max((line[name] for line in lines if line.get(name) is not None), default=None))


def ratio_apart(lines: Sequence[Mapping[str, Any]]) -> Any:
    """How far from 1 the ratio of the policy in training to the one that acted came."""
    apart = [
        max(line["ratio_max"] - 1, 1 - line["ratio_min"])
        for line in lines
        if line.get("ratio_max") is not None and line.get("ratio_min") is not None
    ]
    return rounded(max(apart, default=None))


def rounded(value: Any) -> Any:
    """To as many digits as anybody reads: a study has thousands of files."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def trimmed(bins: Sequence[int]) -> list[int]:
    """Without the zeros at the end."""
    last = max((i for i, n in enumerate(bins) if n), default=-1)
    return list(bins[: last + 1])
