"""The policy alone: acting in C, and training the same network in torch.

    python -m bench.policy [--seconds N] [--json FILE]

Acting: hr_policy_act (forward pass, sampling, log-probabilities) for 1024 agents on one core; a recurrent
layer beside a linear one of as many multiplications, and their ratio. Training: forward, backward and a fused
AdamW step on batches of 8192, in float32, under bf16 autocast, and with weights kept in bf16 beside float32
masters; on one thread and on all cores. Of many short runs the best and the median: on a shared machine the
first is what the code can do, the second what it got. The presets of `policy.preset`, over an observation of
1707 bytes: acting in C, torch's forward pass and training on segments of 16 steps of 128 agents, by one
thread and in seconds of its own, not of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from config.rules import PRESETS
from consumers.allocator import keep_freed_memory
from consumers.models import PolicyModel
from producers.c_policy import CPolicy
from producers.program import Builder, Program, build

AGENTS = 1024
BATCH = 8192
NETWORKS = ([128], [128, 128])
SPEC = {"obs": {"dtype": "float32", "shape": [118]}, "heads": [{"choices": 3}], "mask": False}
GRID = {"rows": 11, "columns": 15, "planes": 10, "values": [4, 4, 17, 5, 3, 5, 5, 5, 7, 4]}
MANY = {
    "obs": {"dtype": "uint8", "shape": [1707], "grid": GRID, "coded": 47},
    "heads": [{"choices": 26}],
    "mask": False,
}
SEGMENTS = (16, 128)  # steps, agents


def per_call(
    call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Best and median seconds of a call, by `clock`."""
    for _ in range(5):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = clock()
        call()
        times.append(clock() - begin)
    return min(times), float(np.median(times))


def actor_flops(program: Program) -> int:
    """Multiplications and additions of one agent's matrix products, the value layer left out."""
    acting = (op for i, op in enumerate(program.ops) if op.kind == "linear" and i not in program.learner_only)
    return sum(2 * op.weights[0].count for op in acting)


def act_seconds(program: Program, obs: np.ndarray, seconds: float) -> tuple[float, float]:
    """Best and median of acting for `obs` [AGENTS, ...] with random weights."""
    generator = np.random.default_rng(0)
    policy = CPolicy(program, AGENTS)
    policy.load(generator.normal(0, 0.1, program.count).astype(np.float32))
    state = np.zeros((AGENTS, program.state_width), np.float32)
    reset = np.zeros(AGENTS, np.uint8)
    return per_call(lambda: policy.act(obs, state=state, reset_before=reset), seconds)


def acting(hidden: list[int], activation: str, seconds: float) -> dict[str, Any]:
    program = build({"hidden": hidden, "activation": activation}, SPEC)
    generator = np.random.default_rng(0)
    best, median = act_seconds(program, generator.normal(0, 1, (AGENTS, 118)).astype(np.float32), seconds)
    policy, flat = CPolicy(program, AGENTS), generator.normal(0, 0.1, program.count).astype(np.float32)
    load, _ = per_call(lambda: policy.load(flat), seconds / 10)
    return {
        "hidden": hidden,
        "activation": activation,
        "passes_per_second": AGENTS / best,
        "median_passes_per_second": AGENTS / median,
        "gflops": AGENTS * actor_flops(program) / best / 1e9,
        "load_us": load * 1e6,
    }


def recurrence(kind: str, units: int, seconds: float) -> dict[str, Any]:
    """One recurrent layer alone, and one linear layer with as many weights: what state, gates and exponential
    functions cost."""
    inputs, outputs = {"lstm": (2 * units, 4 * units), "mingru": (units, 2 * units)}[kind]
    times = []
    for width in (units, inputs):
        builder = Builder("float32", (width,), [3])
        x = builder.cast_affine()
        if not times:
            x = getattr(builder, kind)(x, units, "layer")
        else:
            x = builder.linear(x, outputs, "layer", gain=1.0)
        builder.head(builder.slice(x, 0, 3))
        obs = np.random.default_rng(0).normal(0, 1, (AGENTS, width)).astype(np.float32)
        times.append(act_seconds(builder.finish(), obs, seconds / 2))
    (best, median), (linear, _) = times
    return {
        "kind": kind,
        "units": units,
        "passes_per_second": AGENTS / best,
        "median_passes_per_second": AGENTS / median,
        "gflops": 2 * inputs * outputs * AGENTS / best / 1e9,
        "of_linear": linear / best,
    }


def training(hidden: list[int], precision: str, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    model = PolicyModel(build({"hidden": hidden, "activation": "relu"}, SPEC), seed=0)
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(BATCH, 118, generator=generator)
    action = torch.randint(0, 3, (BATCH, 1), generator=generator)
    advantage, target = torch.randn(2, BATCH, generator=generator)
    parameters = list(model.parameters())
    masters = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.AdamW(masters if precision == "bf16 weights" else parameters, lr=1e-4, fused=True)
    if precision == "bf16 weights":
        for p in parameters:
            p.data = p.data.bfloat16()
    if precision != "float32":
        obs = obs.bfloat16()

    def step() -> None:
        for p in parameters:
            p.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != "float32"):
            logits, value = model(obs)
        log_prob, entropy = model.log_prob_entropy(logits, action)
        ratio = (log_prob + 1.0986).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = (value - target).square().mean() - surrogate.mean() - 0.01 * entropy.mean()
        loss.backward()
        if precision == "bf16 weights":
            for master, p in zip(masters, parameters, strict=True):
                master.grad = p.grad.float()
        optimizer.step()
        if precision == "bf16 weights":
            torch._foreach_copy_([p.detach() for p in parameters], masters)

    best, median = per_call(step, seconds)
    return {
        "hidden": hidden,
        "precision": precision,
        "threads": threads,
        "samples_per_second": BATCH / best,
        "median_samples_per_second": BATCH / median,
    }


