"""Panels as Grafana's foundation SDK builds them: how a curve, a number, a heat map looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import heatmap as heatmaps
from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.builders import stat as stats
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import prometheus as prometheus_models

Panel = Builder[dashboard.Panel]
Queries = Mapping[str, str]
"""PromQL by legend, in which `{{label}}` stands for the value of a label."""

SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
SHOWS = {
    "value": common.BigValueTextMode.AUTO,
    "name": common.BigValueTextMode.NAME,
    "value_and_name": common.BigValueTextMode.VALUE_AND_NAME,
}


@dataclass(frozen=True)
class Row:
    """Panels under a heading, laid out from left to right on 24 columns."""

    title: str
    panels: Sequence[Panel]


def _framed(panel: Any, title: str, description: str, unit: str, width: int, height: int) -> Any:
    """What panels of all kinds have; their builders share no class that says so."""
    return (
        panel.title(title).description(description).unit(unit).datasource(SOURCE).span(width).height(height)
    )


def series(
    title: str,
    description: str,
    unit: str,
    queries: Queries,
    *,
    width: int,
    height: int = 8,
    stacked: bool = False,
    from_zero: bool = True,
    events: bool = False,
) -> Panel:
    """Curves over time; `from_zero`: the axis begins at 0, as that of every amount should; `events`: what is
    counted in a window, which Prometheus stretches to whole windows, is shown as whole numbers."""
    panel = (
        _framed(timeseries.Panel(), title, description, unit, width, height)
        .line_width(1)
        .fill_opacity(40 if stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            options.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull"])
        )
        .tooltip(
            options.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if from_zero:
        panel.min(0)
    if events:
        panel.decimals(0)
    if stacked:
        panel.stacking(options.StackingConfig().group("A").mode(common.StackingMode.NORMAL))
    return panel.targets(_targets(queries))


def stat(
    title: str,
    description: str,
    unit: str,
    queries: Queries,
    *,
    width: int,
    height: int = 4,
    shows: str = "value",
    decimals: int | None = None,
    steps: Mapping[str, float | None] | None = None,
) -> Panel:
    """Numbers of this moment; `steps`: colours, and the value from which each holds."""
    panel = (
        _framed(stats.Panel(), title, description, unit, width, height)
        .text_mode(SHOWS[shows])
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(
            build.ThresholdsConfig()
            .mode(dashboard.ThresholdsMode.ABSOLUTE)
            .steps([
                dashboard.Threshold(value=value, color=colour)
                for colour, value in (steps or {"text": None}).items()
            ])
        )
    )  # fmt: skip
    if decimals is not None:
        panel.decimals(decimals)
    return panel.targets(_targets(queries, instant=True))


def heatmap(
    title: str, description: str, unit: str, expression: str, *, width: int, height: int = 8
) -> Panel:
    """Counts by bucket, that of `le`, over time."""
    return (
        _framed(heatmaps.Panel(), title, description, unit, width, height)
        .calculate(False)
        .hide_from(options.HideSeriesConfig().legend(False).tooltip(False).viz(False))
        .targets([
            prometheus.Dataquery()
            .expr(expression)
            .legend_format("{{le}}")
            .format(prometheus_models.PromQueryFormat.HEATMAP)
            .range()
            .ref_id("A")
        ])
    )  # fmt: skip


def _targets(queries: Queries, *, instant: bool = False) -> list[Builder[Any]]:
    targets: list[Builder[Any]] = []
    for letter, (legend, expression) in zip(ascii_uppercase, queries.items()):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(letter)
        targets.append(query.instant() if instant else query.range())
    return targets
