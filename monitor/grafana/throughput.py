"""Throughput: bandwidth, steps, and where the time of each kind of process goes."""

from __future__ import annotations

from monitor.grafana.panels import Row, series, stat
from monitor.grafana.queries import largest, mean, one, per_second, rate, summed, top


def rows() -> list[Row]:
    return [
        Row(
            "Bandwidth",
            [
                series(
                    "Committed and consumed",
                    "Payload that producers commit and that learners have trained on. Packed: all bytes, as "
                    "they are stored. Unpacked: the observations as the network's first layer sees them, a "
                    "multi-hot channel counted as one byte.",
                    "Bps",
                    {
                        "committed, unpacked": per_second("ring_committed_unpacked_bytes_total"),
                        "committed, packed": per_second("ring_committed_bytes_total"),
                        "consumed, packed": per_second("ring_consumed_bytes_total"),
                    },
                    width=10,
                ),
                series(
                    "Busiest rings",
                    "The ten rings with the most packed payload committed.",
                    "Bps",
                    {
                        "ring {{ring}} ({{instance}})": top(
                            10, per_second("ring_committed_bytes_total", by="instance, ring")
                        )
                    },
                    width=7,
                ),
                series(
                    "Written so far",
                    "Packed payload committed over all attempts at the run.",
                    "decbytes",
                    {"packed": summed(one("run_bytes"))},
                    width=7,
                ),
            ],
        ),
        Row(
            "Steps",
            [
                series(
                    "Agent-steps",
                    "Valid steps committed by producers, taken by learners, and trained on with "
                    "every epoch counted.",
                    "count:steps/s",
                    {
                        "produced": per_second("producer_steps_total"),
                        "consumed": per_second("ring_consumed_samples_total"),
                        "trained, with reuse": per_second("learner_samples_total"),
                    },
                    width=10,
                ),
                series(
                    "Producers apart",
                    "Steps of the slowest, the middle and the fastest producer: far apart means "
                    "that cores are shared or slow.",
                    "count:steps/s",
                    {
                        "fastest": largest(rate("producer_steps_total")),
                        "median": f"quantile(0.5, {rate('producer_steps_total')})",
                        "slowest": f"min({rate('producer_steps_total')})",
                    },
                    width=7,
                ),
                series(
                    "Reuse",
                    "How often a step is trained on: over the window, and in the last batch.",
                    "none",
                    {
                        "window": f"{per_second('learner_samples_total')} / "
                        f"{per_second('ring_consumed_samples_total')}",
                        "last batch": mean(one("sample_reuse_ratio")),
                    },
                    width=7,
                ),
                stat(
                    "Steps so far",
                    "Steps behind the policy, over all attempts; a roll-back takes some away.",
                    "count:steps",
                    {"steps": summed(one("run_samples"))},
                    width=4,
                    height=6,
                ),
                series(
                    "Episodes",
                    "Episodes that ended in slots committed, and those that the learner has heard of.",
                    "count:episodes/s",
                    {
                        "in the rings": per_second("producer_episodes_total"),
                        "learned of": per_second("episodes_total"),
                    },
                    width=10,
                    height=6,
                ),
                series(
                    "Updates",
                    "Batches trained on, each of which makes a version, and steps of the optimizer.",
                    "count:/s",
                    {
                        "updates": per_second("learner_updates_total"),
                        "optimizer steps": per_second("learner_sgd_steps_total"),
                    },
                    width=10,
                    height=6,
                ),
            ],
        ),
        Row(
            "Where time goes",
            [
                series(
                    "Producers",
                    "Share of a producer's time, on average. What is missing to 100 % is time in "
                    "which it had no core, and little things.",
                    "percentunit",
                    {
                        "{{phase}}": mean(rate("producer_phase_seconds_total"), by="phase"),
                        "waits: {{reason}}": mean(rate("producer_wait_seconds_total"), by="reason"),
                    },
                    width=12,
                    height=9,
                    stacked=True,
                ),
                series(
                    "Learners",
                    "Share of a learner's time, on average. What is missing to 100 % is time in which "
                    "it had no core, and little things.",
                    "percentunit",
                    {
                        "{{phase}}": mean(rate("learner_phase_seconds_total"), by="phase"),
                        "waits: {{reason}}": mean(rate("learner_wait_seconds_total"), by="reason"),
                    },
                    width=12,
                    height=9,
                    stacked=True,
                ),
            ],
        ),
        Row(
            "Inference server (policy.placement: server)",
            [
                series(
                    "Server's time",
                    "Share of an inference server's time, on average.",
                    "percentunit",
                    {"{{phase}}": mean(rate("server_phase_seconds_total"), by="phase")},
                    width=5,
                    stacked=True,
                ),
                series(
                    "Answers",
                    "Agent-steps answered, and questions about a group of agents.",
                    "count:/s",
                    {
                        "agent-steps": per_second("server_rows_total"),
                        "questions": per_second("server_requests_total"),
                        "refused, weights gone": per_second("server_refused_total"),
                    },
                    width=5,
                ),
                series(
                    "Time to answer",
                    "From a question seen to its answer: the mean over the window, and the "
                    "longest of this process.",
                    "s",
                    {
                        "mean": f"{per_second('server_latency_seconds_total')} / "
                        f"{per_second('server_requests_total')}",
                        "longest": largest(one("server_latency_max_seconds")),
                    },
                    width=5,
                ),
                series(
                    "Batches",
                    "Rows of a forward pass, those of them that were asked for, and the share of passes "
                    "that began because server.max_wait_us was over.",
                    "none",
                    {
                        "rows": f"{per_second('server_batch_rows_total')} / "
                        f"{per_second('server_batches_total')}",
                        "asked for": f"{per_second('server_rows_total')} / "
                        f"{per_second('server_batches_total')}",
                        "late share": f"{per_second('server_late_batches_total')} / "
                        f"{per_second('server_batches_total')}",
                    },
                    width=5,
                ),
                series(
                    "Versions behind",
                    "The version published last less the newest that a server has acted with.",
                    "none",
                    {
                        "{{instance}}": f"{largest(one('policy_version'), by='instance')} - "
                        f"min by (instance) ({one('server_policy_version')})"
                    },
                    width=4,
                ),
            ],
        ),
    ]
