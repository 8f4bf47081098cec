"""Charts of lines as inline SVG, and the pieces of which others can be made.

Each is a string for a page that has report.css: colours come from its classes, so that they follow light and
dark. A chart has a title and a description for those who do not see it, and never tells by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from zlib import crc32

WIDTH = 340  # of a panel, in units that are pixels where there is room: readable on a phone
SHADES = 7  # classes s0 ... s6 of the style sheet

Number = float


@dataclass(frozen=True)
class Line:
    """A curve, or points with error bars."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    """Of a band around the curve, or of a bar through each point; empty: none."""
    shade: int = 0
    points: bool = False
    """Points with bars instead of a curve with a band."""


@dataclass
class Axis:
    """How numbers become places, and which of them are written down."""

    low: float
    high: float
    begin: float
    end: float
    """Places of low and high."""
    log: bool = False
    marks: Sequence[float] = field(default=())
    """Where ticks stand; empty: round numbers."""

    def __call__(self, value: float) -> float:
        low, high, value = self._scaled(self.low), self._scaled(self.high), self._scaled(value)
        return self.begin + (value - low) / ((high - low) or 1.0) * (self.end - self.begin)

    def _scaled(self, value: float) -> float:
        return math.log(max(value, 1e-9)) if self.log else value

    @property
    def ticks(self) -> list[float]:
        if self.marks:
            return [mark for mark in self.marks if self.low <= mark <= self.high]
        if self.log:
            for steps in (
                (1,),
                (1, 2, 5),
                (1, 1.5, 2, 3, 5, 7),
                (1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 3, 4, 5, 6, 7, 8, 9),
            ):
                found = [
                    m * 10.0**k for k in range(-6, 7) for m in steps if self.low <= m * 10.0**k <= self.high
                ]
                if len(found) >= 4:
                    break
            return found
        return ticks(self.low, self.high)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers between two, about so many."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    step = 10 ** math.floor(math.log10(span / wanted))
    step *= next(m for m in (1, 2, 5, 10) if span / (m * step) <= wanted)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number as short as it can be read: 1.5M, 200k, 0.25."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def lines(
    title: str,
    description: str,
    series: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    x_marks: Sequence[float] = (),
    x_place: Callable[[float], float] = float,
    guide: float | None = None,
    height: int = 230,
) -> str:
    """Curves over one another. `x_marks` with `x_place`: where the ticks stand on a bent axis; `guide`: a
    level to compare with."""
    shown = [line for line in series if len(line.x)]
    xs = [x_place(x) for line in shown for x in line.x] + [x_place(x) for x in x_marks]
    ys = [v for line in shown for v in (*line.y, *line.low, *line.high) if math.isfinite(v)]
    ys += [] if guide is None else [guide]
    if not xs or not ys:
        return ""
    low, high = y_range or (min(ys), max(ys))
    low, high = min(low, *ys), max(high, *ys)
    room = 0.04 * ((high - low) or 1.0)
    across = Axis(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, 46, WIDTH - 18)
    up = Axis(low - room, high + room, height - 40, 26)
    parts = [text(WIDTH / 2, 15, title, "head")]
    parts += _y_axis(up, across.begin, across.end, y_label)
    base = up.begin
    wanted = [(x_place(x), short(x)) for x in x_marks] or [(x, short(x)) for x in across.ticks]
    for place, label in wanted:
        parts.append(f'<path class="tick" d="M{at(across(place))} {at(base)}v4"/>')
        parts.append(text(across(place), base + 16, label, "mark"))
    parts.append(f'<path class="axis" d="M{at(across.begin)} {at(base)}H{at(across.end)}"/>')
    parts.append(text((across.begin + across.end) / 2, height - 6, x_label, "label"))
    if guide is not None:
        parts.append(f'<path class="guide" d="M{at(across.begin)} {at(up(guide))}H{at(across.end)}"/>')
    for line in shown:
        draw = _points if line.points else _band_and_curve
        parts.append(
            f'<g class="s{line.shade % SHADES}">{draw(line, across, up, x_place)}'
            f"<title>{escape(line.name)}</title></g>"
        )
    return svg(title, description, parts, height)


def _band_and_curve(line: Line, across: Axis, up: Axis, place: Callable[[float], float]) -> str:
    rows = list(zip(line.x, line.y, line.low or line.y, line.high or line.y))
    rows = [row for row in rows if all(map(math.isfinite, row))]
    drawn = ""
    if line.low:
        there = [f"{at(across(place(x)))} {at(up(h))}" for x, _, _, h in rows]
        back = [f"{at(across(place(x)))} {at(up(low))}" for x, _, low, _ in reversed(rows)]
        drawn = f'<path class="band" d="M{"L".join(there + back)}Z"/>'
    curve = "L".join(f"{at(across(place(x)))} {at(up(y))}" for x, y, _, _ in rows)
    return f'{drawn}<path class="line" d="M{curve}"/>' if rows else ""


def _points(line: Line, across: Axis, up: Axis, place: Callable[[float], float]) -> str:
    drawn = []
    for i, (x, y) in enumerate(zip(line.x, line.y)):
        if not math.isfinite(x) or not math.isfinite(y):
            continue
        here = at(across(place(x)))
        if line.low and math.isfinite(line.low[i]) and math.isfinite(line.high[i]):
            drawn.append(f'<path class="bar" d="M{here} {at(up(line.low[i]))}V{at(up(line.high[i]))}"/>')
        drawn.append(f'<circle cx="{here}" cy="{at(up(y))}" r="4"/>')
    return "".join(drawn)


def _y_axis(up: Axis, left: float, right: float, label: str) -> list[str]:
    parts = []
    for tick in up.ticks:
        parts.append(f'<path class="grid" d="M{at(left)} {at(up(tick))}H{at(right)}"/>')
        parts.append(text(left - 5, up(tick) + 3.5, short(tick), "mark end"))
    middle = (up.begin + up.end) / 2
    parts.append(
        f'<text class="label" transform="translate(11 {at(middle)})rotate(-90)">{escape(label)}</text>'
    )
    return parts


def svg(title: str, description: str, parts: Sequence[str], height: float, width: float = WIDTH) -> str:
    """The whole, which scales down to its place but not up beyond its size."""
    drawn = "".join(parts)
    whole = f"{description}{drawn}".encode(errors="replace")
    name = f"chart{crc32(whole):08x}"
    return (
        f'<svg class="chart" viewBox="0 0 {at(width)} {at(height)}" style="max-width:{at(width * 1.25)}px" '
        f'role="img" aria-labelledby="{name}t {name}d"><title id="{name}t">{escape(title)}</title>'
        f'<desc id="{name}d">{escape(description)}</desc>{drawn}</svg>'
    )


def text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{at(x)}" y="{at(y)}">{escape(words)}</text>'


def at(value: float) -> str:
    """A place, as short as half a tenth of a pixel allows."""
    return f"{value:.1f}".removesuffix(".0")
