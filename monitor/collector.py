"""The metrics: one table of names, and the collector that fills it from the shared counters at every scrape.

Counters are uint64 in shared memory and count from the start of the run; they are converted to float once a
scrape, never added up in float. `python -m monitor.collector` writes the table in docs/metrics.md.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from monitor import procfs, rundir
from monitor.status import Table
from monitor.totals import Totals
from ringbuf.segments import memory_limit_bytes

PREFIX = "headrace_"
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
LEARNER_PHASES = {
    "copy": "copy_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "optimizer": "optimizer_ns",
    "allreduce": "allreduce_ns",
    "publish": "publish_ns",
}
LOSS_TERMS = ("policy", "value", "entropy", "total")
RATIO_STATS = ("mean", "p1", "p50", "p99", "max")


@dataclass(frozen=True)
class Entry:
    """One metric: its name without prefix, kind, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def _entries(*rows: tuple[str, str, str, str]) -> dict[str, Entry]:
    return {row[0]: Entry(row[0], row[1], tuple(row[2].split()), row[3]) for row in rows}


METRICS = _entries(
    ("build_info", "gauge", "version commit python torch cuda", "Always 1."),
    ("run_info", "gauge", "run_id config_sha256", "Always 1."),
    ("run_state", "gauge", "state", "1 for the state the run is in, 0 for the others."),
    ("run_attempt", "gauge", "", "Number of this attempt at the run."),
    ("run_samples", "gauge", "", "Valid agent-steps behind the policy, over all attempts; may step back."),
    ("run_bytes", "gauge", "", "Packed payload committed, over all attempts."),
    ("run_slots", "gauge", "outcome", "Slots committed, consumed and dropped, over all attempts."),
    ("score", "gauge", "stat", "Raw score over the last window of episodes, and the best such mean."),
    ("episodes_total", "counter", "", "Finished episodes received by the learner."),
    ("ring_committed_bytes_total", "counter", "ring", "Packed payload written."),
    ("ring_consumed_bytes_total", "counter", "ring", "Packed payload trained on and acknowledged."),
    ("ring_committed_unpacked_bytes_total", "counter", "ring", "Payload as the first layer sees it."),
    ("ring_committed_slots_total", "counter", "ring", "Committed = consumed + dropped + in flight."),
    ("ring_consumed_slots_total", "counter", "ring", "Slots trained on and acknowledged."),
    ("ring_dropped_slots_total", "counter", "ring", "Slots never trained on."),
    ("ring_redelivered_slots_total", "counter", "ring", "Slots given to a learner again after a death."),
    ("ring_not_written_slots_total", "counter", "ring", "Holes under `ring.full: drop_newest`."),
    ("ring_consumed_samples_total", "counter", "", "Distinct valid agent-steps consumed."),
    ("ring_fill_slots", "gauge", "ring", "Slots committed and not yet consumed or dropped."),
    ("ring_capacity_slots", "gauge", "ring", "Slots of the ring."),
    ("samples_dropped_total", "counter", "reason", "Agent-steps never trained on."),
    ("producer_steps_total", "counter", "producer", "Valid agent-steps committed."),
    ("producer_episodes_total", "counter", "producer", "Episodes finished in committed slots."),
    ("producer_phase_seconds_total", "counter", "producer phase", "Time by what it was spent on."),
    ("producer_wait_seconds_total", "counter", "producer reason", "Time waiting."),
    ("producer_abandoned_steps_total", "counter", "producer reason", "Agent-steps of slots given up."),
    ("producer_pickups_total", "counter", "producer", "Versions of the weights copied."),
    ("producers", "gauge", "state", "Producers by state; `failed`: the run goes on without them."),
    ("process_restarts_total", "counter", "role index", "Processes started in place of one that died."),
    ("process_resident_memory_bytes", "gauge", "role index", "Resident memory."),
    ("process_open_fds", "gauge", "role index", "Open file descriptors."),
    ("process_threads", "gauge", "role index", "Threads."),
    ("process_cpu_seconds_total", "counter", "role index", "CPU time, user and system."),
    ("learner_samples_total", "counter", "learner", "Agent-steps trained on, with reuse."),
    ("learner_updates_total", "counter", "learner", "Batches trained on, which is versions made."),
    ("learner_sgd_steps_total", "counter", "learner", "Optimizer steps."),
    ("learner_wait_seconds_total", "counter", "learner reason", "Time waiting."),
    ("learner_phase_seconds_total", "counter", "learner phase", "Time by what it was spent on."),
    (
        "learner_last_update_timestamp_seconds",
        "gauge",
        "learner",
        "Unix time; of the start before the first.",
    ),
    (
        "learner_nonfinite_batches_total",
        "counter",
        "learner",
        "Batches with a loss or gradient that is no number.",
    ),
    (
        "learner_nonfinite_steps_total",
        "counter",
        "learner",
        "Optimizer steps skipped for such a loss or gradient.",
    ),
    ("learner_rollbacks_total", "counter", "learner", "Returns to an earlier checkpoint."),
    (
        "learner_resumes_total",
        "counter",
        "learner",
        "Hot snapshots and checkpoints that a learner began with.",
    ),
    (
        "learner_examined_slots_total",
        "counter",
        "learner",
        "Slots looked at alone, since two learners died with them.",
    ),
    ("learner_loss", "gauge", "term", "Last value."),
    ("learner_grad_norm", "gauge", "", "Of the last update, before clipping."),
    ("learner_rate", "gauge", "", "Learning rate of the last update."),
    ("policy_kl", "gauge", "", "KL divergence of the last update."),
    ("policy_entropy_ratio", "gauge", "", "Entropy / log(number of actions)."),
    ("policy_version", "gauge", "", "Last version published."),
    ("policy_published_timestamp_seconds", "gauge", "", "Unix time; of the start before the first."),
    ("value_explained_variance", "gauge", "", "Of value targets by values."),
    ("importance_ratio", "gauge", "stat", "Learner's probability / acting probability, last batch."),
    ("importance_clipped_ratio", "gauge", "", "Share of steps at the clip."),
    ("logprob_error", "gauge", "", "Largest learner - actor difference of log-probabilities at lag 0."),
    ("precision_gap", "gauge", "", "Mean absolute bf16 - float32 difference of log-probabilities."),
    ("batch_staleness_updates", "histogram", "", "Version lag of each consumed step."),
    ("sample_age_seconds", "histogram", "", "Commit to lease, of each consumed slot."),
    ("staleness_limit_updates", "gauge", "", "The bound on the lag; absent where there is none."),
    ("checkpoint_interval_seconds", "gauge", "", "`checkpoint.interval_seconds`."),
    ("checkpoint_last_success_timestamp_seconds", "gauge", "", "Unix time; of the start before the first."),
    ("checkpoint_duration_seconds", "gauge", "", "Of the last one."),
    ("checkpoint_size_bytes", "gauge", "", "Of the last one."),
    ("checkpoints_total", "counter", "", "Checkpoints written."),
    ("checkpoint_failures_total", "counter", "", "Checkpoints that could not be written."),
    ("run_dir_bytes", "gauge", "", "Size of all files of the run directory."),
    ("run_dir_bound_bytes", "gauge", "", "What the settings allow them; absent before a checkpoint."),
    ("run_dir_free_bytes", "gauge", "", "Free space of the run directory's file system."),
    ("run_dir_size_bytes", "gauge", "", "Size of the run directory's file system."),
    ("memory_limit_bytes", "gauge", "", "Memory of the container, or of the machine if it has no limit."),
    ("collector_duration_seconds", "gauge", "", "Time the last scrape took to collect."),
    ("collector_errors_total", "counter", "", "Scrapes that failed in part."),
)


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
    before: Totals = field(default_factory=Totals)
    """What earlier attempts come to, without what the rings still know of."""


