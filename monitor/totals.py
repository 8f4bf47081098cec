"""What a run adds up over its attempts. Every set of rings counts from nothing; a run may use up several.

A total is the sum over sets of rings, read from their words and counters, which are exact also after a kill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

BYTES = ("packed_bytes", "unpacked_bytes")


@dataclass(frozen=True)
class Totals:
    """Figures that add up. What a run can lose again (steps, updates and episodes of the policy that
    survives) is not among them."""

    committed: int = 0  # slots, as are the next four
    consumed: int = 0
    dropped: int = 0
    redelivered: int = 0
    not_written: int = 0
    steps: int = 0  # valid agent-steps consumed, those of an abandoned policy included
    steps_dropped: int = 0
    packed_bytes: int = 0
    unpacked_bytes: int = 0
    sgd_steps: int = 0
    samples: int = 0
    checkpoints: int = 0
    checkpoint_failures: int = 0
    lag_bins: tuple[int, ...] = ()  # steps by lag
    lag_sum: int = 0
    lag_max: int = 0
    seconds: float = 0.0  # from the first commit to the stop of each attempt
    restarts: Mapping[str, int] = field(default_factory=dict)  # by role

    @classmethod
    def read(cls, control: Any, rings: Sequence[Any], producers: Sequence[int], learner: int) -> Totals:
        """Of the rings that `control` belongs to; `producers` and `learner` are indices of its process table.
        Without seconds and restarts, which are counted by attempt."""
        books = [ring.books() for ring in rings]
        written = [control.counters(index) for index in producers]
        trained = control.counters(learner)
        return cls(
            committed=sum(one["committed"] for one in books),
            consumed=sum(one["consumed"] for one in books),
            dropped=sum(sum(one["dropped"].values()) for one in books),
            redelivered=sum(one["redelivered"] for one in books),
            not_written=sum(one["not_written"] for one in books),
            steps=trained["steps"],
            steps_dropped=sum(sum(one["dropped_steps"].values()) for one in books),
            packed_bytes=sum(one["bytes_packed"] for one in written),
            unpacked_bytes=sum(one["bytes_unpacked"] for one in written),
            sgd_steps=trained["sgd_steps"],
            samples=trained["samples"],
            checkpoints=trained["checkpoints"],
            checkpoint_failures=trained["checkpoint_failures"],
            lag_bins=tuple(control.bins(learner)[0]),
            lag_sum=trained["lag_sum"],
            lag_max=trained["lag_max"],
        )

    def __add__(self, other: Totals) -> Totals:
        width = max(len(self.lag_bins), len(other.lag_bins))
        mine, theirs = (one + (0,) * (width - len(one)) for one in (self.lag_bins, other.lag_bins))
        roles = sorted(self.restarts.keys() | other.restarts.keys())
        plain = {
            one.name: getattr(self, one.name) + getattr(other, one.name)
            for one in fields(self)
            if one.name not in ("lag_bins", "lag_max", "restarts")
        }
        return Totals(
            **plain,
            lag_bins=tuple(a + b for a, b in zip(mine, theirs, strict=True)),
            lag_max=max(self.lag_max, other.lag_max),
            restarts={role: self.restarts.get(role, 0) + other.restarts.get(role, 0) for role in roles},
        )

    def settled(self) -> Totals:
        """With every slot that was in flight dropped: of rings that are gone and cannot be looked at."""
        return replace(self, dropped=max(self.dropped, self.committed - self.consumed))

    def to_json(self) -> dict[str, Any]:
        """Bytes as decimal strings: they outgrow the whole numbers of many readers of JSON."""
        value = {one.name: getattr(self, one.name) for one in fields(self)}
        value |= {name: str(value[name]) for name in BYTES}
        bins = list(self.lag_bins)
        while bins and bins[-1] == 0:
            bins.pop()
        return value | {"lag_bins": bins, "restarts": dict(self.restarts), "seconds": round(self.seconds, 6)}

    @classmethod
    def from_json(cls, value: Any) -> Totals:
        """What `to_json` gave; zeros for what is not there, since a file may be of another version."""
        if not isinstance(value, dict):
            return cls()
        known = {one.name: value[one.name] for one in fields(cls) if one.name in value}
        known |= {name: int(known[name]) for name in BYTES if name in known}
        return cls(**known | {"lag_bins": tuple(known.get("lag_bins", ()))})
