"""What is around the panels of a dashboard: the choice of runs, marks across all panels, links."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from monitor.grafana.panels import SOURCE, Row
from monitor.grafana.queries import ALERTS, grown, largest, one
from monitor.metrics import PREFIX

RUNS = f"{PREFIX}run_info"
REFRESH, RANGE = "15s", "now-3h"
GPU_DASHBOARD = "https://grafana.com/grafana/dashboards/12239"  # of NVIDIA's DCGM exporter


def dashboard_json(uid: str, title: str, description: str, rows: Sequence[Row]) -> str:
    """The file that Grafana loads."""
    board = (
        build.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["headrace"])
        .readonly()
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .refresh(REFRESH)
        .time(RANGE, "now")
        .with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_chosen("job", "Job", f"label_values({RUNS}, job)"))
        .with_variable(_chosen("instance", "Instance", f'label_values({RUNS}{{job=~"$job"}}, instance)'))
        .annotation(
            _mark("Restarts", "orange", f"{grown('process_restarts_total', by='instance, role')} > 0")
            .title_format("{{role}} started again")
            .text_format("{{instance}}")
        )
        .annotation(
            # Before the first, the moment is that of the start.
            _mark(
                "Checkpoints",
                "blue",
                f"1000 * {one('checkpoint_last_success_timestamp_seconds')} and "
                f"{one('checkpoints_total')} > 0",
            )
            .title_format("checkpoint")
            .text_format("{{instance}}")
            .use_value_for_time(True)
        )
        .annotation(
            _mark("Alerts", "red", largest(ALERTS, by="alertname, severity, instance"))
            .title_format("{{alertname}}")
            .text_format("{{severity}} {{instance}}")
        )
        .link(
            build.DashboardLink("Headrace")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["headrace"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .link(
            build.DashboardLink("GPUs")
            .type(dashboard.DashboardLinkType.LINK)
            .url(GPU_DASHBOARD)
            .tooltip("For the GPUs' own figures: NVIDIA's DCGM exporter and its dashboard")
            .target_blank(True)
        )
    )
    for row in rows:
        board.with_row(build.Row(row.title))
        for panel in row.panels:
            board.with_panel(panel)
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _mark(name: str, colour: str, expression: str) -> build.AnnotationQuery:
    """Events as lines across all panels, where the expression is above 0."""
    return (
        build.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(expression)
    )


def _chosen(name: str, label: str, query: str) -> Builder[dashboard.VariableModel]:
    """A variable of which several values may be chosen."""
    return (
        build.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
