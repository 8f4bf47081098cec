"""Which diagnostic warned of a fall first, how early, and how often for nothing.

A run falls where its score is first below half of its best so far, whether or not it recovers. A diagnostic
gives the alarm at the second of two points of the grid in a row at which it is beyond a threshold: the 99 %
quantile (1 % where low is bad) of all its points in reference runs of the same task. These are the runs at
lag 0, or all that did not fall, then without those of the seed that is judged. At lag 0 ratios are 1 but for
rounding, so by the first reference whatever looks at ratios is alarmed by lag as such; the second asks what
tells a fall from a lag that does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stress.records import Array, Cell, Records
from stress.watched import DIAGNOSTICS

QUANTILE = 0.99
IN_A_ROW = 2
REFERENCES = ("lag 0", "calm runs")


def table(records: Records) -> dict[str, Any]:
    """By task and reference: how many lagged runs fell, and a row a diagnostic, the most telling first."""
    found = {}
    for task in records.tasks:
        cells = [cell for cell in records.cells if cell.task.name == task and not cell.failed]
        lagged = [cell for cell in cells if cell.lag_mean > 0]
        fell = [cell for cell in lagged if cell.fell_at is not None]
        found[task] = {
            "fell": len(fell),
            "calm": len(lagged) - len(fell),
            **{reference: _rows(cells, lagged, reference) for reference in REFERENCES if fell},
        }
    return found


def _rows(cells: Sequence[Cell], lagged: Sequence[Cell], reference: str) -> list[dict[str, Any]]:
    alarms = {name: _alarms(cells, lagged, name, side, reference) for name, side in DIAGNOSTICS.items()}
    fell = [i for i, cell in enumerate(lagged) if cell.fell_at is not None]
    calm = [i for i, cell in enumerate(lagged) if cell.fell_at is None]
    leads: dict[str, dict[int, float]] = {
        name: {i: lead for i in fell if (lead := _lead(lagged[i], at[i])) is not None}
        for name, at in alarms.items()
        if at is not None
    }
    rows: list[dict[str, Any]] = []
    for name, found in leads.items():
        at = alarms[name]
        assert at is not None
        false = sum(at[i] is not None for i in calm)
        first = sum(
            found.get(i, -math.inf) == max(other.get(i, -math.inf) for other in leads.values()) for i in found
        )
        detected = len(found) / len(fell)
        false_share = false / len(calm) if calm else math.nan
        rows.append({
            "diagnostic": name,
            "detected": len(found), "detected_share": detected,
            "first": first,
            "lead_median_steps": float(np.median(list(found.values()))) if found else math.nan,
            "false_alarms": false, "false_alarm_share": false_share,
            "telling": detected - (false_share if calm else 0.0),
        })  # fmt: skip
    rows.sort(key=lambda row: (-row["telling"], -_or_zero(row["lead_median_steps"]), row["diagnostic"]))
    return rows


def _alarms(
    cells: Sequence[Cell], lagged: Sequence[Cell], name: str, side: int, reference: str
) -> list[float | None] | None:
    """The step of the alarm in each lagged run, None: it gave none; or None where nobody measured it."""
    series = [_series(cell, name) for cell in lagged]
    if reference == "lag 0":
        pools: Mapping[int | None, Array] = {
            None: _pool([_series(cell, name) for cell in cells if cell.lag_mean == 0])
        }
    else:
        pools = {
            seed: _pool([s for cell, s in zip(lagged, series) if cell.fell_at is None and cell.seed != seed])
            for seed in {cell.seed for cell in lagged}
        }
    thresholds = {key: float(np.quantile(side * pool, QUANTILE)) for key, pool in pools.items() if pool.size}
    if not thresholds:
        return None
    found = []
    for cell, values in zip(lagged, series):
        limit = thresholds.get(None if reference == "lag 0" else cell.seed)
        found.append(None if limit is None else _first(cell, side * values > limit))
    return found


def _first(cell: Cell, beyond: np.ndarray) -> float | None:
    steps = np.asarray(cell.record["curve"]["steps"], np.float64)
    row = 0
    for step, is_beyond in zip(steps, beyond):
        row = row + 1 if is_beyond else 0
        if row == IN_A_ROW:
            return float(step)
    return None


def _lead(cell: Cell, alarm: float | None) -> float | None:
    """Environment steps from the alarm to the fall; None: it came after, or not at all."""
    assert cell.fell_at is not None
    return None if alarm is None or alarm > cell.fell_at else cell.fell_at - alarm


def _series(cell: Cell, name: str) -> Array:
    values = (cell.record.get("diagnostics") or {}).get(name) or []
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _pool(series: Sequence[Array]) -> Array:
    joined = np.concatenate([np.empty(0), *series])
    return joined[np.isfinite(joined)]


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
