"""The names of all metrics, with their kinds, labels and meanings.

`python -m monitor.metrics` writes the table in docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "headrace_"


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
    ("run_start_timestamp_seconds", "gauge", "", "Unix time of the counters' start."),
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
    ("server_rows_total", "counter", "server", "Agent-steps that the inference server has answered."),
    ("server_requests_total", "counter", "server", "Questions about a group of agents, answered."),
    ("server_refused_total", "counter", "server", "Questions for weights that were gone."),
    ("server_batches_total", "counter", "server", "Forward passes."),
    ("server_batch_rows_total", "counter", "server", "Rows of those passes, empty places included."),
    ("server_late_batches_total", "counter", "server", "Passes that server.max_wait_us has begun."),
    ("server_latency_seconds_total", "counter", "server", "From a question seen to its answer, over all."),
    ("server_latency_max_seconds", "gauge", "server", "The longest of this process."),
    ("server_phase_seconds_total", "counter", "server phase", "Seconds waiting for questions, or at work."),
    ("server_pickups_total", "counter", "server", "Versions of the weights copied."),
    ("server_policy_version", "gauge", "server", "Newest version that it has acted with."),
    ("learner_samples_total", "counter", "learner", "Agent-steps trained on, with reuse."),
    ("learner_burn_in_samples_total", "counter", "learner", "Agent-steps that only warmed up a state."),
    ("learner_updates_total", "counter", "learner", "Batches trained on, which is versions made."),
    ("learner_sgd_steps_total", "counter", "learner", "Optimizer steps."),
    ("learner_wait_seconds_total", "counter", "learner reason", "Time waiting."),
    ("learner_phase_seconds_total", "counter", "learner phase", "Time by what it was spent on."),
    (
        "learner_last_update_timestamp_seconds",
        "gauge",
        "learner",
        "Unix time; before the first, the attempt's start.",
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
    ("learner_entropy_coef", "gauge", "", "Weight of the entropy in the last update."),
    ("learner_update_ratio", "gauge", "", "Norm of the weights' change in the last update / their norm."),
    ("learner_second_moment_max", "gauge", "", "Largest of AdamW's running means of squared gradients."),
    ("policy_kl", "gauge", "", "KL divergence of the last update."),
    ("policy_update_kl", "gauge", "", "KL divergence of the policy at batch start from the one in training."),
    ("policy_entropy_ratio", "gauge", "", "Entropy / log(number of actions)."),
    ("policy_churn_ratio", "gauge", "", "Share of steps whose likeliest action an update changed."),
    ("policy_version", "gauge", "", "Last version published."),
    ("policy_published_timestamp_seconds", "gauge", "", "Unix time; before the first, the attempt's start."),
    ("value_explained_variance", "gauge", "", "Of value targets by values."),
    ("value_explained_variance_plain", "gauge", "", "Of discounted returns by values."),
    ("value_change", "gauge", "", "Root mean square of what an update changed of values."),
    ("importance_ratio", "gauge", "stat", "Learner's probability / acting probability, last batch."),
    ("importance_log_ratio_max", "gauge", "", "Its largest absolute logarithm."),
    ("importance_effective_sample_ratio", "gauge", "", "Effective sample size / steps, in (0, 1]."),
    ("importance_chi2", "gauge", "", "Mean square of the ratio, less 1."),
    ("importance_kl", "gauge", "estimate", "Estimates of KL(acting policy, learner's)."),
    ("importance_clipped_ratio", "gauge", "", "Share of steps at the clip."),
    ("importance_cut_ratio", "gauge", "bound", "Share of steps whose ratio or weight is at that bound."),
    ("audit_alarms_total", "counter", "audit", "Times that an audit found more than its limit."),
    ("audit_steps_total", "counter", "outcome", "Steps of the label audit; `unaudited`: weights gone."),
    ("audit_label_error", "gauge", "", "Largest actor - labelled weights difference of log-probabilities."),
    ("audit_label_limit", "gauge", "", "What rounding explains of it, and some more."),
    ("audit_ratio_mean", "gauge", "", "Mean importance ratio of the last 50 batches judged."),
    ("audit_ratio_limit", "gauge", "", "What its distance from 1 may be."),
    ("audit_target_error", "gauge", "", "Targets and advantages - their sums, relative to what is summed."),
    ("precision_gap", "gauge", "", "Mean absolute bf16 - float32 difference of log-probabilities."),
    ("batch_staleness_updates", "histogram", "", "Version lag of each consumed step."),
    ("sample_age_seconds", "histogram", "", "Commit to lease, of each consumed slot."),
    ("batch_lag_updates", "gauge", "stat", "Version lag of the last batch; spread: inside a trajectory."),
    ("batch_staleness_sgd_steps", "gauge", "", "Mean lag of the last batch, in optimizer steps."),
    ("batch_age_steps", "gauge", "", "Mean lag of the last batch, in agent-steps trained meanwhile."),
    ("batch_age_seconds", "gauge", "", "Mean time from commit to lease of the last batch."),
    ("sample_reuse_ratio", "gauge", "", "Steps trained on / steps consumed, last batch."),
    ("staleness_limit_updates", "gauge", "", "The bound on the lag; absent where there is none."),
    ("checkpoint_interval_seconds", "gauge", "", "`checkpoint.interval_seconds`."),
    (
        "checkpoint_last_success_timestamp_seconds",
        "gauge",
        "",
        "Unix time; before the first, the attempt's start.",
    ),
    ("checkpoint_duration_seconds", "gauge", "", "Of the last one."),
    ("checkpoint_size_bytes", "gauge", "", "Of the last one."),
    ("archive_slots_total", "counter", "outcome", "Slots of tapped rings: copied, or missed."),
    ("archive_samples_total", "counter", "", "Agent-steps copied."),
    ("archive_blocks_total", "counter", "", "Blocks written."),
    ("archive_dropped_blocks_total", "counter", "", "Lost: the disk was too slow, full or broken."),
    ("archive_queue_blocks", "gauge", "", "Blocks that wait to be written."),
    ("archive_raw_bytes_total", "counter", "", "Of blocks written, before compression."),
    ("archive_written_bytes_total", "counter", "", "Of blocks written, after it."),
    ("archive_shards", "gauge", "", "On disk."),
    ("archive_deleted_shards_total", "counter", "", "Shards deleted for their age or for room."),
    ("archive_size_bytes", "gauge", "", "Size of all shards."),
    ("archive_errors_total", "counter", "", "Times that the disk refused."),
    ("archive_halted", "gauge", "", "1 while nothing is written, for want of space or after an error."),
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


def markdown() -> str:
    """The reference of all metrics, for docs/metrics.md."""
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for entry in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in entry.labels) or "-"
        lines.append(f"| `{PREFIX}{entry.name}` | {entry.kind} | {labels} | {entry.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
