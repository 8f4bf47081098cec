"""The interval that the benchmark of watching tells."""

import random

import pytest

from bench.observers import median_interval


@pytest.mark.parametrize(
    ("count", "ranks"), [(3, (1, 3)), (6, (1, 6)), (10, (2, 9)), (12, (3, 10)), (20, (6, 15))]
)
def test_the_interval_of_a_median_has_the_ranks_of_the_sign_test(count, ranks):
    values = [float(rank) for rank in range(1, count + 1)]
    random.Random(count).shuffle(values)
    assert median_interval(values) == ranks


def test_the_interval_holds_the_median_as_often_as_it_says():
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(12)])
        held += low <= 0.6931471805599453 <= high
    assert held / 2000 > 0.95 - 0.015
