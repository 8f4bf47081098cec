"""The dashboards: what is committed is what the code makes, and Grafana's rules of good panels hold."""

import itertools
import json
import re
import string

import pytest
import yaml
from prom import needs_promtool, promtool

from config import exits
from monitor.grafana import boards, draw, reading, units
from monitor.grafana.queries import HISTOGRAM_SUFFIXES, TARGET_LABELS, one
from monitor.metrics import METRICS, PREFIX

DASHBOARDS = reading.dashboards()
PANELS = [panel for board in DASHBOARDS.values() for panel in reading.panels(board)]
ASKED = [query.expression for panel in PANELS for query in panel.queries]
PROVISIONING = reading.FOLDER.parent / "provisioning"
# Grafana's own, and those that it makes of a name (`count:steps/s`).
UNITS = re.compile(r"none|percentunit|s|Bps|bytes|decbytes|count:[a-z-]*(/s)?")
# Series that Prometheus itself makes of every target and alert.
OF_PROMETHEUS = {"up", "scrape_duration_seconds", "ALERTS"}
FIXED_WINDOWS = {"Restarts 1 h": "1h"}
# Its books are exact only as differences of the counters themselves.
BARE_COUNTERS = {"Unaccounted for"}
# No figure, and shown by nothing: labels are what they are there for.
NOT_SHOWN = {"run_info"}


def selectors(expression):
    """(name, matchers, window or nothing) of every series asked for."""
    return re.findall(r"\b([a-zA-Z_]\w*)\{([^}]*)\}(?:\[([^\]]*)\])?", expression)


def known_labels(name):
    """What a series of this name bears; None: no such metric."""
    plain = name.removeprefix(PREFIX)
    for suffix in ("", *HISTOGRAM_SUFFIXES):
        entry = METRICS.get(plain.removesuffix(suffix) if suffix else plain)
        if entry is not None:
            more = ("le",) if suffix == "_bucket" else ()
            return {*entry.labels, *TARGET_LABELS, *more}
    return None


each_board = pytest.mark.parametrize("uid", DASHBOARDS)


def test_generating_the_dashboards_again_changes_nothing(tmp_path):
    again = {path.name: path.read_text() for path in boards.write(tmp_path)}
    committed = {path.name: path.read_text() for path in reading.FOLDER.glob("*")}
    assert again == committed, "python -m monitor.grafana"


@each_board
def test_a_dashboard_loads_anywhere_and_cannot_be_changed_in_the_browser(uid):
    board = DASHBOARDS[uid]
    assert (board["uid"], board.get("id"), board["editable"], board["timezone"]) == (
        uid,
        None,
        False,
        "browser",
    )
    assert board["schemaVersion"] == 42
    assert "__inputs" not in board
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert list(variables) == ["datasource", *TARGET_LABELS]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for name in TARGET_LABELS:
        found = variables[name]
        assert (found["type"], found["multi"], found["includeAll"], found["allValue"], found["refresh"]) == (
            "query", True, True, ".+", 2,  # 2: with the time range
        )  # fmt: skip
    sources = re.findall(r'"datasource": (\{.*?"\}|[^{])', json.dumps(board))
    assert set(sources) == {'{"type": "prometheus", "uid": "${datasource}"}'}


@each_board
def test_a_dashboard_opens_with_what_is_now(uid):
    first = DASHBOARDS[uid]["panels"][0]
    assert (first["type"], first["title"], first.get("collapsed", False)) == ("row", "Now", False)
    found = [panel for panel in reading.panels(DASHBOARDS[uid]) if panel.row == "Now"]
    assert [panel.title for panel in found] == [
        "State", "Up", "Bandwidth", "Steps", "Lag", "Held up by", "Checkpoint", "Restarts 1 h", "Alerts",
    ]  # fmt: skip
    assert sum(panel.place[2] for panel in found) == 24
    assert {panel.place[1] for panel in found} == {1}


