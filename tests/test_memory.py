"""memory is solved by remembering the sign, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from sims.loader import SimulatorError, load, world_seeds

ERRORS = 5.5  # standard errors that a mean may be off


def create(worlds: int, seed: int = 1, **params):
    return load("memory").create(worlds, params, world_seeds(seed, worlds))


def signs(obs: np.ndarray) -> np.ndarray:
    """The sign that is seen by each agent, -1 where none is."""
    seen = obs[:, :-2]
    return np.where(seen.any(axis=1), seen.argmax(axis=1), -1)


def walk(worlds, choose) -> np.ndarray:
    """Straight walks, turning at the junction where `choose(remembered signs)` says; first episodes [B]."""
    worlds.reset()
    remembered = signs(worlds.obs)
    assert (remembered >= 0).all()
    while not worlds.obs[:, -1].all():
        assert not len(worlds.step(np.zeros(worlds.agents, np.int32)))
        assert (signs(worlds.obs) == -1).all(), "the sign is seen at the start and nowhere else"
    return worlds.step(1 + choose(remembered))


@pytest.mark.parametrize(("corridor", "cues"), [(1, 2), (10, 2), (25, 5)])
def test_who_remembers_the_sign_is_always_right(corridor, cues):
    with create(200, corridor=corridor, cues=cues) as worlds:
        episodes = walk(worlds, lambda remembered: remembered)
        assert worlds.terminated.all()
        assert (worlds.rewards == 1).all()
        assert (episodes["return"] == 1).all()
        assert (episodes["length"] == corridor + 1).all()
        assert (episodes["statistics"] == [1, 1, corridor + 1]).all()
        assert (signs(worlds.obs) >= 0).all(), "the next episode's sign"


@pytest.mark.parametrize("cues", [2, 8])
def test_who_does_not_is_right_by_chance_whatever_arm_it_takes(cues):
    worlds_count = 8000
    with create(worlds_count, cues=cues, corridor=3) as worlds:
        for arm in range(cues):
            episodes = walk(worlds, lambda remembered, arm=arm: np.full(len(remembered), arm))
            correct = episodes["statistics"][:, 0]
            error = (1 / cues * (1 - 1 / cues) / worlds_count) ** 0.5
            assert abs(correct.mean() - 1 / cues) < ERRORS * error
            assert (episodes["return"] == correct).all()


def test_signs_are_uniform_and_those_of_one_world_independent():
    with create(5000, cues=3, corridor=1) as worlds:
        first = signs(worlds.reset()).copy()
        for _ in range(2):
            worlds.step(np.array([0, 1] * 2500))  # half walk on, half bump
        worlds.step(np.where(worlds.obs[:, -1] == 1, 1, 0))
        second = signs(worlds.obs)
        ended = (worlds.terminated == 1) & (second >= 0)
        assert ended.sum() == 2500
        table = np.zeros((3, 3))
        np.add.at(table, (first[ended], second[ended]), 1)
        assert np.abs(table / 2500 - 1 / 9).max() < ERRORS * (1 / 9 * 8 / 9 / 2500) ** 0.5


def test_a_turn_before_the_junction_bumps_at_a_cost_and_stays():
    with create(1, corridor=2, bump=0.25, patience=100) as worlds:
        before = worlds.reset().copy()
        worlds.step(np.array([2]))
        assert (worlds.obs == before).all(), "still at the sign"
        assert worlds.rewards[0] == -0.25
        worlds.step(np.array([0]))
        assert worlds.obs[0].tolist() == [0, 0, 1, 0]
        worlds.step(np.array([1]))
        assert worlds.obs[0].tolist() == [0, 0, 1, 0]
        assert worlds.rewards[0] == -0.25
        worlds.step(np.array([0]))
        assert worlds.obs[0].tolist() == [0, 0, 0, 1]
        worlds.step(np.array([0]))
        assert worlds.obs[0].tolist() == [0, 0, 0, 1], "waiting at the junction"
        assert worlds.rewards[0] == 0
        episodes = worlds.step(1 + signs(before))
        assert (episodes["return"], episodes["length"]) == (pytest.approx(0.5), 6)


def test_who_dawdles_is_truncated_before_the_final_observation_and_has_not_been_right():
    with create(20, corridor=3, patience=2) as worlds:
        worlds.reset()
        for t in range(1, 9):
            episodes = worlds.step(np.zeros(20, np.int32))
            assert len(episodes) == (20 if t == 8 else 0)
        assert worlds.truncated.all()
        assert not worlds.terminated.any()
        assert worlds.obs[:, -1].all(), "still at the junction"
        assert (episodes["statistics"] == [0, 0, 8]).all()
        worlds.step(np.ones(20, np.int32))
        assert not worlds.valid.any()
        assert (signs(worlds.obs) >= 0).all()


def test_a_turn_in_the_last_allowed_step_counts():
    with create(20, corridor=3, patience=1) as worlds:
        episodes = walk(worlds, lambda remembered: remembered)
        assert worlds.terminated.all()
        assert not worlds.truncated.any()
        assert (episodes["statistics"][:, 0] == 1).all()


def test_a_world_saved_in_a_longer_corridor_is_refused():
    with create(1, corridor=9) as longer, create(1, corridor=3) as shorter:
        longer.reset()
        for cell in range(10):
            if cell <= 3:
                shorter.load(0, longer.save(0))
            else:
                with pytest.raises(SimulatorError, match="load returned"):
                    shorter.load(0, longer.save(0))
            longer.step(np.array([0]))


def test_the_picture_shows_the_walk_and_the_sign():
    with create(1, corridor=4) as worlds:
        sign = int(signs(worlds.reset())[0])
        for row in ("@...+", ".@..+", "..@.+", "...@+", "....@"):
            first, maze = worlds.render_text(0).splitlines()
            assert first.endswith(f"the sign says arm {sign + 1} of 2")
            assert maze == row
            worlds.step(np.array([0]))
