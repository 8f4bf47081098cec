"""What the simulators tabular, bandit and slowtail come to in closed form, computed without their code.

Policies are probabilities: [states, actions] of a process, [arms] of a bandit, [items, 2] of slowtail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sims.loader import load

Array = npt.NDArray[np.float64]
MASK64 = (1 << 64) - 1


class Pcg:
    """PCG32 (O'Neill 2014), XSH-RR, seeded through SplitMix64's finalizer as in sims/rng.h."""

    def __init__(self, seed: int) -> None:
        self._state = self._mix(seed)
        self._increment = self._mix(seed ^ 0xDA3E39CB94B95BDB) | 1
        self._next()

    def uniform(self) -> float:
        """In [0, 1), 24 bits."""
        return (self._next() >> 8) * 2.0**-24

    @staticmethod
    def _mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & MASK64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
        return x ^ (x >> 31)

    def _next(self) -> int:
        old = self._state
        self._state = (old * 6364136223846793005 + self._increment) & MASK64
        x, rotation = (((old >> 18) ^ old) >> 27) & 0xFFFFFFFF, old >> 59
        return ((x >> rotation) | (x << (32 - rotation))) & 0xFFFFFFFF


@dataclass(frozen=True)
class Process:
    """A Markov decision process: S states, A actions, uniform first states."""

    successors: Array  # [S, A, S] P(s' | s, a) of a step that does not end the episode
    rewards: Array  # [S, A]
    ending: Array  # [S, A] chance that the step terminates

    def value(self, policy: Array, gamma: float) -> Array:
        """V^policy [S]: discounted, bootstrapped at every time limit, 0 after a termination."""
        onward, rewards = self._under(policy)
        return np.linalg.solve(np.eye(len(rewards)) - gamma * onward, rewards)

    def vtrace_value(self, behaviour: Array, policy: Array, rho_clip: float, gamma: float) -> Array:
        """The fixed point [S] of V-trace, for any lambda and c_clip: the value of the policy that is
        proportional to min(rho_clip * behaviour, policy) (Espeholt et al. 2018, section 4.1)."""
        clipped = np.minimum(rho_clip * behaviour, policy)
        return self.value(clipped / clipped.sum(axis=1, keepdims=True), gamma)

    def vtrace_error(
        self, value: Array, behaviour: Array, policy: Array, rho_clip: float, gamma: float
    ) -> Array:
        """[S] the expectation under `behaviour` of rho (R + gamma V' - V)."""
        rho = np.minimum(rho_clip, policy / behaviour)
        onward = (1 - self.ending) * (self.successors @ value)
        return (behaviour * rho * (self.rewards + gamma * onward - value[:, None])).sum(axis=1)

    def episode(self, policy: Array, max_steps: int) -> tuple[float, float]:
        """The mean return, undiscounted, and the mean length of an episode of at most `max_steps` steps."""
        onward, rewards = self._under(policy)
        earned, steps = np.zeros_like(rewards), np.zeros_like(rewards)
        for _ in range(max_steps):
            earned, steps = rewards + onward @ earned, 1 + onward @ steps
        return float(earned.mean()), float(steps.mean())

    def _under(self, policy: Array) -> tuple[Array, Array]:
        """Chances to go on to each state [S, S], and mean rewards [S]."""
        onward = np.einsum("sa,sa,sat->st", policy, 1 - self.ending, self.successors)
        return onward, (policy * self.rewards).sum(axis=1)


def process(**params: Any) -> Process:
    """The process of `sim: {name: tabular, ...}`, from the recipe in sims/tabular/tabular.c."""
    values = {parameter.name: parameter.default for parameter in load("tabular").params} | params
    states, actions, generator = int(values["states"]), int(values["actions"]), Pcg(int(values["task"]))
    successors = np.empty((states, actions, states))
    rewards, ending = np.empty((states, actions)), np.empty((states, actions))
    for s in range(states):
        for a in range(actions):
            weights = np.array([-math.log1p(-generator.uniform()) for _ in range(states)])
            successors[s, a] = weights / weights.sum()
            rewards[s, a] = 2 * generator.uniform() - 1
            ending[s, a] = 2 * values["ending"] * generator.uniform()
    return Process(successors, rewards, ending)


def random_policy(generator: np.random.Generator, *shape: int, spread: float = 1.0) -> Array:
    """Softmax of normal logits over the last axis."""
    logits = generator.normal(0, spread, shape)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sample(generator: np.random.Generator, policy: Array) -> npt.NDArray[np.int32]:
    """One action [B] for each row of probabilities [B, actions]."""
    below = policy.cumsum(axis=1)[:, :-1] <= generator.random((len(policy), 1))
    return below.sum(axis=1).astype(np.int32)


def chances(arms: int = 4, worst: float = 0.1, best: float = 0.9) -> Array:
    """[arms] how likely each arm of `bandit` pays."""
    return worst + (best - worst) * np.arange(arms) / (arms - 1)


def truncated_bias(behaviour: Array, policy: Array, pays: Array, cap: float) -> float:
    """E[min(cap, w) r] under `behaviour`, less the value of `policy`: what the cap cuts off."""
    return -float((np.maximum(policy - cap * behaviour, 0) * pays).sum())


def masked_bias(behaviour: Array, policy: Array, pays: Array, cap: float) -> float:
    """E[w 1(1/cap <= w <= cap) r] under `behaviour`, less the value of `policy`."""
    w = policy / behaviour
    return -float((policy * ((w < 1 / cap) | (w > cap)) * pays).sum())


def weighted_variance(behaviour: Array, policy: Array, pays: Array, cap: float = np.inf) -> float:
    """Variance of min(cap, w) r under `behaviour`, for rewards of 0 and 1."""
    weights = np.minimum(cap, policy / behaviour)
    return float((behaviour * weights**2 * pays).sum() - (behaviour * weights * pays).sum() ** 2)


def slow_share(slow: float = 0.1, quick_steps: int = 16, slow_steps: int = 128) -> float:
    """The share of all steps of slowtail that belong to slow jobs."""
    return slow * slow_steps / (slow * slow_steps + (1 - slow) * quick_steps)


def best_tools(share: float, items: int = 8) -> npt.NDArray[np.int32]:
    """[items] what slowtail's best policy picks, if `share` of the steps belong to slow jobs."""
    return ((np.arange(items) + 0.5) / items < share).astype(np.int32)


def tool_reward(policy: Array, share: float) -> float:
    """slowtail's mean reward of a step under `policy` [items, 2]."""
    quick = (np.arange(len(policy)) + 0.5) / len(policy)
    return float((policy[:, 0] * quick * (1 - share) + policy[:, 1] * (1 - quick) * share).mean())


def pareto_distribution(x: Array, mean_us: float, tail: float, longest: float) -> Array:
    """P(time <= x) of the bounded Pareto distribution of slowtail's step times, in nominal microseconds."""
    top = mean_us * longest
    low, high = 0.0, mean_us
    for _ in range(50):
        least = (low + high) / 2
        # The mean as an integral of the survival function, on a grid that is even in log time.
        grid = np.geomspace(least, top, 20_001)
        survival = ((least / grid) ** tail - (least / top) ** tail) / (1 - (least / top) ** tail)
        if least + np.trapezoid(survival, grid) < mean_us:
            low = least
        else:
            high = least
    inside = (1 - (low / np.maximum(x, low)) ** tail) / (1 - (low / top) ** tail)
    return np.clip(inside, 0, 1)
