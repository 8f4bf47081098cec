"""Files that cannot fill a disk: logs set aside by size, and how large a run directory can become."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config.rotate import rotate, set_aside
from monitor import rundir

REOPEN_SECONDS = 10.0
MOST_BYTES = 2  # times the limit: what a writer that does not open its log anew may write into the old one
STILL_CHECKPOINTS = 5  # beside the newest `keep`: best, the one under way, a replaced one, two damaged ones
OTHER_BYTES = 16 << 20  # configuration, manifest, status, summary, evaluation, history of the page
ATTEMPT_BYTES = 16 << 10  # of its file, and more for the name of each producer's ring
RING_BYTES = 128
ARCHIVE_BYTES = 80 << 20  # beyond its bound: a block, written before older ones go, and what lists shards
MEASURE_SECONDS = 10.0


class Rotation:
    """Sets aside what has outgrown `limit_bytes` and remembers whose writer has not opened its log anew."""

    def __init__(self, path: Path, limit_bytes: int, files: int):
        self._logs, self._events = path / rundir.LOGS, path / rundir.EVENTS
        self._limit_bytes, self._files = limit_bytes, files
        self._since: dict[Path, float] = {}  # when a log was set aside that is not there again

    def rotate(self) -> list[str]:
        """Looks at all files. Returns the logs, by name without ending, whose writers must be told (again)
        to open them anew: SIGUSR1. Every event is written by opening the file, so nobody is told of that one.

        A writer that does not obey within ten seconds, because it hangs, goes on in the old file; that is
        emptied whenever it has twice the limit.
        """
        if _size(self._events) > self._limit_bytes:
            rotate(self._events, self._files)
        for log in self._logs.glob("*.log"):
            self._since.pop(log, None)
            if _size(log) > self._limit_bytes:
                rotate(log, self._files)
                self._since[log] = time.monotonic()
        for log, since in self._since.items():
            old, late = set_aside(log, 1), time.monotonic() - since > REOPEN_SECONDS
            if late and _size(old) > MOST_BYTES * self._limit_bytes:
                with contextlib.suppress(OSError):
                    os.truncate(old, 0)  # opened for appending, so the writer goes on at its new end
        return [log.stem for log in self._since]


class Growth:
    """How large the run directory is and can become, for status.json."""

    def __init__(self, path: Path, settings: Any, slot_bytes: int):
        """`settings`: the run's config. `slot_bytes`: of one slot of a ring, for those kept as BAD."""
        self._path, self._settings, self._slot_bytes = path, settings, slot_bytes
        self._measured = float("-inf")
        self._bytes = 0

    def report(self, checkpoint_bytes: int) -> dict[str, int | None]:
        """bytes: of all files; bound_bytes: what the settings allow them, None before the size of a
        checkpoint is known; free_bytes: of the file system. `checkpoint_bytes`: the last one's size, or 0."""
        now = time.monotonic()
        if now - self._measured > MEASURE_SECONDS:
            self._measured = now
            self._bytes = sum(map(_size, _files(self._path)))
        disk = os.statvfs(self._path)
        return {
            "bytes": self._bytes,
            "bound_bytes": self.bound_bytes(checkpoint_bytes) if checkpoint_bytes else None,
            "free_bytes": disk.f_bavail * disk.f_frsize,
        }

    def bound_bytes(self, checkpoint_bytes: int) -> int:
        """What the files can have together, where every writer of a log opens it anew when told."""
        settings = self._settings
        producers = int(settings.producers.count)
        others = 4 + 2  # exporter, recorder, evaluator, supervisor; events, metrics
        logs = producers + settings.learner.count + settings.servers + len(settings.sinks.kinds) + others
        attempts = len(list((self._path / rundir.ATTEMPTS).glob("*.json")))
        return (
            logs * (1 + settings.monitor.log_files) * settings.monitor.log_bytes
            + (settings.checkpoint.keep + STILL_CHECKPOINTS) * checkpoint_bytes
            + settings.supervisor.keep_bad_slots * self._slot_bytes
            + attempts * (ATTEMPT_BYTES + producers * RING_BYTES)
            + (settings.archive.total_bytes + ARCHIVE_BYTES if settings.archive.enabled else 0)
            + OTHER_BYTES
        )


def _size(path: Path) -> int:
    """0 for what is not there (any more)."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _files(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names if not Path(folder, name).is_symlink())
