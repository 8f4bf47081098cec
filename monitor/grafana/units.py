"""Grafana's units, those of them that the dashboards use: how a value is written."""

from __future__ import annotations

import math

DECIMAL, BINARY = ("", "k", "M", "G", "T", "P"), ("", "Ki", "Mi", "Gi", "Ti")
COUNTS = ("", "K", "M", "B", "T")  # of `count:steps/s` and the like, which Grafana makes of any name
PREFIXES = {"Bps": DECIMAL, "decbytes": DECIMAL}
WORDS = {"Bps": "B/s", "bytes": "B", "decbytes": "B"}
SIZES = {"s": (86400.0, 3600.0, 60.0), "bytes": (1024.0**4, 1024.0**3, 1024.0**2, 1024.0)}


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A value as Grafana writes it, about."""
    if not math.isfinite(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.{decimals if decimals is not None else 1}f} %"
    if unit == "s":
        return _duration(value)
    if unit == "none":
        digits = decimals if decimals is not None else 0 if abs(value) >= 1e3 else None
        return f"{value:.3g}" if digits is None else f"{value:.{digits}f}"
    base, prefixes = (1024, BINARY) if unit == "bytes" else (1000, PREFIXES.get(unit, COUNTS))
    size = 0
    while abs(value) >= base and size + 1 < len(prefixes):
        value, size = value / base, size + 1
    figure = f"{value:.{decimals}f}" if decimals is not None else f"{value:.3g}"
    if unit in WORDS:
        return f"{figure} {prefixes[size]}{WORDS[unit]}".strip()
    return f"{figure}{prefixes[size]} {unit.removeprefix('count:')}".strip()


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs" if seconds else "0 s"


def round_in(unit: str, high: float) -> float:
    """Of what an axis up to `high` has multiples, so that its marks are round numbers."""
    return next((size for size in SIZES.get(unit, ()) if high >= 2 * size), 1.0)
