"""The parts of the page that are mostly charts: lag and correction, learning curves, wall clock, realised
lag. Each has the numbers of its charts in a table beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from monitor import charts
from monitor.charts import Line
from monitor.markup import bullets, figure, folded, legend, number, paragraph, table
from stress.charts import heat_map, intervals
from stress.markup import interval, outcome

SPARSE = 4  # every so many points of a curve are in its table

Report = Mapping[str, Any]


# Names


def clock_name(arm: Report) -> str:
    lag = (
        f" ≤ {arm['lag']}" if arm["mode"] == "async" else f" {arm['lag']}" if arm["mode"] == "lagged" else ""
    )
    learners = f", {arm['learners']} learners" if arm["learners"] > 1 else ""
    return f"{arm['mode']}{lag} {arm['correction']}{learners}"


# Lag and correction


def heat_maps(report: Report) -> str:
    parts = []
    for task in report["study"]["tasks"]:
        arms = _lagged(report, task)
        if len({arm["lag"] for arm in arms}) < 2:
            continue
        parts.append(f'<h3>{escape(task)}</h3><div class="panels wide">')
        marks = _marks(report, task)
        budget = float(report["study"]["tasks"][task]["steps"])
        for title, key, words, low, high in (
            ("Area under the curve", lambda a: a["area"][0], _decimals, 0.0, 1.0),
            ("Final score", lambda a: a["final"][0], _decimals, 0.0, 1.0),
            ("Expected steps to the threshold", _expected_steps, _steps, budget, 0.0),
            ("Share of runs that collapsed or failed", lambda a: a["collapsed_share"], _share, 1.0, -1.0),
            ("Largest fall, mean over seeds", lambda a: a["drawdown"], _decimals, 1.0, -1.0),
            ("Worst seed's final score", lambda a: a["worst"], _decimals, 0.0, 1.0),
        ):
            parts.append(
                _heat_map(
                    title, task, arms, key, words, low, high, marks if title == "Area under the curve" else {}
                )
            )
        parts.append("</div>")
    if not parts:
        return ""
    return paragraph(
        "Rows are corrections, columns are exact lags in versions; interquartile means over seeds, 0 is a "
        "random policy and 1 a solved task. ▲ and ▼: shown to be better or worse than the arm without "
        "correction at the same lag. ≈: shown to be equal to lag 0 within the margin. Empty: not run."
    ) + "".join(parts)


def _decimals(value: float) -> str:
    return number(value, 2)


def _share(value: float) -> str:
    return f"{value:.0%}"


def _expected_steps(arm: Report) -> float:
    return math.inf if arm["steps_to_threshold"] is None else float(arm["steps_to_threshold"])


def _steps(value: float) -> str:
    return charts.short(value) if math.isfinite(value) else "never"


def _heat_map(
    title: str,
    task: str,
    arms: Sequence[Report],
    key: Callable[[Report], float | None],
    say: Callable[[float], str],
    low: float,
    high: float,
    marks: Mapping[tuple[str, int], str],
) -> str:
    lags = sorted({arm["lag"] for arm in arms})
    names = list(dict.fromkeys(arm["name"] for arm in arms))
    found = {(arm["name"], arm["lag"]): key(arm) for arm in arms}

    def cell(name: str, lag: int) -> tuple[float, str] | None:
        value = found.get((name, lag))
        if value is None:
            return None
        return value, say(value) + marks.get((name, lag), "")

    grid = [[cell(name, lag) for lag in lags] for name in names]
    best = max((c[0] for row in grid for c in row if c is not None), default=1.0)
    chart = heat_map(
        title, f"{title} on {task} for each correction and lag.", names, [str(lag) for lag in lags], grid,
        low=low, high=max(high, best) if high > low else high, corner="lag",
    )  # fmt: skip
    rows = [[name, *(c[1] if c else "–" for c in row)] for name, row in zip(names, grid)]
    return figure(chart, "", folded("Table", table(f"{title} on {task}", ("arm", *map(str, lags)), rows)))


def _marks(report: Report, task: str) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    mine = [one for one in report["verdicts"] if one["task"] == task]
    for one in mine:
        for contrast in one["contrasts"]:
            sign = {("control", "better"): "▲", ("control", "worse"): "▼", ("free", "equal"): "≈"}.get(
                (contrast["name"], contrast["outcome"])
            )
            if sign:
                place = one["name"], contrast["lag"]
                found[place] = found.get(place, "") + sign
    return found


def _lagged(report: Report, task: str) -> list[Report]:
    return [
        arm for arm in report["arms"]
        if arm["task"] == task and arm["mode"] == "lagged" and arm["purpose"] == "main"
    ]  # fmt: skip


# Curves


def learning_curves(report: Report) -> str:
    parts = []
    for task in report["study"]["tasks"]:
        arms = _lagged(report, task)
        lags = sorted({arm["lag"] for arm in arms})
        if not arms:
            continue
        panels = []
        for name in dict.fromkeys(arm["name"] for arm in arms):
            mine = [arm for arm in arms if arm["name"] == name and arm["curve"]]
            panels.append(_panel(name, task, mine, "curve", "environment steps", lags))
        parts += [
            f"<h3>{escape(task)}</h3>",
            legend([(f"lag {lag}", i % charts.SHADES) for i, lag in enumerate(lags)]),
            f'<div class="panels">{"".join(panels)}</div>',
        ]  # fmt: skip
    if not parts:
        return ""
    return paragraph(
        "Score by environment steps, 0 a random policy and 1 a solved task: interquartile mean over seeds, "
        "with the 95 % interval of each point as a band. Failed runs count as random policies."
    ) + "".join(parts)


def _panel(
    name: str, task: str, arms: Sequence[Report], key: str, x_label: str, shades: Sequence[Any],
    label: Callable[[Report], str] = lambda arm: f"lag {arm['lag']}",
    shade: Callable[[Report], Any] = lambda arm: arm["lag"],
) -> str:  # fmt: skip
    lines = [
        Line(label(arm), arm[key]["x"], arm[key]["estimate"], arm[key]["low"], arm[key]["high"],
             list(shades).index(shade(arm)))
        for arm in arms
    ]  # fmt: skip
    chart = charts.lines(
        name, f"Learning curves of {name} on {task}: {', '.join(line.name for line in lines)}.", lines,
        x_label=x_label, y_label="score", y_range=(0.0, 1.0), guide=1.0,
    )  # fmt: skip
    rows = [[line.name, *(number(line.y[i], 2) for i in range(0, len(line.x), SPARSE))] for line in lines]
    axis = lines[0].x if lines else []
    columns = ("", *(charts.short(axis[i]) for i in range(0, len(axis), SPARSE)))
    one_axis = all(list(line.x) == list(axis) for line in lines)
    if not one_axis:
        columns = ("", *(f"{100 * i // (len(axis) - 1)} %" for i in range(0, len(axis), SPARSE)))
    return figure(chart, "", folded("Table", table(f"{name} on {task}, by {x_label}", columns, rows)))


def wall_clock(report: Report) -> str:
    arms = [arm for arm in report["arms"] if arm["purpose"] == "wall"]
    if not arms:
        return ""
    panels, names = [], list(dict.fromkeys(clock_name(arm) for arm in arms))
    for task in report["study"]["tasks"]:
        mine = [arm for arm in arms if arm["task"] == task and arm["curve_by_seconds"]]
        if mine:
            panels.append(
                _panel(task, task, mine, "curve_by_seconds", "seconds", names, clock_name, clock_name)
            )
    rows = [
        [arm["task"], clock_name(arm), number(arm["steps_per_second"], 0),
         number(arm["seconds_to_threshold"], 1), f"{arm['reached']} of {len(arm['seeds'])}",
         number(arm["steps_to_threshold"], 0), number(arm["lag_mean"], 2),
         number(arm["lag_max"], 0), number(arm["dropped_steps"]), arm["exclusive"]]
        for arm in arms
    ]  # fmt: skip
    columns = ("task", "arm", "steps/s", "expected seconds to the threshold", "reached it", "expected steps",
               "mean lag", "largest lag", "steps dropped", "had the machine alone")  # fmt: skip
    return "".join([
        paragraph("These had the whole machine. A synchronous run uses every core in both of its phases."),
        legend([(name, i % charts.SHADES) for i, name in enumerate(names)]),
        f'<div class="panels">{"".join(panels)}</div>',
        ratios("Time to the threshold against synchronous training", report["wall_clock"]),
        bullets([contrast["sentence"] for contrast in report["wall_clock"]]),
        table("Speed and time", columns, rows),
    ])  # fmt: skip


# Lag and warnings


def realised_lag(report: Report) -> str:
    found = report["realised"]
    if not found:
        return ""
    panels = []
    groups: dict[tuple[str, str, int], list[Report]] = {}
    for one in found:
        groups.setdefault((one["task"], one["correction"], one["epochs"]), []).append(one)
    for (task, correction, epochs), ones in groups.items():
        curve = ones[0]["curve"]
        exact = Line("exact lag", [p["lag"] for p in curve], [p["area"] for p in curve], shade=0)
        dots = [
            Line(clock_name(one), [one["lag_mean"]], [one["area"]],
                 _around(one, "low"), _around(one, "high"), 5, points=True)
            for one in ones if one["lag_mean"] is not None
        ]  # fmt: skip
        lags = [p["lag"] for p in curve]
        panels.append(figure(
            charts.lines(
                f"{correction} on {task}",
                "Area under the curve by lag: exact lags as a line, asynchronous runs as points at their "
                f"mean lag. {correction} on {task}, {epochs} epochs.", [exact, *dots],
                x_label="lag in versions, as log(1 + lag)", y_label="area", x_marks=lags, x_place=_bent,
            ), "", "",
        ))  # fmt: skip
    rows = [
        [one["task"], clock_name(one), one["seeds"], number(one["lag_mean"], 2), number(one["lag_p50"], 1),
         number(one["lag_p99"], 1), number(one["lag_max"], 0), number(one["area"]), number(one["predicted"]),
         interval([one["difference"], one["low"], one["high"]]), outcome(one["outcome"]), one["words"]]
        for one in found
    ]  # fmt: skip
    columns = ("task", "arm", "seeds", "mean lag", "median", "p99", "max", "area", "exact lag gives",
               "difference [95 %]", "outcome", "in words")  # fmt: skip
    return "".join([
        paragraph(
            "Points are asynchronous runs at the mean lag of the steps they trained on; the line is what "
            "exactly so much lag does to the same arm over equally many steps."
        ),
        legend([("exact lag", 0), ("asynchronous", 5)]),
        f'<div class="panels">{"".join(panels)}</div>', table("Realised lag", columns, rows),
    ])  # fmt: skip


def _around(one: Report, end: str) -> list[float]:
    """The interval of the difference, hung up at the prediction's place."""
    if one[end] is None or one["predicted"] is None:
        return [math.nan]
    return [one["predicted"] + one[end]]


def _bent(lag: float) -> float:
    return math.log2(1 + lag)


# Numbers for charts


def ratios(title: str, found: Sequence[Report]) -> str:
    return figure(
        intervals(
            title, "Ratio of expected times with its 95 % interval; below 1 the first is faster.",
            [(c["name"], floats(c["estimate"]), 0) for c in found],
            x_label="time of a / time of b", middle=1.0, log=True,
        ), "Left of 1 the first is faster.", "",
    )  # fmt: skip


def floats(values: Sequence[float | None]) -> tuple[float, float, float]:
    """An interval as the charts take it: an open end is infinite."""
    estimate, low, high = values
    if estimate is None and low is None and high is None:
        return (math.nan,) * 3
    return (
        math.inf if estimate is None else estimate,
        -math.inf if low is None else low,
        math.inf if high is None else high,
    )
