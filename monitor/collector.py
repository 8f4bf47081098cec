"""The collector: fills the metrics (monitor/metrics.py) from the shared counters at every scrape.

Counters are uint64 in shared memory and count from the start of the run; they are converted to float once a
scrape, never added up in float.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import config
from monitor import procfs, report, rundir
from monitor.metrics import METRICS, PREFIX
from monitor.status import Table
from monitor.totals import Totals
from ringbuf.segments import memory_limit_bytes

LAG_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
RUN_STATES = ("starting", "running", "stopping", "done", "stopped", "failed")
PROCESS_STATES = ("starting", "running", "backoff", "hung", "stopping", "exited", "failed")
DROP_REASONS = ("overwritten", "bad", "rollback", "shutdown", "lag")
PRODUCER_WAITS = {
    "credit": "wait_credit_ns",
    "ring_full": "wait_ring_full_ns",
    "version": "wait_version_ns",
    "answer": "wait_answer_ns",
    "owner": "wait_owner_ns",
}
PRODUCER_PHASES = {"simulator": "sim_ns", "policy": "policy_ns", "pickup": "pickup_ns", "check": "check_ns"}
SERVER_COUNTERS = {
    "server_rows_total": "rows",
    "server_requests_total": "requests",
    "server_refused_total": "refused",
    "server_batches_total": "batches",
    "server_batch_rows_total": "batch_rows",
    "server_late_batches_total": "late_batches",
    "server_pickups_total": "pickups",
    "server_policy_version": "version",
}
SERVER_PHASES = {
    "wait": "wait_request_ns",
    "gather": "gather_ns",
    "forward": "forward_ns",
    "sample": "sample_ns",
    "pickup": "pickup_ns",
}
RECORDER_COUNTERS = {
    "archive_samples_total": "steps",
    "archive_blocks_total": "blocks",
    "archive_dropped_blocks_total": "dropped_blocks",
    "archive_queue_blocks": "queue_blocks",
    "archive_raw_bytes_total": "raw_bytes",
    "archive_written_bytes_total": "written_bytes",
    "archive_shards": "shards",
    "archive_deleted_shards_total": "deleted_shards",
    "archive_size_bytes": "bytes",
    "archive_errors_total": "errors",
    "archive_halted": "halted",
}
LEARNER_PHASES = {
    "copy": "copy_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "optimizer": "optimizer_ns",
    "allreduce": "allreduce_ns",
    "publish": "publish_ns",
}
LOSS_TERMS = ("policy", "value", "entropy", "total")
RATIO_STATS = ("mean", "min", "p1", "p50", "p99", "max")
AUDITS = ("label", "ratio", "target", "precision")
# Metrics without labels, and those with one, and the gauges they show.
GAUGES = {
    "learner_grad_norm": "grad_norm",
    "learner_rate": "learning_rate",
    "learner_entropy_coef": "entropy_coef",
    "learner_update_ratio": "update_ratio",
    "learner_second_moment_max": "second_moment_max",
    "policy_kl": "approx_kl",
    "policy_update_kl": "update_kl",
    "policy_entropy_ratio": "entropy_ratio",
    "policy_churn_ratio": "policy_churn",
    "value_explained_variance": "explained_variance",
    "value_explained_variance_plain": "explained_variance_plain",
    "value_change": "value_change",
    "importance_log_ratio_max": "ratio_log_max",
    "importance_effective_sample_ratio": "ratio_ess",
    "importance_chi2": "ratio_chi2",
    "importance_clipped_ratio": "clipped_ratio",
    "batch_staleness_sgd_steps": "lag_sgd_steps",
    "batch_age_steps": "age_steps",
    "batch_age_seconds": "age_seconds",
    "sample_reuse_ratio": "sample_reuse",
    "audit_label_error": "audit_label_error",
    "audit_label_limit": "audit_label_tolerance",
    "audit_ratio_mean": "audit_ratio_mean",
    "audit_ratio_limit": "audit_ratio_limit",
    "audit_target_error": "audit_target_error",
    "precision_gap": "precision_gap",
}
LABELLED_GAUGES = {
    "learner_loss": {term: f"loss_{term}" for term in LOSS_TERMS},
    "importance_ratio": {stat: f"ratio_{stat}" for stat in RATIO_STATS},
    "importance_kl": {estimate: f"ratio_{estimate}" for estimate in ("k1", "k2", "k3")},
    "importance_cut_ratio": {"rho": "rho_clipped", "c": "c_clipped", "weight": "bounded_weight"},
    "batch_lag_updates": {stat: f"lag_{stat}" for stat in ("mean", "max", "spread")},
    "score": {stat: f"score_{stat}" for stat in ("mean", "best")},
}


@dataclass(frozen=True)
class Facts:
    """What does not change over a run."""

    build: dict[str, str]
    run_id: str
    config_sha256: str
    lag_limit: int | None
    checkpoint_interval_seconds: float
    directory: Path
    attempt: int = 1
    began_unix: float = 0.0
    """Of this attempt, which may go on in the memory of an earlier one."""
    before: Totals = field(default_factory=Totals)
    """What earlier attempts come to, without what the rings still know of."""


class RunCollector(Collector):
    """Reads the shared counters at every scrape. Several may scrape at the same time."""

    def __init__(self, control: Any, rings: Sequence[Any], table: Table, facts: Facts):
        self.control = control
        self.rings = rings
        self.table = table
        self.facts = facts
        self.errors = 0
        self._families: dict[str, Any] = {}
        self._scraping = threading.Lock()
        self._settings = 0  # how often they had been written again when they were read

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        with self._scraping:
            yield from self._scrape()

    def _scrape(self) -> list[Metric]:
        started = time.monotonic()
        self._families = {}
        parts: tuple[Callable[[], None], ...] = (
            self._run,
            self._rings,
            self._producers,
            self._servers,
            self._archive,
            self._processes,
            self._learner,
            self._staleness,
            self._storage,
        )
        for part in parts:
            try:
                part()
            except (OSError, ValueError, config.ConfigError, config.Unreadable):
                self.errors += 1
        self._add("collector_errors_total", self.errors)
        self._add("collector_duration_seconds", time.monotonic() - started)
        return list(self._families.values())

    def _add(self, name: str, value: float, *labels: object) -> None:
        self._family(name).add_metric([str(label) for label in labels], float(value))

    def _add_finite(self, name: str, value: float, *labels: object) -> None:
        """NaN stands for no value yet: the series is then absent."""
        if math.isfinite(value):
            self._add(name, value, *labels)

    def _family(self, name: str) -> Any:
        if name not in self._families:
            entry = METRICS[name]
            kinds = {
                "counter": CounterMetricFamily,
                "gauge": GaugeMetricFamily,
                "histogram": HistogramMetricFamily,
            }
            self._families[name] = kinds[entry.kind](PREFIX + name, entry.meaning, labels=entry.labels)
        return self._families[name]

    def _run(self) -> None:
        self._reread_settings()
        facts = self.facts
        self._add("build_info", 1, *(facts.build[label] for label in METRICS["build_info"].labels))
        self._add("run_info", 1, facts.run_id, facts.config_sha256)
        status = report.read(facts.directory)
        state = status.get("state", "starting")
        for name in RUN_STATES:
            self._add("run_state", name == state, name)
        learner = self.control.counters(self.table.learner)
        total = facts.before + Totals.read(self.control, self.rings, self.table.producers, self.table.learner)
        self._add("run_start_timestamp_seconds", self.control.created_unix)
        self._add("run_attempt", facts.attempt)
        # Until the learner has read its checkpoint, what the supervisor has read of it.
        self._add("run_samples", learner["run_steps"] if learner["ready"] else status.get("steps") or 0)
        self._add("run_bytes", total.packed_bytes)
        for outcome in ("committed", "consumed", "dropped"):
            self._add("run_slots", getattr(total, outcome), outcome)
        for name in ("bytes", "bound_bytes"):
            if (size := (status.get("run_dir") or {}).get(name)) is not None:
                self._add(f"run_dir_{name}", size)
        if facts.lag_limit is not None:
            self._add("staleness_limit_updates", facts.lag_limit)
        self._add("checkpoint_interval_seconds", facts.checkpoint_interval_seconds)

    def _reread_settings(self) -> None:
        """What SIGHUP may have changed."""
        written = self.control.settings
        if written != self._settings:
            settings = config.load_resolved(self.facts.directory / rundir.RESOLVED)
            interval = settings.checkpoint.interval_seconds
            self.facts = replace(self.facts, checkpoint_interval_seconds=interval)
            self._settings = written

    def _rings(self) -> None:
        producers = [self.control.counters(index) for index in self.table.producers]
        dropped = dict.fromkeys(DROP_REASONS, 0)
        for ring, producer in zip(self.rings, producers, strict=True):
            books, plan = ring.books(), ring.plan
            steps = plan.horizon * plan.agents
            self._add("ring_committed_bytes_total", producer["bytes_packed"], ring.index)
            self._add(
                "ring_consumed_bytes_total", books["consumed"] * steps * plan.packed_step_bytes, ring.index
            )
            self._add("ring_committed_unpacked_bytes_total", producer["bytes_unpacked"], ring.index)
            self._add("ring_committed_slots_total", books["committed"], ring.index)
            self._add("ring_consumed_slots_total", books["consumed"], ring.index)
            self._add("ring_dropped_slots_total", sum(books["dropped"].values()), ring.index)
            self._add("ring_redelivered_slots_total", books["redelivered"], ring.index)
            self._add("ring_not_written_slots_total", books["not_written"], ring.index)
            self._add("ring_fill_slots", books["in_flight"], ring.index)
            self._add("ring_capacity_slots", ring.slots, ring.index)
            for reason in DROP_REASONS:
                dropped[reason] += books["dropped_steps"][reason]
        learner = self.control.counters(self.table.learner)
        dropped["lag"] += learner["dropped_lag_steps"]
        for reason in DROP_REASONS:
            self._add("samples_dropped_total", dropped[reason], reason)
        self._add("ring_consumed_samples_total", learner["steps"])

    def _producers(self) -> None:
        states = dict.fromkeys(PROCESS_STATES, 0)
        for number, index in enumerate(self.table.producers):
            counters = self.control.counters(index)
            state = self.control.process(index).state
            if state in states:  # before the supervisor has entered it, a row has none
                states[state] += 1
            self._add("producer_steps_total", counters["steps"], number)
            self._add("producer_episodes_total", counters["episodes"], number)
            self._add("producer_pickups_total", counters["pickups"], number)
            for phase, name in PRODUCER_PHASES.items():
                self._add("producer_phase_seconds_total", counters[name] / 1e9, number, phase)
            for reason, name in PRODUCER_WAITS.items():
                self._add("producer_wait_seconds_total", counters[name] / 1e9, number, reason)
            for reason in ("stop", "server", "version"):
                self._add(
                    "producer_abandoned_steps_total", counters[f"abandoned_steps_{reason}"], number, reason
                )
        for state, count in states.items():
            self._add("producers", count, state)

    def _servers(self) -> None:
        for number, index in enumerate(self.table.servers):
            counters = self.control.counters(index)
            for metric, name in SERVER_COUNTERS.items():
                self._add(metric, counters[name], number)
            self._add("server_latency_seconds_total", counters["latency_sum_ns"] / 1e9, number)
            self._add("server_latency_max_seconds", counters["latency_max_ns"] / 1e9, number)
            for phase, name in SERVER_PHASES.items():
                self._add("server_phase_seconds_total", counters[name] / 1e9, number, phase)

    def _archive(self) -> None:
        if self.table.recorder is None:
            return
        counters = self.control.counters(self.table.recorder)
        for outcome in ("copied", "missed"):
            self._add("archive_slots_total", counters[f"slots_{outcome}"], outcome)
        for metric, name in RECORDER_COUNTERS.items():
            self._add(metric, counters[name])

    def _processes(self) -> None:
        for index in self.table.all:
            info = self.control.process(index)
            labels = (info.role, info.role_index)
            self._add("process_restarts_total", max(0, info.epoch - 1), *labels)
            used = procfs.usage(info.pid) if info.pid else None
            # A later process may have been given the pid of one that ended.
            if used is None or used.start_ticks != info.start_time:
                continue
            self._add("process_resident_memory_bytes", used.resident_bytes, *labels)
            self._add("process_threads", used.threads, *labels)
            self._add("process_cpu_seconds_total", used.cpu_seconds, *labels)
            descriptors = procfs.open_descriptors(info.pid)
            if descriptors is not None:
                self._add("process_open_fds", descriptors, *labels)

    def _learner(self) -> None:
        counters, gauges = self.control.counters(self.table.learner), self.control.gauges(self.table.learner)
        began = max(self.control.created_unix, self.facts.began_unix)

        def timestamp(name: str) -> float:
            return max(counters[name] / 1e9, began)  # an age is not longer than the attempt

        self._add("learner_samples_total", counters["samples"], 0)
        self._add("learner_burn_in_samples_total", counters["burn_in_steps"], 0)
        self._add("learner_updates_total", counters["updates"], 0)
        self._add("learner_sgd_steps_total", counters["sgd_steps"], 0)
        for index, slot in enumerate(self.table.learners):
            own = self.control.counters(slot)
            self._add("learner_wait_seconds_total", own["wait_no_data_ns"] / 1e9, index, "no_data")
            for phase, name in LEARNER_PHASES.items():
                self._add("learner_phase_seconds_total", own[name] / 1e9, index, phase)
            self._add("learner_examined_slots_total", own["examined_slots"], index)
        self._add("learner_last_update_timestamp_seconds", timestamp("last_update_unix_ns"), 0)
        self._add("learner_nonfinite_batches_total", counters["nonfinite_batches"], 0)
        self._add("learner_nonfinite_steps_total", counters["nonfinite_steps"], 0)
        self._add("learner_rollbacks_total", counters["rollbacks"], 0)
        self._add("learner_resumes_total", counters["resumes"], 0)
        self._add("episodes_total", counters["episodes"])
        if counters["ready"]:
            self._add("policy_version", counters["version"])
        self._add("policy_published_timestamp_seconds", timestamp("last_publish_unix_ns"))
        for metric, gauge in GAUGES.items():
            self._add_finite(metric, gauges[gauge])
        for metric, shown in LABELLED_GAUGES.items():
            for label, gauge in shown.items():
                self._add_finite(metric, gauges[gauge], label)
        for audit in AUDITS:
            self._add("audit_alarms_total", counters[f"audit_{audit}_alarms"], audit)
        for outcome in ("audited", "unaudited"):
            self._add("audit_steps_total", counters[f"{outcome}_steps"], outcome)
        self._add("checkpoints_total", counters["checkpoints"])
        self._add("checkpoint_failures_total", counters["checkpoint_failures"])
        self._add("checkpoint_last_success_timestamp_seconds", timestamp("last_checkpoint_unix_ns"))
        self._add("checkpoint_duration_seconds", counters["checkpoint_ns"] / 1e9)
        self._add("checkpoint_size_bytes", counters["checkpoint_bytes"])

    def _staleness(self) -> None:
        counters = self.control.counters(self.table.learner)
        lags, ages = self.control.bins(self.table.learner)
        whole, limit = set(LAG_BUCKETS), self.facts.lag_limit
        if limit is not None and limit < LAG_BUCKETS[-1]:
            whole.add(limit)  # else a quantile interpolated in its bucket could exceed it
        self._histogram("batch_staleness_updates", lags, sorted(whole), counters["lag_sum"])
        bounds = [2.0**power / 1e3 for power in range(len(ages) - 1)]
        buckets = list(zip(bounds, _cumulated(ages), strict=False))
        self._family("sample_age_seconds").add_metric(
            [],
            [*((str(bound), count) for bound, count in buckets), ("+Inf", sum(ages))],
            counters["age_sum_ns"] / 1e9,
        )

    def _histogram(self, name: str, bins: Sequence[int], bounds: Sequence[int], total: float) -> None:
        """`bins`: counts of the whole numbers 0, 1, 2, ...; the last one holds everything above."""
        cumulated = _cumulated(bins)
        buckets = [(str(float(bound)), cumulated[bound]) for bound in bounds]
        self._family(name).add_metric([], [*buckets, ("+Inf", cumulated[-1])], float(total))

    def _storage(self) -> None:
        self._add("memory_limit_bytes", memory_limit_bytes())
        disk = os.statvfs(self.facts.directory)
        self._add("run_dir_free_bytes", disk.f_bavail * disk.f_frsize)
        self._add("run_dir_size_bytes", disk.f_blocks * disk.f_frsize)


def _cumulated(bins: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for count in bins:
        total += count
        sums.append(total)
    return sums
