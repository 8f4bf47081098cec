"""The page that compares runs: one HTML file without scripts and without anything from elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from monitor import charts
from monitor.charts import Line
from monitor.compared import FINAL, SPEED, Group, Run, differences
from monitor.curves import Curve
from monitor.markup import Markup, bullets, document, figure, folded, legend, paragraph, table

POINTS = 256  # of the curve of a group
SAMPLES = 8  # of a curve in its table
UNITS = ((3 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (600.0, 60.0, "minutes"))

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """A group's figure: [points] each. `low` and `high`: the middle half of its runs, empty for one run."""

    x: Array
    y: Array
    low: Array
    high: Array


def page(groups: Sequence[Group], figures: Sequence[str]) -> str:
    """`figures`: those to be drawn, as every run was read with them."""
    runs = [run for one in groups for run in one.runs]
    names = ", ".join(one.label for one in groups)
    parts = [
        ("end", "Where they stand", _final(groups)),
        ("settings", "What differs", _differences(groups)),
        ("curves", "Curves", _curves(groups, figures)),
        ("reading", "How to read it", bullets(_notes(groups, runs))),
    ]
    made = time.strftime("%Y-%m-%d %H:%M %Z")
    return document(
        f"Runs compared: {names}", "Runs compared", f"{len(runs)} runs, as they stood at {made}.", parts
    )


# Tables


def _final(groups: Sequence[Group]) -> str:
    columns = ("run", "state", *FINAL, "restarts")
    rows: list[list[str | int]] = [
        [run.name, run.state, *(text(run.final(name)) for name in FINAL), text(run.restarts)]
        for one in groups
        for run in one.runs
    ]
    found = table("Each run", columns, rows)
    several = [one for one in groups if len(one.runs) > 1]
    if several:
        columns = ("configuration", "runs", *FINAL)
        rows = [[one.label, len(one.runs), *(_middle(one, name) for name in FINAL)] for one in several]
        found = table("Each configuration: median [middle half of its runs]", columns, rows) + found
    return found


def _middle(one: Group, name: str) -> str:
    values = [value for run in one.runs if (value := run.final(name)) is not None]
    if not values:
        return text(None)
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    lacking = f", {len(values)} of {len(one.runs)}" if len(values) < len(one.runs) else ""
    return f"{text(median)} [{text(low)}, {text(high)}]{lacking}"


def _differences(groups: Sequence[Group]) -> str:
    # As text: a column of settings is no column of numbers, whatever happens to stand in it.
    rows = [[key, *(Markup(escape(cell)) for cell in cells)] for key, cells in differences(groups)]
    if not rows:
        return paragraph("Nothing but seeds: settings, code and machine are the same.")
    return table("Settings, code and machine", ("setting", *(one.label for one in groups)), rows)


# Curves


def _curves(groups: Sequence[Group], figures: Sequence[str]) -> str:
    drawn = [name for name in figures if any(_has(run, name) for one in groups for run in one.runs)]
    if not drawn:
        return paragraph("No run has made an update so far.")
    parts = [legend([(one.label, shade) for one, shade in zip(groups, _shades(groups))])]
    for name in drawn:
        panels = _by_steps(groups, name) + _by_seconds(groups, name)
        parts.append(f'<h3>{escape(name)}</h3><div class="panels wide">{panels}</div>')
    return "".join(parts)


def _shades(groups: Sequence[Group]) -> list[int]:
    """One each, as far apart as there is room."""
    return [round(i * (charts.SHADES - 1) / max(1, len(groups) - 1)) for i in range(len(groups))]


def _has(run: Run, name: str) -> bool:
    return run.lines > 0 if name == SPEED else name in run.known


def _by_steps(groups: Sequence[Group], name: str) -> str:
    found = [drawn(one, [run.by_steps for run in one.runs], name) for one in groups]
    return _chart(groups, name, found, "steps")


