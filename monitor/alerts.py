"""The alerts and recording rules of a run.

monitor/alert_files.py makes Prometheus' files of them. A duration or a number of seconds in braces, `{5m}` or
`{300}`, is scaled there: in windows, in `for` and in thresholds alike. What an alert means and what to do
about it is in docs/runbook.md.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "Headrace"
RUNBOOK = "docs/runbook.md"


@dataclass(frozen=True)
class Alert:
    """`name`: without prefix. `lasts`: how long the expression has to hold (Prometheus' `for`). `why`: what
    the expression guards against, for whoever reads the file. `description`: `{{ $labels… }}` and
    `{{ $value… }}` are filled in by Prometheus."""

    name: str
    severity: str
    lasts: str
    expression: str
    why: str
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{(PREFIX + self.name).lower()}"


@dataclass(frozen=True)
class Rule:
    """A recording rule: `name` as Prometheus knows it."""

    name: str
    expression: str


# A run that stops in order trains no more, and its evaluation may last.
RUN_ENDS = 'unless on (job, instance) headrace_run_state{state=~"stopping|done|stopped|failed"} == 1'


def _sum(metric: str, window: str = "{5m}") -> str:
    return f"sum by (job, instance) (rate(headrace_{metric}[{window}]))"


COMMITTED_BYTES = _sum("ring_committed_bytes_total")
CONSUMED_SAMPLES = _sum("ring_consumed_samples_total")
DROPPED_SAMPLES = _sum("samples_dropped_total")
DROPPED_RATIO = f"{DROPPED_SAMPLES}\n  / ({DROPPED_SAMPLES}\n     + {CONSUMED_SAMPLES})"
STALENESS_P99 = (
    "histogram_quantile(0.99,\n"
    "  sum by (job, instance, le) (rate(headrace_batch_staleness_updates_bucket[{5m}])))"
)
STARVED = 'avg by (job, instance) (rate(headrace_learner_wait_seconds_total{reason="no_data"}[{5m}]))'
BLOCKED = (
    "avg by (job, instance) (\n"
    "  sum by (job, instance, producer) (\n"
    '    rate(headrace_producer_wait_seconds_total{reason=~"ring_full|credit"}[{5m}])))'
)
FREE_RATIO = "headrace_run_dir_free_bytes / headrace_run_dir_size_bytes"
FREE_TOMORROW = "predict_linear(headrace_run_dir_free_bytes[{6h}], {86400})"

# What dashboards and people ask for most often: sums over a run, by job and instance.
RULES = (
    Rule("headrace:ring_committed_bytes:rate5m", COMMITTED_BYTES),
    Rule("headrace:ring_committed_unpacked_bytes:rate5m", _sum("ring_committed_unpacked_bytes_total")),
    Rule("headrace:producer_steps:rate5m", _sum("producer_steps_total")),
    Rule("headrace:ring_consumed_samples:rate5m", CONSUMED_SAMPLES),
    Rule("headrace:learner_samples:rate5m", _sum("learner_samples_total")),
    Rule("headrace:learner_updates:rate5m", _sum("learner_updates_total")),
    Rule("headrace:sample_reuse:ratio_rate5m", f"{_sum('learner_samples_total')}\n  / {CONSUMED_SAMPLES}"),
    Rule("headrace:batch_staleness_updates:p99_rate5m", STALENESS_P99),
    Rule(
        "headrace:batch_staleness_updates:mean_rate5m",
        f"{_sum('batch_staleness_updates_sum')}\n  / {_sum('batch_staleness_updates_count')}",
    ),
    Rule(
        "headrace:ring_fill:ratio",
        "sum by (job, instance) (headrace_ring_fill_slots)\n"
        "  / sum by (job, instance) (headrace_ring_capacity_slots)",
    ),
    Rule("headrace:producer_blocked:ratio_rate5m", BLOCKED),
    Rule("headrace:learner_starved:ratio_rate5m", STARVED),
    Rule("headrace:samples_dropped:ratio_rate5m", DROPPED_RATIO),
)

ALERTS = (
    Alert(
        "ExporterDown",
        "critical",
        "{2m}",
        'up{job="headrace"} == 0\n'
        "unless on (job, instance)\n"
        '  last_over_time(headrace_run_state{state=~"stopping|done|stopped"}[{1d}]) == 1',
        "A run last seen as it stopped in order has ended with its exporter; for a day that is no news.",
        "The exporter does not answer",
        "{{ $labels.instance }} has not answered for {2m}: the run or its exporter is gone.",
    ),
    Alert(
        "MetricsAbsent",
        "critical",
        "{5m}",
        'absent(up{job="headrace"})\n'
        'or up{job="headrace"} == 1 unless on (job, instance) headrace_learner_last_update_timestamp_seconds',
        "No other alert fires where its series are missing: without a target, or where somebody else answers "
        "on its port.",
        "No metrics of a run",
        "Prometheus has no target of the job headrace, or {{ $labels.instance }} answers with other metrics.",
    ),
    Alert(
        "CollectorErrors",
        "warning",
        "{10m}",
        "rate(headrace_collector_errors_total[{5m}]) > 0",
        "A scrape that failed in part lacks series, and their alerts do not fire.",
        "Scrapes fail in part",
        "{{ $labels.instance }}: the exporter cannot read some of the metrics; alerts on them are silent.",
    ),
    Alert(
        "LearnerStalled",
        "critical",
        "{1m}",
        "time() - max by (job, instance) (headrace_learner_last_update_timestamp_seconds) > {300}\n"
        + RUN_ENDS,
        "`unless`, and not `and running`: a run that never makes its first update is told of too.",
        "The learner makes no updates",
        "{{ $labels.instance }}: the last update was {{ $value | humanizeDuration }} ago.",
    ),
    Alert(
        "NoThroughput",
        "critical",
        "{5m}",
        f'{COMMITTED_BYTES} == 0\nand on (job, instance) headrace_run_state{{state="running"}} == 1',
        "Before the first update LearnerStalled speaks.",
        "Producers commit nothing",
        "{{ $labels.instance }}: not a byte was committed to any ring for {5m} and longer.",
    ),
    Alert(
        "LearnerStarved",
        "warning",
        "{15m}",
        f"{STARVED} > 0.5\nunless on (job, instance) headrace_staleness_limit_updates == 0",
        "With a limit of 0, as in mode: sync, learner and producers take turns, and half the time is usual.",
        "The learner waits for data",
        "{{ $labels.instance }}: learners wait for data {{ $value | humanizePercentage }} of their time.",
    ),
    Alert(
        "RingsFull",
        "info",
        "{15m}",
        f"{BLOCKED} > 0.9",
        "Usual where simulators outrun learners. Credit counts: in async it is what holds producers back.",
        "Producers wait for the learner",
        "{{ $labels.instance }}: producers spend {{ $value | humanizePercentage }} of their time waiting for "
        "credit or room.",
    ),
    Alert(
        "StalenessHigh",
        "warning",
        "{10m}",
        f"{STALENESS_P99}\n  > on (job, instance) headrace_staleness_limit_updates",
        "The limit is a bucket's bound (monitor/collector.py), so that no interpolation exceeds it.",
        "Samples are staler than the limit",
        "{{ $labels.instance }}: the 99th percentile of the version lag is {{ $value | humanize }}, above "
        "staleness.limit.",
    ),
    Alert(
        "SamplesDropped",
        "warning",
        "{15m}",
        f"{DROPPED_RATIO} > 0.01",
        "A share of all that ended: dropped alone is 1, and nothing at all is NaN, which is not above 0.01. "
        "The window is shorter than `for`: one burst, of a roll-back say, is no alarm.",
        "Samples are dropped",
        "{{ $labels.instance }}: {{ $value | humanizePercentage }} of the steps are never trained on.",
    ),
    Alert(
        "NonFinite",
        "critical",
        "{0m}",
        "increase(headrace_learner_nonfinite_batches_total[{10m}]) > 0",
        "The counter starts at 0, so that the first one counts.",
        "Losses or gradients that are no numbers",
        "{{ $labels.instance }}: a batch of the last {10m} had a loss or gradient that is no number.",
    ),
    Alert(
        "AuditAlarm",
        "warning",
        "{0m}",
        "sum by (job, instance, audit) (increase(headrace_audit_alarms_total[{10m}])) > 0",
        "An audit finds what no loss shows: samples that are not what their labels say.",
        "An audit raised an alarm",
        "{{ $labels.instance }}: the {{ $labels.audit }} audit found more than its limit in the last {10m}.",
    ),
    Alert(
        "EntropyCollapse",
        "warning",
        "{30m}",
        "headrace_policy_entropy_ratio < 0.02",
        "Policies with continuous actions have no such ratio, and this alert never fires for them.",
        "The policy has nearly no entropy",
        "{{ $labels.instance }}: entropy is {{ $value | humanizePercentage }} of a uniform policy's.",
    ),
    Alert(
        "ProducerCrashLoop",
        "warning",
        "{0m}",
        "sum by (job, instance, role, index) (increase(headrace_process_restarts_total[{15m}])) > 3.5",
        "More than three: increase() extrapolates to the ends of its window and makes 3.05 of three.",
        "A process dies again and again",
        "{{ $labels.instance }}: {{ $labels.role }} {{ $labels.index }} was restarted more than three times "
        "within {15m}.",
    ),
    Alert(
        "ProducerFailed",
        "warning",
        "{0m}",
        'headrace_producers{state="failed"} > 0',
        "One that is given up is not restarted any more, and ProducerCrashLoop falls silent.",
        "The run goes on without some producers",
        "{{ $labels.instance }}: {{ $value }} producers have failed for good.",
    ),
    Alert(
        "CheckpointStale",
        "critical",
        "{1m}",
        "time() - headrace_checkpoint_last_success_timestamp_seconds\n"
        "  > on (job, instance) 3 * headrace_checkpoint_interval_seconds\n" + RUN_ENDS,
        "The interval is the run's own and scales with nothing.",
        "The last checkpoint is old",
        "{{ $labels.instance }}: the last checkpoint was saved {{ $value | humanizeDuration }} ago, more "
        "than three times checkpoint.interval_seconds.",
    ),
    Alert(
        "CheckpointFailing",
        "warning",
        "{0m}",
        "increase(headrace_checkpoint_failures_total[{1h}]) > 0",
        "The counter starts at 0, so that the first one counts.",
        "A checkpoint could not be written",
        "{{ $labels.instance }}: a checkpoint of the last {1h} failed; events.jsonl of the run says why.",
    ),
    Alert(
        "DiskFilling",
        "warning",
        "{1h}",
        f"{FREE_RATIO} < 0.2\nand {FREE_TOMORROW} < 0",
        "A file system that tells no size gives 0 / 0, which is not below 0.2.",
        "The disk will be full within a day",
        "{{ $labels.instance }}: {{ $value | humanizePercentage }} of the run directory's file system are "
        "free, and at the pace of the last {6h} none within {24h}.",
    ),
    Alert(
        "DiskFull",
        "critical",
        "{5m}",
        "(\n"
        f"  {FREE_RATIO} < 0.05\n"
        f"  and {FREE_TOMORROW} < 0\n"
        "  or headrace_run_dir_free_bytes <= on (job, instance) 2 * headrace_checkpoint_size_bytes\n"
        ")",
        "The pace of a disk that is full is 0. A checkpoint is tried only where twice its size is free.",
        "The disk is full or nearly so",
        "{{ $labels.instance }}: there is no room for the next checkpoint, or will be none within {24h}.",
    ),
    Alert(
        "MemoryGrowth",
        "warning",
        "{1h}",
        "deriv(headrace_process_resident_memory_bytes[{6h}]) * {86400}\n"
        "  > on (job, instance) group_left () (0.1 * headrace_memory_limit_bytes > 0)\n"
        "and headrace_process_resident_memory_bytes offset {6h}\n"
        "unless increase(headrace_process_restarts_total[{6h}]) > 0",
        "A process that has just started grows to its size, which is no leak: it must be as old as the "
        "window. A limit that is not known is 0.",
        "The memory of a process grows",
        "{{ $labels.instance }}: {{ $labels.role }} {{ $labels.index }} grows by "
        "{{ $value | humanize1024 }}B in {24h}, more than a tenth of the memory there is.",
    ),
    Alert(
        "PublishStuck",
        "warning",
        "{5m}",
        "time() - headrace_policy_published_timestamp_seconds > {120}\n" + RUN_ENDS,
        "Producers act with older and older weights, or wait.",
        "No version of the weights is published",
        "{{ $labels.instance }}: the last version was published {{ $value | humanizeDuration }} ago.",
    ),
    Alert(
        "ArchiveBackpressure",
        "warning",
        "{10m}",
        "rate(headrace_archive_dropped_blocks_total[{5m}]) > 0\nor headrace_archive_halted == 1",
        "The window is shorter than `for`: one block that was dropped is no alarm. A recorder that has "
        "halted may have little to drop.",
        "The archive loses what it should keep",
        "{{ $labels.instance }}: the recorder has dropped blocks, or written none, for {10m} and longer.",
    ),
)
