"""Learner: the score, the losses, and what an update is made of."""

from __future__ import annotations

from monitor.grafana.panels import Row, series
from monitor.grafana.queries import age, grown, largest, mean, one, per_second, rate


def rows() -> list[Row]:
    return [
        Row(
            "Score",
            [
                series(
                    "Score",
                    "Raw return over the last window of episodes (stop.window), and the best such mean.",
                    "none",
                    {"{{stat}}": largest(one("score"), by="stat")},
                    width=12,
                    height=9,
                    from_zero=False,
                ),
                series(
                    "Version",
                    "The version of the policy published last. It steps back with a roll-back.",
                    "none",
                    {"version": largest(one("policy_version"))},
                    width=6,
                    height=9,
                ),
                series(
                    "Time since",
                    "Since the last update, and since the last publication.",
                    "s",
                    {
                        "update": age("learner_last_update_timestamp_seconds"),
                        "publication": age("policy_published_timestamp_seconds"),
                    },
                    width=6,
                    height=9,
                ),
            ],
        ),
        Row(
            "Updates",
            [
                series(
                    "Updates",
                    "Batches trained on, each of which makes a version.",
                    "count:/s",
                    {"updates": per_second("learner_updates_total")},
                    width=6,
                ),
                series(
                    "Phases",
                    "Share of a learner's time, on average.",
                    "percentunit",
                    {
                        "{{phase}}": mean(rate("learner_phase_seconds_total"), by="phase"),
                        "waits: {{reason}}": mean(rate("learner_wait_seconds_total"), by="reason"),
                    },
                    width=10,
                    stacked=True,
                ),
                series(
                    "Samples",
                    "Agent-steps trained on with reuse, and those that only warmed recurrent state up.",
                    "count:steps/s",
                    {
                        "trained": per_second("learner_samples_total"),
                        "burn-in": per_second("learner_burn_in_samples_total"),
                    },
                    width=8,
                ),
            ],
        ),
        Row(
            "Losses",
            [
                series(
                    "Loss",
                    "Terms of the last update, means over its minibatches. Entropy is in a panel of its own.",
                    "none",
                    {"{{term}}": mean(one("learner_loss", term="policy|value|total"), by="term")},
                    width=8,
                    from_zero=False,
                ),
                series(
                    "Gradient",
                    "Norm before clipping, last update.",
                    "none",
                    {"norm": mean(one("learner_grad_norm"))},
                    width=8,
                ),
                series(
                    "Weights' change",
                    "Norm of the change in an update over the norm of the weights.",
                    "none",
                    {"change / weights": mean(one("learner_update_ratio"))},
                    width=8,
                ),
                series(
                    "Entropy",
                    "Of the policy, over that of the uniform one.",
                    "percentunit",
                    {"entropy / log(actions)": mean(one("policy_entropy_ratio"))},
                    width=8,
                ),
                series(
                    "KL",
                    "From the acting policy to the one in training.",
                    "none",
                    {"KL": mean(one("policy_kl"))},
                    width=8,
                ),
                series(
                    "Explained variance",
                    "Of value targets by the values; 100 % where they are right.",
                    "percentunit",
                    {"targets": mean(one("value_explained_variance"))},
                    width=8,
                    from_zero=False,
                ),
            ],
        ),
        Row(
            "Schedules and trouble",
            [
                series(
                    "Learning rate",
                    "Of the last update.",
                    "none",
                    {"learning rate": mean(one("learner_rate"))},
                    width=6,
                ),
                series(
                    "Entropy coefficient",
                    "Weight of the entropy in the last update.",
                    "none",
                    {"coefficient": mean(one("learner_entropy_coef"))},
                    width=6,
                ),
                series(
                    "Second moment",
                    "Largest of AdamW's running means of squared gradients.",
                    "none",
                    {"largest": largest(one("learner_second_moment_max"))},
                    width=6,
                ),
                series(
                    "Beginnings",
                    "Snapshots and checkpoints that a learner began with in the window, and returns "
                    "to an earlier checkpoint.",
                    "none",
                    {
                        "resumes": grown("learner_resumes_total"),
                        "roll-backs": grown("learner_rollbacks_total"),
                    },
                    width=6,
                    events=True,
                ),
            ],
        ),
    ]
