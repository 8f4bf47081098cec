"""One look at the shared counters: what the live page shows and judges, as plain figures."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.status import Table
from ringbuf import books

LOSSES = ("overwritten", "bad", "lag")
COUNTS = ("committed", "consumed", "redelivered", "not_written", "writing", "ready", "leased", "bad")


@dataclass(frozen=True)
class Process:
    """A row of the process table."""

    role: str
    index: int
    state: str
    phase: str
    pid: int
    core: int | None
    restarts: int
    silent_seconds: float | None
    """Since its last heartbeat; None before the first."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@dataclass(frozen=True)
class Ring:
    """The slots of a ring by where they are; counts over the life of the ring."""

    slots: int
    committed: int
    consumed: int
    dropped: int
    redelivered: int
    not_written: int
    writing: int
    ready: int
    leased: int
    bad: int
    problems: tuple[str, ...]
    """What does not add up (ringbuf/books.py)."""

    @property
    def in_flight(self) -> int:
        return self.ready + self.leased + self.bad


@dataclass(frozen=True)
class Reading:
    """Counters as they stood at `monotonic`. Sums are over all producers, or all learners, of these rings."""

    monotonic: float
    unix: float
    began_unix: float
    """When the shared memory was made."""
    learner: dict[str, int]
    """Counters of the first learner, which are the run's."""
    gauges: dict[str, float]
    lag_bins: tuple[int, ...]
    """Consumed steps by lag; the last bin holds everything above the others."""
    producers: dict[str, int]
    """Sums of the producers' counters."""
    learners: dict[str, int]
    """Sums of the learners' counters."""
    rings: tuple[Ring, ...]
    dropped_steps: int
    """That the run need not have lost: not for its end or a roll-back."""
    first_commit_seconds: float | None
    """When, on the monotonic clock; None: nothing was committed yet."""
    last_commit_seconds: float | None
    processes: tuple[Process, ...]
    supervisor_silent_seconds: float
    recorder: dict[str, int]
    """Counters of the recorder; {} where there is none."""
    free_bytes: int
    """Of the run directory's file system."""
    size_bytes: int

    def of_role(self, role: str) -> list[Process]:
        return [one for one in self.processes if one.role == role]


class Reader:
    """Reads a run's counters, mapped read-only."""

    def __init__(self, control: Any, rings: Sequence[Any], table: Table, directory: Path):
        self.control, self.rings, self.table, self.directory = control, rings, table, directory

    def read(self) -> Reading:
        """Raises OSError where the run directory is gone."""
        control, table = self.control, self.table
        monotonic = time.monotonic()
        found = [ring.books() for ring in self.rings]
        learner = control.counters(table.learner)
        disk = os.statvfs(self.directory)
        return Reading(
            monotonic=monotonic,
            unix=time.time(),
            began_unix=control.created_unix,
            learner=learner,
            gauges=control.gauges(table.learner),
            lag_bins=tuple(control.bins(table.learner)[0]),
            producers=_sums([control.counters(index) for index in table.producers]),
            learners=_sums([learner, *(control.counters(index) for index in table.learners[1:])]),
            rings=tuple(_ring(ring.slots, one) for ring, one in zip(self.rings, found, strict=True)),
            dropped_steps=sum(one["dropped_steps"][reason] for one in found for reason in LOSSES)
            + learner["dropped_lag_steps"],
            first_commit_seconds=_seconds(min, found, "first_commit_ns"),
            last_commit_seconds=_seconds(max, found, "last_commit_ns"),
            processes=tuple(_process(control.process(index), monotonic) for index in table.all),
            supervisor_silent_seconds=monotonic - control.process(0).heartbeat_ns / 1e9,
            recorder={} if table.recorder is None else control.counters(table.recorder),
            free_bytes=disk.f_bavail * disk.f_frsize,
            size_bytes=disk.f_blocks * disk.f_frsize,
        )


def _sums(each: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(one[name] for one in each) for name in each[0]}


def _ring(slots: int, found: dict[str, Any]) -> Ring:
    counts = {name: found[name] for name in COUNTS}
    dropped = sum(found["dropped"].values())
    return Ring(slots=slots, dropped=dropped, problems=tuple(books.live(found)), **counts)


def _seconds(pick: Any, found: Sequence[dict[str, Any]], name: str) -> float | None:
    times = [one[name] for one in found if one[name]]
    return pick(times) / 1e9 if times else None


def _process(info: Any, monotonic: float) -> Process:
    silent = monotonic - info.heartbeat_ns / 1e9 if info.heartbeat_ns else None
    return Process(
        info.role,
        info.role_index,
        info.state,
        info.phase,
        info.pid,
        info.core,
        max(0, info.epoch - 1),
        silent,
    )
