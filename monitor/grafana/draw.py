"""Draws the dashboards as pictures, from what a Prometheus has recorded, where there is no Grafana.

    python -m monitor.grafana.draw http://127.0.0.1:9090 docs/img [--end UNIX] [--minutes 30] [--window 60s]

Panels stand where the dashboard has them, with its titles, queries, units and legends; the look is our own.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from config import exits
from monitor.charts import Axis, at, ticks
from monitor.grafana.reading import Panel, Query, dashboards, filled, panels
from monitor.grafana.units import round_in, shown

COLUMN, LINE, GAP = 50, 32, 6  # of Grafana's grid, in pixels
TOP = 30  # of what is drawn in a panel
POINTS = 120  # of a curve
TIMEOUT_SECONDS = 60.0
# The first are Okabe and Ito's, which the colour-blind can tell apart.
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8c7a00",
    "#666666",
    "#7b4fb0",
    "#a0522d",
)
STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f4f5f5; --panel: #fff; --ink: #1b1f24; --faint: #59636e; --rule: #dfe3e8;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #111217; --panel: #1a1c22; --ink: #e6e9ee; --faint: #a1abb8; --rule: #31353d }
}
text { font: 11px system-ui, sans-serif; fill: var(--faint) }
.title { font-size: 12.5px; font-weight: 600; fill: var(--ink) } .row { font-size: 15px; fill: var(--ink) }
.big { font-weight: 600; fill: var(--ink); text-anchor: middle } .middle { text-anchor: middle }
.end { text-anchor: end } .panel { fill: var(--panel); stroke: var(--rule) } .ground { fill: var(--ground) }
.grid { stroke: var(--rule); fill: none } .mark { stroke-dasharray: 3 3; stroke-width: 0.8; opacity: 0.8 }
.line { fill: none; stroke-width: 1.5; stroke-linejoin: round }
"""

Drawn = tuple[str, float | None]
"""Inside of a panel, and where its axis of time is."""
Curve = tuple[str, list[tuple[float, float]]]
"""Name, and (Unix time, value)."""


