"""What a study shows while it runs: a live picture on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Group
from rich.table import Table
from rich.text import Text

from monitor.display import Lasting, Lines, choose

PLAIN_SECONDS = 10.0
BAR_CELLS = 20


@dataclass(frozen=True)
class Report:
    """Where a study stands."""

    name: str
    done: int
    """Cells that are finished, those that failed included."""
    failed: int
    planned: int
    seconds: float
    """Since this start."""
    cell_seconds: float | None
    """Mean of the cells finished since this start."""
    left_seconds: float | None
    running: Sequence[tuple[str, float]]
    """Cells under way, and how much of each is trained."""


class PlainDisplay(Lines):
    """One line of key=value pairs every ten seconds."""

    def __init__(self, stream: TextIO):
        super().__init__(stream)
        self._next = 0.0

    def show(self, report: Report) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PLAIN_SECONDS
        facts = {
            "cells": f"{report.done}/{report.planned}",
            "failed": str(report.failed),
            "seconds": f"{report.seconds:.0f}",
            "seconds_a_cell": "-" if report.cell_seconds is None else f"{report.cell_seconds:.1f}",
            "left": clock(report.left_seconds),
        }
        self.say(" ".join(f"{key}={value}" for key, value in facts.items()))


def make(*, plain: bool) -> Lasting:
    """Of a study's progress."""
    return choose(PlainDisplay, picture, plain=plain)


def picture(report: Report) -> Group:
    """The live picture of one report."""
    failed = f", {report.failed} failed" if report.failed else ""
    title = Text.assemble(
        ("headrace study ", "bold"), (report.name, "bold cyan"),
        f"  {report.done} of {report.planned} cells{failed}",
        f"  {clock(report.seconds)}, left {clock(report.left_seconds)}",
    )  # fmt: skip
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("cell")
    table.add_column("trained")
    table.add_column("", justify="right")
    for name, share in report.running:
        table.add_row(name, bar(share), f"{share:.0%}")
    return Group(title, table)


def bar(share: float) -> str:
    cells = round(BAR_CELLS * share)
    return "#" * cells + "." * (BAR_CELLS - cells)


def clock(seconds: float | None) -> str:
    """1:02:03; `-`: not known yet."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
