"""A learner's books: what it has consumed and trained, the score, and what it tells the rest of the run of
it.

Counters and gauges in shared memory (their names are in ringbuf/counters.h), a line of metrics.jsonl an
update, and events.jsonl for what is out of the ordinary.

Two kinds of sums. Those of the surviving lineage (`steps`, `updates`, `score` ...) step back with a
roll-back. Those of the run's life never do. Both stand in the hot snapshot as they are after the batch that
made it, and go into the shared counters only once that is published: a learner that is killed in between
leaves counters that its successor sets right.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from consumers.causes import CAUSES
from consumers.diagnostics import finite
from consumers.entries import Entry
from consumers.journal import Journal, append
from consumers.score import ScoreWindow
from ringbuf import LEARNER_GAUGES, Control

BATCH_COUNTERS = (
    "slots", "steps", "episodes", "lag_sum", "lag_max", "age_sum_ns", "updates", "sgd_steps", "samples",
    "dropped_lag_steps", "burn_in_steps", "nonfinite_batches", "nonfinite_steps", "copy_ns", "forward_ns",
    "backward_ns", "optimizer_ns", "allreduce_ns", "rollbacks",
)  # fmt: skip
LINEAGE = ("steps", "updates", "sgd_steps", "samples", "solved_at_seconds")


class Books:
    """Kept by the learner's main thread; `count`, `set` and `event` may be called from any."""

    def __init__(
        self, control: Control, folder: Path, index: int, score: ScoreWindow, journal: Journal | None = None
    ):
        """`journal`: metrics.jsonl; None: one without limit in `folder`."""
        self.score = score
        self.steps = 0  # valid agent-steps consumed
        self.updates = 0
        self.sgd_steps = 0  # optimizer steps
        self.samples = 0  # valid agent-steps trained on, with reuse
        self.solved_at_seconds: float | None = None
        self.seconds_before = 0.0  # of earlier attempts of the run
        self.first_commit_ns: int | None = None  # CLOCK_MONOTONIC; where this attempt's seconds begin
        self.journal = journal or Journal(folder / "metrics.jsonl", 2**63, 1)
        self._control, self._index = control, index
        self._events = folder / "events.jsonl"
        self._times: dict[str, int] = {}  # how often an event of a kind has happened
        # Of the run's life. What is in shared memory already: a learner may take up the books of a dead one.
        counters = control.counters(control.self_index)
        self._life = {name: counters[name] for name in BATCH_COUNTERS}
        self._lags, self._ages = (np.array(bins, np.int64) for bins in control.bins(control.self_index))

    @property
    def seconds(self) -> float:
        """Wall time since the first slot was committed, over all attempts of the run; 0 before."""
        now = 0 if self.first_commit_ns is None else time.monotonic_ns() - self.first_commit_ns
        return self.seconds_before + now / 1e9

    def enter(self, whole: Entry, spent_ns: Mapping[str, int]) -> dict[str, float]:
        """Enters one batch that was trained on: steps, lags, ages, finished episodes, and the figures of the
        update. Nothing shows before `post`. Returns the batch's own figures."""
        self._lags += whole.lags.numpy()
        self._ages += whole.ages.numpy()
        figures, steps = whole.figures, int(whole.lags.sum())
        self.steps += steps
        self.updates += 1
        self.sgd_steps += int(figures["sgd_steps"])
        self.samples += int(figures["samples"])
        self.score.add(whole.scores.numpy())
        if self.score.solved and self.solved_at_seconds is None:
            self.solved_at_seconds = self.seconds
        life = self._life
        life["lag_max"] = max(life["lag_max"], whole.lag_max)
        more_life = {
            "slots": len(whole.slots),
            "steps": steps,
            "episodes": len(whole.scores),
            "lag_sum": whole.lag_sum,
            "age_sum_ns": whole.age_sum_ns,
            "updates": 1,
            "sgd_steps": figures["sgd_steps"],
            "samples": figures["samples"],
            "dropped_lag_steps": figures["masked"],
            "burn_in_steps": figures["burn_in"],
            "nonfinite_batches": int(figures["skipped"] > 0),
            "nonfinite_steps": figures["skipped"],
            **{f"{phase}_ns": ns for phase, ns in spent_ns.items()},
        }
        for name, n in more_life.items():
            life[name] += int(n)
        lag_mean = whole.lag_sum / steps if steps else float("nan")
        return {
            "lag_mean": lag_mean,
            "lag_max": whole.lag_max,
            "lag_spread": whole.lag_spread,
            "warm_up": whole.warm_up,
            "lag_sgd_steps": lag_mean * self.sgd_steps / self.updates,
            "age_seconds": whole.age_sum_ns / 1e9 / len(whole.slots),
            "age_steps": lag_mean * self.steps / self.updates,
            "sample_reuse": figures["samples"] / steps if steps else float("nan"),
        }

    def rolled_back(self) -> None:
        """Enters a return to an earlier checkpoint, as `enter` does a batch."""
        self._life["rollbacks"] += 1

    def post(self) -> None:
        """Puts the sums into shared memory. The version that they belong to has been published."""
        self.set(**self._life)
        self.set(run_steps=self.steps, run_updates=self.updates, run_episodes=self.score.episodes)
        shown = self._control.bins(self._control.self_index)
        ours = zip(
            (self._control.lag_add, self._control.age_add), (self._lags, self._ages), shown, strict=True
        )
        for add, wanted, found in ours:
            missing = wanted - np.array(found, np.int64)
            for i in np.flatnonzero(missing > 0).tolist():
                add(i, int(missing[i]))
        score = {"score_mean": self.score.mean, "score_best": self.score.best}
        for name, value in {**score, "solved_at_seconds": self.solved_at_seconds}.items():
            self._control.gauge_set(name, float("nan") if value is None else value)

    def tell(self, version: int, figures: Mapping[str, Any], spent_ns: Mapping[str, int]) -> None:
        """Tells of one update, which made `version`: gauges, a line of metrics.jsonl, events."""
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
            if line.get(name) is not None and not math.isnan(line[name]):
                self._control.gauge_set(name, line[name])
        self.journal.add(json.dumps(finite(line)))
        audited, unaudited = figures["audit_label_steps"], figures["audit_label_unaudited"]
        self.count(audited_steps=audited, unaudited_steps=unaudited)

    def alarm(self, version: int, alarms: Iterable[tuple[str, float, float]]) -> None:
        """Tells of what audits found in the update that made `version`: (audit, found, limit) each."""
        for audit, found, limit in alarms:
            self.count(**{f"audit_{audit}_alarms": 1})
            facts = {"found": found, "limit": limit, "cause": CAUSES[audit]}
            self.seldom("audit", audit, audit=audit, version=version, **facts)

    def seldom(self, event: str, kind: str = "", /, **facts: Any) -> None:
        """The 1st, 2nd, 4th, 8th ... event of its kind: what happens at every update must not fill the
        disk."""
        self._times[event + kind] = times = self._times.get(event + kind, 0) + 1
        if times & (times - 1) == 0:
            self.event(event, times=times, **facts)

    def count(self, **amounts: int) -> None:
        """Adds to counters that stand by themselves, at once."""
        for name, n in amounts.items():
            self._control.counter_add(name, n)

    def set(self, **values: int) -> None:
        """Sets counters."""
        for name, value in values.items():
            self._control.counter_set(name, value)

    def event(self, event: str, **facts: Any) -> None:
        """One line of events.jsonl, which all processes append to."""
        line = {"time": time.time(), "role": "learner", "index": self._index, "event": event, **facts}
        append(self._events, json.dumps(finite(line)) + "\n")

    def retarget(self, window: int, goal: float | None) -> None:
        """Another window or goal of the score."""
        self.score.retarget(window, goal)
        if not self.score.solved:
            self.solved_at_seconds = None

    def state_dict(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "lineage": {name: getattr(self, name) for name in LINEAGE},
            "score": self.score.state_dict(),
            "life": dict(self._life),
            "lags": torch.from_numpy(self._lags.copy()),
            "ages": torch.from_numpy(self._ages.copy()),
        }

    def load_state_dict(self, state: dict[str, Any], *, life: bool) -> None:
        """Takes over the sums of a lineage; with `life` those of the run's life as well, unless shared memory
        knows of more already."""
        for name in LINEAGE:
            setattr(self, name, state["lineage"][name])
        self.score.load_state_dict(state["score"])
        if life:
            self._life = {name: max(n, state["life"][name]) for name, n in self._life.items()}
            self._lags, self._ages = (
                np.maximum(ours, state[name].numpy())
                for name, ours in (("lags", self._lags), ("ages", self._ages))
            )

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
            "lag": {
                "bins": self._lags.tolist(),
                "sum": self._life["lag_sum"],
                "max": self._life["lag_max"],
            },
        }
