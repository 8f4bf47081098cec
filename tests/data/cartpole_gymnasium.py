"""Writes cartpole_gymnasium.json beside it: trajectories of Gymnasium's CartPole-v1 to compare with.

python tests/data/cartpole_gymnasium.py
"""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np

RANDOM_EPISODES = 200
BALANCED_EPISODES = 3
ANCHOR_STEPS = 50
OBS_STEPS = 8


def balance(state: np.ndarray) -> int:
    """Pushes so that the pole stays up for good. State: position, velocity, angle, angular velocity."""
    return int(state @ [0.3, 0.6, 6.0, 1.2] > 0)


def episode(env: gymnasium.Env, seed: int, balanced: bool) -> dict:
    """A whole episode: actions, states (float64) at every anchor, some observations and the last one."""
    generator = np.random.default_rng(seed)
    env.reset(seed=seed)
    anchors, actions, observations = {}, [], {}
    ended = False
    while not ended:
        t, state = len(actions), env.unwrapped.state
        if t % ANCHOR_STEPS == 0:
            anchors[t] = [float(x) for x in state]
        actions.append(balance(state) if balanced else int(generator.integers(2)))
        obs, reward, terminated, truncated, _ = env.step(actions[-1])
        assert reward == 1.0
        ended = terminated or truncated
        if ended or len(actions) % OBS_STEPS == 0:
            observations[len(actions)] = [float(f"{x:.9g}") for x in obs]
    return {
        "states_before_step": anchors,
        "actions": "".join(map(str, actions)),
        "observations_after_steps": observations,
        "terminated": bool(terminated),
        "truncated": bool(truncated),
    }


if __name__ == "__main__":
    env = gymnasium.make("CartPole-v1")
    head = {"environment": "CartPole-v1", "gymnasium": gymnasium.__version__, "numpy": np.__version__}
    seeds = range(RANDOM_EPISODES + BALANCED_EPISODES)
    lines = [json.dumps(episode(env, seed, balanced=seed >= RANDOM_EPISODES)) for seed in seeds]
    text = json.dumps(head)[:-1] + ', "episodes": [\n' + ",\n".join(lines) + "\n]}\n"
    Path(__file__).with_suffix(".json").write_text(text)