class RunCollector(Collector):
    """Reads the shared counters at every scrape."""

    def __init__(self, control: Any, rings: Sequence[Any], table: Table, facts: Facts):
        self.control = control
        self.rings = rings
        self.table = table
        self.facts = facts
        self.errors = 0
        self._families: dict[str, Any] = {}

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        started = time.monotonic()
        self._families = {}
        parts: tuple[Callable[[], None], ...] = (
            self._run,
            self._rings,
            self._producers,
            self._processes,
            self._learner,
            self._staleness,
            self._storage,
        )
        for part in parts:
            try:
                part()
            except (OSError, ValueError):
                self.errors += 1
        self._add("collector_errors_total", self.errors)
        self._add("collector_duration_seconds", time.monotonic() - started)
        yield from self._families.values()

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
        facts = self.facts
        self._add("build_info", 1, *(facts.build[label] for label in METRICS["build_info"].labels))
        self._add("run_info", 1, facts.run_id, facts.config_sha256)
        status = rundir.read_json(facts.directory / rundir.STATUS) or {}
        state = status.get("state", "starting")
        for name in RUN_STATES:
            self._add("run_state", name == state, name)
        learner = self.control.counters(self.table.learner)
        total = facts.before + Totals.read(self.control, self.rings, self.table.producers, self.table.learner)
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
            for reason in ("stop", "server"):
                self._add(
                    "producer_abandoned_steps_total", counters[f"abandoned_steps_{reason}"], number, reason
                )
        for state, count in states.items():
            self._add("producers", count, state)

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
        started = self.control.created_unix

        def timestamp(name: str) -> float:
            return counters[name] / 1e9 if counters[name] else started

        self._add("learner_samples_total", counters["samples"], 0)
        self._add("learner_updates_total", counters["updates"], 0)
        self._add("learner_sgd_steps_total", counters["sgd_steps"], 0)
        self._add("learner_wait_seconds_total", counters["wait_no_data_ns"] / 1e9, 0, "no_data")
        for phase, name in LEARNER_PHASES.items():
            self._add("learner_phase_seconds_total", counters[name] / 1e9, 0, phase)
        self._add("learner_last_update_timestamp_seconds", timestamp("last_update_unix_ns"), 0)
        self._add("learner_nonfinite_batches_total", counters["nonfinite_batches"], 0)
        self._add("learner_nonfinite_steps_total", counters["nonfinite_steps"], 0)
        self._add("learner_rollbacks_total", counters["rollbacks"], 0)
        self._add("learner_resumes_total", counters["resumes"], 0)
        self._add("learner_examined_slots_total", counters["examined_slots"], 0)
        self._add("episodes_total", counters["episodes"])
        if counters["ready"]:
            self._add("policy_version", counters["version"])
        self._add("policy_published_timestamp_seconds", timestamp("last_publish_unix_ns"))
        for term in LOSS_TERMS:
            self._add_finite("learner_loss", gauges[f"loss_{term}"], term)
        for stat in RATIO_STATS:
            self._add_finite("importance_ratio", gauges[f"ratio_{stat}"], stat)
        for stat in ("mean", "best"):
            self._add_finite("score", gauges[f"score_{stat}"], stat)
        for metric, gauge in (
            ("learner_grad_norm", "grad_norm"),
            ("learner_rate", "learning_rate"),
            ("policy_kl", "approx_kl"),
            ("policy_entropy_ratio", "entropy_ratio"),
            ("value_explained_variance", "explained_variance"),
            ("importance_clipped_ratio", "clipped_ratio"),
            ("logprob_error", "logprob_error_max"),
            ("precision_gap", "precision_gap"),
        ):
            self._add_finite(metric, gauges[gauge])
        self._add("checkpoints_total", counters["checkpoints"])
        self._add("checkpoint_failures_total", counters["checkpoint_failures"])
        self._add("checkpoint_last_success_timestamp_seconds", timestamp("last_checkpoint_unix_ns"))
        self._add("checkpoint_duration_seconds", counters["checkpoint_ns"] / 1e9)
        self._add("checkpoint_size_bytes", counters["checkpoint_bytes"])

    def _staleness(self) -> None:
        counters = self.control.counters(self.table.learner)
        lags, ages = self.control.bins(self.table.learner)
        self._histogram("batch_staleness_updates", lags, LAG_BUCKETS, counters["lag_sum"])
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


def markdown() -> str:
    """The reference of all metrics, for docs/metrics.md."""
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for entry in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in entry.labels) or "-"
        lines.append(f"| `{PREFIX}{entry.name}` | {entry.kind} | {labels} | {entry.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
