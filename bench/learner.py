"""The learner alone: updates on slots that are there already, no ring and no waiting.

    python -m bench.learner [RUN.yaml] [section.key=value ...] [--seconds N] [--networks] [--json FILE]

Steps/s of one learner with the settings of the run file, and what a step costs in each phase. Slots are
made up (the simulator's shapes, uniform actions) and take turns, so that they come from memory as they do
in a run. `--networks` measures one and two hidden layers in both precisions instead. Times are wall time;
the CPU time beside them is what is comparable on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from consumers.allocator import keep_freed_memory
from consumers.batch import Batch
from consumers.machine import choose_bf16, choose_device, choose_threads
from consumers.update import Update
from producers.prepare import Prepared, prepare

WARM_UP_BATCHES = 2
ENDS = 0.01  # share of the steps that end an episode
NETWORKS = (  # as in the published comparisons: one pass, targets from the loss's own forward
    ("118-128-heads", "policy.hidden=[128]"),
    ("118-128-128-heads", "policy.hidden=[128,128]"),
)


class Slot:
    """Stands for a lease: T steps of B agents, acted by a uniform policy."""

    def __init__(self, prepared: Prepared, seed: int):
        rng = np.random.default_rng(seed)
        spec, settings = prepared.spec, prepared.config
        t_b = (settings.rollout.horizon, settings.producers.agents)
        obs_shape, choices = spec["obs"]["shape"], [head["choices"] for head in spec["heads"]]
        obs = rng.random((t_b[0] + 1, t_b[1], *obs_shape), np.float32) * 2
        self.fields = {
            "obs": obs.astype(spec["obs"]["dtype"]),
            "action": np.stack([rng.integers(0, n, t_b) for n in choices], -1).astype(np.int32),
            "logprob": np.full(t_b, -sum(np.log(choices)), np.float32),
            "mask": np.ones((*t_b, sum(choices)), np.uint8),
            "reward": rng.random(t_b, np.float32),
            "terminated": (rng.random(t_b) < ENDS).astype(np.uint8),
            "truncated": np.zeros(t_b, np.uint8),
            "valid": np.ones(t_b, np.uint8),
            "version": np.zeros((t_b[0], 1), np.int64),
            "state0": np.zeros((t_b[1], prepared.program.state_width), np.float32),
        }

    def array(self, name: str) -> NDArray[Any]:
        return self.fields[name]


def measure(path: Path, overrides: list[str], seconds: float) -> dict[str, Any]:
    """Figures of about `seconds` of updates."""
    keep_freed_memory()
    prepared = prepare(str(path), overrides)
    settings = prepared.config.learner
    device = choose_device(settings.device, 0)
    torch.set_num_threads(choose_threads(prepared.config, device))
    bf16 = choose_bf16(settings.precision, device)
    update = Update(settings, prepared.program, seed=0, device=device, bf16=bf16)
    sets = [[Slot(prepared, 10 * i + k) for k in range(settings.batch_slots)] for i in range(2)]
    steps = settings.batch_slots * prepared.config.producers.agents * prepared.config.rollout.horizon

    walls, spent = [], dict.fromkeys(("join", *update.spent_ns), 0)
    version, cpu, end = 0, 0.0, None
    while end is None or time.perf_counter() < end:
        if version == WARM_UP_BATCHES:
            end, cpu = time.perf_counter() + seconds, time.process_time()
        begin = time.perf_counter_ns()
        batch = Batch(
            sets[version % 2],
            device=device,
            has_mask=prepared.spec["mask"],
            recurrent=prepared.program.state_width > 0,
            burn_in=settings.burn_in,
        )
        joined = time.perf_counter_ns()
        update.train(batch, version + 1, 0)  # at lag 1: nothing to compare with the actor
        batch.close()
        version += 1
        if end is not None:
            walls.append(time.perf_counter_ns() - begin)
            spent["join"] += joined - begin
            for phase, ns in update.spent_ns.items():
                spent[phase] += ns
    cpu = time.process_time() - cpu
    total = sum(walls)
    spent["rest"] = total - sum(spent.values())
    return {
        "network": [*prepared.config.policy.hidden],
        "parameters": prepared.program.count,
        "precision": "bf16" if bf16 else "float32",
        "threads": torch.get_num_threads(),
        "epochs": settings.epochs,
        "targets": settings.targets,
        "minibatch_steps": steps // settings.minibatches,
        "steps_per_second": steps * len(walls) * 1e9 / total,
        "steps_per_second_best": steps * 1e9 / min(walls),
        "steps_per_second_median": steps * 1e9 / statistics.median(walls),
        "steps_per_cpu_second": steps * len(walls) / cpu,
        "ns_per_step": {phase: round(ns / steps / len(walls), 1) for phase, ns in spent.items()},
    }


def networks(path: Path, overrides: list[str], seconds: float) -> list[dict[str, Any]]:
    """One and two hidden layers, float32 and bf16, one pass."""
    found = []
    for name, hidden in NETWORKS:
        for precision in ("float32", "bf16"):
            more = [hidden, "learner.epochs=1", "learner.targets=minibatch", "learner.correction=vtrace"]
            more += [f"learner.precision={precision}"]
            one = measure(path, [*overrides, *more], seconds)
            found.append({"name": name, **one})
    return found


def line(one: dict[str, Any]) -> str:
    widths = "-".join(str(width) for width in one["network"])
    phases = ", ".join(f"{phase} {ns:.0f}" for phase, ns in one["ns_per_step"].items())
    return (
        f"hidden {widths:8} {one['precision']:8} {one['epochs']} epochs, targets: {one['targets']:9} "
        f"{one['steps_per_second'] / 1e3:6.0f} k steps/s (best {one['steps_per_second_best'] / 1e3:.0f}, "
        f"{one['steps_per_cpu_second'] / 1e3:.0f} a CPU second); ns a step: {phases}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", default="run.yaml", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--networks", action="store_true", help="one and two layers in both precisions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.networks:
        found: Any = networks(options.run, options.overrides, options.seconds)
    else:
        found = measure(options.run, options.overrides, options.seconds)
    print(f"load {os.getloadavg()[0]:.1f}")
    for one in found if options.networks else [found]:
        print(line(one))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
