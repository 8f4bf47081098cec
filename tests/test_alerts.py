"""The alerts: each fires where it should and nowhere else, at every time scale, and is in the runbook."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
import yaml
from command import ROOT
from prom import needs_promtool, promtool

from config import Config
from monitor.alert_cases import CASES
from monitor.alert_files import FOLDER, alerts_file, cases_file, files, main, scaled, write
from monitor.alerts import ALERTS, PREFIX, RULES
from monitor.metrics import METRICS

KNOWN_LABELS = {"job", "instance", "le"}  # which Prometheus and histograms add


def names(expression):
    """Metrics of ours that an expression asks for, without prefix and without a histogram's parts."""
    found = set(re.findall(r"\bheadrace_(\w+)", expression))
    return {name if name in METRICS else re.sub("_(bucket|sum|count)$", "", name) for name in found}


def labels(expression):
    """Labels that it matches or sums by."""
    matched = re.findall(r"(\w+)=[~\"]", expression)
    summed = [
        one for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for one in group.split(", ")
    ]
    return {*matched, *summed}


def test_the_committed_files_are_what_is_made_of_the_alerts():
    for name, text in files().items():
        assert (FOLDER / name).read_text() == text, "python -m monitor.alert_files"
    assert {path.name for path in FOLDER.iterdir()} == set(files())


@pytest.mark.parametrize("asked", [*ALERTS, *RULES], ids=lambda one: one.name)
def test_what_is_asked_for_is_exported_with_these_labels(asked):
    wanted = names(asked.expression)
    assert wanted <= set(METRICS)
    known = {label for name in wanted for label in METRICS[name].labels} | KNOWN_LABELS
    assert labels(asked.expression) <= known


def test_every_alert_has_cases_both_ways():
    fires, silent = ({case.alert for case in CASES if bool(case.at) == one} for one in (True, False))
    assert fires == silent == {alert.name for alert in ALERTS}


def test_every_alert_has_its_part_of_the_runbook():
    parts = re.findall(rf"^## {PREFIX}(\w+)$", (ROOT / "docs/runbook.md").read_text(), re.M)
    assert parts == [alert.name for alert in ALERTS]


def test_the_runbook_names_metrics_and_settings_that_there_are():
    text = (ROOT / "docs/runbook.md").read_text()
    assert names(text) - set(METRICS) == set()
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    told = [match for match in re.findall(r"`([a-z]+)\.([a-z_]+)", text) if match[0] in sections]
    assert len(told) > 20
    assert [one for one in told if one[1] not in sections[one[0]].model_fields] == []


def test_alerts_tell_of_themselves():
    told = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    for rule in told:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        notes = rule["annotations"]
        assert len(notes["summary"]) < 60
        assert "$labels.instance" in notes["description"]
        path, _, part = notes["runbook_url"].partition("#")
        assert (path, part) == ("docs/runbook.md", rule["alert"].lower())


def test_every_time_scales_and_nothing_else_does():
    text = 'rate(x{a="3"}[{5m}]) * {86400} > {300} and y[{6h}] > 2 * z {{ $labels.x }} {0m} {15s}'
    assert scaled(text, Fraction(1)) == (
        'rate(x{a="3"}[5m]) * 86400 > 300 and y[6h] > 2 * z {{ $labels.x }} 0m 15s'
    )
    assert scaled(text, Fraction(1, 60)) == (
        'rate(x{a="3"}[5s]) * 1440 > 5 and y[6m] > 2 * z {{ $labels.x }} 0m 250ms'
    )
    for alert in ALERTS:
        assert re.findall(r"\[\d|offset \d", alert.expression) == [], "a window that would not scale"


def test_the_command_writes_files_of_the_scale_and_targets_asked_for(tmp_path):
    assert (
        main([str(tmp_path), "--scale", "1/60", "--scrape", "1s", "--target", "a:1", "--target", "b:2"]) == 0
    )
    made = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    assert made["global"]["scrape_interval"] == made["global"]["evaluation_interval"] == "1s"
    assert made["scrape_configs"][0]["static_configs"] == [{"targets": ["a:1", "b:2"]}]
    rules = yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"][0]["rules"]
    assert next(rule["for"] for rule in rules if rule["alert"] == "HeadraceRingsFull") == "15s"


@needs_promtool
@pytest.mark.parametrize(
    "scale", [Fraction(1), pytest.param(Fraction(1, 60), marks=pytest.mark.soak)], ids=str
)
def test_every_alert_fires_where_it_should_and_nowhere_else(tmp_path, scale):
    write(tmp_path, files(scale))
    promtool("check", "config", tmp_path / "prometheus.yml")
    promtool("test", "rules", tmp_path / "alerts_test.yml", tmp_path / "alerts_long_test.yml")


def fails(folder, alert, expression, cases=CASES):
    """Whether one of `cases` finds fault with the alert if its expression is another one."""
    cases = [case for case in cases if case.alert == alert.name]
    (folder / "rules.yml").write_text("groups: []\n")
    (folder / "alerts.yml").write_text(alerts_file(Fraction(1), [replace(alert, expression=expression)]))
    found = ""
    for long in (False, True):
        if any(case.long == long for case in cases):
            path = folder / f"{long}_test.yml"
            path.write_text(cases_file(Fraction(1), long=long, cases=cases))
            found += promtool("test", "rules", path, check=False)
    return "FAILED" in found


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_the_cases_tell_an_alert_that_never_fires_or_always_does(tmp_path, alert):
    fires, silent = ([case for case in CASES if bool(case.at) == one] for one in (True, False))
    assert not fails(tmp_path, alert, alert.expression)
    assert fails(tmp_path, alert, "vector(1) > 2", fires)
    assert fails(tmp_path, alert, "vector(1)", silent)


def clauses(expression):
    """The expression without each of what follows an `and`, `or` or `unless` at the start of a line."""
    parts = re.split(r"\n(?=\s*(?:and|or|unless) )", expression)
    for number in range(1, len(parts)):
        rest = "\n".join(parts[:number] + parts[number + 1 :])
        yield rest + ")" * (rest.count("(") - rest.count(")"))


@needs_promtool
@pytest.mark.parametrize(
    "alert", [one for one in ALERTS if list(clauses(one.expression))], ids=lambda one: one.name
)
def test_the_cases_tell_an_alert_without_one_of_its_clauses(tmp_path, alert):
    assert [rest for rest in clauses(alert.expression) if not fails(tmp_path, alert, rest)] == []
