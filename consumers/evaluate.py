"""How well a trained policy plays: `python -m consumers.evaluate RUN_DIR [--episodes N] [--render]`.

Loads the newest checkpoint of a run and plays it in worlds whose seeds training never used, once sampling its
actions as in training and once taking the likeliest. Every world plays the same number of episodes to
their end: the first N to finish would be the shortest ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import config as configuration
from config import exits
from config.rotate import reopen_when_told
from consumers import checkpoint, shelf
from consumers.diagnostics import finite
from consumers.models import PolicyModel
from consumers.modules import make
from producers.opaque import decode
from producers.program import ProgramError
from sims.loader import EVALUATE, Simulator, SimulatorError, Worlds, load, world_seeds

RESOLVED = "config.resolved.yaml"
FRAMES_PER_SECOND = 30.0
HOME_AND_CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True)
class Player:
    """A trained policy and the simulator it plays."""

    version: int
    model: PolicyModel
    simulator: Simulator
    parameters: dict[str, Any]
    seed: int  # of the run

    @classmethod
    def load(cls, run: Path) -> Player:
        """From a run directory's newest checkpoint. Raises CheckpointError, SimulatorError, ProgramError,
        configuration.ConfigError or OSError."""
        config = configuration.load_resolved(run / RESOLVED)
        saved = checkpoint.load(shelf.latest(run / "checkpoints"))
        model = make(decode(bytes.fromhex(saved.state["program"]["encoded"])))
        model.load_state_dict(saved.policy)
        return cls(saved.version, model, load(config.sim.name), config.sim.parameters, config.run.seed)

    def worlds(self, count: int) -> Worlds:
        """Fresh ones, the same at each call."""
        seeds = world_seeds(self.seed, count, domain=EVALUATE)
        return self.simulator.create(count, self.parameters, seeds)

    @torch.no_grad()
    def act(self, worlds: Worlds, state: Tensor, generator: torch.Generator | None) -> tuple[NDArray, Tensor]:
        """Actions [B, heads] for the worlds' observations: sampled, or without a generator the likeliest;
        continuous ones within the simulator's bounds. And the recurrent state [B, state_width] from one step
        to the next; it begins as the model's `initial_state`."""
        mask = None if worlds.mask is None else torch.from_numpy(worlds.mask).bool()
        ended = torch.from_numpy((worlds.terminated | (worlds.valid ^ 1)).astype(bool))
        logits, _, state = self.model.step(torch.from_numpy(worlds.obs), state, ended)
        if generator is None:
            action = self.model.mode(logits, mask).numpy()
        else:
            action = self.model.sample(logits, mask, generator).numpy()
        program = self.model.program
        if program.continuous:
            action = np.clip(action, program.action_low, program.action_high)
        return action, state


def evaluate(run: Path, *, episodes: int, worlds: int, seconds: float) -> dict[str, Any]:
    """Plays at least `episodes` episodes of each policy in `worlds` worlds, rounded up to as many for
    every world.

    Returns what `summarize` gives for the sampled policy, with `argmax` as a further key of the same
    shape, the `version` and the name of the score's `statistic`. What `seconds` of wall time do not
    suffice for is counted as unfinished.
    """
    player = Player.load(run)
    worlds = min(worlds, episodes)
    each = math.ceil(episodes / worlds)
    begin = time.monotonic()
    generator = torch.Generator().manual_seed(player.seed)
    sampled = play(player, worlds, each, generator, begin + seconds / 2)
    argmax = play(player, worlds, each, None, begin + seconds)
    facts = {"version": player.version, "statistic": player.simulator.score}
    return facts | sampled | {"argmax": argmax}


def play(
    player: Player, count: int, each: int, generator: torch.Generator | None, until: float
) -> dict[str, Any]:
    """`each` episodes of every agent of `count` worlds to their end, or as far as `until`
    (time.monotonic)."""
    with player.worlds(count) as worlds:
        worlds.reset()
        finished = np.zeros(worlds.agents, np.int64)
        scores: list[float] = []
        lengths: list[int] = []
        state = player.model.initial_state(worlds.agents)
        while finished.min() < each and time.monotonic() < until:
            actions, state = player.act(worlds, state, generator)
            for episode in worlds.step(actions):
                if finished[episode["agent"]] < each:
                    finished[episode["agent"]] += 1
                    scores.append(float(episode["statistics"][player.simulator.score_index]))
                    lengths.append(int(episode["length"]))
        return summarize(scores, lengths, worlds.agents * each - len(scores))


