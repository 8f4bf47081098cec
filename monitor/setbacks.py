"""What whoever watches a run is to hear of though it goes on: a full disk, failed checkpoints, roll-backs,
alarms of audits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from consumers.causes import CAUSES

CALM_REPORTS = 10  # in a row, before a disk counts as having room: one that is nearly full comes and goes


class Setbacks:
    """Tells of each once when it begins, and once when it is over; of audits ever more seldom."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._full = self._unsaved = False
        self._calm = 0  # reports written in a row
        self._seen: dict[str, int] | None = None

    def news(self, counters: Mapping[str, int], *, written: bool) -> list[str]:
        """Lines to tell, oldest first. `counters`: the learner's now, in which what stands there at the first
        call is old; `written`: whether the disk had room for the last report."""
        found, before, self._seen = [], self._seen or counters, dict(counters)
        self._calm = self._calm + 1 if written else 0
        if not written and not self._full:
            self._full = True
            found.append(
                f"{self._directory}: the disk is full; status.json stands still, and lines of logs and "
                "metrics are lost until there is room; training goes on"
            )
        elif self._full and self._calm >= CALM_REPORTS:
            self._full = False
            found.append(f"{self._directory}: the disk has room again")
        if counters["rollbacks"] > before["rollbacks"]:
            found.append("the learner went back to a checkpoint; events.jsonl says why (rolled_back)")
        if counters["checkpoint_failures"] > before["checkpoint_failures"]:
            if not self._unsaved:
                found.append(
                    "a checkpoint could not be written; the one before stays, and it is tried again; "
                    "events.jsonl says why (checkpoint_failed)"
                )
            self._unsaved = True
        elif self._unsaved and counters["checkpoints"] > before["checkpoints"]:
            self._unsaved = False
            found.append("a checkpoint was written again")
        for audit, cause in CAUSES.items():
            times, told = counters[f"audit_{audit}_alarms"], before[f"audit_{audit}_alarms"]
            if times.bit_length() > told.bit_length():  # the 1st, 2nd, 4th, 8th ... was among them
                found.append(f"{audit} audit, alarm {times}: {cause}; events.jsonl has the figures (audit)")
        return found