@each_board
def test_panels_have_titles_of_their_own_and_do_not_overlap(uid):
    found = list(reading.panels(DASHBOARDS[uid]))
    titles = [panel.title for panel in found]
    assert len(titles) == len(set(titles))
    taken = set()
    for panel in found:
        column, line, width, height = panel.place
        assert column + width <= 24
        cells = set(itertools.product(range(column, column + width), range(line, line + height)))
        assert not cells & taken, panel.title
        taken |= cells


@each_board
def test_a_panel_says_what_it_shows(uid):
    for panel in reading.panels(DASHBOARDS[uid]):
        assert panel.title
        assert panel.description.endswith("."), panel
        assert UNITS.fullmatch(panel.unit), panel
        letters = [target["refId"] for target in panel.raw["targets"]]
        assert letters == list(string.ascii_uppercase[: len(letters)]) != [], panel
        assert all(query.legend for query in panel.queries), panel


@each_board
def test_a_query_asks_for_exported_metrics_of_the_chosen_runs(uid):
    for panel in reading.panels(DASHBOARDS[uid]):
        for query in panel.queries:
            carried = labels_asked_of(query, panel)
            made = set(re.findall(r'label_replace\(.*?, "(\w+)", "[^"$]', query.expression))
            grouped = re.findall(r"\bby \(([^)]*)\)", query.expression)
            assert {label for labels in grouped for label in re.split(r",\s*", labels)} <= carried, panel
            assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= carried | made, panel


def labels_asked_of(query, panel):
    """What the series of a query bear, all of which are exported, of chosen runs, and matched by what they
    bear."""
    found = selectors(query.expression)
    assert found, panel
    carried = set()
    for name, matchers, _ in found:
        assert 'job=~"$job"' in matchers, panel
        assert 'instance=~"$instance' in matchers, panel
        labels = set(TARGET_LABELS)
        if name not in OF_PROMETHEUS:
            assert name.startswith(PREFIX), panel
            labels = known_labels(name)
            assert labels is not None, f"{panel}: {name} is not exported"
            assert set(re.findall(r'(\w+)=~?"', matchers)) <= labels, panel
        carried |= labels
    return carried


@each_board
def test_counters_are_read_by_their_growth_over_the_window_of_the_view(uid):
    for panel in reading.panels(DASHBOARDS[uid]):
        for query in panel.queries:
            for name, _, window in selectors(query.expression):
                counted = name.endswith("_total") and panel.title not in BARE_COUNTERS
                assert window or not counted, f"{panel}: {name} outside rate and increase"
            for inside in re.findall(r"\b(?:rate|irate|increase)\(([^()]*)\)", query.expression):
                window = FIXED_WINDOWS.get(panel.title, "$__rate_interval")
                assert inside.endswith(f"[{window}]"), panel


@needs_promtool
def test_prometheus_can_parse_every_query(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": reading.filled(expression, "60s")}
        for number, expression in enumerate(ASKED)
    ]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


def test_every_metric_is_shown():
    asked = {name for expression in ASKED for name, _, _ in selectors(expression)}
    plain = {name.removeprefix(PREFIX) for name in asked}
    shown = plain | {name.removesuffix(suffix) for name in plain for suffix in HISTOGRAM_SUFFIXES}
    assert set(METRICS) - shown == NOT_SHOWN


def test_restarts_checkpoints_and_alerts_are_marked_in_every_view():
    for board in DASHBOARDS.values():
        marks = {mark["name"]: mark for mark in board["annotations"]["list"]}
        for name, metric in (
            ("Restarts", "process_restarts_total"),
            ("Checkpoints", "checkpoint_last_success_timestamp_seconds"),
        ):
            assert marks[name]["enable"]
            assert f"{PREFIX}{metric}{{" in marks[name]["expr"]
        assert 'alertstate="firing"' in marks["Alerts"]["expr"]
        assert marks["Checkpoints"]["useValueForTime"]


