"""The figures that the live page draws over time, from two readings of the counters. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from monitor.history import Series
from monitor.readings import Reading
from monitor.status import quantile

PRODUCER_WORK = {"simulator": ("sim_ns", "check_ns"), "policy": ("policy_ns", "pickup_ns")}
PRODUCER_WAITS = ("wait_credit_ns", "wait_ring_full_ns", "wait_version_ns", "wait_answer_ns", "wait_owner_ns")
LEARNER_WORK = {
    "waiting": ("wait_no_data_ns",),
    "forward": ("copy_ns", "forward_ns"),
    "backward": ("backward_ns", "allreduce_ns"),
    "optimizer": ("optimizer_ns", "publish_ns"),
}
GAUGES = (
    "score_mean", "score_best", "loss_policy", "loss_value", "entropy_ratio", "approx_kl", "clipped_ratio",
    "explained_variance", "grad_norm", "learning_rate",
)  # fmt: skip

SERIES = (
    Series("steps_produced"),
    Series("steps_trained"),
    Series("updates"),
    Series("bytes_packed"),
    Series("bytes_unpacked"),
    Series("lag_mean"),
    Series("lag_p99", peak=True),
    Series("lag_max", peak=True),
    Series("age_seconds"),
    *(Series(name) for name in GAUGES),
    Series("fill"),
    *(Series(f"producer_{name}") for name in (*PRODUCER_WORK, "waiting")),
    *(Series(f"learner_{name}") for name in LEARNER_WORK),
    Series("cores"),
    Series("resident_bytes", peak=True),
)


def point(before: Reading, now: Reading, processes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Rates between two readings, what the steps consumed between them were, and where the gauges stand.
    What there is nothing of is left out. `processes`: `cpu` (cores) and `resident_bytes` of each."""
    span = now.monotonic - before.monotonic
    figures = {name: now.gauges[name] for name in GAUGES}
    capacity = sum(ring.slots for ring in now.rings)
    figures["fill"] = sum(ring.in_flight for ring in now.rings) / capacity
    figures["cores"] = sum(one["cpu"] for one in processes)
    figures["resident_bytes"] = sum(one["resident_bytes"] for one in processes)
    if span <= 0:
        return figures

    def grown(name: str, whose: str = "learner") -> int:
        # A set of counters is written field by field, and may step back for a moment at a roll-back.
        return max(0, getattr(now, whose)[name] - getattr(before, whose)[name])

    for figure, name, whose in (
        ("steps_produced", "steps", "producers"),
        ("bytes_packed", "bytes_packed", "producers"),
        ("bytes_unpacked", "bytes_unpacked", "producers"),
        ("steps_trained", "steps", "learner"),
        ("updates", "updates", "learner"),
    ):
        figures[figure] = grown(name, whose) / span
    figures |= _lags(before, now)
    if slots := grown("slots"):
        figures["age_seconds"] = grown("age_sum_ns") / 1e9 / slots
    for whose, parts in (
        ("producer", {**PRODUCER_WORK, "waiting": PRODUCER_WAITS}),
        ("learner", LEARNER_WORK),
    ):
        total = span * max(1, len(now.of_role(whose)))
        for part, names in parts.items():
            seconds = sum(grown(name, f"{whose}s") for name in names) / 1e9
            figures[f"{whose}_{part}"] = min(1.0, seconds / total)
    return figures


def _lags(before: Reading, now: Reading) -> dict[str, float]:
    """Of the steps consumed in between, exact but for lags beyond the last bin."""
    bins = [max(0, b - a) for a, b in zip(before.lag_bins, now.lag_bins, strict=True)]
    steps = sum(bins)
    if not steps:
        return {}
    p99 = quantile(bins, 0.99)
    return {
        "lag_mean": sum(lag * count for lag, count in enumerate(bins)) / steps,
        "lag_p99": math.nan if p99 is None else p99,
        "lag_max": max(lag for lag, count in enumerate(bins) if count),
    }
