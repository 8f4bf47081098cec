"""Charts of a study, as inline SVG: heat maps and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from monitor.charts import SHADES, WIDTH, Axis, at, short, svg, text

Bad, Middle, Good = (0xB3, 0x58, 0x06), (0xF5, 0xF2, 0xEA), (0x1F, 0x62, 0xA8)  # of a heat map


def heat_map(
    title: str,
    description: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[tuple[float, str] | None]],
    *,
    low: float,
    high: float,
    corner: str,
) -> str:
    """Numbers on a ground of colour, each with what is written in it; None: an empty place. `low` is the
    colour of a bad value, `high` that of a good one, whichever is larger."""
    left = 10 + max((6.9 * len(row) for row in rows), default=0)
    size = min(64.0, max(40.0, (WIDTH - left - 6) / max(1, len(columns))))
    width, tall, top = left + size * len(columns) + 6, 26, 42
    parts = [text(width / 2, 15, title, "head"), text(left - 6, top - 7, corner, "mark end")]
    parts += [text(left + (i + 0.5) * size, top - 7, name, "mark") for i, name in enumerate(columns)]
    for j, (name, row) in enumerate(zip(rows, cells)):
        y = top + j * tall
        parts.append(text(left - 6, y + tall / 2 + 3.5, name, "mark end"))
        for i, cell in enumerate(row):
            x = left + i * size
            if cell is None:
                parts.append(
                    f'<rect class="empty" x="{at(x)}" y="{y}" width="{at(size - 2)}" height="{tall - 2}"/>'
                )
                continue
            value, words = cell
            ground, ink = colours((value - low) / ((high - low) or 1.0))
            parts.append(
                f'<rect x="{at(x)}" y="{y}" width="{at(size - 2)}" height="{tall - 2}" fill="{ground}"/>'
                f'<text class="in" x="{at(x + size / 2 - 1)}" y="{at(y + tall / 2 + 3)}" style="fill:{ink}">'
                f"{escape(words)}</text>"
            )
    return svg(title, description, parts, top + tall * len(rows) + 6, width)


def colours(share: float) -> tuple[str, str]:
    """Ground and ink of a place in a heat map: orange for 0, pale in the middle, blue for 1."""
    share = min(1.0, max(0.0, share if math.isfinite(share) else 0.0))
    ends = (Bad, Middle, 2 * share) if share < 0.5 else (Middle, Good, 2 * share - 1)
    ground = [round(a + (b - a) * ends[2]) for a, b in zip(ends[0], ends[1])]
    luminance = sum(weight * (c / 255) ** 2.2 for weight, c in zip((0.2126, 0.7152, 0.0722), ground))
    return "#" + "".join(f"{c:02x}" for c in ground), "#000" if luminance > 0.18 else "#fff"


def intervals(
    title: str,
    description: str,
    rows: Sequence[tuple[str, tuple[float, float, float], int]],
    *,
    x_label: str,
    middle: float,
    margin: float | None = None,
    log: bool = False,
    width: int = 560,
) -> str:
    """A row each: what is said, estimate with interval, shade. `middle`: the line of no difference, with
    `margin` a strip around it."""
    wrapped = [(wrap(words, 46), interval, shade) for words, interval, shade in rows]
    found = [v for _, interval, _ in wrapped for v in interval if math.isfinite(v) and (v > 0 or not log)]
    if not found:
        return ""
    found += [middle] if margin is None else [middle - margin, middle + margin]
    low, high = min(found), max(found)
    room = 1.1 if log else 0.06 * ((high - low) or 1.0)
    across = Axis(
        low / room if log else low - room, high * room if log else high + room, 270, width - 14, log=log
    )
    heights = [14 + 13 * len(words) for words, _, _ in wrapped]
    bottom = 30 + sum(heights)
    parts = [text(width / 2, 15, title, "head")]
    if margin is not None:
        x = across(middle - margin)
        size = f'width="{at(across(middle + margin) - x)}" height="{bottom - 26}"'
        parts.append(f'<rect class="strip" x="{at(x)}" y="26" {size}/>')
    parts.append(f'<path class="guide" d="M{at(across(middle))} 26V{bottom}"/>')
    y = 30.0
    for (words, interval, shade), tall in zip(wrapped, heights):
        center = y + tall / 2
        for k, line in enumerate(words):
            parts.append(text(262, center + 4 + 13 * (k - (len(words) - 1) / 2), line, "mark end"))
        parts.append(_interval(interval, center, shade, across, log=log))
        y += tall
    parts.append(f'<path class="axis" d="M{at(across.begin)} {bottom}H{at(across.end)}"/>')
    for tick in across.ticks:
        parts.append(f'<path class="tick" d="M{at(across(tick))} {bottom}v4"/>')
        parts.append(text(across(tick), bottom + 16, short(tick), "mark"))
    parts.append(text((across.begin + across.end) / 2, bottom + 33, x_label, "label"))
    return svg(title, description, parts, bottom + 40, width)


def _interval(interval: tuple[float, float, float], y: float, shade: int, across: Axis, *, log: bool) -> str:
    """An end that is out of sight is drawn to the border."""
    estimate, low, high = interval
    if math.isnan(estimate):
        return text((across.begin + across.end) / 2, y + 4, "no data", "mark")
    floor = across.low if log and low <= 0 else low
    begin, end = (across(min(max(v, across.low), across.high)) for v in (floor, high))
    drawn = f'<path class="bar" d="M{at(begin)} {at(y)}H{at(end)}"/>'
    if math.isfinite(estimate) and (estimate > 0 or not log):
        drawn += f'<circle cx="{at(across(estimate))}" cy="{at(y)}" r="4.5"/>'
    return f'<g class="s{shade % SHADES}">{drawn}</g>'


def wrap(words: str, width: int) -> list[str]:
    """Lines of at most about so many letters."""
    found = [""]
    for word in words.split():
        if found[-1] and len(found[-1]) + len(word) >= width:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found
