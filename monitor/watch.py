"""Whether a process that is not dead still works: hung and stalled. Rules without I/O.

Time is counted in ticks of whoever watches. A machine that is paused, or so busy that the watcher itself
comes late, pauses both sides alike, so nobody is judged by a clock that ran on without him.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

AT_WORK = ("step", "policy", "train")  # phases in which progress is due; a named wait may last for ever


class Pulse(NamedTuple):
    """What a process last said of itself."""

    heartbeat_ns: int
    progress: int
    phase: str


@dataclass(frozen=True)
class Patience:
    """For how many ticks in a row each is borne."""

    start_ticks: int
    hung_ticks: int
    stalled_ticks: int
    abort_ticks: int
    """Between the signal that asks for a stack and the one that kills."""

    @classmethod
    def of(
        cls, tick_seconds: float, *, start: float, hung: float, stalled: float, abort: float
    ) -> Patience:
        """From seconds; one tick at least."""
        most = 1e18  # a setting may be any number, and their ratio more than one
        return cls(*(max(1, round(min(most, x / tick_seconds))) for x in (start, hung, stalled, abort)))


class Watch:
    """One life of one process, from its start at `tick`."""

    def __init__(self, tick: int):
        self._started = self._alive = self._moved = tick
        self._pulse: Pulse | None = None
        self._found: int | None = None  # tick of the finding

    def look(self, tick: int, pulse: Pulse, patience: Patience) -> str | None:
        """What is wrong: `slow start` (it did not come up), `hung` (no heartbeat), `stalled` (at work, but
        without progress), or None. The first finding stays; later calls return None."""
        before, self._pulse = self._pulse, pulse
        if before is None or pulse.heartbeat_ns != before.heartbeat_ns or pulse.phase != before.phase:
            self._alive = tick
        if before is None or pulse.progress != before.progress or pulse.phase not in AT_WORK:
            self._moved = tick
        if self._found is not None:
            return None
        found = self._judge(tick, pulse, patience)
        if found is not None:
            self._found = tick
        return found

    def _judge(self, tick: int, pulse: Pulse, patience: Patience) -> str | None:
        if pulse.phase == "starting":  # imports and first resets give no heartbeat
            return "slow start" if tick - self._started >= patience.start_ticks else None
        if tick - self._alive >= patience.hung_ticks:
            return "hung"
        return "stalled" if tick - self._moved >= patience.stalled_ticks else None

    def kill_due(self, tick: int, patience: Patience) -> bool:
        """Whether a process that something was found of has had its time to say where it stands."""
        return self._found is not None and tick - self._found >= patience.abort_ticks

    @property
    def found(self) -> bool:
        """Whether this life is over, since the process is to be killed."""
        return self._found is not None

    def silent_ticks(self, tick: int) -> int:
        """Since the last heartbeat."""
        return tick - self._alive
