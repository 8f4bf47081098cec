"""Decisions from samples: tests of a difference and of its absence, correction for many tests, and how many
seeds would decide."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stress.statistics import expected_time

LEVEL = 0.05
POWER = 0.8
EXACT_SEEDS = 14  # up to so many all signs are tried: 2^14 of them
SIGNS = 50_000  # drawn where there are more
MOST_SEEDS = 10_000
_SEED = 20_211_208


class Test(NamedTuple):
    """A t-test: statistic, degrees of freedom, p of no difference in either direction."""

    t: float
    freedom: float
    p: float


def paired_t(differences: ArrayLike) -> Test:
    """Student's t-test of a mean difference of 0; differences [seeds], by pairs. p is 1 where all are 0, and
    for fewer than two."""
    d = np.sort(np.asarray(differences, np.float64))
    n = d.size
    if n < 2:
        return Test(math.nan, max(0, n - 1), 1.0)
    return _test(float(d.mean()), float(d.std(ddof=1)) / math.sqrt(n), n - 1)


def welch(x: ArrayLike, y: ArrayLike) -> Test:
    """Welch's t-test of equal means of two independent samples of unequal variance; p is 1 for fewer than two
    of either."""
    x, y = (np.sort(np.asarray(a, np.float64)) for a in (x, y))
    if min(x.size, y.size) < 2:
        return Test(math.nan, math.nan, 1.0)
    a, b = float(x.var(ddof=1)) / x.size, float(y.var(ddof=1)) / y.size
    freedom = (a + b) ** 2 / (a**2 / (x.size - 1) + b**2 / (y.size - 1)) if a + b > 0 else x.size + y.size - 2
    return _test(float(x.mean() - y.mean()), math.sqrt(a + b), freedom)


def _test(difference: float, error: float, freedom: float) -> Test:
    if error == 0.0:  # no spread at all: certain either way
        return (
            Test(math.copysign(math.inf, difference), freedom, 0.0) if difference else Test(0.0, freedom, 1.0)
        )
    t = difference / error
    return Test(t, freedom, 2 * t_tail(abs(t), freedom))


def sign_flips(differences: ArrayLike) -> float:
    """p of the mean difference if each difference could as well have had the other sign; differences
    [seeds]. All signs are tried up to EXACT_SEEDS, else SIGNS of them, drawn from a fixed seed."""
    d = np.sort(np.asarray(differences, np.float64))
    n = d.size
    if n == 0:
        return 1.0
    return _as_far(np.abs((1 - 2 * _flips(n)) @ d), abs(float(d.sum())), n)


def swaps(a: ArrayLike, a_reached: ArrayLike, b: ArrayLike, b_reached: ArrayLike) -> float:
    """p of the ratio of expected times if the two runs of a pair could as well have changed places; a, b and
    whether they reached the target [seeds], by pairs, as in statistics.ratio_of_times. All ways are tried up
    to EXACT_SEEDS, as by `sign_flips`."""
    columns = [np.asarray(column, np.float64) for column in (a, a_reached, b, b_reached)]
    n = columns[0].size
    if not (columns[1].any() or columns[3].any()):
        return 1.0
    a, a_reached, b, b_reached = (column[np.lexsort(columns)] for column in columns)

    def apart(swapped: NDArray[np.bool_]) -> NDArray[np.float64]:
        one = expected_time(np.where(swapped, b, a), np.where(swapped, b_reached, a_reached))
        other = expected_time(np.where(swapped, a, b), np.where(swapped, a_reached, b_reached))
        with np.errstate(divide="ignore"):
            return np.abs(np.log(one / other))

    return _as_far(apart(_flips(n) == 1), float(apart(np.zeros(n, bool))), n)


def _flips(n: int) -> NDArray[np.int64]:
    """1 where a pair is turned round: all ways for few pairs, else drawn; [ways, n]."""
    if n <= EXACT_SEEDS:
        return (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return np.random.default_rng([_SEED, n]).integers(2, size=(SIGNS, n))


def _as_far(ways: NDArray[np.float64], found: float, n: int) -> float:
    extra = 0 if n <= EXACT_SEEDS else 1  # the way that was found, which is not among those drawn
    return (int((ways >= found * (1 - 1e-12)).sum()) + extra) / (len(ways) + extra)


def equivalence(differences: ArrayLike, margin: float) -> float:
    """p of a mean difference of `margin` or more in either direction: the larger of two one-sided t-tests
    (Schuirmann 1987). At p <= 0.05 the 90 % interval lies within the margin. differences [seeds], by pairs.
    """
    d = np.sort(np.asarray(differences, np.float64))
    if d.size < 2:
        return 1.0
    mean, error = float(d.mean()), float(d.std(ddof=1)) / math.sqrt(d.size)
    inside = margin - abs(mean)
    if error == 0.0:
        return 0.0 if inside > 0 else 1.0
    return t_tail(inside / error, d.size - 1)


def holm(p: Sequence[float]) -> list[float]:
    """The p values adjusted so that the chance of any false finding among them stays at the level (Holm
    1979)."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, largest = [1.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


def seeds_to_decide(differences: ArrayLike, level: float = LEVEL, power: float = POWER) -> int | None:
    """How many pairs would show a true difference as large as the one found with probability `power`, if
    the spread is the one found (Colas et al. 2018, arXiv 1806.08295); None: more than MOST_SEEDS, or not to
    be told from fewer than two."""
    d = np.asarray(differences, np.float64)
    if d.size < 2:
        return None
    mean, spread = abs(float(np.sort(d).mean())), float(np.sort(d).std(ddof=1))
    if spread == 0.0:
        return 2 if mean else None
    return _enough(mean / spread, level / 2, power)


def seeds_to_equate(differences: ArrayLike, margin: float, level: float = LEVEL) -> int | None:
    """How many pairs would show with probability POWER that there is no difference of `margin`, if there is
    none and the spread is the one found; as `seeds_to_decide`."""
    d = np.asarray(differences, np.float64)
    if d.size < 2:
        return None
    spread = float(np.sort(d).std(ddof=1))
    return 2 if spread == 0.0 else _enough(margin / spread, level, (1 + POWER) / 2)


def _enough(effect: float, tail: float, power: float) -> int | None:
    """The smallest n whose error, 1 / sqrt(n), leaves room for both quantiles within the effect. The search
    begins where it would be if the spread were known, which is too few, but not by much."""
    normal = NormalDist()
    known = (normal.inv_cdf(1 - tail) + normal.inv_cdf(power)) / effect if effect > 0 else math.inf
    if known**2 > MOST_SEEDS:
        return None
    n = max(2, math.ceil(known**2))
    while effect * math.sqrt(n) < t_quantile(tail, n - 1) + t_quantile(1 - power, n - 1):
        n += 1
    return n if n <= MOST_SEEDS else None


@functools.cache
def t_quantile(tail: float, freedom: float) -> float:
    """The t that Student's distribution exceeds with probability `tail`, at most 0.5, by bisection."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > tail:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > tail else (low, middle)
    return high


def t_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's distribution, to all its digits far out as well."""
    if t < 0:
        return 1.0 - t_tail(-t, freedom)
    return 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22, evaluated
    by Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1.0 - incomplete_beta(b, a, 1 - x)
    front = (
        math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
        / a
    )
    c, d = 1.0, 0.0
    result = 1.0
    for i in range(1000):
        m = i // 2
        if i == 0:
            step = 1.0
        elif i % 2 == 0:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / (1.0 + step * d)
        c = 1.0 + step / c
        result *= c * d
        if i > 0 and abs(c * d - 1.0) < 1e-15:
            break
    return front * (result - 1.0)
