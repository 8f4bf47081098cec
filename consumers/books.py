"""A learner's books: what it has consumed and trained, the score, and what it tells the rest of the run of
it.

Counters and gauges in shared memory (their names are in ringbuf/counters.h), a line of metrics.jsonl an
update, and events.jsonl for what is out of the ordinary."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consumers.diagnostics import age_bin, finite, lag_counts
from consumers.score import ScoreWindow
from ringbuf import AGE_BINS, LAG_BINS, LEARNER_GAUGES, Control, Lease

FLUSH_SECONDS = 1.0


@contextlib.contextmanager
def _though_the_disk_is_full() -> Iterator[None]:
    """Lets a line be lost rather than the training."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


class Books:
    """Kept by the learner's main thread; `count`, `set` and `event` may be called from any."""

    def __init__(self, control: Control, folder: Path, index: int, score: ScoreWindow):
        self.score = score
        self.steps = 0  # valid agent-steps consumed
        self.updates = 0
        self.sgd_steps = 0  # optimizer steps
        self.samples = 0  # valid agent-steps trained on, with reuse
        self.lag_max = 0
        self.first_commit_ns: int | None = None  # CLOCK_MONOTONIC; where the run's seconds begin
        self.solved_at_seconds: float | None = None
        self._control, self._index = control, index
        self._metrics = (folder / "metrics.jsonl").open("a", buffering=1 << 16)
        self._events = folder / "events.jsonl"
        self._flushed = time.monotonic()
        self._times: dict[str, int] = {}  # how often an event of a kind has happened

    @property
    def seconds(self) -> float:
        """Since the first slot was committed; 0 before."""
        return 0.0 if self.first_commit_ns is None else (time.monotonic_ns() - self.first_commit_ns) / 1e9

    def consumed(self, leases: Sequence[Lease], version: int, leased_ns: int) -> dict[str, float]:
        """Enters the slots of one batch, trained by the learner of `version`, before they are given back:
        steps, lags, ages and finished episodes. Returns the batch's own figures."""
        counts, lag_sum, lag_max, age_sum = np.zeros(LAG_BINS, np.int64), 0, 0, 0
        scores = []
        for lease in leases:
            if lease.version == lease.newest_version:
                lag = version - lease.version
                counts[min(lag, LAG_BINS - 1)] += lease.valid_steps
                lag_sum += lag * lease.valid_steps
                lag_max = max(lag_max, lag if lease.valid_steps else 0)
            else:
                versions, valid = lease.array("version"), lease.array("valid")
                assert versions is not None
                assert valid is not None
                more, total, largest = lag_counts(version, versions, valid, LAG_BINS)
                counts += more
                lag_sum += total
                lag_max = max(lag_max, largest)
            age = max(0, leased_ns - lease.commit_ns)
            age_sum += age
            self._control.age_add(age_bin(age, AGE_BINS))
            episodes = lease.episodes()
            scores.append(episodes["statistics"][:, lease.plan.score])
        for lag in np.flatnonzero(counts).tolist():
            self._control.lag_add(lag, int(counts[lag]))
        steps = int(counts.sum())
        self.steps += steps
        self.lag_max = max(self.lag_max, lag_max)
        self.score.add(np.concatenate(scores))
        self.count(slots=len(leases), steps=steps, episodes=sum(map(len, scores)))
        self.count(lag_sum=lag_sum, age_sum_ns=age_sum)
        self.set(lag_max=self.lag_max)
        return {
            "lag_mean": lag_sum / steps if steps else float("nan"),
            "lag_max": lag_max,
            "age_seconds": age_sum / 1e9 / len(leases),
        }

    def trained(self, version: int, figures: Mapping[str, Any], spent_ns: Mapping[str, int]) -> None:
        """Enters one update, which made `version`: counters, gauges and a line of metrics.jsonl."""
        self.updates += 1
        self.sgd_steps += figures["sgd_steps"]
        self.samples += figures["samples"]
        if self.score.solved and self.solved_at_seconds is None:
            self.solved_at_seconds = self.seconds
        self.count(
            updates=1,
            sgd_steps=figures["sgd_steps"],
            samples=figures["samples"],
            dropped_lag_steps=figures["masked"],
            nonfinite_batches=int(figures["skipped"] > 0),
            **{f"{phase}_ns": ns for phase, ns in spent_ns.items()},
        )
        self.set(last_update_unix_ns=time.time_ns())
        line = {
            "version": version,
            "time": time.time(),
            "seconds": self.seconds,
            "steps": self.steps,
            "episodes": self.score.episodes,
            "score_mean": self.score.mean,
            "score_best": self.score.best,
            "solved_at_seconds": self.solved_at_seconds,
            **figures,
            **{f"{phase}_seconds": ns / 1e9 for phase, ns in spent_ns.items()},
        }
        for name in LEARNER_GAUGES:
            if line.get(name) is not None:
                self._control.gauge_set(name, line[name])
        with _though_the_disk_is_full():
            self._metrics.write(json.dumps(finite(line)) + "\n")
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._metrics.flush()
                self._flushed = time.monotonic()
        if figures["skipped"]:
            self._seldom("nonfinite", version=version, minibatches=figures["skipped"])
        if figures["logprob_error_max"] > figures["logprob_tolerance"]:
            facts = {name: figures[name] for name in ("logprob_error_max", "logprob_tolerance")}
            self._seldom("logprob_mismatch", version=version, **facts)

    def _seldom(self, event: str, **facts: Any) -> None:
        """The 1st, 2nd, 4th, 8th ... event of its kind: what happens at every update must not fill the
        disk."""
        self._times[event] = times = self._times.get(event, 0) + 1
        if times & (times - 1) == 0:
            self.event(event, times=times, **facts)

    def count(self, **amounts: int) -> None:
        """Adds to counters."""
        for name, n in amounts.items():
            self._control.counter_add(name, n)

    def set(self, **values: int) -> None:
        """Sets counters."""
        for name, value in values.items():
            self._control.counter_set(name, value)

    def event(self, event: str, **facts: Any) -> None:
        """One line of events.jsonl, which all processes append to."""
        line = {"time": time.time(), "role": "learner", "index": self._index, "event": event, **facts}
        fd = os.open(self._events, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _though_the_disk_is_full():
                os.write(fd, (json.dumps(finite(line)) + "\n").encode())
        finally:
            os.close(fd)

    def close(self) -> None:
        """Writes what metrics.jsonl still lacks."""
        with _though_the_disk_is_full():
            self._metrics.close()

    def summary(self) -> dict[str, Any]:
        """For a checkpoint's state.json."""
        return {
            "steps": self.steps,
            "updates": self.updates,
            "sgd_steps": self.sgd_steps,
            "samples": self.samples,
            "seconds": self.seconds,
            "score": {"mean": self.score.mean, "best": self.score.best, "episodes": self.score.episodes},
            "solved_at_seconds": self.solved_at_seconds,
        }
