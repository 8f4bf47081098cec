"""The alarms of the live page: pure rules over readings of the counters, without I/O and without a clock.

Each alarm stands as long as its condition does, so a page that shows them once a second is at most that
late. They are quicker than the alerts for Prometheus (monitor/prometheus/), which must not wake anybody for
a hiccup.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from consumers.causes import CAUSES
from monitor.readings import Process, Reading

CRITICAL, WARNING = "critical", "warning"


@dataclass(frozen=True)
class Thresholds:
    """When each condition counts."""

    supervisor_seconds: float = 5.0
    """Without a heartbeat of the supervisor, which beats ten times a second."""
    report_seconds: float = 10.0
    """Without a new status.json, which is written once a second."""
    silent_seconds: float = 30.0
    """Without a heartbeat of a process that is running; as /readyz has it."""
    stalled_seconds: float = 20.0
    """Without an update, or without a commit, and `stalled_times` as long as one takes on the average."""
    stalled_times: float = 5.0
    restarts: int = 3
    """More of one process within `restart_seconds` are a loop."""
    restart_seconds: float = 900.0
    recent_seconds: float = 600.0
    """An event that leaves no state behind (a loss that is no number, a roll-back, an audit) is shown for so
    long."""
    dropped_ratio: float = 0.01
    """Steps dropped over steps consumed, within `recent_seconds`."""
    entropy_ratio: float = 0.02
    """Entropy over that of the uniform policy."""
    checkpoint_intervals: float = 3.0
    """Without a checkpoint, in units of `checkpoint.interval_seconds`."""
    full_ratio: float = 0.05
    """Free space of the disk over its size."""
    filling_ratio: float = 0.2
    """Below it, the disk is filling if what happened within the last hour, going on, fills it in a day."""
    filling_seconds: float = 86_400.0


@dataclass(frozen=True)
class Alarm:
    """`key` tells two alarms of a kind apart; `since`: Unix time of the first look that found it."""

    kind: str
    severity: str
    text: str
    key: str = ""
    since: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class Context:
    """What the counters do not tell. `state`: of the run; `reported_unix`: when status.json was written."""

    state: str = "running"
    message: str | None = None
    reported_unix: float | None = None
    lag_limit: int | None = None
    checkpoint_interval_seconds: float = math.inf


class Trail:
    """A counter over a span of time, in at most `POINTS` points: how much it grew in it."""

    POINTS = 60

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """`now` does not go backwards."""
        points, step = self._points, self._seconds / self.POINTS
        # A point that comes soon after the one before it replaces that one, but never the oldest.
        if len(points) > 2 and now - points[-2][0] < step:
            points.pop()
        points.append((now, value))
        while len(points) > 1 and points[1][0] <= now - self._seconds:
            points.popleft()

    @property
    def growth(self) -> float:
        return self._points[-1][1] - self._points[0][1] if self._points else 0.0

    @property
    def span(self) -> float:
        """Seconds that it looks back on."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0


