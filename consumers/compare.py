"""A trained policy beside others in the same worlds: `python -m consumers.compare RUN_DIR [--steps N]`.

Others are those that act at random, and the scripted agents of the simulator if it has some. Everybody plays
the same worlds, whose seeds training never used, from their beginning. Rewards are those of the same number
of steps. Scores are those of every agent's first episode, however long it lasts: of the episodes that end
within so many steps the long ones would be left out, and where to live long is to do well these are the best.
Agents of one world meet each other, so it is the worlds that are independent of each other: intervals are
over their means.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

import config as configuration
from config import exits
from consumers import checkpoint
from consumers.evaluate import RESOLVED, Player, cell, positive, summarize, write_json
from producers.program import ProgramError
from sims import scripted
from sims.loader import SimulatorError, Worlds

STEPS, WORLDS = 1000, 16
REWARD_STEPS = 1000  # rewards are told for so many steps of one agent
PATIENCE = 10  # times `steps` are played at most for the sake of first episodes that have not ended


class Contestant(Protocol):
    """Somebody who plays all agents of all worlds."""

    def begin(self, worlds: Worlds) -> None:
        """The worlds have been reset."""

    def act(self, worlds: Worlds) -> NDArray[Any]:
        """Actions [B, heads] for the observations of the worlds."""


class Policy:
    """The trained policy: sampled, or without a generator the likeliest actions."""

    def __init__(self, player: Player, generator: torch.Generator | None):
        self._player, self._generator = player, generator

    def begin(self, worlds: Worlds) -> None:
        self._state = self._player.model.initial_state(worlds.agents)

    def act(self, worlds: Worlds) -> NDArray[Any]:
        actions, self._state = self._player.act(worlds, self._state, self._generator)
        return actions


class AtRandom:
    """Every allowed choice equally likely; continuous actions anywhere between their bounds."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def begin(self, worlds: Worlds) -> None:
        pass

    def act(self, worlds: Worlds) -> NDArray[Any]:
        heads, first, columns = worlds.shape.heads, 0, []
        for head in heads:
            if not worlds.shape.discrete:
                columns.append(self._rng.uniform(head.low, head.high, worlds.agents))
                continue
            chances = self._rng.random((worlds.agents, head.choices))
            if worlds.mask is not None:
                chances[worlds.mask[:, first : first + head.choices] == 0] = -1.0
            columns.append(chances.argmax(1))
            first += head.choices
        return np.stack(columns, 1)


class Script:
    """A scripted agent of the simulator."""

    def __init__(self, player: Player, kind: str):
        self._player, self._kind = player, kind

    def begin(self, worlds: Worlds) -> None:
        self._agents = scripted.Scripted(self._player.simulator, self._kind, worlds.agents, self._player.seed)

    def act(self, worlds: Worlds) -> NDArray[Any]:
        return self._agents.act(worlds.obs)[:, None]


def contestants(player: Player) -> dict[str, Contestant]:
    """By name, the policy first."""
    generator = torch.Generator().manual_seed(player.seed)
    found: dict[str, Contestant] = {"policy": Policy(player, generator), "argmax": Policy(player, None)}
    found["random"] = AtRandom(player.seed)
    return found | {kind: Script(player, kind) for kind in scripted.kinds(player.simulator)}


def compete(player: Player, who: Contestant, *, steps: int, worlds: int) -> dict[str, Any]:
    """What `summarize` gives for the worlds' mean rewards over `steps` steps, in REWARD_STEPS steps of one
    agent (`reward`), and for the worlds' mean scores of every agent's first episode (`score`); how many of
    these there are and how many have not ended within PATIENCE times as many steps, and how many steps a
    second were played."""
    begin, played = time.perf_counter(), 0
    with player.worlds(worlds) as them:
        them.reset()
        who.begin(them)
        total, count = np.zeros(worlds), np.zeros(worlds)
        scores = np.full(them.agents, np.nan)
        ended = np.zeros(them.agents, bool)
        while played < steps or (not ended.all() and played < PATIENCE * steps):
            for episode in them.step(who.act(them)):
                if not ended[agent := int(episode["agent"])]:
                    ended[agent] = True
                    scores[agent] = episode["statistics"][player.simulator.score_index]
            if played < steps:
                valid = them.valid.reshape(worlds, -1) > 0
                total += np.where(valid, them.rewards.reshape(worlds, -1), 0.0).sum(1, dtype=np.float64)
                count += valid.sum(1)
            played += 1
        agents = them.agents
    rewards = (total / count * REWARD_STEPS).tolist()
    of_worlds = zip(scores.reshape(worlds, -1), ended.reshape(worlds, -1), strict=True)
    return {
        "reward": _interval(rewards),
        "score": _interval([float(mine[over].mean()) for mine, over in of_worlds if over.any()]),
        "episodes": int(ended.sum()),
        "unfinished": int(agents - ended.sum()),
        "steps_per_second": played * agents / (time.perf_counter() - begin),
    }


def compare(run: Path, *, steps: int, worlds: int) -> dict[str, Any]:
    """What each contestant comes to, with the run's version and the name of the score."""
    player = Player.load(run)
    facts = {"version": player.version, "statistic": player.simulator.score, "steps": steps, "worlds": worlds}
    found = {
        name: compete(player, who, steps=steps, worlds=worlds) for name, who in contestants(player).items()
    }
    return facts | {"contestants": found}


def table(result: dict[str, Any]) -> str:
    """The result for a terminal."""
    lines = [
        f"version {result['version']}: {result['worlds']} worlds, {result['steps']} steps each; "
        f"95 % intervals over the means of worlds",
        f"{'':8} {f'reward in {REWARD_STEPS} steps':>22}  95 %              "
        f"{result['statistic'] + ' of an episode':>22}  95 %",
    ]
    for name, one in result["contestants"].items():
        columns = [
            f"{cell(part['mean']):>22}  {cell(part['low']) + ' to ' + cell(part['high']):17}"
            for part in (one["reward"], one["score"])
        ]
        lines.append(f"{name:8} {' '.join(columns)} of {one['episodes']}{_missing(one['unfinished'])}")
    return "\n".join(lines)


def _missing(unfinished: int) -> str:
    return f", {unfinished} not ended" if unfinished else ""


def _interval(means: Sequence[float]) -> dict[str, Any]:
    whole = summarize(means, [1] * len(means), 0)
    return {name: whole[name] for name in ("mean", "sd", "n", "low", "high", "min", "max")}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m consumers.compare",
        description="Plays the newest checkpoint of a run beside random and scripted agents.",
    )
    parser.add_argument("run", type=Path, help="run directory, e.g. runs/realm")
    parser.add_argument("--steps", type=positive(int), default=STEPS, help=f"of each world; default {STEPS}")
    parser.add_argument("--worlds", type=positive(int), default=WORLDS, help=f"default {WORLDS}")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    args = parser.parse_args(arguments)
    if not (args.run / RESOLVED).is_file():
        print(f"compare: {args.run / RESOLVED}: no such file; needs the directory of a run", file=sys.stderr)
        return exits.USAGE
    torch.set_num_threads(1)
    try:
        result = compare(args.run, steps=args.steps, worlds=args.worlds)
    except configuration.ConfigError as error:
        print(error, file=sys.stderr)
        return exits.CONFIG
    except (checkpoint.CheckpointError, SimulatorError, ProgramError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return exits.MISSING
    except KeyboardInterrupt:
        return 130
    print(table(result))
    return exits.DONE if args.json is None else write_json("compare", args.json, result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
