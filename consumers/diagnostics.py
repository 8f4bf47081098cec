"""Figures about a batch: lag, age, importance ratios, explained variance. Histograms, since sorting is
dear."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RATIO_BINS = 512
RATIO_RANGE = 8.0  # of log w: quantiles lie within exp(+-8), to 1.6 %


def lag_counts(
    version: int, versions: NDArray[np.int64], valid: NDArray[np.uint8], bins: int
) -> tuple[NDArray[np.int64], int, int]:
    """How many valid steps lag by 0, 1, ... bins-2 versions and by more: counts [bins], their sum, the
    largest lag.

    `version` is the learner's; versions [T, G] and valid [T, B] are a slot's fields, whose B agents are G
    equal, contiguous groups.
    """
    horizon, groups = versions.shape
    steps = valid.reshape(horizon, groups, -1).sum(2, dtype=np.int64)
    lags = version - versions
    counts = np.bincount(np.minimum(lags, bins - 1).ravel(), weights=steps.ravel(), minlength=bins)
    largest = int(lags[steps > 0].max(initial=0))
    return counts.astype(np.int64), int((lags * steps).sum()), largest


def age_bin(age_ns: int, bins: int) -> int:
    """The bin of an age: bin i holds ages below 2^i ms that no lower bin holds, the last everything
    longer."""
    return min((age_ns // 1_000_000).bit_length(), bins - 1)


def ratio_statistics(log_ratio: Tensor, kept: Tensor | None) -> dict[str, float]:
    """Mean, p1, p50, p99 and maximum of w = exp(log_ratio) over the kept steps (None: all); NaN where there
    are none."""
    x = log_ratio if kept is None else log_ratio[kept]
    if x.numel() == 0:
        return dict.fromkeys(("mean", "p1", "p50", "p99", "max"), float("nan"))
    x = x.clamp(-RATIO_RANGE, RATIO_RANGE)
    share = x.histc(RATIO_BINS, -RATIO_RANGE, RATIO_RANGE).cumsum(0) / x.numel()
    at = torch.searchsorted(share, torch.tensor([0.01, 0.5, 0.99], device=x.device))
    width = 2 * RATIO_RANGE / RATIO_BINS
    p1, p50, p99 = ((at + 0.5) * width - RATIO_RANGE).exp().tolist()
    return {"mean": float(x.exp().mean()), "p1": p1, "p50": p50, "p99": p99, "max": float(x.max().exp())}


def explained_variance(values: Tensor, targets: Tensor, kept: Tensor | None) -> float:
    """1 - Var(targets - values) / Var(targets) over the kept steps (None: all); NaN where the targets do not
    vary."""
    if kept is not None:
        values, targets = values[kept], targets[kept]
    if targets.numel() == 0 or (total := float(targets.var(unbiased=False))) == 0.0:
        return float("nan")
    return 1.0 - float((targets - values).var(unbiased=False)) / total


def finite(figures: Mapping[str, object]) -> dict[str, object]:
    """The figures with None in place of what JSON cannot hold (NaN and the infinities)."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in figures.items()}
