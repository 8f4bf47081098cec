"""Estimates and tests over seeds equal those of rliable, scipy and statsmodels, and what is known."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from stress import inference, statistics

DATA = Path(__file__).parent / "data"
RLIABLE = json.loads((DATA / "rliable_vectors.json").read_text())
SCIPY = json.loads((DATA / "scipy_vectors.json").read_text())
FEW = 400  # resamples, where nothing is compared with the interval

numbers = st.floats(-10, 10, allow_subnormal=False)
tables = array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8).flatmap(
    lambda s: arrays(float, s, elements=numbers)
)
differences = st.lists(numbers, min_size=2, max_size=8)


@pytest.mark.parametrize("case", RLIABLE["estimates"], ids=lambda case: case["name"])
def test_estimates_and_intervals_are_those_of_rliable(case):
    for name, statistic in (("iqm", statistics.iqm), ("optimality_gap", statistics.optimality_gap)):
        found = statistics.bootstrap(case["scores"], statistic)
        assert found.estimate == pytest.approx(case[name], abs=1e-12)
        drawn = statistics.resampled(case["scores"], statistic)
        assert found == statistics.percentiles(drawn, found.estimate)
        for end, share in zip(case[f"{name}_interval"], (0.025, 0.975)):  # a distribution may have gaps there
            assert (drawn < end - 1e-9).mean() - 0.003 < share < (drawn <= end + 1e-9).mean() + 0.003
    profile = statistics.performance_profile(case["scores"], case["thresholds"])
    assert profile == pytest.approx(np.array(case["profile"]), abs=1e-12)


@pytest.mark.parametrize("case", RLIABLE["improvements"], ids=["one task", "ties"])
def test_the_probability_of_improvement_is_that_of_rliable(case):
    found = statistics.bootstrap_pair(case["x"], case["y"], resamples=5000)
    assert found.estimate == pytest.approx(case["probability"], abs=1e-12)
    assert found[1:] == pytest.approx(case["interval"], abs=0.06 * (found.high - found.low))


@pytest.mark.parametrize("case", SCIPY["tests"], ids=lambda case: f"{len(case['x'])} pairs")
def test_tests_are_those_of_scipy_and_statsmodels(case):
    x, y = np.array(case["x"]), np.array(case["y"])
    assert inference.paired_t(x - y) == pytest.approx(case["paired"], rel=1e-9)
    assert inference.welch(x, y[: max(2, len(y) - 1)]) == pytest.approx(case["welch"], rel=1e-9)
    assert inference.sign_flips(x - y) == pytest.approx(case["sign_flips"], rel=1e-12)
    for margin, p in case["equivalence"]:
        assert inference.equivalence(x - y, margin) == pytest.approx(p, rel=1e-8)


@pytest.mark.parametrize("case", SCIPY["holm"], ids=lambda case: f"{len(case['p'])} tests")
def test_many_tests_are_corrected_as_statsmodels_does(case):
    assert inference.holm(case["p"]) == pytest.approx(case["adjusted"])


def test_the_distribution_functions_are_those_of_scipy():
    for *arguments, value in SCIPY["incomplete_beta"]:
        assert inference.incomplete_beta(*arguments) == pytest.approx(value, rel=1e-9)
    for *arguments, value in SCIPY["t_tail"]:
        assert inference.t_tail(*arguments) == pytest.approx(value, rel=1e-9)
    assert inference.t_quantile(0.025, 9) == pytest.approx(2.262157, abs=1e-6)


@pytest.mark.parametrize(("effect", "pairs"), SCIPY["seeds"])
def test_the_seeds_that_would_decide_are_those_of_a_power_analysis(effect, pairs):
    spread = np.array([-1.0, 1.0]) / math.sqrt(2)  # of standard deviation 1
    assert abs(inference.seeds_to_decide(spread + effect) - pairs) <= 1.5


def test_no_number_of_seeds_decides_a_difference_of_nothing():
    assert inference.seeds_to_decide([-1.0, 1.0]) is None
    assert inference.seeds_to_decide([0.3]) is None
    assert inference.seeds_to_decide([0.3, 0.3]) == 2


def test_more_seeds_are_wanted_for_an_equivalence_the_smaller_its_margin():
    found = [inference.seeds_to_equate([-0.1, 0.1, 0.0, 0.05], margin) for margin in (0.2, 0.1, 0.05)]
    assert found == sorted(found)
    assert len(set(found)) == 3


def test_the_interquartile_mean_leaves_a_quarter_out_at_either_end():
    scores = np.array([-100.0, 1, 2, 3, 4, 5, 6, 1000]).reshape(4, 2)
    assert statistics.iqm(scores) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert statistics.iqm([[1.0], [2.0], [6.0]]) == pytest.approx(3.0)  # of three none


def test_the_lower_tail_is_the_mean_of_the_worst_quarter():
    assert statistics.lower_tail(np.arange(8.0)[:, None]) == 0.5
    assert statistics.lower_tail([[3.0], [2.0]]) == 2.0  # of one at least


def test_an_interval_narrows_as_the_root_of_the_number_of_seeds():
    random = np.random.default_rng(0)
    widths = []
    for seeds in (25, 400):
        found = statistics.bootstrap(random.normal(size=(seeds, 1)), statistics.mean, resamples=4000)
        widths.append(found.high - found.low)
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.25)
    assert widths[0] == pytest.approx(2 * 1.96 / 5, rel=0.3)


def test_a_seed_that_never_gets_there_counts_with_the_time_it_took():
    assert statistics.expected_time([10.0, 20.0, 60.0], [True, True, False]) == 45.0
    assert statistics.expected_time([10.0], [False]) == math.inf
    fast, slow = np.full(8, 10.0), np.full(8, 20.0)
    sure, half = np.ones(8, bool), np.arange(8) % 2 == 0
    assert statistics.ratio_of_times(fast, sure, slow, sure, paired=True) == (0.5, 0.5, 0.5)
    found = statistics.ratio_of_times(fast, sure, slow, half, paired=True)
    assert found.estimate == 0.25
    assert found.low < 0.25 < found.high <= 0.5
    never = statistics.ratio_of_times(fast, sure, slow, ~sure, paired=True)
    assert never == (0.0, 0.0, 0.0)
    assert statistics.ratio_of_times(fast, ~sure, slow, ~sure, paired=False)[1:] == (0.0, math.inf)


def test_without_scores_there_is_no_estimate():
    assert all(math.isnan(x) for x in statistics.bootstrap(np.empty((0, 1))))
    assert all(math.isnan(x) for x in statistics.ratio_of_times([], [], [1.0], [True], paired=False))


@given(tables)
def test_an_estimate_lies_in_its_interval_and_within_its_scores(scores):
    for statistic in (statistics.iqm, statistics.mean, statistics.lower_tail):
        found = statistics.bootstrap(scores, statistic, resamples=FEW)
        assert scores.min() - 1e-9 <= found.low <= found.high <= scores.max() + 1e-9


@given(tables, st.randoms())
def test_the_order_of_the_seeds_changes_nothing(scores, random):
    order = list(range(len(scores)))
    random.shuffle(order)
    shuffled = scores[order]
    assert statistics.bootstrap(shuffled, resamples=FEW) == statistics.bootstrap(scores, resamples=FEW)
    pair = statistics.bootstrap_pair(scores, scores[::-1] + 1, resamples=FEW)
    assert statistics.bootstrap_pair(shuffled, scores + 1, resamples=FEW) == pair
    d, e = scores[:, 0], shuffled[:, 0]
    assert inference.paired_t(d) == pytest.approx(inference.paired_t(e), nan_ok=True, abs=0)
    assert inference.sign_flips(d) == inference.sign_flips(e)
    assert inference.equivalence(d, 1.0) == inference.equivalence(e, 1.0)
    reached = d > 0
    times = statistics.ratio_of_times(np.abs(d) + 1, reached, d**2 + 1, ~reached, paired=True, resamples=FEW)
    other = e > 0
    assert times == pytest.approx(
        statistics.ratio_of_times(np.abs(e) + 1, other, e**2 + 1, ~other, paired=True, resamples=FEW),
        nan_ok=True, rel=1e-12,
    )  # fmt: skip


@given(tables, numbers)
def test_improvement_on_oneself_is_even_and_on_the_other_the_rest(scores, offset):
    other = scores[: max(1, len(scores) // 2)] + offset
    assert statistics.probability_of_improvement(scores, scores) == pytest.approx(0.5)
    there = statistics.probability_of_improvement(scores, other)
    assert there + statistics.probability_of_improvement(other, scores) == pytest.approx(1.0)


@given(differences)
def test_flipped_signs_are_counted_as_they_are_all_written_out(d):
    total = abs(math.fsum(d))
    hits = [
        abs(math.fsum(s * x for s, x in zip(signs, d))) for signs in itertools.product((1, -1), repeat=len(d))
    ]
    at_least, near = (sum(h >= total + e for h in hits) / len(hits) for e in (1e-6, -1e-6))
    assert at_least <= inference.sign_flips(d) <= near


@given(
    st.lists(
        st.tuples(st.floats(1, 9), st.booleans(), st.floats(1, 9), st.booleans()), min_size=1, max_size=7
    )
)
def test_runs_of_a_pair_change_places_in_all_the_ways_there_are(pairs):
    def ratio(rows):
        spent_a, reached_a, spent_b, reached_b = (math.fsum(column) for column in zip(*rows))
        if not reached_a or not reached_b:
            return math.inf
        return abs(math.log(spent_a / reached_a / (spent_b / reached_b)))

    found = inference.swaps(*zip(*pairs))
    if not any(there or other for _, there, _, other in pairs):
        assert found == 1
        return
    ways = itertools.product((False, True), repeat=len(pairs))
    each = [
        ratio([(*row[2:], *row[:2]) if turned else row for row, turned in zip(pairs, way)]) for way in ways
    ]
    at_least, near = (sum(x >= each[0] + e for x in each) / len(each) for e in (1e-9, -1e-9))
    assert found == near if math.isinf(each[0]) else at_least <= found <= near


def test_pairs_that_go_together_give_a_narrower_ratio_of_times():
    a = np.geomspace(1, 10, 12)
    there = np.ones(12, bool)
    paired, apart = (statistics.ratio_of_times(a, there, 2 * a, there, paired=p) for p in (True, False))
    assert paired == pytest.approx((0.5, 0.5, 0.5))
    assert apart.high - apart.low > 0.2


@given(differences, st.floats(0.1, 5))
def test_what_is_shown_equal_within_a_margin_is_not_shown_to_differ_by_it(d, margin):
    p = inference.equivalence(d, margin)
    assert 0 <= p <= 1
    if p <= 0.05:
        assert abs(np.mean(d)) < margin
        assert inference.equivalence(d, 2 * margin) <= p + 1e-12


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_corrected_values_keep_their_order_and_are_no_smaller(p):
    adjusted = inference.holm(p)
    assert all(a >= b for a, b in zip(adjusted, p))
    assert max(adjusted) <= 1
    order = np.argsort(p, kind="stable")
    assert list(np.array(adjusted)[order]) == sorted(adjusted)
