"""How fast each simulator is alone: agent-steps/s and observation bytes/s on one core.

    python bench/simulators.py [NAME ...] [--worlds N] [--seconds S] [--json FILE]

N worlds, or fewer where a world holds many agents: as many agents as N worlds of one have, or one world.

Actions are random and laid down before; the worlds are stepped by host.c's loop, as in a producer, into one
row of observations that is used again and again. Seconds are those of the processor, so that others who share
the core take little away, and of the best of several rounds. Beside them stands memset of as many bytes, the
least that a simulator needs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sims.loader import Shape, SimulatorError, available, load

ROUNDS = 5
ACTION_STEPS = 64


@dataclass(frozen=True)
class Result:
    simulator: str
    worlds: int
    agents: int
    obs_bytes: int  # of one agent's observation
    steps_per_second: float  # agent-steps
    nanoseconds_per_step: float
    obs_bytes_per_second: float
    write_nanoseconds: float  # memset of one observation
    episodes: int


def random_actions(shape: Shape, agents: int) -> np.ndarray:
    """[ACTION_STEPS, agents, heads], masks ignored."""
    generator = np.random.default_rng(0)
    columns = [
        generator.integers(0, head.choices, (ACTION_STEPS, agents))
        if head.choices
        else generator.uniform(head.low, head.high, (ACTION_STEPS, agents))
        for head in shape.heads
    ]
    return np.ascontiguousarray(np.stack(columns, axis=-1), shape.action_dtype)


def write_seconds(rows: np.ndarray) -> float:
    """The best time to write all of an array once."""
    flat = rows.reshape(-1).view(np.uint8)
    times = []
    for _ in range(50):
        begin = time.thread_time()
        flat.fill(1)
        times.append(time.thread_time() - begin)
    return min(times)


def measure(name: str, worlds: int, seconds: float) -> Result:
    """Plays `name` for about `seconds`."""
    simulator = load(name)
    worlds = max(1, worlds // simulator.shape().agents)
    with simulator.create(worlds) as played:
        actions = random_actions(played.shape, played.agents)
        played.reset()
        episodes = played.play(actions)  # spreads the worlds over their episodes, and warms the caches
        best = float("inf")  # seconds a play
        for _ in range(ROUNDS):
            begin, plays = time.thread_time(), 0
            while (passed := time.thread_time() - begin) < seconds / ROUNDS:
                episodes += played.play(actions)
                plays += 1
            best = min(best, passed / plays)
        steps = ACTION_STEPS * played.agents
        obs_bytes = played.obs.nbytes // played.agents
        return Result(
            simulator=name,
            worlds=worlds,
            agents=played.agents,
            obs_bytes=obs_bytes,
            steps_per_second=steps / best,
            nanoseconds_per_step=1e9 * best / steps,
            obs_bytes_per_second=obs_bytes * steps / best,
            write_nanoseconds=1e9 * write_seconds(played.obs) / played.agents,
            episodes=episodes,
        )


def table(results: list[Result]) -> str:
    head = ("simulator", "worlds", "agents", "steps/s", "ns/step", "obs GB/s", "memset ns")
    lines = ["{:<12} {:>7} {:>7} {:>10} {:>8} {:>9} {:>10}".format(*head)]
    lines += [
        f"{r.simulator:<12} {r.worlds:>7} {r.agents:>7} {r.steps_per_second / 1e6:>8.2f} M "
        f"{r.nanoseconds_per_step:>8.1f} {r.obs_bytes_per_second / 1e9:>9.2f} {r.write_nanoseconds:>10.1f}"
        for r in results
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="simulators (default: all)")
    parser.add_argument("--worlds", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each simulator (default 2)")
    parser.add_argument(
        "--json", metavar="FILE", help="write the results there too; - for standard output only"
    )
    options = parser.parse_args()
    # One core, as a producer has: without this the scheduler may move the process in the middle of a round.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        results = [measure(name, options.worlds, options.seconds) for name in options.names or available()]
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return 2
    text = json.dumps([asdict(result) for result in results], indent=1)
    if options.json == "-":
        print(text)
        return 0
    print(table(results))
    if options.json:
        Path(options.json).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
