"""What a step of the realm costs: by phase, by how many agents share the world, and beside a second world.

    python bench/realm.py [--seconds S] [--agents N ...] [--size N] [--json FILE]

Actions are random. Phases: the tick, and the observations, which are written once more after it to be timed
alone. Nanoseconds are of an agent-step, best of several rounds; memset of as many bytes stands beside them.
Then two worlds in two processes on two cores, as a multiple of one alone. All seconds are the processor's, so
that others who share the cores take little away.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.simulators import ACTION_STEPS, random_actions, write_seconds
from sims.loader import load
from sims.worlds import Worlds

ROUNDS = 7
AGENTS = (256, 512, 1024, 2048, 4096)
START_SECONDS = 0.5  # for both processes to be there


@dataclass(frozen=True)
class Result:
    agents: int
    size: int
    steps_per_second: float
    step_nanoseconds: float
    observation_nanoseconds: float
    tick_nanoseconds: float
    observed_bytes_per_second: float
    memset_nanoseconds: float


def world(agents: int, size: int) -> Worlds:
    """Played for a while: births are over, and caches warm."""
    made = load("realm").create(1, {"agents": agents, "width": size, "height": size})
    made.reset()
    for _ in range(4):
        made.play(random_actions(made.shape, agents))
    return made


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def measure(agents: int, size: int, seconds: float) -> Result:
    with world(agents, size) as made:
        actions = random_actions(made.shape, agents)
        observe, address = made.simulator.library.realm_observe, made._world(0)
        observe.restype, observe.argtypes = None, made.simulator.api.render_rgb.argtypes[:2]
        steps = ACTION_STEPS * agents

        def observe_all() -> None:
            for _ in range(ACTION_STEPS):
                observe(address, made.obs.ctypes.data)

        whole, observing, memset, end = [], [], [], time.monotonic() + seconds
        while len(whole) < ROUNDS or time.monotonic() < end:
            whole.append(seconds_of(lambda: made.play(actions)) / steps)
            observing.append(seconds_of(observe_all) / steps)
            memset.append(write_seconds(made.obs) / agents)
        step, observation = min(whole), min(observing)
        return Result(
            agents=agents,
            size=size,
            steps_per_second=1 / step,
            step_nanoseconds=1e9 * step,
            observation_nanoseconds=1e9 * observation,
            tick_nanoseconds=1e9 * (step - observation),
            observed_bytes_per_second=made.obs.nbytes / agents / observation,
            memset_nanoseconds=1e9 * min(memset),
        )


def play_alone(
    core: int, size: int, seconds: float, begin: float, rate: multiprocessing.Queue[float]
) -> None:
    """Agent-steps a second of the processor, pinned, from `begin` (monotonic) until `seconds` later."""
    os.sched_setaffinity(0, {core})
    with world(1024, size) as made:
        actions, plays = random_actions(made.shape, 1024), 0
        time.sleep(max(0.0, begin - time.monotonic()))
        start = time.thread_time()
        while time.monotonic() < begin + seconds:
            made.play(actions)
            plays += 1
        rate.put(plays * ACTION_STEPS * 1024 / (time.thread_time() - start))


def together(cores: list[int], size: int, seconds: float) -> float:
    """Agent-steps/s of one world of 1024 agents on each of the cores."""
    rate: multiprocessing.Queue[float] = multiprocessing.Queue()
    begin = time.monotonic() + START_SECONDS + 2.0
    processes = [
        multiprocessing.Process(target=play_alone, args=(core, size, seconds, begin, rate)) for core in cores
    ]
    for process in processes:
        process.start()
    rates = [rate.get(timeout=120 + seconds) for _ in processes]
    for process in processes:
        process.join()
    return float(np.sum(rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each figure (default 2)")
    parser.add_argument("--agents", type=int, nargs="*", default=AGENTS, help="agents of the one world")
    parser.add_argument("--size", type=int, default=512, help="width and height (default 512)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[0]})
    print(f"load {os.getloadavg()[0]:.1f} on {len(usable)} cores")
    print("agents   steps/s  ns/step     tick  observe  obs GB/s  memset ns")
    results = []
    for agents in options.agents:
        r = measure(agents, options.size, options.seconds)
        results.append(r)
        print(
            f"{r.agents:>6} {r.steps_per_second / 1e6:>7.2f} M {r.step_nanoseconds:>8.0f} "
            f"{r.tick_nanoseconds:>8.0f} {r.observation_nanoseconds:>8.0f} "
            f"{r.observed_bytes_per_second / 1e9:>9.1f} {r.memset_nanoseconds:>10.0f}"
        )
    figures: dict[str, object] = {"by_agents": [asdict(r) for r in results]}
    if len(usable) > 1:
        one = together(usable[:1], options.size, options.seconds)
        two = together(usable[:2], options.size, options.seconds)
        figures |= {"one_process": one, "two_processes": two}
        print(f"two worlds in two processes: {two / one:.2f} times one ({one / 1e6:.2f} M/s)")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
