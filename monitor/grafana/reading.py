"""The panels of the written dashboards, and their queries as Prometheus is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "dashboards"


@dataclass(frozen=True)
class Query:
    """One curve or number of a panel, or several: its PromQL with Grafana's variables, and its legend."""

    expression: str
    legend: str
    instant: bool

    def name(self, labels: dict[str, str]) -> str:
        """The legend of a series with these labels."""
        return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), self.legend)


@dataclass(frozen=True)
class Panel:
    """A panel of a dashboard. `place`: column, line, width and height on Grafana's grid of 24 columns."""

    board: str
    row: str
    title: str
    description: str
    kind: str
    unit: str
    decimals: int | None
    place: tuple[int, int, int, int]
    queries: tuple[Query, ...]
    raw: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.board}: {self.row}: {self.title}"


def dashboards(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The dashboards as Grafana reads them, by uid."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def panels(dashboard: dict[str, Any]) -> Iterator[Panel]:
    """From top to bottom; rows are not panels."""
    row = ""
    for raw in dashboard["panels"]:
        if raw["type"] == "row":
            row = raw["title"]
            continue
        place, defaults = raw["gridPos"], raw["fieldConfig"]["defaults"]
        queries = (
            Query(target["expr"], target["legendFormat"], target.get("instant", False))
            for target in raw["targets"]
        )
        yield Panel(
            dashboard["title"], row, raw["title"], raw["description"], raw["type"],
            defaults["unit"], defaults.get("decimals"), (place["x"], place["y"], place["w"], place["h"]),
            tuple(queries), raw,
        )  # fmt: skip


def filled(expression: str, window: str, job: str = ".+", instance: str = ".+") -> str:
    """PromQL without variables. `window`: of rates, such as `60s`."""
    for name, value in (("$__rate_interval", window), ("$job", job), ("$instance", instance)):
        expression = expression.replace(name, value)
    return expression
