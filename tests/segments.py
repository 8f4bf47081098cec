"""Slots made up for tests of the learner: random steps that keep the rules of a slot."""

import numpy as np


class Slot:
    """Stands for a lease: T steps of B agents that act by a uniform policy over `choices` actions."""

    def __init__(self, seed, *, horizon=8, agents=6, features=5, choices=3, version=0, p_end=0.1):
        rng = np.random.default_rng(seed)
        t_b = (horizon, agents)
        truncated = rng.random(t_b) < p_end
        valid = np.ones(t_b, bool)
        valid[0] = rng.random(agents) > p_end
        for t in range(horizon):
            if t:
                valid[t] = ~truncated[t - 1]
            truncated[t] &= valid[t]
        terminated = (rng.random(t_b) < p_end) & valid & ~truncated
        reward = np.where(valid, rng.normal(size=t_b), 0.0)
        self.fields = {
            "obs": rng.normal(size=(horizon + 1, agents, features)).astype(np.float32),
            "action": rng.integers(0, choices, size=(*t_b, 1)).astype(np.int32),
            "logprob": np.full(t_b, -np.log(choices), np.float32),
            "reward": reward.astype(np.float32),
            "terminated": terminated.astype(np.uint8),
            "truncated": truncated.astype(np.uint8),
            "valid": valid.astype(np.uint8),
            "version": np.full((horizon, 1), version, np.int64),
            "mask": np.ones((*t_b, choices), np.uint8),
        }

    def array(self, name):
        return self.fields[name]
