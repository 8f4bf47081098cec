"""Storage and checkpoints: what a loss would cost, and how long the disk lasts."""

from __future__ import annotations

from monitor.grafana.panels import Row, series
from monitor.grafana.queries import age, grown, largest, one, per_second, summed

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
                    events=True,
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
        Row(
            "Archive (archive.enabled)",
            [
                series(
                    "Archived bytes",
                    "Blocks written: before compression, and what of it reaches the disk.",
                    "Bps",
                    {
                        "raw": per_second("archive_raw_bytes_total"),
                        "written": per_second("archive_written_bytes_total"),
                    },
                    width=6,
                ),
                series(
                    "Compression",
                    "Bytes before it over bytes after it.",
                    "none",
                    {
                        "ratio": f"{per_second('archive_raw_bytes_total')} / "
                        f"{per_second('archive_written_bytes_total')}"
                    },
                    width=6,
                ),
                series(
                    "Blocks",
                    "Blocks written, and lost since the disk was too slow, full or broken.",
                    "count:blocks/s",
                    {
                        "written": per_second("archive_blocks_total"),
                        "lost": per_second("archive_dropped_blocks_total"),
                    },
                    width=6,
                ),
                series(
                    "Queue",
                    "Blocks that wait to be written; 1 where none is, for want of space or after an error.",
                    "none",
                    {
                        "blocks": summed(one("archive_queue_blocks")),
                        "halted": largest(one("archive_halted")),
                    },
                    width=6,
                ),
                series(
                    "Slots copied and missed",
                    "Of the rings that are tapped; a slot overwritten while it was copied is missed.",
                    "count:slots/s",
                    {"{{outcome}}": per_second("archive_slots_total", by="outcome")},
                    width=6,
                ),
                series(
                    "Agent-steps copied",
                    "Into the archive.",
                    "count:steps/s",
                    {"copied": per_second("archive_samples_total")},
                    width=6,
                ),
                series(
                    "Archive on disk",
                    "Size of all shards.",
                    "bytes",
                    {"size": summed(one("archive_size_bytes"))},
                    width=6,
                ),
                series(
                    "Shards",
                    "On disk; deleted in the window for their age or for room; times that the disk refused.",
                    "none",
                    {
                        "on disk": summed(one("archive_shards")),
                        "deleted": grown("archive_deleted_shards_total"),
                        "errors": grown("archive_errors_total"),
                    },
                    width=6,
                    events=True,
                ),
            ],
        ),
    ]
