"""Figures about a batch and the update made of it: lag, age, importance ratios, explained variance, how far
weights and policy moved. Histograms, since sorting is dear."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consumers.batch import Batch, Pieces, pieces
from consumers.corrections import MAX_LOG_RATIO, ratio

RATIO_FIGURES = (
    "mean", "min", "p1", "p50", "p99", "max", "log_max", "ess", "chi2", "k1", "k2", "k3",
)  # fmt: skip
COMPARED_STEPS = 256  # of a batch are evaluated before and after an update, to tell what it changed
COMPARED_EVERY = 8  # versions: the two passes take over 1 % of the update of a small network
RATIO_BINS = 512
RATIO_RANGE = 8.0  # of log w: quantiles beyond exp(+-8) are in the outermost bins


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


def lag_spread(versions: NDArray[np.int64], valid: NDArray[np.uint8]) -> int:
    """By how many versions the weights that acted in one trajectory of a slot differ at most; fields as in
    `lag_counts`."""
    horizon, groups = versions.shape
    acted = valid.reshape(horizon, groups, -1).any(2)
    if not acted.any():
        return 0
    newest = np.where(acted, versions, np.iinfo(np.int64).min).max(0)
    oldest = np.where(acted, versions, np.iinfo(np.int64).max).min(0)
    return int((newest - oldest)[acted.any(0)].max())


def age_bin(age_ns: int, bins: int) -> int:
    """The bin of an age: bin i holds ages below 2^i ms that no lower bin holds, the last everything
    longer."""
    return min((age_ns // 1_000_000).bit_length(), bins - 1)


def ratio_statistics(log_ratio: Tensor, kept: Tensor | None) -> dict[str, float]:
    """Of w = exp(log_ratio), a policy's probability over that of mu, which acted, over the kept steps (None:
    all); NaN where there are none.

    mean: 1 in expectation for any policy, before it trains on these steps
    min, p1, p50, p99, max: quantiles; the middle three lie in the right bin, at most 3.1 % off
    log_max: the largest |log w|
    ess: the effective sample size (sum w)^2 / (N sum w^2), in (0, 1] (Kong 1992, tech. report 348, Chicago)
    chi2: the mean of w^2 - 1, an estimate of the chi-squared divergence; ess is about 1 / (1 + chi2)
    k1, k2, k3: the means of -log w, (log w)^2 / 2 and (w - 1) - log w, estimates of KL(mu || policy): the
        first without bias and noisy, the second biased, the third without bias and never below 0
        (J. Schulman, Approximating KL Divergence, 2020)
    """
    x = log_ratio if kept is None else log_ratio[kept]
    if x.numel() == 0:
        return dict.fromkeys(RATIO_FIGURES, math.nan)
    low, high = x.aminmax()
    counts = x.clamp(-RATIO_RANGE, RATIO_RANGE).histc(RATIO_BINS, -RATIO_RANGE, RATIO_RANGE)
    wanted = counts.new_tensor([0.01, 0.5, 0.99]) * x.numel()
    sums = counts.cumsum(0)
    at = torch.searchsorted(sums, wanted).clamp(max=RATIO_BINS - 1)
    within = (wanted - sums[at]) / counts[at].clamp(min=1) + 1.0
    quantiles = (at + within) * (2 * RATIO_RANGE / RATIO_BINS) - RATIO_RANGE
    quantiles = ratio(quantiles.clamp(low, high))
    apart = x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expm1_()  # w - 1, to all its digits where w is near 1
    mean, square, log = apart.mean(), apart.square().mean(), x.mean()
    chi2 = 2.0 * mean + square
    figures = [
        1.0 + mean, ratio(low), *quantiles, ratio(high), torch.maximum(low.abs(), high.abs()),
        ((1.0 + mean).square() / (1.0 + chi2)).clamp(max=1.0), chi2,
        -log, 0.5 * x.square().mean(), apart.sub_(x).mean(),
    ]  # fmt: skip
    return dict(zip(RATIO_FIGURES, torch.stack(figures).tolist(), strict=True))


def truncated_shares(
    log_ratio: Tensor, kept: Tensor | None, *, rho_clip: float, c_clip: float
) -> dict[str, float]:
    """The shares of the kept steps (None: all) whose ratio V-trace cuts at its two bounds; NaN where there
    are none."""
    steps = log_ratio.numel() if kept is None else int(kept.sum())
    if steps == 0:
        return {"rho_clipped": math.nan, "c_clipped": math.nan}

    def share(clip: float) -> float:
        cut = log_ratio > math.log(clip)
        return int((cut if kept is None else cut & kept).sum()) / steps

    return {"rho_clipped": share(rho_clip), "c_clipped": share(c_clip)}


def explained_variance(values: Tensor, targets: Tensor, kept: Tensor | None) -> float:
    """1 - Var(targets - values) / Var(targets) over the kept steps (None: all); NaN where the targets do not
    vary."""
    if kept is not None:
        values, targets = values[kept], targets[kept]
    if targets.numel() == 0 or (total := float(targets.var(unbiased=False))) == 0.0:
        return float("nan")
    return 1.0 - float((targets - values).var(unbiased=False)) / total


def update_ratio(before: Tensor, after: Tensor) -> float:
    """How far the weights moved, as a share of how large they are: |after - before| / |before|, vectors of
    all weights."""
    return float((after - before).norm() / before.norm())


def policy_churn(
    before: Tensor, after: Tensor, choices: Sequence[int], mask: Tensor | None, kept: Tensor | None
) -> float:
    """The share of the kept observations (None: all) in which some head's likeliest choice is no longer the
    same one (Schaul et al. 2022, arXiv 2206.00730); NaN where there are none.

    before, after: logits [..., sum(choices)] of the same observations, before an update and after it; without
        choices actions are continuous, and the answer NaN
    mask: bool, shaped as they are; False: not a choice. None: all are
    """
    if not choices:
        return math.nan
    if mask is not None:
        before, after = (torch.where(mask, x, -math.inf) for x in (before, after))
    changed = torch.zeros(before.shape[:-1], dtype=torch.bool, device=before.device)
    heads = zip(before.split(list(choices), -1), after.split(list(choices), -1), strict=True)
    for old, new in heads:
        changed |= old.argmax(-1) != new.argmax(-1)
    if kept is not None:
        changed = changed[kept]
    return float(changed.float().mean())


def value_change(before: Tensor, after: Tensor, kept: Tensor | None) -> float:
    """The root mean square of what an update made of the values of the kept observations (None: all); NaN
    where there are none."""
    change = after - before
    return float((change if kept is None else change[kept]).square().mean().sqrt())


def watch(
    look: Callable[[Batch, Pieces], tuple[Tensor, Tensor]],
    batch: Batch,
    version: int,
    choices: Sequence[int],
    unit: float,
) -> Callable[[], dict[str, float]]:
    """What to call after an update for what it changed in some steps of every COMPARED_EVERY-th version,
    others each time. `look` gives logits and value of segments' steps; `unit`: of the values, in rewards."""
    if version % COMPARED_EVERY:
        return lambda: dict.fromkeys(("policy_churn", "value_change"), math.nan)
    most = max(1, COMPARED_STEPS // batch.horizon)
    size = max(n for n in range(1, most + 1) if batch.segments % n == 0)
    place = version // COMPARED_EVERY % (batch.segments // size)
    part = pieces(torch.tensor([place]), size, batch.device)
    mask, valid = (None if x is None else part.take(x) for x in (batch.mask, batch.valid))
    logits, output = look(batch, part)

    def changes() -> dict[str, float]:
        after, values = look(batch, part)
        return {
            "policy_churn": policy_churn(logits, after, choices, mask, valid),
            "value_change": value_change(output, values, valid) * unit,
        }

    return changes


def finite(figures: Mapping[str, object]) -> dict[str, object]:
    """The figures with None in place of what JSON cannot hold (NaN and the infinities)."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in figures.items()}
