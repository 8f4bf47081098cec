"""The files of Prometheus: scrape configuration, recording rules, alerts, and the alerts' tests.

    python -m monitor.alert_files [FOLDER] [--scale 1/60] [--scrape 1s] [--target HOST:PORT ...]

writes prometheus.yml, rules.yml, alerts.yml and the tests of both; the committed ones, in
monitor/prometheus/, are of scale 1. With a smaller one a run of minutes shows what a run of weeks would.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from config import exits
from monitor.alert_cases import (
    CASES,
    HEALTHY,
    HEALTHY_STEP_SECONDS,
    LONG_STEP_SECONDS,
    RECORDED,
    STEP_SECONDS,
    Case,
)
from monitor.alerts import ALERTS, PREFIX, RULES, Alert

FOLDER = Path(__file__).resolve().parent / "prometheus"
TARGET = "127.0.0.1:9108"
SCRAPE = "{15s}"
SMALLEST_SCALE = Fraction(1, 1000)  # then what was a day is a minute and a half

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BRACED = re.compile(r"\{(\d+(?:\.\d+)?)([smhd]?)\}")


def scaled(text: str, scale: Fraction) -> str:
    """`text` with its braced durations and numbers of seconds multiplied by `scale`."""

    def one(match: re.Match[str]) -> str:
        unit = match[2]
        seconds = Fraction(match[1]) * _SECONDS[unit or "s"] * scale
        return _duration(seconds, unit) if unit else f"{float(seconds):.15g}"

    return _BRACED.sub(one, text)


def _duration(seconds: Fraction, unit: str) -> str:
    """As Prometheus writes it: a whole number of `unit` or of a smaller one."""
    for smaller in "dhms"["dhms".index(unit) :]:
        if seconds % _SECONDS[smaller] == 0:
            return f"{seconds // _SECONDS[smaller]}{smaller}"
    return f"{max(1, round(seconds * 1000))}ms"


def _block(key: str, text: str, indent: int) -> str:
    """A YAML key with a text of one line, or of several as they are."""
    if "\n" not in text:
        return f"{key}: {json.dumps(text, ensure_ascii=False)}"
    lines = text.replace("\n", "\n" + " " * (indent + 2))
    return f"{key}: |-\n{' ' * (indent + 2)}{lines}"


def _comment(text: str, indent: int) -> str:
    prefix = " " * indent + "# "
    return textwrap.fill(text, 110, initial_indent=prefix, subsequent_indent=prefix) + "\n"


def alerts_file(scale: Fraction, alerts: Sequence[Alert] = ALERTS) -> str:
    """alerts.yml."""
    text = "groups:\n  - name: headrace-alerts\n    rules:\n"
    for alert in alerts:
        text += _comment(alert.why, 6) + (
            f"      - alert: {PREFIX}{alert.name}\n"
            f"        {_block('expr', alert.expression, 8)}\n"
            f"        for: {alert.lasts}\n"
            f"        labels: {{severity: {alert.severity}}}\n"
            "        annotations:\n"
            f"          {_block('summary', alert.summary, 10)}\n"
            f"          {_block('description', alert.description, 10)}\n"
            f"          runbook_url: {alert.runbook}\n"
        )
    return scaled(text, scale)


def rules_file(scale: Fraction) -> str:
    """rules.yml. The names keep the windows of scale 1."""
    text = "groups:\n  - name: headrace-rules\n    rules:\n"
    for rule in RULES:
        text += f"      - record: {rule.name}\n        {_block('expr', rule.expression, 8)}\n"
    return scaled(text, scale)


def cases_file(scale: Fraction, *, long: bool, cases: Sequence[Case] = CASES) -> str:
    """alerts_test.yml, in which every alert fires where it should and nowhere else; `long`: the cases of
    hours, and those of the recording rules, in a file whose alerts are looked at every five minutes only."""
    tests = [_test(case, scale) for case in cases if case.long == long]
    text = f"rule_files: [{'rules.yml, ' if long else ''}alerts.yml]\n"
    text += f"evaluation_interval: {scaled('{5m}' if long else '{1m}', scale)}\ntests:\n"
    return text + "".join(map(_item, tests))


def _item(test: dict[str, Any]) -> str:
    """Of a YAML list. JSON is YAML; a line a value, so that a change shows."""
    lines = textwrap.indent(json.dumps(test, indent=1, ensure_ascii=False), "  ")
    return lines.replace("  {", "- {", 1) + "\n"


def _series(values: Mapping[str, str], scale: Fraction) -> list[dict[str, str]]:
    """With the labels that Prometheus adds at a scrape, but where a job is given."""
    found = []
    for selector, text in values.items():
        name, _, labels = selector.removesuffix("}").partition("{")
        target = () if labels.startswith("job=") else ('job="headrace"', 'instance="run"')
        every = ", ".join([*target, *([labels] if labels else [])])
        found.append({"series": f"{name}{{{every}}}", "values": scaled(text, scale)})
    return found


def _test(case: Case, scale: Fraction) -> dict[str, Any]:
    alert = next(one for one in ALERTS if one.name == case.alert)
    name = PREFIX + alert.name
    step = LONG_STEP_SECONDS if case.long else STEP_SECONDS
    test: dict[str, Any] = {
        "name": f"{name}: {case.what}",
        "interval": scaled(f"{{{step}s}}", scale),
        "input_series": _series(case.series, scale),
    }
    if not case.at:
        firing = f'alertname="{name}",alertstate="firing"'
        return test | {"promql_expr_test": [_never(firing, _length(case, step), scale)]}
    target = {"job": "headrace"} | ({"instance": "run"} if case.instance else {})
    value = _humanized(float(scaled(case.ago, scale))) if case.ago else case.value
    texts = {"summary": alert.summary, "description": alert.description, "runbook_url": alert.runbook}
    annotations = {
        key: _expanded(scaled(text, scale), target | dict(case.labels), value) for key, text in texts.items()
    }
    fires = {
        "exp_labels": target | {"severity": alert.severity} | dict(case.labels),
        "exp_annotations": annotations,
    }
    moments = [(case.before, []), (case.at, [fires])]
    return test | {
        "alert_rule_test": [
            {"alertname": name, "eval_time": scaled(at, scale), "exp_alerts": alerts}
            for at, alerts in moments
        ]
    }


def healthy_case(scale: Fraction) -> str:
    """One more of the long ones: no alert in hours, not even a pending one, and what the recording rules
    give."""
    recorded = []
    for rule, value in RECORDED.items():
        growth = (
            value if "ratio" in rule or "staleness" in rule else value / HEALTHY_STEP_SECONDS / float(scale)
        )
        labels = f'{rule}{{job="headrace", instance="run"}}'
        recorded.append(
            {
                "expr": f"round({rule}, 0.0001)",
                "eval_time": scaled("{1h}", scale),
                "exp_samples": [{"labels": labels.removeprefix(rule), "value": round(growth, 4)}],
            }
        )
    return _item(
        {
            "name": "a run with nothing wrong",
            "interval": scaled(f"{{{HEALTHY_STEP_SECONDS}s}}", scale),
            "input_series": _series(HEALTHY, scale),
            "promql_expr_test": [_never("", "{8h}", scale), *recorded],
        }
    )


def _length(case: Case, step_seconds: int) -> str:
    """Of its longest series, braced."""

    def steps(token: str) -> int:
        _, many, times = token.partition("x")
        return int(times) + 1 if many else 1

    return f"{{{step_seconds * max(sum(map(steps, text.split())) for text in case.series.values())}s}}"


def _never(selector: str, until: str, scale: Fraction) -> dict[str, Any]:
    return {
        "expr": f"max_over_time(ALERTS{{{selector}}}[{scaled(until, scale)}])",
        "eval_time": scaled(until, scale),
        "exp_samples": [],
    }


def _expanded(text: str, labels: Mapping[str, str], value: str) -> str:
    """An annotation as Prometheus fills it in."""
    text = re.sub(r"{{ \$value[^}]*}}", value, text)
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels.get(match[1], ""), text)


def _humanized(seconds: float) -> str:
    """As Prometheus' humanizeDuration of a time between a second and an hour."""
    return f"{seconds:.4g}s" if seconds < 60 else f"{seconds // 60:.0f}m {seconds % 60:.0f}s"


