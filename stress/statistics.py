"""Estimates over seeds and tasks, with intervals by stratified bootstrap.

The definitions are those of rliable (Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the
Statistical Precipice, arXiv 2108.13264), whose outputs tests/data/rliable_vectors.json holds. Scores are
float64 arrays [..., seeds, tasks]: a task is a stratum, and resampling draws seeds within it. With one task
that is a bootstrap over seeds. Every function gives the same number whatever the order of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

RESAMPLES = 50_000
COVERAGE = 0.95
TRIMMED = 0.25  # of the scores at either end are left out of the interquartile mean
_BLOCK = 4_000_000  # numbers that are resampled at a time: 32 MB
_SEED = 20_211_208


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval; NaN: there is none, infinite: no bound."""

    estimate: float
    low: float
    high: float


NOTHING = Interval(math.nan, math.nan, math.nan)


def iqm(scores: ArrayLike) -> Array:
    """The interquartile mean over seeds and tasks: [..., seeds, tasks] -> [...]. Of n scores the lowest and
    highest floor(n / 4) are left out."""
    scores = np.asarray(scores, np.float64)
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = int(TRIMMED * flat.shape[-1])
    return flat[..., cut : flat.shape[-1] - cut].mean(-1)


def mean(scores: ArrayLike) -> Array:
    """The mean over seeds and tasks: [..., seeds, tasks] -> [...]."""
    return np.asarray(scores, np.float64).mean((-2, -1))


def optimality_gap(scores: ArrayLike, solved: float = 1.0) -> Array:
    """How far the scores fall short of `solved` in the mean; better than that counts as that."""
    return solved - np.minimum(np.asarray(scores, np.float64), solved).mean((-2, -1))


