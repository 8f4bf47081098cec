"""What each alert is held to: series under which it fires, and series under which it stays silent.

promtool runs them (`promtool test rules monitor/prometheus/*_test.yml`). A series has a value every 15
seconds, or every 5 minutes in the long cases, from time 0 on, written as promtool does: `0+3x20` is 0, 3, 6,
... 60. Braced times are scaled as in monitor/alerts.py, so the cases hold at every scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STEP_SECONDS = 15
LONG_STEP_SECONDS = 300


@dataclass(frozen=True)
class Case:
    """`alert`: its name without prefix. `what`: in words. `series`: values by selector, without job and
    instance, which all get. `at`: when it fires, and `before` when it does not yet; without `at` it never
    does. `labels` of the alert that fires, beside job, instance and severity. `value`: how its description
    tells the value; `ago`: the same as a number of seconds, which grows with the scale."""

    alert: str
    what: str
    series: Mapping[str, str]
    at: str = ""
    before: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    ago: str = ""
    instance: bool = True
    """Whether the alert that fires names the target."""
    long: bool = False


def _states(**values: str) -> dict[str, str]:
    return {f'headrace_run_state{{state="{state}"}}': value for state, value in values.items()}


def _at(steps: int, state: str) -> dict[str, str]:
    """A run that is in one state all the time."""
    states = ("starting", "running", "stopping", "done", "stopped", "failed")
    return _states(**{one: f"{int(one == state)}+0x{steps}" for one in states})


def _buckets(steps: int, limit: int | None, **grows: int) -> dict[str, str]:
    """The staleness histogram: what each bucket grows by a step, `le4=90`; `inf`: all."""
    names = {le: "+Inf" if le == "inf" else le.removeprefix("le") + ".0" for le in grows}
    found = {
        f'headrace_batch_staleness_updates_bucket{{le="{names[le]}"}}': f"0+{grows[le]}x{steps}"
        for le in grows
    }
    return found if limit is None else found | {"headrace_staleness_limit_updates": f"{limit}+0x{steps}"}


def _disk(free: str, size: str, checkpoint: str = "0", steps: int = 72) -> dict[str, str]:
    return {
        "headrace_run_dir_free_bytes": f"{free}x{steps}",
        "headrace_run_dir_size_bytes": f"{size}+0x{steps}",
        "headrace_checkpoint_size_bytes": f"{checkpoint}+0x{steps}",
    }


def _memory(resident: str, limit: str, restarts: str = "0+0x120") -> dict[str, str]:
    process = '{role="learner", index="0"}'
    return {
        f"headrace_process_resident_memory_bytes{process}": resident,
        f"headrace_process_restarts_total{process}": restarts,
        "headrace_memory_limit_bytes": f"{limit}+0x120",
    }


UP = "up"
UPDATED = 'headrace_learner_last_update_timestamp_seconds{learner="0"}'
PUBLISHED = "headrace_policy_published_timestamp_seconds"
SAVED = "headrace_checkpoint_last_success_timestamp_seconds"
INTERVAL = "headrace_checkpoint_interval_seconds"
NO_DATA = 'headrace_learner_wait_seconds_total{{reason="no_data", learner="{}"}}'
WAIT = 'headrace_producer_wait_seconds_total{{reason="{}", producer="{}"}}'
COMMITTED = 'headrace_ring_committed_bytes_total{{ring="{}"}}'
DROPPED = 'headrace_samples_dropped_total{reason="overwritten"}'
CONSUMED = "headrace_ring_consumed_samples_total"
RESTARTS = 'headrace_process_restarts_total{role="producer", index="1"}'
LIMIT = "headrace_staleness_limit_updates"
NONFINITE = 'headrace_learner_nonfinite_batches_total{learner="0"}'
AUDITS = 'headrace_audit_alarms_total{audit="label"}'
ENTROPY = "headrace_policy_entropy_ratio"
FAILED = 'headrace_producers{state="failed"}'
FAILURES = "headrace_checkpoint_failures_total"
BLOCKS = "headrace_archive_dropped_blocks_total"
HALTED = "headrace_archive_halted"
ERRORS = "headrace_collector_errors_total"

CASES = (
    Case("ExporterDown", "it is gone while the run was running",
         {UP: "1+0x8 0+0x40", **_states(running="1+0x8", stopping="0+0x8")}, "{5m}", "{3m}"),
    Case("ExporterDown", "it never was there", {UP: "0+0x40"}, "{3m}", "{1m}"),
    Case("ExporterDown", "the run stopped in order and is gone",
         {UP: "1+0x8 0+0x60", **_states(running="1+0x6 0 0", stopping="0+0x6 1 1")}),
    Case("ExporterDown", "a run is back, and then killed, where one had stopped in order",
         {UP: "1+0x8 0+0x8 1+0x8 0+0x60",
          **_states(running="1+0x6 0 0 _x9 1+0x8", stopping="0+0x6 1 1 _x9 0+0x8")}, "{15m}", "{7m}"),
    Case("ExporterDown", "it is away for a minute", {UP: "1+0x8 0+0x3 1+0x40"}),
    Case("MetricsAbsent", "there is no target", {'up{job="other"}': "1+0x40"}, "{6m}", "{4m}",
         instance=False),
    Case("MetricsAbsent", "somebody else answers", {UP: "1+0x40"}, "{6m}", "{4m}"),
    Case("MetricsAbsent", "the metrics are there", {UP: "1+0x40", UPDATED: "0+{15}x40"}),
    Case("MetricsAbsent", "the exporter is down, which is another alert", {UP: "0+0x40"}),
    Case("CollectorErrors", "a part fails in every scrape", {ERRORS: "0+1x80"}, "{15m}", "{9m}"),
    Case("CollectorErrors", "a part failed once", {ERRORS: "0+0x20 1+0x80"}),
    Case("LearnerStalled", "no update since the start", {UPDATED: "0+0x60", **_at(60, "running")},
         "{8m}", "{6m}", ago="{480}"),
    Case("LearnerStalled", "no first update", {UPDATED: "0+0x60", **_at(60, "starting")},
         "{8m}", "{6m}", ago="{480}"),
    Case("LearnerStalled", "nobody tells the run's state", {UPDATED: "0+0x60"}, "{8m}", "{6m}", ago="{480}"),
    Case("LearnerStalled", "an update each five minutes",
         {UPDATED: "0+0x19 {300}+0x19 {600}+0x19 {900}+0x19", **_at(80, "running")}),
    Case("LearnerStalled", "the run evaluates", {UPDATED: "0+0x60", **_at(60, "stopping")}),
    Case("NoThroughput", "no ring gets anything",
         {COMMITTED.format(0): "1000+0x60", COMMITTED.format(1): "0+0x60", **_at(60, "running")}, "{8m}",
         "{5m}"),
    Case("NoThroughput", "one of two rings is filled",
         {COMMITTED.format(0): "1000+0x60", COMMITTED.format(1): "0+1000x60", **_at(60, "running")}),
    Case("NoThroughput", "the run has not begun", {COMMITTED.format(0): "0+0x60", **_at(60, "starting")}),
    Case("LearnerStarved", "two learners wait for 55 % of their time",
         {NO_DATA.format(0): "0+{13.5}x90", NO_DATA.format(1): "0+{3}x90", LIMIT: "1+0x90"},
         "{20m}", "{14m}", value="55%"),
    Case("LearnerStarved", "there is no limit", {NO_DATA.format(0): "0+{12}x90"}, "{20m}", "{14m}",
         value="80%"),
    Case("LearnerStarved", "it waits for 40 % of its time", {NO_DATA.format(0): "0+{6}x90", LIMIT: "1+0x90"}),
    Case("LearnerStarved", "a synchronous run takes turns", {NO_DATA.format(0): "0+{12}x90",
         LIMIT: "0+0x90"}),
    Case("RingsFull", "every producer waits for credit or room",
         {WAIT.format("credit", 0): "0+{7.5}x90", WAIT.format("ring_full", 0): "0+{6.75}x90",
          WAIT.format("credit", 1): "0+{13.95}x90"}, "{20m}", "{14m}", value="94%"),
    Case("RingsFull", "one of two producers waits", {WAIT.format("credit", 0): "0+{14.7}x90",
                                                    WAIT.format("credit", 1): "0+{3}x90"}),
    Case("RingsFull", "they wait for answers", {WAIT.format("answer", 0): "0+{14.7}x90"}),
    Case("StalenessHigh", "a tenth of the steps exceeds a limit of 1",
         _buckets(80, 1, le0=50, le1=90, le2=100, inf=100), "{15m}", "{9m}", value="1.9"),
    Case("StalenessHigh", "every step is just at a limit of 5, which is a bucket's bound",
         _buckets(80, 5, le4=0, le5=100, le6=100, inf=100)),
    Case("StalenessHigh", "there is no limit", _buckets(80, None, le0=0, le1=0, inf=100)),
    Case("SamplesDropped", "2 % are dropped", {DROPPED: "0+2x90", CONSUMED: "0+98x90"},
         "{20m}", "{14m}", value="2%"),
    Case("SamplesDropped", "all are dropped", {DROPPED: "0+2x90", CONSUMED: "5+0x90"},
         "{20m}", "{14m}", value="100%"),
    Case("SamplesDropped", "half a percent is dropped", {DROPPED: "0+1x90", CONSUMED: "0+199x90"}),
    Case("SamplesDropped", "nothing comes and nothing goes", {DROPPED: "0+0x90", CONSUMED: "5+0x90"}),
    Case("SamplesDropped", "a roll-back drops many at once", {DROPPED: "0+0x20 5000+0x90",
         CONSUMED: "0+98x110"}),
    Case("NonFinite", "one batch", {NONFINITE: "0+0x20 1+0x60"}, "{6m}", "{5m}", {"learner": "0"}),
    Case("NonFinite", "batches of long ago", {NONFINITE: "3+0x60"}),
    Case("AuditAlarm", "one alarm", {AUDITS: "0+0x20 1+0x60"}, "{6m}", "{5m}", {"audit": "label"}),
    Case("AuditAlarm", "alarms of long ago", {AUDITS: "3+0x60"}),
    Case("EntropyCollapse", "1 % for half an hour", {ENTROPY: "0.01+0x160"}, "{35m}", "{29m}", value="1%"),
    Case("EntropyCollapse", "5 %", {ENTROPY: "0.05+0x160"}),
    Case("EntropyCollapse", "1 % for twenty minutes", {ENTROPY: "0.5+0x10 0.01+0x80 0.5+0x60"}),
    Case("ProducerCrashLoop", "four restarts in a minute", {RESTARTS: "0+0x60 1 2 3 4+0x60"}, "{20m}",
         "{15m}",
         {"role": "producer", "index": "1"}),
    Case("ProducerCrashLoop", "three restarts in a quarter of an hour", {RESTARTS: "0+0x60 1 2 3+0x60"}),
    Case("ProducerCrashLoop", "one each ten minutes",
         {RESTARTS: "0+0x39 1+0x39 2+0x39 3+0x39 4+0x39 5+0x39"}),
    Case("ProducerFailed", "one of them", {FAILED: "0+0x10 1+0x20"}, "{4m}", "{2m}",
         {"state": "failed"}, value="1"),
    Case("ProducerFailed", "none of them", {FAILED: "0+0x20"}),
    Case("CheckpointStale", "none since the start", {SAVED: "0+0x80", INTERVAL: "{300}+0x80", **_at(80,
         "running")},
         "{18m}", "{16m}", ago="{1080}"),
    Case("CheckpointStale", "the run evaluates", {SAVED: "0+0x80", INTERVAL: "{300}+0x80", **_at(80,
         "stopping")}),
    Case("CheckpointStale", "one each ten minutes",
         {SAVED: "0+0x39 {600}+0x39 {1200}+0x39", INTERVAL: "{300}+0x120", **_at(120, "running")}),
    Case("CheckpointFailing", "one failure", {FAILURES: "0+0x20 1+0x60"}, "{6m}", "{5m}"),
    Case("CheckpointFailing", "failures of long ago", {FAILURES: "3+0x300"}),
    Case("DiskFilling", "17.8 % are free, and 1.2 % an hour go", _disk("25000000000-100000000",
         "100000000000"),
         "{6h}", "{5h}", value="17.8%", long=True),
    Case("DiskFilling", "10 % are free and nothing changes", _disk("10000000000+0", "100000000000"),
         long=True),
    Case("DiskFilling", "half of it is free", _disk("60000000000-100000000", "100000000000"), long=True),
    Case("DiskFilling", "the file system tells no size", _disk("0+0", "0"), long=True),
    Case("DiskFull", "there is no room for a checkpoint",
         _disk("1500000+0", "100000000000", "1000000", 60), "{8m}", "{4m}"),
    Case("DiskFull", "it is full and nothing changes", _disk("0+0", "100000000000", "0", 60), "{8m}", "{4m}"),
    Case("DiskFull", "4 % are free, and 1.2 % an hour go",
         _disk("10000000000-100000000", "100000000000"), "{5h}", "{4h}", long=True),
    Case("DiskFull", "3 % are free and nothing changes", _disk("3000000000+0", "100000000000", "1000000"),
         long=True),
    Case("MemoryGrowth", "2.4 GiB a day of 16 GB", _memory("1000000000+9000000x120", "16000000000"),
         "{8h}", "{390m}", {"role": "learner", "index": "0"}, value="2.414Gi", long=True),
    Case("MemoryGrowth", "a large process starts", _memory("0 40000000000+0x120", "64000000000"), long=True),
    Case("MemoryGrowth", "it was restarted two hours ago",
         _memory("1000000000+9000000x120", "16000000000", "0+0x80 1+0x40"), long=True),
    Case("MemoryGrowth", "1 GB a day of 16 GB", _memory("1000000000+3600000x120", "16000000000"), long=True),
    Case("MemoryGrowth", "nobody tells the limit", _memory("1000000000+9000000x120", "0"), long=True),
    Case("PublishStuck", "no version since the start", {PUBLISHED: "0+0x60", **_at(60, "running")},
         "{9m}", "{7m}", ago="{540}"),
    Case("PublishStuck", "a version every minute",
         {PUBLISHED: "0+0x3 {60}+0x3 {120}+0x3 {180}+0x3 {240}+0x3 {300}+0x3 {360}+0x3 {420}+0x3 {480}+0x3"}),
    Case("PublishStuck", "the run evaluates", {PUBLISHED: "0+0x60", **_at(60, "stopping")}),
    Case("ArchiveBackpressure", "blocks are dropped all the time", {BLOCKS: "0+1x80", HALTED: "0+0x80"},
         "{15m}", "{9m}"),
    Case("ArchiveBackpressure", "nothing is written", {BLOCKS: "0+0x80", HALTED: "1+0x80"}, "{15m}", "{9m}"),
    Case("ArchiveBackpressure", "blocks were dropped once", {BLOCKS: "0+0x20 9+0x60", HALTED: "0+0x80"}),
)  # fmt: skip

# A run with nothing wrong, for eight hours: no alert at all, and what the recording rules make of it.
HEALTHY_STEP_SECONDS = 60
HEALTHY_STEPS = 8 * 60
HEALTHY = {
    UP: f"1+0x{HEALTHY_STEPS}",
    **_at(HEALTHY_STEPS, "running"),
    UPDATED: f"0+{{60}}x{HEALTHY_STEPS}",
    PUBLISHED: f"0+{{60}}x{HEALTHY_STEPS}",
    SAVED: f"0+{{60}}x{HEALTHY_STEPS}",
    INTERVAL: f"{{300}}+0x{HEALTHY_STEPS}",
    ERRORS: f"0+0x{HEALTHY_STEPS}",
    COMMITTED.format(0): f"0+3000x{HEALTHY_STEPS}",
    COMMITTED.format(1): f"0+6000x{HEALTHY_STEPS}",
    'headrace_ring_committed_unpacked_bytes_total{ring="0"}': f"0+90000x{HEALTHY_STEPS}",
    'headrace_producer_steps_total{producer="0"}': f"0+300x{HEALTHY_STEPS}",
    'headrace_producer_steps_total{producer="1"}': f"0+600x{HEALTHY_STEPS}",
    CONSUMED: f"0+750x{HEALTHY_STEPS}",
    DROPPED: f"0+3x{HEALTHY_STEPS}",
    'headrace_learner_samples_total{learner="0"}': f"0+1500x{HEALTHY_STEPS}",
    'headrace_learner_updates_total{learner="0"}': f"0+30x{HEALTHY_STEPS}",
    **_buckets(HEALTHY_STEPS, 1, le0=375, le1=750, inf=750),
    "headrace_batch_staleness_updates_sum": f"0+375x{HEALTHY_STEPS}",
    "headrace_batch_staleness_updates_count": f"0+750x{HEALTHY_STEPS}",
    'headrace_ring_fill_slots{ring="0"}': f"1+0x{HEALTHY_STEPS}",
    'headrace_ring_capacity_slots{ring="0"}': f"4+0x{HEALTHY_STEPS}",
    WAIT.format("credit", 0): f"0+{{24}}x{HEALTHY_STEPS}",
    NO_DATA.format(0): f"0+{{12}}x{HEALTHY_STEPS}",
    NONFINITE: f"0+0x{HEALTHY_STEPS}",
    AUDITS: f"0+0x{HEALTHY_STEPS}",
    ENTROPY: f"0.4+0x{HEALTHY_STEPS}",
    RESTARTS: f"0+0x{HEALTHY_STEPS}",
    FAILED: f"0+0x{HEALTHY_STEPS}",
    FAILURES: f"0+0x{HEALTHY_STEPS}",
    **_disk("50000000000+0", "100000000000", "1000000", HEALTHY_STEPS),
    'headrace_process_resident_memory_bytes{role="producer", index="1"}': f"1000000000+0x{HEALTHY_STEPS}",
    "headrace_memory_limit_bytes": f"16000000000+0x{HEALTHY_STEPS}",
    BLOCKS: f"0+0x{HEALTHY_STEPS}",
    HALTED: f"0+0x{HEALTHY_STEPS}",
}
RECORDED = {  # growth in a minute, or a ratio
    "headrace:ring_committed_bytes:rate5m": 9000.0,
    "headrace:ring_committed_unpacked_bytes:rate5m": 90000.0,
    "headrace:producer_steps:rate5m": 900.0,
    "headrace:ring_consumed_samples:rate5m": 750.0,
    "headrace:learner_samples:rate5m": 1500.0,
    "headrace:learner_updates:rate5m": 30.0,
    "headrace:sample_reuse:ratio_rate5m": 2.0,
    "headrace:batch_staleness_updates:p99_rate5m": 0.98,
    "headrace:batch_staleness_updates:mean_rate5m": 0.5,
    "headrace:ring_fill:ratio": 0.25,
    "headrace:producer_blocked:ratio_rate5m": 0.4,
    "headrace:learner_starved:ratio_rate5m": 0.2,
    "headrace:samples_dropped:ratio_rate5m": 0.004,
}
