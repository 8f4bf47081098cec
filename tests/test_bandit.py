"""bandit pays by known chances, so what clipped importance ratios come to is a sum over its arms."""

from __future__ import annotations

import numpy as np
import pytest
from closed_forms import chances, masked_bias, random_policy, sample, truncated_bias, weighted_variance

from sims.loader import load, world_seeds

ERRORS = 5.5  # standard errors that a mean may be off
WORLDS, STEPS = 2000, 100


def pulls(policy: np.ndarray, seed: int = 1, **params) -> tuple[np.ndarray, np.ndarray]:
    """Arms and rewards [STEPS * WORLDS] under a policy [arms]."""
    generator = np.random.default_rng(seed)
    arms, rewards = [], []
    with load("bandit").create(WORLDS, params, world_seeds(seed, WORLDS)) as worlds:
        worlds.reset()
        for _ in range(STEPS):
            arms.append(sample(generator, np.tile(policy, (WORLDS, 1))))
            worlds.step(arms[-1])
            rewards.append(worlds.rewards.copy())
    return np.concatenate(arms), np.concatenate(rewards).astype(np.float64)


def test_every_pull_is_an_episode_that_terminates_and_shows_the_same_again():
    with load("bandit").create(50) as worlds:
        assert (worlds.reset() == 1).all()
        for t in range(20):
            arm = np.full(50, t % 4)
            episodes = worlds.step(arm)
            assert worlds.terminated.all()
            assert not worlds.truncated.any()
            assert worlds.valid.all()
            assert (worlds.obs == 1).all()
            assert (episodes["length"] == 1).all()
            assert (episodes["return"] == worlds.rewards).all()
            assert (episodes["statistics"][:, 0] == worlds.rewards).all()
            assert episodes["statistics"][:, 1] == pytest.approx(chances()[arm])


def test_the_score_is_the_return_without_its_noise():
    assert load("bandit").score == "chance"


@pytest.mark.parametrize("params", [{}, {"arms": 2, "worst": 0.0, "best": 1.0}, {"arms": 9, "worst": 0.3}])
def test_each_arm_pays_by_its_chance(params):
    pays = chances(**params)
    arms, rewards = pulls(np.full(len(pays), 1 / len(pays)), **params)
    assert set(np.unique(rewards)) <= {0, 1}
    for arm, chance in enumerate(pays):
        got = rewards[arms == arm]
        assert abs(got.mean() - chance) <= ERRORS * (chance * (1 - chance) / len(got)) ** 0.5


@pytest.mark.parametrize("cap", [0.5, 1.0, 2.0, np.inf])
@pytest.mark.parametrize("seed", [1, 2])
def test_truncated_ratios_have_exactly_the_bias_and_variance_of_the_closed_form(cap, seed):
    generator = np.random.default_rng(seed)
    behaviour, policy = (random_policy(generator, 4) for _ in range(2))
    arms, rewards = pulls(behaviour, seed)
    weighted = np.minimum(cap, policy / behaviour)[arms] * rewards
    bias = weighted.mean() - policy @ chances()
    error = weighted.std() / len(weighted) ** 0.5
    expected = truncated_bias(behaviour, policy, chances(), cap)
    assert abs(bias - expected) < ERRORS * error
    assert weighted.var() == pytest.approx(weighted_variance(behaviour, policy, chances(), cap), rel=0.03)
    if cap <= 1:
        assert expected < -10 * error, "a bias that is there to be seen"
    if cap == np.inf:
        assert expected == 0


def test_masked_ratios_lose_what_lies_outside_the_band():
    behaviour, policy = np.array([0.6, 0.2, 0.1, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    arms, rewards = pulls(behaviour)
    w = policy / behaviour
    weighted = np.where((w >= 1 / 3.5) & (w <= 3.5), w, 0)[arms] * rewards
    expected = masked_bias(behaviour, policy, chances(), 3.5)
    assert expected == pytest.approx(-(0.1 * 0.1 + 0.4 * 0.9)), "the first arm and the last one"
    error = weighted.std() / len(weighted) ** 0.5
    assert abs(weighted.mean() - policy @ chances() - expected) < ERRORS * error


def test_ignoring_who_acted_gives_the_value_of_the_behaviour_policy():
    behaviour, policy = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    _, rewards = pulls(behaviour)
    error = rewards.std() / len(rewards) ** 0.5
    assert abs(rewards.mean() - behaviour @ chances()) < ERRORS * error
    assert abs(rewards.mean() - policy @ chances()) > 10 * error


def test_the_picture_names_the_last_pull():
    with load("bandit").create(1, {"best": 1.0}) as worlds:
        worlds.reset()
        assert worlds.render_text(0) == "no arm pulled yet\n"
        worlds.step(np.array([3]))
        assert worlds.render_text(0) == "arm 3 paid 1\n"
