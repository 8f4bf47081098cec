"""Storage and checkpoints: what a loss would cost, and how long the disk lasts."""

from __future__ import annotations

from monitor.grafana.panels import Row, series
from monitor.grafana.queries import age, grown, largest, one, summed

FREE = "run_dir_free_bytes"


def rows() -> list[Row]:
    return [
        Row(
            "Checkpoints",
            [
                series(
                    "Age of the last checkpoint",
                    "And the interval that was asked for. What a loss of the machine would cost is the age.",
                    "s",
                    {
                        "age": age("checkpoint_last_success_timestamp_seconds"),
                        "interval": largest(one("checkpoint_interval_seconds")),
                    },
                    width=6,
                ),
                series(
                    "Time to write",
                    "Of the last one; training goes on meanwhile.",
                    "s",
                    {"last": largest(one("checkpoint_duration_seconds"))},
                    width=6,
                ),
                series(
                    "Size",
                    "Of the last one.",
                    "bytes",
                    {"last": largest(one("checkpoint_size_bytes"))},
                    width=6,
                ),
                series(
                    "Written and failed",
                    "Checkpoints in the window.",
                    "none",
                    {"written": grown("checkpoints_total"), "failed": grown("checkpoint_failures_total")},
                    width=6,
                ),
            ],
        ),
        Row(
            "Disk",
            [
                series(
                    "Run directory",
                    "Size of all its files, and the bound that the settings put on it.",
                    "bytes",
                    {"size": summed(one("run_dir_bytes")), "bound": summed(one("run_dir_bound_bytes"))},
                    width=8,
                ),
                series(
                    "Free space",
                    "Of the run directory's file system, and its size.",
                    "bytes",
                    {"free": f"min({one(FREE)})", "size": f"min({one('run_dir_size_bytes')})"},
                    width=8,
                ),
                series(
                    "Free space in a day",
                    "If it goes on as in the last six hours.",
                    "bytes",
                    {"in a day": f"min(predict_linear({one(FREE)}[6h], 86400))"},
                    width=8,
                    from_zero=False,
                ),
            ],
        ),
    ]
