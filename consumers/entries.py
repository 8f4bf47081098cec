"""What the books are told of a batch: a learner's part of it, and the parts of several learners together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from consumers.diagnostics import age_bin, lag_counts, lag_spread
from ringbuf import AGE_BINS, LAG_BINS, Lease

SUMMED = (
    "samples",
    "masked",
    "burn_in",
    "audit_label_steps",
    "audit_label_unaudited",
)  # figures; see `joined`
THE_SAME = ("sgd_steps", "skipped")  # all learners move together


class Entry(NamedTuple):
    """Of slots that make one version. Of numbers, tensors, lists and dicts only, so that it can be told."""

    slots: list[tuple[int, int, int]]  # ring, sequence, epoch
    lags: Tensor  # int64 [LAG_BINS] valid steps
    lag_sum: int
    lag_max: int
    lag_spread: int  # the largest inside a slot
    warm_up: bool  # the lag is still growing to what `mode: lagged` keeps
    ages: Tensor  # int64 [AGE_BINS] slots
    age_sum_ns: int
    scores: Tensor  # float64 [n] of the episodes that ended
    figures: dict[str, float]  # of the update
    nonfinite: dict[str, Any] | None  # what the last skipped step was, `slots` (ring, sequence) in it
    alarms: list[tuple[str, float, float]]  # of audits: name, found, limit


def entry(leases: Sequence[Lease], version: int, leased_ns: int, outcome: Mapping[str, Any]) -> Entry:
    """Of the leases of one learner, trained by it as that of `version`; `outcome` is what Update.train
    returned."""
    lags, lag_sum, lag_max, spread = np.zeros(LAG_BINS, np.int64), 0, 0, 0
    ages, age_sum = np.zeros(AGE_BINS, np.int64), 0
    scores = []
    for lease in leases:
        if lease.version == lease.newest_version:
            lag = version - lease.version
            lags[min(lag, LAG_BINS - 1)] += lease.valid_steps
            lag_sum += lag * lease.valid_steps
            lag_max = max(lag_max, lag if lease.valid_steps else 0)
        else:
            versions, valid = lease.array("version"), lease.array("valid")
            assert versions is not None
            assert valid is not None
            more, total, largest = lag_counts(version, versions, valid, LAG_BINS)
            lags += more
            lag_sum += total
            lag_max = max(lag_max, largest)
            spread = max(spread, lag_spread(versions, valid))
        age = max(0, leased_ns - lease.commit_ns)
        age_sum += age
        ages[age_bin(age, AGE_BINS)] += 1
        scores.append(lease.episodes()["statistics"][:, lease.plan.score])
    apart = ("nonfinite", "alarms")
    told = {name: x for name, x in outcome.items() if name not in apart}
    figures = {name: x if isinstance(x, int) else float(x) for name, x in told.items()}
    nonfinite, alarms = (outcome[name] for name in apart)
    slots = [(lease.ring, lease.sequence, lease.epoch) for lease in leases]
    if nonfinite is not None:
        nonfinite = nonfinite | {"slots": [slots[i][:2] for i in nonfinite["slots"]]}
    warm_up = version - min(lease.version for lease in leases) < leases[0].plan.lagged_versions
    return Entry(
        slots, torch.from_numpy(lags), lag_sum, lag_max, spread, warm_up, torch.from_numpy(ages), age_sum,
        torch.from_numpy(np.concatenate(scores, dtype=np.float64)), figures, nonfinite,
        [(name, float(found), float(limit)) for name, found, limit in alarms],
    )  # fmt: skip


def together(parts: Sequence[Entry]) -> Entry:
    """Of a whole batch, from its learners' parts in their order."""
    first, *others = parts
    if not others:
        return first
    nonfinite = first.nonfinite
    if nonfinite is not None:  # for all, since all have skipped that step
        nonfinite = nonfinite | {"slots": [slot for part in parts if part.nonfinite
                                           for slot in part.nonfinite["slots"]]}  # fmt: skip
    return Entry(
        [slot for part in parts for slot in part.slots],
        torch.stack([part.lags for part in parts]).sum(0),
        sum(part.lag_sum for part in parts),
        max(part.lag_max for part in parts),
        max(part.lag_spread for part in parts),
        first.warm_up,
        torch.stack([part.ages for part in parts]).sum(0),
        sum(part.age_sum_ns for part in parts),
        torch.cat([part.scores for part in parts]),
        joined([part.figures for part in parts]),
        nonfinite,
        [alarm for part in parts for alarm in part.alarms],
    )


def joined(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of one update on a whole batch from those on its parts: sums, maxima, minima, and means
    weighted by the steps trained on; quantiles, too, are means of the parts'. NaN where no part has one."""
    weights = [one["samples"] for one in each]
    return {name: _joined(name, [one[name] for one in each], weights) for name in each[0]}


def _joined(name: str, values: list[float], weights: list[float]) -> float:
    if name in SUMMED:
        return sum(values)
    if name in THE_SAME:
        return values[0]
    known = [(x, w) for x, w in zip(values, weights, strict=True) if not math.isnan(x)]
    if not known:
        return math.nan
    if name.endswith(("_max", "_error", "_tolerance")):
        return max(x for x, _ in known)
    if name.endswith("_min"):
        return min(x for x, _ in known)
    total = sum(w for _, w in known)
    return sum(x * w for x, w in known) / total if total else known[0][0]
