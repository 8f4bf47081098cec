"""Running statistics are those of all the data, and moving them does not move the values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.normalizers import LEAST_VARIANCE, VALUE_DECAY, ObservationStatistics, ValueStatistics, moments


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    portions=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 1e4, -1e6]),
)
def test_observation_statistics_are_those_of_all_rows_whatever_the_portions(seed, portions, offset):
    rng = np.random.default_rng(seed)
    rows = rng.normal(offset, [0.5, 3.0, 20.0], size=(sum(portions), 3))
    statistics, at = ObservationStatistics(3), 0
    for n in portions:
        statistics.add(*moments(torch.tensor(rows[at : at + n])))
        at += n
    assert statistics.count == len(rows)
    if not len(rows):
        return
    np.testing.assert_allclose(statistics.mean.numpy(), rows.mean(0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(statistics.squares.numpy(), rows.var(0) * len(rows), rtol=1e-6, atol=1e-4)


def test_an_observation_that_is_not_finite_does_not_spoil_the_statistics():
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    clean, spoiled = ObservationStatistics(3), ObservationStatistics(3)
    clean.add(*moments(rows[2:]))
    spoiled.add(*moments(rows.index_fill(0, torch.tensor([0]), float("nan")).index_fill(
        0, torch.tensor([1]), float("inf"))))
    assert spoiled.count == clean.count == 98
    assert torch.equal(spoiled.mean, clean.mean)
    assert torch.equal(spoiled.squares, clean.squares)
    spoiled.add(*moments(torch.full((4, 3), float("nan"))))
    assert spoiled.count == 98
    assert all(x.isfinite().all() for x in spoiled.mean_and_inv_std())


def test_normalised_observations_have_mean_zero_and_deviation_one():
    scale = torch.tensor([1.0, 5.0, 50.0, 0.1])
    rows = torch.randn(5000, 4, generator=torch.Generator().manual_seed(1)) * scale + 7
    statistics = ObservationStatistics(4)
    statistics.add(*moments(rows))
    mean, inv_std = statistics.mean_and_inv_std()
    normal = (rows - mean) * inv_std
    assert mean.dtype == inv_std.dtype == torch.float32
    assert normal.mean(0).abs().max() < 1e-3
    assert (normal.std(0) - 1).abs().max() < 1e-3


def test_before_the_first_update_normalisation_is_the_identity():
    mean, inv_std = ObservationStatistics(3).mean_and_inv_std()
    assert (mean == 0).all()
    assert (inv_std == 1).all()


def test_a_constant_feature_has_a_bounded_scale():
    statistics = ObservationStatistics(1)
    statistics.add(*moments(torch.full((100, 1), 255, dtype=torch.uint8)))
    assert statistics.mean_and_inv_std()[1] == pytest.approx(LEAST_VARIANCE**-0.5)


def test_restored_observation_statistics_go_on_alike_and_share_nothing():
    a, b = ObservationStatistics(2), ObservationStatistics(2)
    a.add(*moments(torch.rand(10, 2)))
    b.load_state_dict(a.state_dict())
    more = torch.rand(7, 2)
    a.add(*moments(more))
    assert b.count == 10
    b.add(*moments(more))
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(a.squares, b.squares)


def test_values_stay_what_they_were_when_their_statistics_move():
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(64, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(1, 8, generator=generator, dtype=torch.float64)
    bias = torch.randn(1, generator=generator, dtype=torch.float64)
    statistics = ValueStatistics()
    before = statistics.denormalize(features @ weight.T + bias)
    for mean, deviation in ((3.0, 10.0), (-40.0, 0.5), (1000.0, 200.0)):
        statistics.update(mean, mean**2 + deviation**2, weight, bias)
        after = statistics.denormalize(features @ weight.T + bias)
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
    assert statistics.deviation > 100.0


def test_value_statistics_are_the_decayed_moments_of_the_batches():
    statistics, weight, bias = ValueStatistics(), torch.zeros(1, 1), torch.zeros(1)
    batches = [(1.0, 5.0), (2.0, 9.0), (-3.0, 10.0)]
    for mean, mean_square in batches:
        statistics.update(mean, mean_square, weight, bias)
    w = np.array([VALUE_DECAY**2, VALUE_DECAY, 1.0])
    mean, square = (np.array(batches) * w[:, None]).sum(0) / w.sum()
    assert statistics.mean == pytest.approx(mean)
    assert statistics.deviation == pytest.approx((square - mean**2) ** 0.5)
    x = torch.tensor([-4.0, 0.0, 9.0])
    torch.testing.assert_close(statistics.denormalize(statistics.normalize(x)), x)


def test_value_statistics_begin_as_the_identity_and_ignore_what_is_not_finite():
    statistics, weight, bias = ValueStatistics(), torch.ones(1, 2), torch.ones(1)
    statistics.update(float("nan"), 1.0, weight, bias)
    statistics.update(0.0, float("inf"), weight, bias)
    assert (statistics.mean, statistics.deviation) == (0.0, 1.0)
    assert (weight == 1).all()
    restored = ValueStatistics()
    statistics.update(2.0, 8.0, weight, bias)
    restored.load_state_dict(statistics.state_dict())
    assert restored.deviation == statistics.deviation == 2.0
