"""The figures about a batch are what a plain count over its steps gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.diagnostics import age_bin, explained_variance, finite, lag_counts, ratio_statistics


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


def test_ratio_quantiles_agree_with_a_sort_to_the_width_of_a_bin():
    log_ratio = torch.randn(20000, generator=torch.Generator().manual_seed(0)) * 0.5
    kept = torch.rand(20000, generator=torch.Generator().manual_seed(1)) < 0.7
    log_ratio[~kept] = float("nan")
    got = ratio_statistics(log_ratio, kept)
    w = log_ratio[kept].exp()
    for name, q in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99)):
        assert got[name] == pytest.approx(float(torch.quantile(w, q)), rel=0.035), name
    assert got["mean"] == pytest.approx(float(w.mean()), rel=1e-5)
    assert got["max"] == float(w.max())
    assert ratio_statistics(log_ratio[kept], None) == got


def test_ratio_statistics_of_nothing_are_not_a_number():
    got = ratio_statistics(torch.zeros(3), torch.zeros(3, dtype=torch.bool))
    assert all(np.isnan(x) for x in got.values())


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
