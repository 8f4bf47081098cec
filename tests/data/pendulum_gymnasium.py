"""Writes pendulum_gymnasium.json beside it: trajectories of Gymnasium's Pendulum-v1 to compare with.

python tests/data/pendulum_gymnasium.py
"""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np

EPISODES = 12
ANCHOR_STEPS = 50
ROW_STEPS = 4


def lift(state: np.ndarray) -> float:
    """Pumps energy until the pendulum is up, then holds it there. State: angle, speed."""
    angle, speed = (state[0] + np.pi) % (2 * np.pi) - np.pi, state[1]
    if abs(angle) < 0.6:
        return float(-12 * angle - 3 * speed)
    return float(2 * np.sign(speed) * (1 if speed**2 / 2 + 15 * (np.cos(angle) - 1) < 0 else -1))


def episode(env: gymnasium.Env, seed: int) -> dict:
    """A whole episode: torques (some beyond the bounds), states (float64) at every anchor, and some rows of
    observation and reward. By seed, it acts at random, lifts the pendulum or spins it."""
    generator = np.random.default_rng(seed)
    env.reset(seed=seed)
    anchors, torques, rows = {}, [], {}
    truncated = False
    while not truncated:
        t, state = len(torques), env.unwrapped.state
        if t % ANCHOR_STEPS == 0:
            anchors[t] = [float(x) for x in state]
        ways = generator.uniform(-2.5, 2.5), lift(state), 2 * np.sign(state[1])
        torque = np.float32(round(ways[seed % 3], 3))
        torques.append(float(f"{torque:.9g}"))
        obs, reward, terminated, truncated, _ = env.step(np.array([torque]))
        assert not terminated
        if truncated or len(torques) % ROW_STEPS == 0:
            rows[len(torques)] = [float(f"{x:.9g}") for x in (*obs, reward)]
    return {"states_before_step": anchors, "torques": torques, "rows_after_steps": rows}


if __name__ == "__main__":
    env = gymnasium.make("Pendulum-v1")
    head = {"environment": "Pendulum-v1", "gymnasium": gymnasium.__version__, "numpy": np.__version__}
    lines = [json.dumps(episode(env, seed)) for seed in range(EPISODES)]
    text = json.dumps(head)[:-1] + ', "episodes": [\n' + ",\n".join(lines) + "\n]}\n"
    Path(__file__).with_suffix(".json").write_text(text)
