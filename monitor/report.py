"""A run's last report, status.json, read again: a damaged one must stop nobody who shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from monitor import rundir
from monitor.lines import number

TEXTS = ("state", "message")
NUMBERS = ("updated_unix", "steps")
OF_A_PROCESS = ("index", "pid", "cpu", "resident_bytes")


def read(directory: Path) -> dict[str, Any]:
    """The report in a run's directory; {} where there is none, or where what is reckoned with, or looked
    into, is of another kind than a supervisor writes."""
    try:
        report = json.loads((directory / rundir.STATUS).read_bytes(), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) and all(_checks(report)) else {}


def _checks(report: dict[str, Any]) -> Iterator[bool]:
    yield from (isinstance(report.get(name), str | None) for name in TEXTS)
    yield from (_is_number(report.get(name)) for name in NUMBERS)
    used = {} if report.get("run_dir") is None else report["run_dir"]
    yield isinstance(used, dict) and all(map(_is_number, used.values()))
    processes = report.get("processes", [])
    yield isinstance(processes, list)
    for one in processes:
        yield isinstance(one, dict) and isinstance(one.get("role"), str | None)
        yield all(_is_number(one.get(name, 0)) for name in OF_A_PROCESS)


def _is_number(value: Any) -> bool:
    """Or that there is none."""
    return value is None or number(value) is not None


def _refuse(constant: str) -> NoReturn:
    """No browser reads NaN, and no supervisor writes it."""
    raise ValueError(constant)
