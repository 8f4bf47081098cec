"""CartPole is Gymnasium's CartPole-v1 to the letter."""

from __future__ import annotations

import json

import numpy as np
import pytest
from native import DATA

from sims.loader import Worlds, load

TOLERANCE = 1e-5
# An unstable system doubles a difference every nine steps. Another libm may round a sine differently, so
# long trajectories are set to Gymnasium's state again before a rounding can grow to the tolerance.
ANCHOR_STEPS = 50
# What Worlds.save returns for one world: the simulator's state, the host's, and the observation.
SAVED = np.dtype(
    {
        "names": ["steps", "pending", "state", "host_pending"],
        "formats": ["i4", "i4", ("f8", 4), "i4"],
        "offsets": [4, 8, 32, 76],
        "itemsize": 96,
    }
)
FROZEN = json.loads((DATA / "cartpole_gymnasium.json").read_text())["episodes"]


def put(worlds: Worlds, state, steps: int) -> None:
    """Gives world 0 the state (float64 [4]) after `steps` steps of its episode."""
    saved = bytearray(worlds.save(0))
    fields = np.frombuffer(saved, SAVED)
    fields["state"], fields["steps"] = state, steps
    fields["pending"] = fields["host_pending"] = 0
    worlds.load(0, bytes(saved))


@pytest.fixture
def world():
    with load("cartpole").create(1) as worlds:
        worlds.reset()
        yield worlds


def test_the_frozen_trajectories_are_thousands_of_steps_and_reach_truncation():
    assert sum(len(e["actions"]) for e in FROZEN if e["terminated"]) > 4000
    assert sum(e["truncated"] and len(e["actions"]) == 500 for e in FROZEN) == 3


def test_it_follows_the_frozen_trajectories_of_gymnasium(world):
    for episode in FROZEN:
        for t, action in enumerate(map(int, episode["actions"])):
            anchor = episode["states_before_step"].get(str(t))
            if anchor is not None:
                put(world, anchor, t)
            world.step(np.array([action]))
            last = t + 1 == len(episode["actions"])
            assert world.rewards[0] == 1
            assert world.terminated[0] == (last and episode["terminated"])
            assert world.truncated[0] == (last and episode["truncated"])
            obs = episode["observations_after_steps"].get(str(t + 1))
            if obs is not None and not episode["terminated"] | last:
                assert np.abs(world.obs[0] - obs).max() <= TOLERANCE
            if obs is not None and last and episode["truncated"]:
                assert np.abs(world.obs[0] - obs).max() <= TOLERANCE, "the final observation, not a first one"


def test_it_follows_gymnasium_live_over_thousands_of_random_steps(world):
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1")
    generator = np.random.default_rng(0)
    steps = 0
    for seed in range(150):
        env.reset(seed=seed)
        put(world, env.unwrapped.state, 0)
        ended = False
        while not ended:
            action = int(generator.integers(2))
            obs, reward, terminated, truncated, _ = env.step(action)
            world.step(np.array([action]))
            assert (world.rewards[0], world.terminated[0], world.truncated[0]) == (
                reward,
                terminated,
                truncated,
            )
            if not terminated:
                assert np.abs(world.obs[0] - obs).max() <= TOLERANCE
            ended = terminated or truncated
            steps += 1
    assert steps > 3000


def test_it_follows_gymnasium_live_up_to_the_truncation_at_500(world):
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1")
    for seed in range(3):
        env.reset(seed=seed)
        for t in range(500):
            state = env.unwrapped.state
            if t % ANCHOR_STEPS == 0:
                put(world, state, t)
            action = int(state @ [0.3, 0.6, 6.0, 1.2] > 0)
            obs, reward, terminated, truncated, _ = env.step(action)
            world.step(np.array([action]))
            assert (world.rewards[0], world.terminated[0], world.truncated[0]) == (
                reward,
                terminated,
                truncated,
            )
            assert np.abs(world.obs[0] - obs).max() <= TOLERANCE
        assert truncated


def balanced(obs: np.ndarray) -> np.ndarray:
    return (obs @ np.array([0.3, 0.6, 6.0, 1.2], np.float32) > 0).astype(np.int32)


def test_a_good_controller_is_truncated_at_500_with_500_points():
    with load("cartpole").create(32) as worlds:
        worlds.reset()
        for t in range(1, 501):
            episodes = worlds.step(balanced(worlds.obs))
            assert len(episodes) == (32 if t == 500 else 0)
        assert worlds.truncated.all()
        assert not worlds.terminated.any()
        assert (episodes["length"] == 500).all()
        assert (episodes["return"] == 500).all()
        assert (episodes["statistics"] == 500).all()
        final = worlds.obs.copy()
        worlds.step(balanced(worlds.obs))
        assert not worlds.valid.any()
        assert not worlds.rewards.any()
        assert (np.abs(worlds.obs) < 0.05).all()
        assert (final != worlds.obs).any(axis=1).all()


def test_the_last_step_before_a_fall_earns_its_point_and_shows_a_new_episode():
    with load("cartpole").create(64) as worlds:
        worlds.reset()
        ended = 0
        for _ in range(200):
            episodes = worlds.step(np.ones(64, np.int32))
            rows = episodes["agent"]
            assert (worlds.rewards == 1).all()
            assert (worlds.terminated[rows] == 1).all()
            assert (np.abs(worlds.obs[rows]) < 0.05).all()
            assert (episodes["return"] == episodes["length"]).all()
            ended += len(episodes)
        assert ended > 64


def test_first_states_are_uniform_within_a_twentieth():
    with load("cartpole").create(20_000) as worlds:
        first = worlds.reset().astype(np.float64)
    assert (np.abs(first) <= 0.05).all()
    # Of a uniform variable: mean 0, standard deviation 0.1 / sqrt(12); bounds at six standard errors.
    assert (np.abs(first.mean(axis=0)) < 6 * 0.0289 / 20_000**0.5).all()
    assert (np.abs(first.std(axis=0) - 0.1 / 12**0.5) < 6 * 0.013 / 20_000**0.5).all()
    assert np.abs(np.corrcoef(first.T) - np.eye(4)).max() < 6 / 20_000**0.5


def test_max_steps_truncates_earlier():
    with load("cartpole").create(1, {"max_steps": 3}) as worlds:
        worlds.reset()
        flags = []
        for _ in range(8):
            worlds.step(np.array([0]))
            flags.append((int(worlds.truncated[0]), int(worlds.valid[0])))
    assert flags == [(0, 1), (0, 1), (1, 1), (0, 0), (0, 1), (0, 1), (1, 1), (0, 0)]


def test_pictures_show_the_cart_and_a_leaning_pole(world):
    put(world, [0.5, 0.0, 0.15, 0.0], 3)
    text = world.render_text(0)
    assert text.startswith("step 3   position +0.50 m   angle +8.6 degrees\n")
    rows = text.splitlines()
    poles = [row.index("|") for row in rows if "|" in row]
    assert len(poles) >= 5
    assert poles == sorted(poles, reverse=True), "it leans to the right"
    assert poles[0] > poles[-1]
    cart = next(row for row in rows if "=" in row)
    assert cart.index("=") + 2 == 30 + round(0.5 / 0.08)
    picture = world.render_rgb(0)
    assert picture.shape == (220, 480, 3)
    columns = np.nonzero((picture == 0).all(axis=2).any(axis=0))[0]
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 3
    assert 0 in columns, "the ground reaches the edge"