def prometheus_file(scrape: str, targets: Sequence[str]) -> str:
    """prometheus.yml. Prometheus finds the rules beside it."""
    return (
        f"global:\n  scrape_interval: {scrape}\n  scrape_timeout: {scrape}\n  evaluation_interval: {scrape}\n"
        "rule_files: [rules.yml, alerts.yml]\n"
        "scrape_configs:\n"
        "  - job_name: headrace # alerts and dashboards know the exporters by it\n"
        "    static_configs:\n"
        f"      - targets: {json.dumps(list(targets))}\n"
    )


def files(
    scale: Fraction = Fraction(1), scrape: str | None = None, targets: Sequence[str] = (TARGET,)
) -> dict[str, str]:
    """Contents by name. `scrape`: a duration; None: the usual one, scaled."""
    made = {
        "prometheus.yml": prometheus_file(scrape or scaled(SCRAPE, scale), targets),
        "rules.yml": rules_file(scale),
        "alerts.yml": alerts_file(scale),
        "alerts_test.yml": cases_file(scale, long=False),
        "alerts_long_test.yml": cases_file(scale, long=True) + healthy_case(scale),
    }
    return {name: f"# Made by python -m monitor.alert_files.\n{text}" for name, text in made.items()}


def write(folder: Path, made: dict[str, str]) -> None:
    """Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (folder / name).write_text(text)


def scale(text: str) -> Fraction:
    """Of the command line. Raises ValueError, as the next two do."""
    try:
        value = Fraction(text)
    except ZeroDivisionError:
        raise ValueError(text) from None
    if not SMALLEST_SCALE <= value <= 1:
        raise ValueError(text)
    return value


def duration(text: str) -> str:
    """As Prometheus writes it, with one unit."""
    if not re.fullmatch("0*[1-9][0-9]*(ms|s|m|h)", text, re.ASCII):
        raise ValueError(text)
    return text


def target(text: str) -> str:
    """HOST:PORT."""
    port = text.rpartition(":")[2]
    if not re.fullmatch(r"([^\s/:@?#]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}", text, re.ASCII) or int(port) > 65535:
        raise ValueError(text)
    return text


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m monitor.alert_files", description="Writes the files of Prometheus."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--scale", type=scale, default=Fraction(1), help="of all times, as 1/60")
    parser.add_argument("--scrape", type=duration, help="time between scrapes, as 1s; 15 s, scaled")
    parser.add_argument("--target", type=target, action="append", help=f"an exporter; {TARGET}")
    options = parser.parse_args(arguments)
    try:
        write(options.folder, files(options.scale, options.scrape, options.target or (TARGET,)))
    except OSError as error:
        print(error, file=sys.stderr)
        return exits.MISSING
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