class Recorded:
    """What a Prometheus recorded up to `end`, over `seconds`; `window`: of the rates."""

    def __init__(self, address: str, end: float, seconds: float, window: str):
        self.address, self.end, self.window = address.rstrip("/"), end, window
        self.start = end - seconds
        self.step = seconds / POINTS

    def now(self, query: Query) -> list[tuple[str, float]]:
        """(name, value) of each series at the end."""
        found = self._ask("query", query, time=self.end)
        return [(query.name(one["metric"]), float(one["value"][1])) for one in found]

    def curves(self, query: Query) -> list[Curve]:
        found = self._ask("query_range", query, start=self.start, end=self.end, step=self.step)
        return [
            (query.name(one["metric"]), [(float(t), float(v)) for t, v in one["values"]]) for one in found
        ]

    def marks(self, dashboard: dict[str, Any]) -> list[tuple[float, str, str]]:
        """(Unix time, what happened, colour) of what the dashboard marks."""
        found = set()
        for mark in dashboard["annotations"]["list"]:
            query = Query(mark["expr"], mark["titleFormat"], instant=False)
            for name, points in self.curves(query):
                moments = {value / 1e3 for _, value in points}
                if not mark.get("useValueForTime"):
                    moments = {stretch[0][0] for stretch in _stretches(points, self.step)}
                found |= {(t, name, mark["iconColor"]) for t in moments if self.start <= t <= self.end}
        return sorted(found)

    def _ask(self, path: str, query: Query, **parameters: float) -> list[dict[str, Any]]:
        asked = {"query": filled(query.expression, self.window), **parameters}
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def picture(dashboard: dict[str, Any], recorded: Recorded) -> str:
    """One dashboard as SVG."""
    parts, height = [], 0
    marks = recorded.marks(dashboard)
    for raw in dashboard["panels"]:
        place = raw["gridPos"]
        height = max(height, place["y"] + place["h"])
        if raw["type"] == "row":
            parts.append(_text(GAP, place["y"] * LINE + 21, f"▾ {raw['title']}", "row"))
    for panel in panels(dashboard):
        x, y, width, tall = panel.place
        inner = (width * COLUMN - GAP, tall * LINE - GAP)
        drawn, base = DRAWN[panel.kind](panel, recorded, *inner)
        parts.append(
            f'<g transform="translate({x * COLUMN} {y * LINE})">'
            f"<title>{escape(panel.description)}</title>"
            f'<rect class="panel" width="{inner[0]}" height="{inner[1]}" rx="2"/>'
            f"{_text(8, 18, panel.title, 'title')}{drawn}"
            f"{'' if base is None else _marks(marks, recorded, inner[0], base)}</g>"
        )
    size = (24 * COLUMN, height * LINE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
        f'width="{size[0]}" height="{size[1]}" role="img"><title>{escape(dashboard["title"])}</title>'
        f"<desc>{escape(dashboard['description'])}</desc>"
        f'<style>{STYLE}</style><rect class="ground" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def _marks(marks: Sequence[tuple[float, str, str]], recorded: Recorded, width: float, base: float) -> str:
    """Lines across a panel, down to its axis of time, where something happened."""
    across = _across(recorded, width)
    return "".join(
        f'<path class="mark" stroke="{colour}" d="M{at(across(moment))} {TOP}V{at(base)}">'
        f"<title>{escape(name)}</title></path>"
        for moment, name, colour in marks
    )


def _across(recorded: Recorded, width: float) -> Axis:
    return Axis(recorded.start, recorded.end, 66, width - 10)


def _stat(panel: Panel, recorded: Recorded, width: float, height: float) -> Drawn:
    """Numbers beside one another, or names."""
    options = panel.raw["options"]
    found = [one for query in panel.queries for one in recorded.now(query)]
    if not found:
        return _text(width / 2, height / 2 + 10, "no data", "middle"), None
    parts = []
    for number, (name, value) in enumerate(found):
        middle = width * (number + 0.5) / len(found)
        figure = name if options["textMode"] == "name" else shown(value, panel.unit, panel.decimals)
        size = min(26.0, 1.35 * width / len(found) / max(4, len(figure)))
        parts.append(
            f'<text class="big" style="font-size:{at(size)}px" x="{at(middle)}" y="{at(height / 2 + 16)}">'
            f"{escape(figure)}</text>"
        )
        if options["textMode"] == "value_and_name" or (len(found) > 1 and options["textMode"] != "name"):
            parts.append(_text(middle, height - 14, name, "middle"))
    return "".join(parts), None


def _values(unit: str, across: Axis, up: Axis) -> str:
    """The axis of values, with its lines."""
    parts = []
    size = round_in(unit, up.high)
    for tick in (size * whole for whole in ticks(up.low / size, up.high / size, 4)):
        parts.append(f'<path class="grid" d="M{at(across.begin)} {at(up(tick))}H{at(across.end)}"/>')
        figure = shown(
            tick, "none" if unit.startswith("count:") else unit, 0 if unit == "percentunit" else None
        )
        parts.append(_text(across.begin - 5, up(tick) + 4, figure, "end"))
    return "".join(parts)


def _times(across: Axis, y: float) -> str:
    """The axis of time, in UTC."""
    parts = []
    span = across.high - across.low
    every = next((s for s in (15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600) if span / s <= 5), 86400)
    first = math.ceil(across.low / every) * every
    form = "%H:%M:%S" if every < 60 else "%H:%M" if every < 86400 else "%d %b"
    for moment in range(int(first), int(across.high) + 1, every):
        parts.append(_text(across(moment), y, time.strftime(form, time.gmtime(moment)), "middle"))
    return "".join(parts)


def _series(panel: Panel, recorded: Recorded, width: float, height: float) -> Drawn:
    """Curves, or areas on one another, with a legend that has their last values."""
    curves = [curve for query in panel.queries for curve in recorded.curves(query)]
    curves = [(name, [(t, v) for t, v in points if math.isfinite(v)]) for name, points in curves]
    curves = [curve for curve in curves if curve[1]]
    if not curves:
        return _text(width / 2, height / 2 + 10, "no data", "middle"), None
    custom = panel.raw["fieldConfig"]["defaults"]["custom"]
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    drawn = _stacked(curves) if stacked else [(points, None) for _, points in curves]
    legend, lines = _legend(curves, panel, width)
    values = [v for points, _ in drawn for _, v in points]
    low, high = min(values), max(values)
    if panel.raw["fieldConfig"]["defaults"].get("min") == 0:
        low = min(low, 0.0)
    high = high if high > low else low + (abs(low) or 1.0)
    across = _across(recorded, width)
    up = Axis(low, high + 0.05 * (high - low), height - 24 - 15 * lines, TOP)
    parts = [_values(panel.unit, across, up), _times(across, up.begin + 15)]
    for number, (points, floor) in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        for stretch in _stretches(points, recorded.step):
            path = "L".join(f"{at(across(t))} {at(up(v))}" for t, v in stretch)
            if floor is not None:
                back = "L".join(f"{at(across(t))} {at(up(floor[t]))}" for t, _ in reversed(stretch))
                parts.append(f'<path d="M{path}L{back}Z" fill="{colour}" fill-opacity="0.45"/>')
            parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
    below = f'<g transform="translate(8 {at(height - 15 * lines + 6)})">{legend}</g>'
    return "".join(parts) + below, up.begin


def _stacked(curves: Sequence[Curve]) -> list[tuple[list[tuple[float, float]], dict[float, float] | None]]:
    """Each on the sum of those before it."""
    below: dict[float, float] = {}
    drawn: list[tuple[list[tuple[float, float]], dict[float, float] | None]] = []
    for _, points in curves:
        floor = {t: below.get(t, 0.0) for t, _ in points}
        below |= {t: floor[t] + v for t, v in points}
        drawn.append(([(t, below[t]) for t, _ in points], floor))
    return drawn


def _stretches(points: list[tuple[float, float]], step: float) -> list[list[tuple[float, float]]]:
    """Parts without a gap."""
    found: list[list[tuple[float, float]]] = []
    for point in points:
        if not found or point[0] - found[-1][-1][0] > 1.5 * step:
            found.append([])
        found[-1].append(point)
    return found


def _legend(curves: Sequence[Curve], panel: Panel, width: float) -> tuple[str, int]:
    """The legend, and how many lines it takes."""
    parts, x, line = [], 0.0, 0
    for number, (name, points) in enumerate(curves):
        words = f"{name}: {shown(points[-1][1], panel.unit, panel.decimals)}"
        wide = 22 + 6.3 * len(words)
        if x and x + wide > width - 16:
            x, line = 0.0, line + 1
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{at(x)}" y="{15 * line - 8}" width="10" height="3.5" fill="{colour}"/>')
        parts.append(_text(x + 14, 15 * line - 2, words, ""))
        x += wide
    return "".join(parts), line + 1


def _heatmap(panel: Panel, recorded: Recorded, width: float, height: float) -> Drawn:
    """Counts of each bucket alone, darker where there are more."""
    found = [curve for query in panel.queries for curve in recorded.curves(query)]
    buckets = sorted(((float(le), dict(points)) for le, points in found), key=lambda one: one[0])
    if not buckets:
        return _text(width / 2, height / 2 + 10, "no data", "middle"), None
    moments = sorted({t for _, points in buckets for t in points})
    counts: list[list[float]] = []
    before: dict[float, float] = {}
    for _, points in buckets:
        counts.append([max(0.0, points.get(t, 0.0) - before.get(t, 0.0)) for t in moments])
        before = points
    most = max(max(row) for row in counts) or 1.0
    top_used = max((i for i, row in enumerate(counts) if max(row) > 0), default=0)
    shown_rows = list(zip(buckets, counts))[: top_used + 2]
    across = _across(recorded, width)
    bottom = height - 24
    tall = (bottom - TOP) / len(shown_rows)
    parts = []
    wide = (across.end - across.begin) / POINTS + 0.3
    for number, ((le, _), row) in enumerate(shown_rows):
        y = bottom - (number + 1) * tall
        parts.append(_text(across.begin - 5, y + tall / 2 + 4, f"≤ {le:g}", "end"))
        for moment, count in zip(moments, row):
            if count:
                parts.append(
                    f'<rect x="{at(across(moment))}" y="{at(y)}" width="{at(wide)}" height="{at(tall)}" '
                    f'fill="#d55e00" fill-opacity="{0.08 + 0.92 * math.sqrt(count / most):.2f}"/>'
                )
    return "".join(parts) + _times(across, bottom + 15), bottom


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{at(x)}" y="{at(y)}">{escape(words)}</text>'


DRAWN = {"stat": _stat, "timeseries": _series, "heatmap": _heatmap}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="monitor.grafana.draw", description="Draws the dashboards.")
    parser.add_argument("address", help="of a Prometheus, http://127.0.0.1:9090")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--end", type=float, default=None, help="Unix time; now, if not given")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--window", default="60s", help="of rates")
    options = parser.parse_args(arguments)
    recorded = Recorded(options.address, options.end or time.time(), 60 * options.minutes, options.window)
    if not options.minutes > 0:
        parser.error(f"--minutes: found {options.minutes:g}; needs more than 0")
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        for uid, dashboard in dashboards().items():
            path = options.folder / f"{uid.replace('headrace-', 'grafana-')}.svg"
            path.write_text(picture(dashboard, recorded))
            print(path)
    except (OSError, ValueError) as error:  # of a Prometheus that is none, of a disk
        print(f"{options.address}: {error}", file=sys.stderr)
        return exits.MISSING
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