def lower_tail(scores: ArrayLike, share: float = 0.25) -> Array:
    """The mean of the worst `share` of the scores, of one at least (conditional value at risk)."""
    scores = np.asarray(scores, np.float64)
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    return flat[..., : max(1, math.floor(share * flat.shape[-1]))].mean(-1)


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> Array:
    """How often a seed of x beats one of y, a tie counting half, in the mean over tasks:
    [..., seeds of x, tasks], [..., seeds of y, tasks] -> [...]."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    difference = x[..., :, None, :] - y[..., None, :, :]
    return (0.5 + 0.5 * np.sign(difference)).mean((-3, -2, -1))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Array:
    """The share of all scores above each threshold: [..., seeds, tasks], [n] -> [..., n]."""
    scores = np.asarray(scores, np.float64)
    flat = scores.reshape(*scores.shape[:-2], 1, -1)
    return (flat > np.asarray(thresholds, np.float64)[:, None]).mean(-1)


def resampled(scores: ArrayLike, statistic: Callable[[Array], Array], *, resamples: int = RESAMPLES) -> Array:
    """The statistic of scores [seeds, tasks] drawn anew with replacement within each task: [resamples, ...].
    The statistic takes [n, seeds, tasks] and gives [n, ...]."""
    ordered = np.sort(np.asarray(scores, np.float64), axis=0)
    random = np.random.default_rng([_SEED, *ordered.shape])
    size = max(1, _BLOCK // ordered.size)
    found = []
    for begin in range(0, resamples, size):
        draws = random.integers(len(ordered), size=(min(size, resamples - begin), *ordered.shape))
        found.append(statistic(np.take_along_axis(ordered[None], draws, 1)))
    return np.concatenate(found)


def percentiles(values: Array, estimate: float, coverage: float = COVERAGE) -> Interval:
    """The percentile interval of a statistic's resamples. One that is undefined, NaN, may have been anything:
    it widens the interval at both ends."""
    outside = 50 * (1 - coverage)
    low = _quantile(np.where(np.isnan(values), -np.inf, values), outside)
    high = _quantile(np.where(np.isnan(values), np.inf, values), 100 - outside)
    return Interval(estimate, low, high)


def _quantile(values: Array, percent: float) -> float:
    """Interpolated, but not between a number and an infinity, which has no middle."""
    if np.isfinite(values).all():
        return float(np.percentile(values, percent))
    return float(np.percentile(values, percent, method="lower" if percent < 50 else "higher"))


def bootstrap(
    scores: ArrayLike, statistic: Callable[[Array], Array] = iqm, *, resamples: int = RESAMPLES
) -> Interval:
    """The statistic of scores [seeds, tasks] with its 95 % percentile interval; nothing where there are no
    scores."""
    scores = np.asarray(scores, np.float64)
    if scores.size == 0:
        return NOTHING
    estimate = float(statistic(np.sort(scores, axis=0)))
    return percentiles(resampled(scores, statistic, resamples=resamples), estimate)


def bootstrap_pair(
    x: ArrayLike,
    y: ArrayLike,
    statistic: Callable[[Array, Array], Array] = probability_of_improvement,
    *,
    resamples: int = RESAMPLES,
) -> Interval:
    """The statistic of two sets of scores that are drawn anew independently of each other."""
    x, y = (np.sort(np.asarray(a, np.float64), axis=0) for a in (x, y))
    if x.size == 0 or y.size == 0:
        return NOTHING
    random = np.random.default_rng([_SEED, *x.shape, *y.shape])
    size = max(1, _BLOCK // (len(x) * len(y) * x.shape[1]))
    found = []
    for begin in range(0, resamples, size):
        n = min(size, resamples - begin)
        drawn = [np.take_along_axis(a[None], random.integers(len(a), size=(n, *a.shape)), 1) for a in (x, y)]
        found.append(statistic(*drawn))
    return percentiles(np.concatenate(found), float(statistic(x, y)))


def bootstrap_curves(curves: ArrayLike, *, resamples: int = 2000) -> Array:
    """The interquartile mean over seeds at each point of curves [seeds, points] with its 95 % interval, point
    by point: [3, points], estimate, low, high."""
    ordered = np.sort(np.asarray(curves, np.float64), axis=0)
    random = np.random.default_rng([_SEED, *ordered.shape])
    draws = random.integers(len(ordered), size=(resamples, len(ordered)))
    drawn = iqm(np.moveaxis(ordered[draws], 2, 1)[..., None])  # of [resamples, points, seeds, 1]
    estimate = iqm(ordered.T[..., None])
    return np.stack([estimate, *np.percentile(drawn, [2.5, 97.5], axis=0)])


def expected_time(seconds: ArrayLike, reached: ArrayLike) -> Array:
    """The expected time to a target under restarts: all time spent, by those that never reached it as well,
    over the number that did; infinite where none did (the ERT of Hansen et al. 2021, COCO, arXiv 1603.08785).
    [..., seeds] -> [...]."""
    successes = np.asarray(reached, bool).sum(-1)
    spent = np.asarray(seconds, np.float64).sum(-1)
    return np.where(successes > 0, spent / np.maximum(successes, 1), np.inf)


def ratio_of_times(
    a: ArrayLike, a_reached: ArrayLike, b: ArrayLike, b_reached: ArrayLike, *, paired: bool,
    resamples: int = RESAMPLES,
) -> Interval:  # fmt: skip
    """expected_time of a over that of b with its 95 % interval; below 1: a is faster.

    a, b [seeds]: the time to the target, or where `reached` is False the time spent without. Paired: seed i
    of both is drawn together. A resample in which neither reached the target says nothing either way.
    """
    rows_a, rows_b = (
        np.stack([np.asarray(t, np.float64), np.asarray(r, np.float64)], -1)
        for t, r in ((a, a_reached), (b, b_reached))
    )
    if len(rows_a) == 0 or len(rows_b) == 0:
        return NOTHING
    if paired:
        order = np.lexsort(np.concatenate([rows_a, rows_b], -1).T)
        rows_a, rows_b = rows_a[order], rows_b[order]
    else:
        rows_a, rows_b = (rows[np.lexsort(rows.T)] for rows in (rows_a, rows_b))
    random = np.random.default_rng([_SEED, len(rows_a), len(rows_b)])
    draws_a = random.integers(len(rows_a), size=(resamples, len(rows_a)))
    draws_b = draws_a if paired else random.integers(len(rows_b), size=(resamples, len(rows_b)))

    def ratio(x: Array, y: Array) -> Array:
        over, under = expected_time(x[..., 0], x[..., 1]), expected_time(y[..., 0], y[..., 1])
        with np.errstate(invalid="ignore"):
            return over / under

    interval = percentiles(ratio(rows_a[draws_a], rows_b[draws_b]), float(ratio(rows_a, rows_b)))
    return interval._replace(low=max(interval.low, 0.0))