def _by_seconds(groups: Sequence[Group], name: str) -> str:
    found = [drawn(one, [run.by_seconds for run in one.runs], name) for one in groups]
    longest = max((float(one.x[-1]) for one in found if len(one.x)), default=0.0)
    size, unit = next(((size, unit) for least, size, unit in UNITS if longest > least), (1.0, "seconds"))
    return _chart(groups, name, [Drawn(one.x / size, one.y, one.low, one.high) for one in found], unit)


def drawn(one: Group, curves: Sequence[Curve], name: str) -> Drawn:
    """A run's own points; of several runs the median, from where all have begun to where the first ends."""
    nothing = np.empty(0)
    each = [_points(curve, one.runs[0].figures, name) for curve in curves]
    each = [(x, y) for x, y in each if len(x)]
    if len(curves) == 1 or not each:
        return Drawn(*(each[0] if each else (nothing, nothing)), nothing, nothing)
    begin, end = max(x[0] for x, _ in each), min(x[-1] for x, _ in each)
    if begin > end:
        return Drawn(nothing, nothing, nothing, nothing)
    x = np.linspace(begin, end, POINTS)
    low, median, high = np.quantile([np.interp(x, *points) for points in each], (0.25, 0.5, 0.75), axis=0)
    return Drawn(x, median, low, high)


def _points(curve: Curve, figures: Sequence[str], name: str) -> tuple[Array, Array]:
    """Those at which there is a figure."""
    y = curve.steps_per_second() if name == SPEED else curve.figure(figures.index(name))
    there = np.isfinite(y)
    return curve.x[there], y[there]


def _chart(groups: Sequence[Group], name: str, found: Sequence[Drawn], unit: str) -> str:
    lines = [
        Line(one.label, list(d.x), list(d.y), list(d.low), list(d.high), shade)
        for one, d, shade in zip(groups, found, _shades(groups))
    ]
    chart = charts.lines(
        f"by {unit}", f"{name} by {unit}: {', '.join(line.name for line in lines)}.", lines,
        x_label=unit, y_label=name,
    )  # fmt: skip
    return figure(chart, "", folded("Table", _samples(groups, name, found, unit)))


def _samples(groups: Sequence[Group], name: str, found: Sequence[Drawn], unit: str) -> str:
    ends = [d.x[-1] for d in found if len(d.x)]
    at = np.linspace(0.0, max(ends, default=0.0), SAMPLES + 1)[1:]
    rows = [
        [one.label, *(text(y) for y in np.interp(at, d.x, d.y, left=np.nan, right=np.nan))]
        for one, d in zip(groups, found)
        if len(d.x)
    ]
    return table(f"{name} by {unit}", ("", *(charts.short(x) for x in at)), rows)


# Words


def _notes(groups: Sequence[Group], runs: Sequence[Run]) -> list[str]:
    notes = [
        "Steps are valid agent-steps of the policy that survives: what a return to a checkpoint took away is "
        "in no curve. Seconds are those of the run, over all its attempts, without the time between them.",
        "Figures are those of metrics.jsonl, described in docs/metrics.md; steps_per_second is made of its "
        "steps and seconds. A curve of many updates shows means of equally many of them.",
    ]
    if any(len(one.runs) > 1 for one in groups):
        notes.append(
            "Runs of the same settings are one curve: the median, and as a band the middle half of them. "
            "Name, directory and seed of a run count for nothing, nor does who watches it (monitor, watch, "
            "sinks, archive), nor the commit unless a seed was run by several. The curve ends where the "
            "first of its runs does."
        )
    for run in runs:
        if run.damaged:
            notes.append(f"{run.path}: {run.damaged} damaged lines of metrics.jsonl are left out.")
        if run.began is not None and run.began > 1:
            notes.append(f"{run.path}: what is left of metrics.jsonl begins at version {run.began:.0f}.")
        if not run.lines:
            notes.append(f"{run.path}: no update so far.")
    return notes


def text(value: float | None) -> str:
    """A number with four digits that count, or all of a whole one."""
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}".replace("-", "−").replace(",", "\u202f")
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    if digits > 7:
        return f"{value:.3g}".replace("-", "−")
    return f"{value:,.{digits}f}".replace("-", "−").replace(",", "\u202f")
