"""PromQL over the metrics of monitor/metrics.py, in the jobs and instances that the dashboard has chosen.

Every name and label is looked up there, so a dashboard cannot ask for what is not exported.
"""

from __future__ import annotations

from monitor.metrics import METRICS, PREFIX

CHOSEN = 'job=~"$job",instance=~"$instance"'
# Alerts that fire; one of absence has no instance.
ALERTS = 'ALERTS{job=~"$job",instance=~"$instance|",alertname=~"Headrace.+",alertstate="firing"}'
TARGET_LABELS = ("job", "instance")  # which Prometheus adds to every series
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


def one(metric: str, **labels: str) -> str:
    """The series of a metric, without prefix; a value of `labels` with a `|` names several.

    Raises KeyError for a metric, ValueError for a label that is not exported.
    """
    entry = METRICS[_family(metric)]
    for label in labels:
        if label not in entry.labels:
            raise ValueError(f"{metric} has no label {label}")
    matchers = [f'{label}{"=~" if "|" in value else "="}"{value}"' for label, value in labels.items()]
    return f"{PREFIX}{metric}{{{','.join([CHOSEN, *matchers])}}}"


def rate(metric: str, **labels: str) -> str:
    """Growth a second of each series."""
    return f"rate({one(metric, **labels)}[$__rate_interval])"


def per_second(metric: str, by: str = "", **labels: str) -> str:
    """Growth a second, summed; `by`: the labels that stay apart."""
    return summed(rate(metric, **labels), by)


def grown(metric: str, by: str = "", window: str = "$__rate_interval", **labels: str) -> str:
    """Growth over a window, summed."""
    return summed(f"increase({one(metric, **labels)}[{window}])", by)


def summed(expression: str, by: str = "") -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"


def mean(expression: str, by: str = "") -> str:
    return f"avg by ({by}) ({expression})" if by else f"avg({expression})"


def largest(expression: str, by: str = "") -> str:
    return f"max by ({by}) ({expression})" if by else f"max({expression})"


def top(count: int, expression: str) -> str:
    return f"topk({count}, {expression})"


def quantile(share: float, histogram: str) -> str:
    """Of what a histogram counted, interpolated inside its buckets."""
    return f"histogram_quantile({share}, {per_second(histogram + '_bucket', by='le')})"


def histogram_mean(histogram: str) -> str:
    return f"{per_second(histogram + '_sum')} / {per_second(histogram + '_count')}"


def age(timestamp: str) -> str:
    """Seconds since a moment; of several runs the longest."""
    return largest(f"time() - {one(timestamp)}")


def waiting(by: str, metric: str, reasons: str) -> str:
    """Share of their time that processes wait, for any of these reasons, on average; `by`: their label."""
    return mean(summed(rate(metric, reason=reasons), by=f"instance, {by}"))


def _family(metric: str) -> str:
    for suffix in HISTOGRAM_SUFFIXES:
        family = metric.removesuffix(suffix)
        if family != metric and family in METRICS:
            return family
    return metric