def many_observations(rows: int) -> np.ndarray:
    """[rows, 1707] uint8, each byte within its range."""
    generator = np.random.default_rng(0)
    cells = (generator.random((rows, 165, 10)) * np.array(GRID["values"])).astype(np.uint8)
    rest = generator.integers(0, 128, (rows, 57), np.uint8)
    return np.concatenate([cells.reshape(rows, -1), rest], 1)


def preset(name: str, seconds: float) -> dict[str, Any]:
    """Rows a second of a preset's network: acting, forward passes and training in float32 and bf16."""
    torch.set_num_threads(1)
    program = build(PRESETS[name], MANY)
    model, actor = PolicyModel(program, seed=0), CPolicy(program, AGENTS)
    actor.load(model.flat_weights().numpy())
    acting_obs, acting_state = many_observations(AGENTS), np.zeros((AGENTS, program.state_width), np.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    rows = SEGMENTS[0] * SEGMENTS[1]
    obs = torch.from_numpy(many_observations(rows)).view(*SEGMENTS, -1)
    state, reset = model.initial_state(SEGMENTS[1]), torch.rand(SEGMENTS, generator=generator) < 0.01
    action = torch.randint(0, 26, (*SEGMENTS, 1), generator=generator)
    advantage, target = torch.randn(2, *SEGMENTS, generator=generator)

    def forward(bf16: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits, value, _ = model.unroll(obs, state, reset)
        return logits, value

    def train(bf16: bool) -> None:
        optimizer.zero_grad()
        logits, value = forward(bf16)
        log_prob, entropy = model.log_prob_entropy(logits, action)
        loss = (value - target).square().mean() - (log_prob * advantage).mean() - 0.01 * entropy.mean()
        loss.backward()
        optimizer.step()

    def rate(call: Callable[[], object], rows: int) -> tuple[float, float]:
        best, median = per_call(call, seconds, time.thread_time)
        return rows / best, rows / median

    figures: dict[str, Any] = {"preset": name, "parameters": program.count}
    figures["acting"] = rate(lambda: actor.act(acting_obs, state=acting_state), AGENTS)
    for precision in ("float32", "bf16"):
        bf16 = precision == "bf16"
        figures[f"forward {precision}"] = rate(torch.no_grad()(lambda: forward(bf16)), rows)  # noqa: B023
        figures[f"training {precision}"] = rate(lambda: train(bf16), rows)  # noqa: B023
    return figures


def measure(seconds: float) -> dict[str, Any]:
    """All figures, `seconds` each; prints them as they come."""
    keep_freed_memory()
    figures: dict[str, Any] = {"acting": [], "recurrent": [], "presets": [], "training": []}
    print(f"acting, one core, {AGENTS} agents            best      median")
    for hidden, activation in ((NETWORKS[0], "relu"), (NETWORKS[1], "relu"), (NETWORKS[1], "tanh")):
        one = acting(hidden, activation, seconds)
        figures["acting"].append(one)
        print(
            f"  {hidden!s:12} {activation:10} {one['passes_per_second'] / 1e6:16.2f} M/s"
            f" {one['median_passes_per_second'] / 1e6:6.2f} M/s  {one['gflops']:.0f} GFLOP/s,"
            f" new weights in {one['load_us']:.0f} us"
        )
    for kind in ("lstm", "mingru"):
        for units in (64, 128, 256):
            one = recurrence(kind, units, seconds)
            figures["recurrent"].append(one)
            print(
                f"  {kind:8} {units:4}         {one['passes_per_second'] / 1e6:17.2f} M/s"
                f" {one['median_passes_per_second'] / 1e6:6.2f} M/s  {one['gflops']:.0f} GFLOP/s,"
                f" {one['of_linear']:.2f} of a linear layer's speed"
            )
    print("presets, one core                         best      median")
    for name in ("full", "small"):
        one = preset(name, seconds)
        figures["presets"].append(one)
        for what, (best, median) in list(one.items())[2:]:
            print(f"  {name:6} {what:20} {best / 1e3:14.1f} k/s {median / 1e3:6.1f} k/s")
    print(f"training, batches of {BATCH}               best      median")
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        for hidden in NETWORKS:
            for precision in ("float32", "bf16 autocast", "bf16 weights"):
                one = training(hidden, precision, threads, seconds)
                figures["training"].append(one)
                print(
                    f"  {hidden!s:12} {precision:14} {threads} threads"
                    f" {one['samples_per_second'] / 1e6:6.3f} M/s"
                    f" {one['median_samples_per_second'] / 1e6:6.3f} M/s"
                )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each figure (default 2)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    figures = measure(options.seconds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
