"""Staleness and stability: how old what is trained on is, what that does to it, whether it holds."""

from __future__ import annotations

from monitor.grafana.panels import Row, heatmap, series
from monitor.grafana.queries import (
    grown,
    histogram_mean,
    largest,
    mean,
    one,
    per_second,
    quantile,
)

AGES = "sample_age_seconds"
LAGS = "batch_staleness_updates"


def rows() -> list[Row]:
    return [
        Row(
            "Staleness",
            [
                series(
                    "Version lag",
                    "The learner's version less the one that acted, of each step trained on. "
                    "Quantiles are interpolated in their buckets and can read up to one version low.",
                    "none",
                    {
                        "p99": quantile(0.99, LAGS),
                        "p90": quantile(0.9, LAGS),
                        "p50": quantile(0.5, LAGS),
                        "mean": histogram_mean(LAGS),
                        "limit": largest(one("staleness_limit_updates")),
                    },
                    width=9,
                ),
                heatmap(
                    "Steps by lag",
                    "How many of the steps trained on had which version lag.",
                    "none",
                    grown(f"{LAGS}_bucket", by="le"),
                    width=8,
                ),
                series(
                    "Age of slots",
                    "From a slot's commit to its lease, of the slots consumed.",
                    "s",
                    {
                        "p99": quantile(0.99, AGES),
                        "p50": quantile(0.5, AGES),
                        "mean": histogram_mean(AGES),
                        "last batch": mean(one("batch_age_seconds")),
                    },
                    width=7,
                ),
                series(
                    "Lag of the last batch",
                    "Largest and mean lag, and the largest difference inside one trajectory.",
                    "none",
                    {"{{stat}}": largest(one("batch_lag_updates"), by="stat")},
                    width=6,
                ),
                series(
                    "Lag in optimizer steps",
                    "Mean lag of the last batch, in steps of the optimizer.",
                    "none",
                    {"optimizer steps": mean(one("batch_staleness_sgd_steps"))},
                    width=6,
                ),
                series(
                    "Lag in agent-steps",
                    "Mean lag of the last batch, in agent-steps trained on meanwhile.",
                    "count:steps",
                    {"agent-steps": mean(one("batch_age_steps"))},
                    width=6,
                ),
                series(
                    "Dropped steps",
                    "Agent-steps never trained on, by reason.",
                    "count:steps/s",
                    {"{{reason}}": per_second("samples_dropped_total", by="reason")},
                    width=6,
                    stacked=True,
                ),
            ],
        ),
        Row(
            "Importance ratios",
            [
                series(
                    "Ratio of learner to actor",
                    "The learner's probability of an action over the acting policy's, "
                    "in the last batch, before the update.",
                    "none",
                    {"{{stat}}": largest(one("importance_ratio"), by="stat")},
                    width=6,
                ),
                series(
                    "Largest log ratio",
                    "Largest absolute logarithm of a ratio in the last batch.",
                    "none",
                    {"|log ratio|": largest(one("importance_log_ratio_max"))},
                    width=6,
                ),
                series(
                    "Effective sample size",
                    "What the ratios leave of a batch: 100 % where nothing is off-policy.",
                    "percentunit",
                    {"of the steps": mean(one("importance_effective_sample_ratio"))},
                    width=6,
                ),
                series(
                    "Clipped and cut",
                    "Share of steps at the policy's clip, and of those whose ratio or weight is "
                    "at a bound of the correction.",
                    "percentunit",
                    {
                        "clip": mean(one("importance_clipped_ratio")),
                        "{{bound}}": mean(one("importance_cut_ratio"), by="bound"),
                    },
                    width=6,
                ),
                series(
                    "KL of acting policy and learner's",
                    "Three estimates, before the update.",
                    "none",
                    {"{{estimate}}": mean(one("importance_kl"), by="estimate")},
                    width=6,
                ),
                series(
                    "χ² of the ratios",
                    "Mean square of the ratio, less 1.",
                    "none",
                    {"χ²": mean(one("importance_chi2"))},
                    width=6,
                ),
                series(
                    "KL of an update",
                    "From the acting policy, and from the policy at batch start, to the one in training.",
                    "none",
                    {
                        "from the acting": mean(one("policy_kl")),
                        "from batch start": mean(one("policy_update_kl")),
                    },
                    width=6,
                ),
                series(
                    "Pickups",
                    "Versions that a producer or an inference server copies.",
                    "count:/s",
                    {
                        "producers": mean(per_second("producer_pickups_total", by="instance, producer")),
                        "servers": mean(per_second("server_pickups_total", by="instance, server")),
                    },
                    width=6,
                ),
            ],
        ),
        Row(
            "Stability",
            [
                series(
                    "Entropy",
                    "Of the policy, over that of the uniform one. Near 0 it explores no more.",
                    "percentunit",
                    {"entropy / log(actions)": mean(one("policy_entropy_ratio"))},
                    width=5,
                ),
                series(
                    "Explained variance",
                    "Of value targets by the values, and of the plain returns.",
                    "none",
                    {
                        "targets": mean(one("value_explained_variance")),
                        "returns": mean(one("value_explained_variance_plain")),
                    },
                    width=5,
                    from_zero=False,
                ),
                series(
                    "Churn",
                    "Share of steps whose likeliest action an update changed.",
                    "percentunit",
                    {"actions changed": mean(one("policy_churn_ratio"))},
                    width=5,
                ),
                series(
                    "Change of values",
                    "Root mean square of what an update changed of the values.",
                    "none",
                    {"values": mean(one("value_change"))},
                    width=5,
                ),
                series(
                    "Not finite",
                    "Batches and optimizer steps with a loss or gradient that is no number, and "
                    "returns to an earlier checkpoint.",
                    "none",
                    {
                        "batches": grown("learner_nonfinite_batches_total"),
                        "optimizer steps": grown("learner_nonfinite_steps_total"),
                        "roll-backs": grown("learner_rollbacks_total"),
                    },
                    width=4,
                    events=True,
                ),
            ],
        ),
        Row(
            "Audits",
            [
                series(
                    "Audit alarms",
                    "Times that an audit found more than its limit: what a learner trains on is "
                    "then not what it takes it for (docs/metrics.md, Audits).",
                    "none",
                    {"{{audit}}": grown("audit_alarms_total", by="audit")},
                    width=5,
                    events=True,
                ),
                series(
                    "Label audit",
                    "Largest difference of stored and recomputed log-probabilities, and its limit.",
                    "none",
                    {"found": largest(one("audit_label_error")), "limit": largest(one("audit_label_limit"))},
                    width=5,
                ),
                series(
                    "Ratio audit",
                    "Distance from 1 of the mean ratio over 50 batches, and its limit.",
                    "none",
                    {
                        "found": f"abs({mean(one('audit_ratio_mean'))} - 1)",
                        "limit": mean(one("audit_ratio_limit")),
                    },
                    width=5,
                ),
                series(
                    "Target audit and precision",
                    "Difference of targets from their defining sums, and of bf16 from "
                    "float32 log-probabilities.",
                    "none",
                    {"targets": largest(one("audit_target_error")), "bf16": largest(one("precision_gap"))},
                    width=5,
                ),
                series(
                    "Audited steps",
                    "Steps of the label audit; unaudited are those whose weights are gone.",
                    "count:steps/s",
                    {"{{outcome}}": per_second("audit_steps_total", by="outcome")},
                    width=4,
                ),
            ],
        ),
    ]
