"""Schedules follow the steps trained, and stay at their end."""

import math
from types import SimpleNamespace

import pytest

from consumers.schedules import value_at


def ramp(kind, start=1e-3, end=1e-4, steps=1000):
    return SimpleNamespace(kind=kind, start=start, end=end, steps=steps)


def test_a_number_is_constant():
    assert value_at(3e-4, 0) == value_at(3e-4, 10**12) == 3e-4
    assert value_at(0, 5) == 0.0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_ramp_goes_from_start_to_end_and_stays(kind):
    assert value_at(ramp(kind), 0) == 1e-3
    assert value_at(ramp(kind), 1000) == pytest.approx(1e-4, rel=1e-12)
    assert value_at(ramp(kind), 10**15) == value_at(ramp(kind), 1000)
    assert value_at(ramp(kind), 500) == pytest.approx(5.5e-4)
    values = [value_at(ramp(kind), s) for s in range(0, 1001, 50)]
    assert values == sorted(values, reverse=True)


def test_a_quarter_of_the_way_is_where_the_curve_says():
    assert value_at(ramp("linear", 0.0, 1.0), 250) == 0.25
    assert value_at(ramp("cosine", 0.0, 1.0), 250) == pytest.approx(0.5 - 0.5 * math.sqrt(0.5))


def test_a_ramp_may_rise():
    assert value_at(ramp("linear", 0.0, 4.0), 750) == 3.0


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="step"):
        value_at(ramp("step"), 1)
