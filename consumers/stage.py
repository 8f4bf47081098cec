"""One world that the policy plays to be watched: what it looks like, what the policy thinks, one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consumers.actors import Actor, Rows, actor
from consumers.picture import png
from producers.c_heads import CHeads
from producers.program_format import Program
from sims.loader import EVALUATE, Simulator, world_seeds


class Stage:
    """World number `world` of those that training never sees, from its beginning. `load` before `act`."""

    def __init__(
        self,
        simulator: Simulator,
        parameters: Mapping[str, Any],
        program: Program,
        run_seed: int,
        world: int,
    ):
        """Raises SimulatorError or ProgramError."""
        seeds = world_seeds(run_seed, 1, first=world, domain=EVALUATE)
        self._simulator, self._program, self._seed = simulator, program, run_seed
        self._worlds = simulator.create(1, parameters, seeds)
        self._actor: Actor = actor(program, self._worlds.agents)
        self._heads = CHeads(program.choices, program.heads)
        self.world, self.agents = world, self._worlds.agents
        self._worlds.reset()
        self._state = np.zeros((self.agents, program.state_width), np.float32)
        self._returns = np.zeros(self.agents)
        self._lengths = np.zeros(self.agents, np.int64)
        self._episodes = np.zeros(self.agents, np.int64)
        self._last: dict[int, dict[str, Any]] = {}
        self._step = 0
        self._logits: Rows = np.zeros((self.agents, program.logits), np.float32)
        self._value: Rows | None = None
        self._log_std: Rows | None = None
        self._actions: NDArray = np.zeros((self.agents, program.heads), program.buffers[program.action].dtype)

    def load(self, flat: Rows) -> None:
        """Plays on with these weights."""
        self._actor.load(flat)
        weight = self._program.log_std
        if weight is not None:
            self._log_std = flat[weight.offset : weight.offset + weight.count].copy()

    def act(self, *, greedy: bool) -> None:
        """Has the policy look at what is there and choose: the likeliest action, or one by chance as in
        training. Once a step: it carries the recurrent state."""
        worlds = self._worlds
        ended = (worlds.terminated | (worlds.valid ^ 1)).astype(np.uint8, copy=False)
        self._logits, self._value = self._actor.look(worlds.obs, self._state, ended)
        if greedy:
            self._actions = self._likeliest()
        else:
            log_prob = np.empty(self.agents, np.float32)
            self._heads.draw(
                self._logits, worlds.mask, self._log_std, self._seed, 0, self._step, self._actions, log_prob
            )

    def step(self) -> None:
        """Does what was chosen."""
        actions, program = self._actions, self._program
        if program.continuous:
            actions = np.clip(actions, program.action_low, program.action_high)
        for episode in self._worlds.step(actions):
            agent = int(episode["agent"])
            score = episode["statistics"][self._simulator.score_index]
            self._last[agent] = {
                "return": _number(episode["return"]),
                "length": int(episode["length"]),
                "score": _number(score),
            }
            self._episodes[agent] += 1
        self._step += 1
        began = (self._worlds.terminated | (self._worlds.valid ^ 1)).astype(bool)
        self._returns += self._worlds.rewards
        self._lengths += 1
        self._returns[began], self._lengths[began] = 0.0, 0

    def frame(self, agent: int) -> dict[str, Any]:
        """What there is to see of one agent between `act` and `step`. `reward` is of the step before."""
        agent = min(agent, self.agents - 1)
        self._worlds.follow(0, agent)
        api = self._simulator.api
        rgb = self._worlds.render_rgb(0) if api.render_rgb else None
        return {
            "world": self.world,
            "agent": agent,
            "agents": self.agents,
            "episode": int(self._episodes[agent]),
            "step": int(self._lengths[agent]),
            "reward": _number(self._worlds.rewards[agent]),
            "return": _number(self._returns[agent]),
            "value": None if self._value is None else _number(self._value[agent]),
            "heads": self.choices(agent),
            "last": self._last.get(agent),
            "score": self._simulator.score,
            "text": self._worlds.render_text(0) if api.render_text else None,
            "png": None if rgb is None else png(rgb),
        }

    def choices(self, agent: int) -> list[dict[str, Any]]:
        """Of each head the chances of its choices, or mean and standard deviation, and the action."""
        logits, taken = self._logits[agent], self._actions[agent]
        if self._program.continuous:
            assert self._log_std is not None
            return [
                {"mean": _number(mean), "std": _number(np.exp(log_std)), "action": _number(action)}
                for mean, log_std, action in zip(logits, self._log_std, taken, strict=True)
            ]
        mask = self._worlds.mask
        allowed = np.ones(len(logits), bool) if mask is None else mask[agent].astype(bool)
        found, first = [], 0
        for count, action in zip(self._program.choices, taken, strict=True):
            part = slice(first, first + count)
            chances = softmax(logits[part], allowed[part])
            found.append({"probabilities": [_number(one) for one in chances], "action": int(action)})
            first += count
        return found

    def close(self) -> None:
        self._worlds.close()

    def _likeliest(self) -> NDArray:
        if self._program.continuous:
            return self._logits.copy()
        masked = self._logits
        if self._worlds.mask is not None:
            masked = np.where(self._worlds.mask.astype(bool), masked, -np.inf)
        bounds = np.cumsum(self._program.choices)[:-1]
        heads = [part.argmax(1) for part in np.split(masked, bounds, axis=1)]
        return np.stack(heads, 1).astype(np.int32)


def softmax(logits: NDArray, allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Chances [n] of choices with these logits; 0 where not allowed."""
    masked = np.where(allowed, logits.astype(np.float64), -np.inf)
    with np.errstate(invalid="ignore"):  # a policy that broke down has NaN here, and so it is shown
        powers = np.exp(masked - masked.max())
    chances: NDArray[np.float64] = powers / powers.sum()
    return chances


def _number(value: Any) -> float | None:
    """JSON has neither NaN nor infinity."""
    number = float(value)
    return number if math.isfinite(number) else None
