"""Pendulum is Gymnasium's Pendulum-v1 to the letter."""

from __future__ import annotations

import json

import numpy as np
import pytest
from native import DATA

from sims.loader import SimulatorError, Worlds, load, world_seeds

TOLERANCE = 1e-5
# Near the upright position a difference doubles every three or four steps. Another libm may round a sine
# differently, so trajectories are set to Gymnasium's state again before a rounding can grow to the tolerance.
ANCHOR_STEPS = 50
# What Worlds.save returns for one world: the simulator's state, the host's, and the observation.
SAVED = np.dtype(
    {
        "names": ["steps", "pending", "state", "host_pending"],
        "formats": ["i4", "i4", ("f8", 2), "i4"],
        "offsets": [4, 8, 32, 68],
        "itemsize": 84,
    }
)
FROZEN = json.loads((DATA / "pendulum_gymnasium.json").read_text())["episodes"]


def put(worlds: Worlds, state, steps: int) -> None:
    """Gives world 0 the state (float64 angle, speed) after `steps` steps of its episode."""
    saved = bytearray(worlds.save(0))
    fields = np.frombuffer(saved, SAVED)
    fields["state"], fields["steps"] = state, steps
    fields["pending"] = fields["host_pending"] = 0
    worlds.load(0, bytes(saved))


@pytest.fixture
def world():
    with load("pendulum").create(1) as worlds:
        worlds.reset()
        yield worlds


def torques(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_the_frozen_trajectories_reach_the_bounds_of_torque_and_speed_and_the_top():
    rows = np.array([row for episode in FROZEN for row in episode["rows_after_steps"].values()])
    assert (np.abs(rows[:, 2]) == 8).sum() > 20
    assert (rows[:, 0] > 0.999).sum() > 100
    assert max(abs(t) for episode in FROZEN for t in episode["torques"]) > 2.4


def test_it_follows_the_frozen_trajectories_of_gymnasium(world):
    for episode in FROZEN:
        assert len(episode["torques"]) == 200
        for t, torque in enumerate(episode["torques"]):
            anchor = episode["states_before_step"].get(str(t))
            if anchor is not None:
                put(world, anchor, t)
            world.step(torques(torque))
            row = episode["rows_after_steps"].get(str(t + 1))
            if row is not None:
                assert np.abs(world.obs[0] - row[:3]).max() <= TOLERANCE
                assert world.rewards[0] == pytest.approx(row[3], abs=TOLERANCE)
            assert not world.terminated[0]
            assert world.truncated[0] == (t == 199)
        world.step(torques(0))
        assert not world.valid[0]


def test_it_follows_gymnasium_live_over_thousands_of_random_steps(world):
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("Pendulum-v1")
    generator = np.random.default_rng(0)
    for seed in range(30):
        env.reset(seed=seed)
        total = 0.0
        for t in range(200):
            if t % ANCHOR_STEPS == 0:
                put(world, env.unwrapped.state, t)
            torque = torques(generator.uniform(-2.5, 2.5))
            obs, reward, terminated, truncated, _ = env.step(torque)
            world.step(torque)
            total += reward
            assert np.abs(world.obs[0] - obs).max() <= TOLERANCE
            assert world.rewards[0] == pytest.approx(reward, abs=TOLERANCE)
            assert (world.terminated[0], world.truncated[0]) == (terminated, truncated)
        assert truncated
        world.step(torque)


def test_gravity_is_gymnasiums_g(world):
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("Pendulum-v1", g=9.81)
    env.reset(seed=3)
    with load("pendulum").create(1, {"gravity": 9.81}) as other:
        other.reset()
        put(other, env.unwrapped.state, 0)
        put(world, env.unwrapped.state, 0)
        for t in range(20):
            obs, *_ = env.step(torques(1))
            other.step(torques(1))
            world.step(torques(1))
            assert np.abs(other.obs[0] - obs).max() <= TOLERANCE, t
        assert np.abs(world.obs[0] - obs).max() > 100 * TOLERANCE


def test_an_episode_is_truncated_after_200_steps_and_its_return_is_the_sum_of_its_rewards():
    with load("pendulum").create(16) as worlds:
        worlds.reset()
        generator = np.random.default_rng(1)
        total = np.zeros(16)
        for t in range(1, 201):
            episodes = worlds.step(generator.uniform(-2, 2, 16))
            total += worlds.rewards
            assert len(episodes) == (16 if t == 200 else 0)
        assert worlds.truncated.all()
        assert (episodes["length"] == 200).all()
        assert np.abs(episodes["return"] - total).max() < 1e-2
        assert np.abs(episodes["statistics"][:, 0] - total).max() < 1e-2
        final = worlds.obs.copy()
        worlds.step(np.zeros(16, np.float32))
        assert not worlds.valid.any()
        assert not worlds.rewards.any()
        assert (np.abs(worlds.obs[:, 2]) <= 1).all()
        assert (final != worlds.obs).any(axis=1).all()


def test_first_states_are_uniform_over_the_turn_and_slow():
    n = 20_000
    with load("pendulum").create(n, seeds=world_seeds(1, n)) as worlds:
        first = worlds.reset().astype(np.float64)
    ranks = np.stack([np.arctan2(first[:, 1], first[:, 0]) / np.pi, first[:, 2]])  # both uniform in [-1, 1)
    assert np.abs(ranks).max() <= 1
    assert np.abs(ranks.mean(axis=1)).max() < 6 * (1 / 3 / n) ** 0.5
    assert np.abs((ranks**2).mean(axis=1) - 1 / 3).max() < 6 * (4 / 45 / n) ** 0.5
    assert abs(np.corrcoef(ranks)[0, 1]) < 6 / n**0.5


def test_a_torque_that_is_no_number_is_refused(world):
    with pytest.raises(SimulatorError, match="step returned"):
        world.step(torques(np.nan))


def test_the_picture_shows_the_rod(world):
    put(world, [0.0, 0.0], 3)
    first, *rows = world.render_text(0).splitlines()
    assert first == "step 3   angle +0 degrees   speed +0.0 rad/s"
    assert [row[10] for row in rows] == ["O", "*", "*", "*", "*", "+", " ", " ", " ", " ", " "]
    put(world, [np.pi / 2, 0.0], 3)
    assert world.render_text(0).splitlines()[6].index("O") == 0, "positive angles lean to the left"