def test_the_dashboards_lead_to_one_another_and_to_the_gpus():
    for board in DASHBOARDS.values():
        kinds = {(link["type"], tuple(link.get("tags", ()))) for link in board["links"]}
        assert ("dashboards", ("headrace",)) in kinds
        assert "headrace" in board["tags"]
    machine = DASHBOARDS["headrace-processes"]["links"]
    assert any("dcgm" in link["title"].lower() or "gpu" in link["title"].lower() for link in machine)


def test_provisioned_dashboards_cannot_be_changed_in_the_browser():
    provider = yaml.safe_load((PROVISIONING / "dashboards/headrace.yml").read_text())["providers"][0]
    assert provider["allowUiUpdates"] is False


def test_the_window_of_rates_follows_the_interval_of_the_scrapes():
    source = yaml.safe_load((PROVISIONING / "datasources/headrace.yml").read_text())["datasources"][0]
    prometheus = yaml.safe_load((reading.FOLDER.parent.parent / "prometheus/prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]


def test_a_dashboard_cannot_ask_for_what_is_not_exported():
    with pytest.raises(KeyError):
        one("ring_comitted_bytes_total")
    with pytest.raises(ValueError, match="no label"):
        one("ring_fill_slots", rung="1")


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("count:steps/s", 1234567, "1.23M steps/s"),
        ("count:steps/s", 1e6, "1M steps/s"),
        ("count:/s", 0.68, "0.68 /s"),
        ("Bps", 1.23e9, "1.23 GB/s"),
        ("decbytes", 9.007e15, "9.01 PB"),
        ("bytes", 24e9, "22.4 GiB"),
        ("percentunit", 0.623, "62.3 %"),
        ("s", 90061, "1.04 days"),
        ("s", 0.0021, "2.1 ms"),
        ("none", 12345.7, "12346"),
        ("none", 0.0123, "0.0123"),
        ("none", float("nan"), "-"),
    ],
)
def test_a_drawn_value_reads_as_grafana_writes_it(unit, value, text):
    assert units.shown(value, unit) == text


@needs_promtool
@pytest.mark.parametrize(
    ("credit", "answer", "no_data", "part", "share"),
    [
        (0.6, 0.0, 0.0, "the learner", 0.6),
        (0.05, 0.0, 0.4, "the producers", 0.4),
        (0.2, 0.7, 0.3, "the inference server", 0.7),
        (0.05, 0.0, 0.02, "the cores", 0.0),
    ],
)
def test_the_part_that_others_wait_for_holds_the_run_up(tmp_path, credit, answer, no_data, part, share):
    waits = {
        'producer_wait_seconds_total{producer="0",reason="credit"': credit,
        'producer_wait_seconds_total{producer="0",reason="answer"': answer,
        'learner_wait_seconds_total{learner="0",reason="no_data"': no_data,
        'learner_updates_total{learner="0"': 1,
    }
    series = [
        {"series": f'{PREFIX}{name},job="headrace",instance="a"}}', "values": f"0+{60 * rate}x10"}
        for name, rate in waits.items()
    ]
    (panel,) = {panel.queries[0].expression for panel in PANELS if panel.title == "Held up by"}
    asked = {"expr": reading.filled(panel, "4m"), "eval_time": "10m"}
    wanted = {"labels": f'{{part="{part}"}}', "value": share}
    path = tmp_path / "held_up.json"
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [asked | {"exp_samples": [wanted]}]}
    path.write_text(json.dumps({"tests": [case]}))
    promtool("test", "rules", path)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "garbage"])
def test_a_prometheus_that_cannot_be_asked_is_named(tmp_path, capsys, address):
    assert draw.main([address, str(tmp_path)]) == exits.MISSING
    told = capsys.readouterr().err
    assert told.startswith(f"{address}: ")
    assert told.count("\n") == 1
