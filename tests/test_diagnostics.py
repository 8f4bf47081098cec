"""The figures about a batch are what a plain count over its steps gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.diagnostics import (
    RATIO_FIGURES,
    age_bin,
    explained_variance,
    finite,
    lag_counts,
    lag_spread,
    policy_churn,
    ratio_statistics,
    truncated_shares,
    update_ratio,
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), groups=st.sampled_from([1, 2, 4]), spread=st.sampled_from([1, 3, 200]))
def test_lag_counts_agree_with_a_count_step_by_step(seed, groups, spread):
    rng = np.random.default_rng(seed)
    horizon, agents, version, bins = 5, 8, 2**40, 130
    versions = version - rng.integers(0, spread, size=(horizon, groups))
    valid = (rng.random((horizon, agents)) < 0.8).astype(np.uint8)
    expected, total, largest = np.zeros(bins, int), 0, 0
    for t in range(horizon):
        for b in range(agents):
            if valid[t, b]:
                lag = int(version - versions[t, b // (agents // groups)])
                expected[min(lag, bins - 1)] += 1
                total += lag
                largest = max(largest, lag)
    counts, lag_sum, lag_max = lag_counts(version, versions, valid, bins)
    assert counts.tolist() == expected.tolist()
    assert (lag_sum, lag_max) == (total, largest)
    assert counts.sum() == valid.sum()


def test_bin_i_holds_ages_below_two_to_the_i_milliseconds():
    bins = 32
    for i in range(bins - 1):
        assert age_bin(2**i * 1_000_000 - 1, bins) == i
        assert age_bin(2**i * 1_000_000, bins) == i + 1
    assert age_bin(0, bins) == 0
    assert age_bin(2**62, bins) == bins - 1


def test_ratio_quantiles_agree_with_a_sort():
    log_ratio = torch.randn(20000, generator=torch.Generator().manual_seed(0)) * 0.5
    kept = torch.rand(20000, generator=torch.Generator().manual_seed(1)) < 0.7
    log_ratio[~kept] = float("nan")
    got = ratio_statistics(log_ratio, kept)
    w = log_ratio[kept].exp()
    for name, q in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99)):
        assert got[name] == pytest.approx(float(torch.quantile(w, q)), rel=0.01), name
    assert got["mean"] == pytest.approx(float(w.mean()), rel=1e-5)
    assert got["max"] == float(w.max())
    assert ratio_statistics(log_ratio[kept], None) == got


def test_ratio_statistics_of_nothing_are_not_a_number():
    got = ratio_statistics(torch.zeros(3), torch.zeros(3, dtype=torch.bool))
    assert tuple(got) == RATIO_FIGURES
    assert all(np.isnan(x) for x in got.values())


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    spread=st.sampled_from([0.0, 1e-3, 0.2, 2.0]),
    dropped=st.sampled_from([0.0, 0.4]),
)
def test_ratio_statistics_are_those_of_a_plain_sum(seed, n, spread, dropped):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=n) * spread).astype(np.float32)
    kept = rng.random(n) >= dropped
    kept[0] = True
    spoiled = torch.tensor(np.where(kept, x, np.nan))
    got = ratio_statistics(spoiled, None if kept.all() else torch.tensor(kept))
    ours = x[kept].astype(float)
    w = [np.exp(value) for value in ours]
    count = len(w)
    expected = {
        "mean": sum(w) / count,
        "min": min(w),
        "max": max(w),
        "log_max": max(abs(value) for value in ours),
        "ess": sum(w) ** 2 / (count * sum(value**2 for value in w)),
        "chi2": sum(value**2 for value in w) / count - 1,
        "k1": sum(-value for value in ours) / count,
        "k2": sum(value**2 / 2 for value in ours) / count,
        "k3": sum(a - 1 - b for a, b in zip(w, ours, strict=True)) / count,
    }
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-4, abs=1e-9), name
    assert set(got) == set(expected) | {"p1", "p50", "p99"}
    assert got["min"] <= got["p1"] <= got["p50"] <= got["p99"] <= got["max"]
    for name, q in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99)):
        value = np.quantile(w, q, method="inverted_cdf")
        assert got[name] == pytest.approx(value, rel=0.032), name
    assert got["ess"] <= 1.0
    assert got["k3"] >= 0.0


def test_k1_and_k3_average_to_the_divergence_and_chi2_to_its_own_under_the_acting_policy():
    """Over all actions, each as often as mu takes it."""
    mu, pi = np.array([5, 2, 2, 1]) / 10, np.array([0.4, 0.3, 0.1, 0.2])
    log_ratio = torch.tensor(np.log(pi / mu).repeat([500, 200, 200, 100]))
    got = ratio_statistics(log_ratio, None)
    divergence = (mu * np.log(mu / pi)).sum()
    assert got["mean"] == pytest.approx(1.0, abs=1e-9)
    assert got["k1"] == pytest.approx(divergence, abs=1e-9)
    assert got["k3"] == pytest.approx(divergence, abs=1e-9)
    assert got["chi2"] == pytest.approx((pi**2 / mu).sum() - 1, abs=1e-9)
    assert got["ess"] == pytest.approx(1 / (1 + got["chi2"]), abs=1e-9)


def test_ratios_beyond_all_bounds_give_finite_figures():
    for far in (1e3, -1e3, 1e30):
        got = ratio_statistics(torch.tensor([0.0, far]), None)
        assert all(np.isfinite(got[name]) for name in ("mean", "max", "ess", "chi2", "p99"))
        assert got["log_max"] == pytest.approx(abs(far))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dropped=st.sampled_from([0.0, 0.5, 1.0]))
def test_shares_cut_are_counted_over_the_kept_steps(seed, dropped):
    rng = np.random.default_rng(seed)
    x, kept = rng.normal(size=(5, 4)), rng.random((5, 4)) >= dropped
    spoiled = torch.tensor(np.where(kept, x, np.nan))
    got = truncated_shares(spoiled, torch.tensor(kept), rho_clip=1.5, c_clip=0.8)
    if not kept.any():
        assert np.isnan(got["rho_clipped"])
        assert np.isnan(got["c_clipped"])
        return
    for name, clip in (("rho", 1.5), ("c", 0.8)):
        assert got[f"{name}_clipped"] == sum(np.exp(value) > clip for value in x[kept]) / kept.sum()
    if kept.all():
        assert truncated_shares(spoiled, None, rho_clip=1.5, c_clip=0.8) == got


def test_an_update_is_as_large_as_it_is_beside_the_weights():
    assert update_ratio(torch.tensor([3.0, 4.0]), torch.tensor([3.3, 4.4])) == pytest.approx(0.1)
    assert update_ratio(torch.ones(9), torch.ones(9)) == 0.0


def test_churn_is_the_share_of_observations_whose_likeliest_choice_is_another():
    before = torch.tensor([[2.0, 1.0, 0.0, 1.0, 0.0]] * 4)  # a head of three choices and one of two
    after = before.clone()
    assert policy_churn(before, after, (3, 2), None, None) == 0.0
    after[0, :3] += 5.0  # the same choice
    after[1, 1] = 3.0
    after[2, 4] = 3.0
    assert policy_churn(before, after, (3, 2), None, None) == 0.5
    kept = torch.tensor([True, True, False, False])
    assert policy_churn(before, after, (3, 2), None, kept) == 0.5
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1, 1] = False  # what is no choice cannot become the likeliest
    assert policy_churn(before, after, (3, 2), mask, None) == 0.25
    assert np.isnan(policy_churn(before, after, (3, 2), None, torch.zeros(4, dtype=torch.bool)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.sampled_from([1, 2, 4]),
    p_valid=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_the_spread_of_lags_is_the_largest_of_any_trajectory(seed, groups, p_valid):
    rng = np.random.default_rng(seed)
    horizon, agents = 5, 8
    versions = 2**40 + rng.integers(0, 20, size=(horizon, groups)).cumsum(0)
    valid = (rng.random((horizon, agents)) < p_valid).astype(np.uint8)
    expected = 0
    for g in range(groups):
        ours = valid[:, g * agents // groups : (g + 1) * agents // groups]
        acted = [int(versions[t, g]) for t in range(horizon) if ours[t].any()]
        expected = max(expected, max(acted) - min(acted) if acted else 0)
    assert lag_spread(versions, valid) == expected


def test_explained_variance_is_of_the_kept_steps():
    generator = torch.Generator().manual_seed(3)
    targets = torch.randn(40, 30, generator=generator) * 3 + 5
    values = targets + torch.randn(40, 30, generator=generator)
    kept = torch.rand(40, 30, generator=generator) < 0.6
    expected = 1 - float((targets - values)[kept].var() / targets[kept].var())
    values[~kept] = float("nan")
    assert explained_variance(values, targets, kept) == pytest.approx(expected, abs=1e-4)
    assert explained_variance(targets, targets, None) == 1.0
    assert np.isnan(explained_variance(values, torch.ones(40, 30), kept))
    assert np.isnan(explained_variance(values, targets, torch.zeros_like(kept)))


def test_what_json_cannot_hold_becomes_null():
    assert finite({"a": float("nan"), "b": float("inf"), "c": 1.5, "d": 2, "e": "x", "f": None}) == {
        "a": None, "b": None, "c": 1.5, "d": 2, "e": "x", "f": None,
    }  # fmt: skip
