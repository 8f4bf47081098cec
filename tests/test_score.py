"""The score window keeps its books episode by episode, however the episodes arrive."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.score import ScoreWindow


def books(scores, window, goal):
    """The definition, one episode at a time, every window summed anew."""
    best, first, solved = None, None, False
    mean = None
    for end in range(window, len(scores) + 1):
        mean = sum(scores[end - window : end]) / window
        best = mean if best is None else max(best, mean)
        if mean >= goal:
            first = end if first is None else first
            solved = solved or end - window >= first
    return mean, best, solved


@settings(max_examples=300, deadline=None)
@given(
    scores=st.lists(st.integers(0, 8), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    window=st.integers(1, 12),
    goal=st.integers(0, 9),
)
def test_windows_agree_with_a_count_by_hand_whatever_the_portions(scores, cuts, window, goal):
    score = ScoreWindow(window, goal)
    edges = sorted({0, len(scores), *(c for c in cuts if c < len(scores))})
    for a, b in pairwise(edges):
        score.add(scores[a:b])
        mean, best, solved = books(scores[:b], window, goal)
        assert score.episodes == b
        assert score.mean == (None if mean is None else pytest.approx(mean))
        assert score.best == (None if best is None else pytest.approx(best))
        assert score.solved == solved


@settings(max_examples=50, deadline=None)
@given(scores=st.lists(st.integers(0, 8), max_size=40), cut=st.integers(0, 40), window=st.integers(1, 8))
def test_a_restored_window_goes_on_as_if_never_interrupted(scores, cut, window):
    whole, first, second = (ScoreWindow(window, 4.0) for _ in range(3))
    whole.add(scores)
    first.add(scores[:cut])
    second.load_state_dict(first.state_dict())
    second.add(scores[cut:])
    assert facts(second) == facts(whole)


def facts(score):
    state = score.state_dict()
    return state | {"recent": state["recent"].tolist()}


@settings(max_examples=50, deadline=None)
@given(
    scores=st.lists(st.integers(0, 8), max_size=40),
    more=st.lists(st.integers(0, 8), max_size=40),
    before=st.tuples(st.integers(1, 8), st.none() | st.integers(0, 9)),
    after=st.tuples(st.integers(1, 8), st.none() | st.integers(0, 9)),
)
def test_another_window_or_goal_is_judged_by_the_episodes_still_known(scores, more, before, after):
    score, restored, fresh = ScoreWindow(*before), ScoreWindow(*after), ScoreWindow(*after)
    score.add(scores)
    restored.load_state_dict(score.state_dict())
    score.retarget(*after)
    assert facts(score) == facts(restored)
    if before == after:
        fresh.add(scores)
    else:
        fresh.add(scores[-before[0] :])
    for window in (score, fresh):
        window.add(more)
    assert score.episodes == len(scores) + len(more)
    assert (score.mean, score.solved) == (fresh.mean, fresh.solved)
    if before[0] != after[0]:
        assert score.best == fresh.best


def test_there_is_no_mean_before_the_window_is_full():
    score = ScoreWindow(3, 1.0)
    score.add([9.0, 9.0])
    assert (score.mean, score.best, score.solved) == (None, None, False)
    score.add([])
    score.add([9.0])
    assert (score.mean, score.best) == (9.0, 9.0)


def test_one_good_window_does_not_meet_the_goal_but_two_apart_do():
    score = ScoreWindow(4, 1.0)
    score.add([0, 0, 0, 0, 1, 1, 1, 1])
    assert not score.solved
    score.add([1, 1, 1])
    assert not score.solved, "all of these windows share an episode with the first"
    score.add([1])
    assert score.solved


def test_the_goal_once_met_stays_met_and_best_stays_best():
    score = ScoreWindow(2, 5.0)
    score.add([5.0] * 4)
    score.add(np.zeros(10))
    assert score.solved
    assert (score.mean, score.best) == (0.0, 5.0)


def test_without_a_goal_nothing_is_ever_solved():
    score = ScoreWindow(1)
    score.add(np.full(100, 1e9))
    assert not score.solved


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_of_no_episodes_is_refused(window):
    with pytest.raises(ValueError, match="episodes"):
        ScoreWindow(window)
    with pytest.raises(ValueError, match="episodes"):
        ScoreWindow(5).retarget(window, None)


def test_a_score_that_is_no_number_is_forgotten_with_its_window():
    window = ScoreWindow(2, goal=4.0)
    window.add([float("nan"), 1.0, 2.0, 3.0])
    window.add([4.0, 5.0, 6.0, 7.0])
    assert (window.mean, window.best, window.solved) == (6.5, 6.5, True)