def summarize(scores: Sequence[float], lengths: Sequence[int], unfinished: int) -> dict[str, Any]:
    """Number, mean, standard deviation and 95 % interval (Student's t) of the scores, and the mean length.
    With `unfinished` episodes the mean is of the shorter ones; with a score that is not finite there is none.
    """
    n = len(scores)
    mean = statistics.fmean(scores) if n and all(map(math.isfinite, scores)) else None
    sd = low = high = None
    if mean is not None and n > 1:
        sd = statistics.stdev(scores)
        half = student_t(n - 1) * sd / math.sqrt(n)
        low, high = mean - half, mean + half
    figures = {
        "mean": mean,
        "sd": sd,
        "n": n,
        "low": low,
        "high": high,
        "min": min(scores, default=None),
        "max": max(scores, default=None),
        "length": statistics.fmean(lengths) if n else None,
        "unfinished": unfinished,
    }
    return finite(figures)


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: half the width of a 95 % interval in standard errors. By
    bisection of the distribution function, which is a finite sum for whole degrees of freedom (Abramowitz
    and Stegun 26.7.3-4)."""
    low, high = 1.9, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| < t)."""
    theta = math.atan(t / math.sqrt(freedom))
    cos2, odd = math.cos(theta) ** 2, freedom % 2
    term = total = math.cos(theta) if odd else 1.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cos2 * (k - 1) / k
        total += term
    if odd:
        return 2 / math.pi * (theta + (math.sin(theta) * total if freedom > 1 else 0.0))
    return math.sin(theta) * total


def render(
    player: Player, policy: torch.Generator | None, out: Any = sys.stdout, *, episodes: int = 1
) -> list[float]:
    """Plays episodes of one world in the terminal, at a speed to watch. Returns their scores."""
    scores: list[float] = []
    with player.worlds(1) as worlds:
        worlds.reset()
        state = player.model.initial_state(worlds.agents)
        interactive = out.isatty()
        frame = 0
        while len(scores) < episodes:
            begin = time.monotonic()
            text = worlds.render_text(0).rstrip("\n")
            out.write(f"{HOME_AND_CLEAR if interactive else ''}{text}\nstep {frame}\n")
            out.flush()
            frame += 1
            actions, state = player.act(worlds, state, policy)
            for ended in worlds.step(actions):
                scores.append(float(ended["statistics"][player.simulator.score_index]))
                frame = 0
            if interactive:
                time.sleep(max(0.0, 1 / FRAMES_PER_SECOND - (time.monotonic() - begin)))
    return scores


def table(result: dict[str, Any]) -> str:
    """The result for a terminal."""
    lines = [
        f"version {result['version']}, {result['statistic']}",
        f"{'policy':8} {'episodes':>8} {'mean':>9} {'sd':>9}  95 %",
    ]
    for name, one in (("sampled", result), ("argmax", result["argmax"])):
        row = f"{name:8} {one['n']:8} {cell(one['mean']):>9} {cell(one['sd']):>9}"
        lines.append(f"{row}  {cell(one['low'])} to {cell(one['high'])}")
        if one["unfinished"]:
            rest = ": the figures are of the shorter ones" if one["n"] else ""
            lines.append(f"  {one['unfinished']} episodes did not finish in time{rest}")
    return "\n".join(lines)


def cell(value: float | None) -> str:
    """A figure of a table."""
    return "-" if value is None else f"{value:.2f}"


def write_json(command: str, path: Path, result: dict[str, Any]) -> int:
    """Writes a result, whole or not at all, or says why it cannot be; returns the exit code of `command`."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(json.dumps(result, indent=1) + "\n")
        os.replace(new, path)
    except OSError as error:
        print(f"{command}: {path}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return exits.MISSING
    return exits.DONE


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m consumers.evaluate", description="Plays the newest checkpoint of a run."
    )
    parser.add_argument("run", type=Path, help="run directory, e.g. runs/breakout")
    parser.add_argument(
        "--episodes", type=positive(int), help="of each policy; default: evaluate.episodes of the run"
    )
    parser.add_argument(
        "--seconds", type=positive(float), help="deadline for both; default: evaluate.seconds of the run"
    )
    parser.add_argument("--render", action="store_true", help="show --episodes (1) in the terminal instead")
    parser.add_argument("--argmax", action="store_true", help="with --render: take the likeliest action")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)  # where the supervisor has our output go
    args = parser.parse_args(arguments)
    if args.log is not None:
        reopen_when_told(args.log)
    resolved = args.run / RESOLVED
    if not resolved.is_file():
        print(f"evaluate: {resolved}: no such file; needs the directory of a run", file=sys.stderr)
        return exits.USAGE
    torch.set_num_threads(1)  # a few hundred rows a step: a second thread would cost more than it does
    try:
        settings = configuration.load_resolved(resolved).evaluate
        if args.render:
            player = Player.load(args.run)
            policy = None if args.argmax else torch.Generator().manual_seed(player.seed)
            for score in render(player, policy, episodes=args.episodes or 1):
                print(f"{player.simulator.score}: {score:g}")
            return 0
        result = evaluate(
            args.run,
            episodes=args.episodes or settings.episodes,
            worlds=settings.worlds,
            seconds=args.seconds or settings.seconds,
        )
    except configuration.ConfigError as error:
        print(error, file=sys.stderr)
        return exits.CONFIG
    except (checkpoint.CheckpointError, SimulatorError, ProgramError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return exits.MISSING
    except KeyboardInterrupt:
        return 130
    print(table(result))
    return exits.DONE if args.json is None else write_json("evaluate", args.json, result)


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """Reads a number above 0 from the command line."""

    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise ValueError
        return value

    number.__name__ = f"positive {kind.__name__}"  # argparse's word for what was needed
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