class Watchman:
    """Looks at one reading after the other, and says which alarms stand."""

    def __init__(self, thresholds: Thresholds | None = None):
        self.thresholds = thresholds or Thresholds()
        self._trails: dict[str, Trail] = {}
        self._standing: dict[tuple[str, str], float] = {}
        self._failures = 0  # of checkpoints, when the last good one was written
        self._saved: int | None = None  # good ones

    def look(self, reading: Reading, context: Context) -> list[Alarm]:
        """The alarms that stand, the worst first and then the oldest. Readings come in their order."""
        self._remember(reading)
        found: dict[tuple[str, str], Alarm] = {}
        for rule in (self._run, self._processes, self._progress, self._policy, self._storage, self._archive):
            for alarm in rule(reading, context):
                found.setdefault((alarm.kind, alarm.key), alarm)
        self._standing = {name: self._standing.get(name, reading.unix) for name in found}
        dated = [
            Alarm(one.kind, one.severity, one.text, one.key, self._standing[name])
            for name, one in found.items()
        ]
        return sorted(dated, key=lambda one: (one.severity != CRITICAL, one.since))

    # What happened of late

    def _remember(self, reading: Reading) -> None:
        recent, learner = self.thresholds.recent_seconds, reading.learner
        for name in ("nonfinite_batches", "nonfinite_steps", "rollbacks", "steps"):
            self._trail(name, recent, reading, learner[name])
        for audit in CAUSES:
            self._trail(f"audit {audit}", recent, reading, learner[f"audit_{audit}_alarms"])
        self._trail("dropped", recent, reading, reading.dropped_steps)
        self._trail("archive", recent, reading, reading.recorder.get("dropped_blocks", 0))
        self._trail("free", 3600.0, reading, reading.free_bytes)
        for process in reading.processes:
            self._trail(_restarts(process), self.thresholds.restart_seconds, reading, process.restarts)
        if self._saved != learner["checkpoints"]:
            self._saved = learner["checkpoints"]
            self._failures = learner["checkpoint_failures"] if self._saved else 0

    def _trail(self, name: str, seconds: float, reading: Reading, value: float) -> None:
        trail = self._trails.get(name)
        if trail is None:
            trail = self._trails[name] = Trail(seconds)
        trail.add(reading.monotonic, value)

    def _growth(self, name: str) -> float:
        return self._trails[name].growth

    # The rules

    def _run(self, reading: Reading, context: Context) -> Iterator[Alarm]:
        if context.state == "failed":
            yield Alarm("run failed", CRITICAL, context.message or "the run has failed")
        if context.state not in ("starting", "running", "stopping"):
            return
        silent = reading.supervisor_silent_seconds
        if silent > self.thresholds.supervisor_seconds:
            text = f"no heartbeat of the supervisor for {silent:.0f} s: nothing that dies is started again"
            yield Alarm("supervisor silent", CRITICAL, text)
        elif context.reported_unix is not None:
            old = reading.unix - context.reported_unix
            if old > self.thresholds.report_seconds:
                text = f"status.json was not written for {old:.0f} s; is the disk full? Training goes on"
                yield Alarm("status stale", WARNING, text)
        for number, ring in enumerate(reading.rings):
            if ring.problems:
                text = f"the books of ring {number} do not balance: {'; '.join(ring.problems)}"
                yield Alarm("books", CRITICAL, text, str(number))

    def _processes(self, reading: Reading, context: Context) -> Iterator[Alarm]:
        limits = self.thresholds
        for process in reading.processes:
            restarts = self._growth(_restarts(process))
            if restarts > limits.restarts:
                minutes = limits.restart_seconds / 60
                text = f"{process.name} was started again {restarts:.0f} times within {minutes:.0f} minutes"
                yield Alarm("crash loop", WARNING, text, process.name)
            text = self._ill(process)
            if text:
                worst = process.state == "failed" or process.role in ("learner", "server")
                yield Alarm("process down", CRITICAL if worst else WARNING, text, process.name)

    def _ill(self, process: Process) -> str:
        """What is wrong with a process; empty: nothing is."""
        if process.state == "failed":
            return f"{process.name} has failed for good: it died too often without progress"
        if process.state == "hung":
            return f"{process.name} is hung in phase {process.phase}, and is being killed"
        if process.state == "backoff":
            return f"{process.name} died without progress, and waits to be started again"
        silent = process.silent_seconds
        if process.state == "running" and silent is not None and silent > self.thresholds.silent_seconds:
            return f"{process.name}: no heartbeat for {silent:.0f} s, last in phase {process.phase}"
        return ""

    def _progress(self, reading: Reading, context: Context) -> Iterator[Alarm]:
        """Of a run that is to make some."""
        learner = reading.learner
        if context.state == "running" and learner["updates"]:
            last = learner["last_update_unix_ns"] / 1e9
            waited = reading.unix - last
            if waited > self._patience(learner["updates"], last - reading.began_unix):
                phase = reading.of_role("learner")[0].phase
                text = f"no update for {waited:.0f} s; the learner is in phase {phase}"
                yield Alarm("learner stalled", CRITICAL, text)
        first, last_commit = reading.first_commit_seconds, reading.last_commit_seconds
        if context.state == "running" and first is not None and last_commit is not None:
            waited = reading.monotonic - last_commit
            committed = sum(ring.committed for ring in reading.rings)
            if waited > self._patience(committed, last_commit - first):
                text = f"no slot was committed for {waited:.0f} s; {_most_common_wait(reading)}"
                yield Alarm("no throughput", CRITICAL, text)

    def _patience(self, times: int, seconds: float) -> float:
        """How long something may take that has happened so often in so many seconds."""
        return max(self.thresholds.stalled_seconds, self.thresholds.stalled_times * seconds / max(1, times))

    def _policy(self, reading: Reading, context: Context) -> Iterator[Alarm]:
        learner, minutes = reading.learner, self.thresholds.recent_seconds / 60
        lag, limit = learner["lag_max"], context.lag_limit
        if limit is not None and lag > limit:
            text = f"a step of lag {lag} was trained on; the limit is {limit}"
            yield Alarm("lag above limit", CRITICAL, text)
        skipped, batches = self._growth("nonfinite_steps"), self._growth("nonfinite_batches")
        if skipped or batches:
            text = (
                f"a loss or a gradient was not finite: {batches:.0f} batches, {skipped:.0f} optimizer steps "
                f"skipped within {minutes:.0f} minutes"
            )
            yield Alarm("not finite", CRITICAL, text)
        if rollbacks := self._growth("rollbacks"):
            text = f"the learner went back to a checkpoint {_times(rollbacks)} within {minutes:.0f} minutes"
            yield Alarm("rolled back", WARNING, text)
        for audit, cause in CAUSES.items():
            if self._growth(f"audit {audit}"):
                yield Alarm("audit", WARNING, f"{audit} audit: {cause}", audit)
        dropped, consumed = self._growth("dropped"), self._growth("steps")
        if dropped > self.thresholds.dropped_ratio * max(1.0, consumed):
            text = f"{dropped:,.0f} steps dropped and {consumed:,.0f} trained on within {minutes:.0f} minutes"
            yield Alarm("samples dropped", WARNING, text)
        entropy = reading.gauges["entropy_ratio"]
        if math.isfinite(entropy) and entropy < self.thresholds.entropy_ratio:
            text = f"the policy's entropy is {entropy:.3f} of the uniform one's"
            yield Alarm("entropy collapse", WARNING, text)

    def _storage(self, reading: Reading, context: Context) -> Iterator[Alarm]:
        limits, learner = self.thresholds, reading.learner
        failed = learner["checkpoint_failures"] - self._failures
        if failed > 0:
            text = f"a checkpoint could not be written {_times(failed)}; the last good one stays"
            yield Alarm("checkpoint failing", CRITICAL if not learner["checkpoints"] else WARNING, text)
        saved = learner["last_checkpoint_unix_ns"] / 1e9 or reading.began_unix
        old, interval = reading.unix - saved, context.checkpoint_interval_seconds
        late = old > limits.checkpoint_intervals * interval + limits.stalled_seconds
        if context.state == "running" and late:
            text = f"the last checkpoint is {old / 60:.0f} minutes old; one is due every {interval:g} s"
            yield Alarm("checkpoint stale", CRITICAL, text)
        share = reading.free_bytes / max(1, reading.size_bytes)
        if share < limits.full_ratio:
            text = f"{reading.free_bytes / 1e9:.1f} GB of the disk are free ({share:.1%})"
            yield Alarm("disk full", CRITICAL, text)
        elif share < limits.filling_ratio:
            left = self._seconds_to_full(reading)
            if left < limits.filling_seconds:
                text = f"{share:.0%} of the disk are free; it is full in {left / 3600:.1f} hours at this rate"
                yield Alarm("disk filling", WARNING, text)

    def _archive(self, reading: Reading, context: Context) -> Iterator[Alarm]:
        if reading.recorder.get("halted"):
            yield Alarm("archive halted", WARNING, "nothing is archived: the disk has no room for it")
        if dropped := self._growth("archive"):
            minutes = self.thresholds.recent_seconds / 60
            text = f"{dropped:,.0f} blocks of the archive were lost within {minutes:.0f} minutes"
            yield Alarm("archive dropping", WARNING, text)

    def _seconds_to_full(self, reading: Reading) -> float:
        trail = self._trails["free"]
        if trail.growth >= 0 or trail.span < self.thresholds.recent_seconds:  # one file says nothing yet
            return math.inf
        return reading.free_bytes * trail.span / -trail.growth


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.0f} times"


def _most_common_wait(reading: Reading) -> str:
    """Where the producers are."""
    counts: dict[str, int] = {}
    for process in reading.of_role("producer"):
        what = process.phase if process.state == "running" else process.state
        counts[what] = counts.get(what, 0) + 1
    listed = ", ".join(f"{n} in {what}" for what, n in sorted(counts.items(), key=lambda one: -one[1]))
    return f"producers: {listed}"


def _restarts(process: Process) -> str:
    return f"restarts {process.name}"
