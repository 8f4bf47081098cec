"""When a process that died is started again, and when a run can do without it."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.restarts import Restarts, enough


@dataclass(frozen=True)
class Limits:
    backoff_seconds: float = 0.5
    backoff_max_seconds: float = 30.0
    max_failures: int = 10
    failure_seconds: float = 600.0


def longest(low, high):
    """No jitter: the upper end."""
    return high


def deaths(restarts, times, *, progressed=False, limits=Limits()):
    return [restarts.died(float(now), progressed=progressed, limits=limits) for now in times]


def test_a_death_after_progress_restarts_at_once_however_often_it_happens():
    assert deaths(Restarts(), range(1000), progressed=True) == [0.0] * 1000


def test_the_delay_doubles_with_each_death_without_progress_up_to_its_bound():
    found = deaths(Restarts(uniform=longest), range(9))
    assert found == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_progress_takes_the_delay_back_to_its_beginning_and_is_not_counted():
    restarts = Restarts(uniform=longest)
    deaths(restarts, range(5))
    deaths(restarts, [5], progressed=True)
    assert restarts.failures == 5
    assert deaths(restarts, [6]) == [0.5]


def test_more_than_max_failures_within_failure_seconds_is_a_failure():
    restarts = Restarts()
    assert None not in deaths(restarts, range(10))
    assert deaths(restarts, [11]) == [None]


def test_deaths_that_are_spread_out_never_add_up_to_a_failure():
    restarts = Restarts()
    assert None not in deaths(restarts, range(0, 61_000, 61))
    assert restarts.failures == 10


def test_one_failure_is_enough_where_the_limit_says_so():
    limits = Limits(max_failures=1)
    assert deaths(Restarts(uniform=longest), [0, 1], limits=limits) == [0.5, None]


def test_a_process_that_never_gives_up_is_restarted_for_ever():
    found = deaths(Restarts(gives_up=False), range(3000))
    assert None not in found
    assert max(found) <= 30.0


@given(st.integers(1, 200))
def test_jitter_spreads_the_delay_over_its_upper_half(row):
    restarts = Restarts(gives_up=False)
    delay = deaths(restarts, [0.0] * row)[-1]
    whole = min(30.0, 0.5 * 2.0 ** (row - 1))
    assert whole / 2 <= delay <= whole


def test_a_run_goes_on_while_enough_producers_are_left():
    assert enough([2], slots=8, least=2, batch_slots=16, exact=False, producers=4) is None
    assert enough([1, 1], slots=8, least=2, batch_slots=16, exact=False, producers=4) is None


@pytest.mark.parametrize(
    ("left", "least", "exact", "why"),
    [
        ([1], 2, False, "1 of 4 producers are left; the run needs 2 (supervisor.min_producers)"),
        ([1], 1, False, "the rings left hold 8 slots; a batch needs 16"),
        ([2, 0], 1, False, "the rings left to one learner hold 0 slots; a batch needs 8 of it"),
        ([0], 1, False, "0 of 4 producers are left; the run needs 1 (supervisor.min_producers)"),
        ([3], 1, True, "a batch of mode sync or lagged needs slots of every producer"),
    ],
)
def test_a_run_ends_when_too_few_are_left_to_fill_a_batch(left, least, exact, why):
    assert enough(left, slots=8, least=least, batch_slots=16, exact=exact, producers=4) == why
