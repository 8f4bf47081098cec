"""Small pieces of the report: outcomes and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from monitor.markup import Markup, number

CLASSES = {
    "better": "better", "worse": "worse", "equal": "equal", "faster": "faster", "slower": "slower",
    "lag explains it": "explained", "something else": "other",
}  # fmt: skip


def outcome(words: str) -> Markup:
    """In a colour of its own."""
    return Markup(f'<span class="outcome {CLASSES.get(words, "open")}">{escape(words)}</span>')


def interval(values: Sequence[float | None], digits: int = 3) -> str:
    """Estimate [low, high]; an end that is not finite is open."""
    estimate, low, high = values
    if estimate is None and low is None and high is None:
        return "–"
    ends = [
        f"{number(low, digits)}" if low is not None else "−∞",
        number(high, digits) if high is not None else "∞",
    ]
    return f"{'∞' if estimate is None else number(estimate, digits)} [{ends[0]}, {ends[1]}]"
