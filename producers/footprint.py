"""How much memory a learner needs, by arithmetic from the run file and the policy program, without torch.

An estimate, not a bound: tests hold it to the measured peak within a factor of 1.5. It is of one learner and
in bytes, and what it counts is named below. Slots are not in it: they lie in the rings.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producers.program_format import READS_BYTES, Program

KEPT_VERSIONS = 8  # of the weights, for audits, where nothing bounds the lag
KEPT_BYTES = 1 << 28  # of them at most, whatever the bound on the lag
PROCESS_BYTES = 340 << 20  # interpreter, torch and its libraries, once they are at work
CUDA_BYTES = 700 << 20  # of a GPU: context and libraries
MULTIPLIES_BF16 = {"avx512_bf16", "amx_bf16"}  # flags of such processors
SMI_SECONDS = 10.0
FLOAT = 4
# Measured. What is freed is not given back, and blocks of other sizes leave gaps: peaks are that much above
# the sum of what lives at one time, and from run to run they differ by a block or two.
ACTIVATION = 1.8  # bytes at the peak by byte of an operation's output
WIDEST = 2.5  # by byte of the widest linear operation's, for gradients on their way
UNIT = {"mingru": 32, "lstm": 70}  # by unit of a recurrent layer and step
STEP, STEP_LOGIT = 150, 32  # of the loss, by step and by logit of it
BATCH_STEP, BATCH_HEAD, BATCH_CHOICE = 360, 12, 2  # fields, estimates and figures of a whole batch
PART_FREE = {"slice", "reshape", "mask", "head"}  # operations that leave nothing behind
PASSING, PASSING_SHARE = {"activation", "embedding"}, 0.25  # of their outputs most is gone before the peak
ELEMENTS = {"uint8": 1, "int8": 1, "int32": 4, "float32": 4}


@dataclass(frozen=True)
class Hardware:
    """What learners have to work with, beside memory."""

    gpu_bytes: tuple[int, ...] = ()
    """Memory of each GPU; none: there is no GPU, or nobody to ask."""
    bf16: bool = False
    """Whether the processor multiplies bfloat16."""


@dataclass(frozen=True)
class Need:
    """Of one learner. With a GPU `weights`, `batch` and `activations` lie there, and `process` here."""

    process: int
    weights: int
    batch: int
    activations: int
    part_steps: int
    """Steps of all agents whose activations are held at a time."""

    @property
    def total(self) -> int:
        return self.process + self.weights + self.batch + self.activations

    def __str__(self) -> str:
        return (
            f"{size(self.weights)} weights, optimizer and audits, {size(self.batch)} fields of a batch, "
            f"{size(self.activations)} activations of {self.part_steps:,} steps, "
            f"{size(self.process)} the rest"
        )


def kept_versions(config: Any) -> int:
    """Of how many versions a learner keeps the weights for its audits: what the bound on the lag lets act,
    and one more, since a label may be off by one."""
    bound = config.lag_limit
    return KEPT_VERSIONS if bound is None else bound + 2


def kept_at_most(versions: int, count: int) -> int:
    """Of so many versions of `count` weights, how many there is room for."""
    return min(versions, max(2, KEPT_BYTES // (FLOAT * count)))


def need(config: Any, program: Program, hardware: Hardware, parts: int) -> Need:
    """Of one learner that runs each minibatch in `parts`. `config`: resolved. Of a module of the user's the
    activations are not known, and not counted."""
    learner, horizon = config.learner, config.rollout.horizon
    gpu = uses_gpu(config, hardware)
    segments = learner.batch_slots // learner.count * config.producers.agents
    minibatch = segments // learner.minibatches
    steps, part_steps = segments * horizon, minibatch // parts * (horizon + 1 - learner.burn_in)
    bf16 = learner.precision == "bf16" or (learner.precision == "auto" and (gpu or hardware.bf16))

    copies = 6 + kept_at_most(kept_versions(config), program.count) + learner.anchored
    snapshots = 2 * (3 + learner.anchored)  # the hot one and the checkpoint's
    logits = program.logits
    loss = STEP + STEP_LOGIT * logits
    batch = steps * (BATCH_STEP + BATCH_HEAD * program.heads)
    batch += steps * BATCH_CHOICE * logits if program.mask is not None else 0
    batch += 3 * FLOAT * segments * program.state_width
    activations = part_steps * (loss + row_bytes(program, 2 if bf16 else FLOAT))
    if parts > 1 and learner.correction in ("mis", "m2po"):
        activations += minibatch * horizon * loss
    process = PROCESS_BYTES + snapshots * FLOAT * program.count
    if gpu:
        obs = program.buffers[program.obs]
        batch += segments * (horizon + 1) * obs.width * ELEMENTS[obs.dtype] + CUDA_BYTES
    return Need(process, copies * FLOAT * program.count, batch, activations, part_steps)


def row_bytes(program: Program, item: int) -> int:
    """What one step leaves behind in the network on its way forward, and takes on its way back; `item`: bytes
    of an element of a matrix product."""
    obs = program.buffers[program.obs]
    as_bytes = any(op.kind in READS_BYTES for op in program.ops)
    once, held, widest, recurrent = obs.width * (ELEMENTS[obs.dtype] if as_bytes else 0), 0.0, 0, 0
    for op in program.ops:
        width = program.buffers[op.output].width
        if op.kind in UNIT:
            recurrent += UNIT[op.kind] * width
        elif op.kind == "activation" and op.attrs["function"] == "relu":
            pass  # in place
        elif op.kind in PASSING:
            held += PASSING_SHARE * width * item
        elif op.kind not in PART_FREE:
            held += width * (FLOAT if op.kind == "layer_norm" else item)
            widest = max(widest, width * item if op.kind == "linear" else 0)
    return once + int(ACTIVATION * held + WIDEST * widest) + recurrent


def uses_gpu(config: Any, hardware: Hardware) -> bool:
    """Whether the learners will train on GPUs."""
    device = config.learner.device
    return device == "cuda" or (device == "auto" and bool(hardware.gpu_bytes))


def on_device(one: Need, config: Any, hardware: Hardware) -> int:
    """What `learner.memory` is about: of the GPU where there is one, else all."""
    return one.total - one.process if uses_gpu(config, hardware) else one.total


def fewest_parts(config: Any, program: Program, hardware: Hardware, budget: int) -> int | None:
    """The fewest parts of a minibatch with which a learner needs no more than `budget`; None: none are few
    enough segments."""
    learner = config.learner
    minibatch = learner.batch_slots // learner.count * config.producers.agents // learner.minibatches
    for parts in range(1, minibatch + 1):
        if minibatch % parts == 0:
            one = need(config, program, hardware, parts)
            if on_device(one, config, hardware) <= budget:
                return parts
    return None


def resolve(config: Any, program: Program, hardware: Hardware) -> Any:
    """The configuration with `learner.minibatch_parts: auto` worked out."""
    learner = config.learner
    if learner.minibatch_parts != "auto":
        return config
    parts = None
    if learner.memory != "auto":
        parts = fewest_parts(config, program, hardware, learner.memory)
    return config.model_copy(update={"learner": learner.model_copy(update={"minibatch_parts": parts or 1})})


def shortfall(
    config: Any, program: Program, hardware: Hardware, memory_bytes: int | None, rings_bytes: int
) -> tuple[str, str] | None:
    """(key, problem) where there is too little memory for what the learners are estimated to need; None:
    there is enough, or nobody knows. `config`: as `resolve` leaves it; `memory_bytes`: what this machine has,
    None: not known; `rings_bytes`: of it for the run's shared memory."""
    learner = config.learner
    one = need(config, program, hardware, learner.parts)
    if learner.memory != "auto":
        found, budget = on_device(one, config, hardware), learner.memory
        return (
            None
            if found <= budget
            else _problem(config, program, hardware, one, found, budget, "the budget is")
        )
    if uses_gpu(config, hardware) and hardware.gpu_bytes:
        sharing = -(-learner.count // len(hardware.gpu_bytes))
        found, budget = on_device(one, config, hardware), min(hardware.gpu_bytes) // sharing
        if found > budget:
            return _problem(config, program, hardware, one, found, budget, "its part of a GPU is")
    # Rings that do not fit by themselves are told of where they are made.
    if memory_bytes is not None and rings_bytes < memory_bytes:
        here = one.process if uses_gpu(config, hardware) else one.total
        budget = (memory_bytes - rings_bytes) // learner.count
        if here > budget:
            beside = f"beside {size(rings_bytes)} for rings this machine has for each"
            return _problem(config, program, hardware, one, here, budget, beside)
    return None


def _problem(
    config: Any, program: Program, hardware: Hardware, one: Need, found: int, budget: int, where: str
) -> tuple[str, str]:
    """What is said, with what would help."""
    parts = fewest_parts(config, program, hardware, budget) if budget > 0 else None
    if parts is None:
        help_ = "fewer learner.batch_slots, producers.agents or a smaller policy, or more memory"
    else:
        help_ = f"learner.minibatch_parts: {parts} or more, or more learner.minibatches"
    return (
        "learner.memory",
        f"a learner is estimated to need {size(found)} ({one}), but {where} {size(max(0, budget))}; "
        f"needs {help_}",
    )


def size(n: int) -> str:
    """Bytes for people."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


@functools.cache
def read_hardware(proc: Path = Path("/proc"), smi: str = "nvidia-smi") -> Hardware:
    """Of this machine."""
    flags: set[str] = set()
    with contextlib.suppress(OSError):  # not Linux as we know it
        for line in (proc / "cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.partition(":")[2].split())
                break
    return Hardware(_gpu_bytes(smi), bool(flags & MULTIPLIES_BF16))


def _gpu_bytes(smi: str) -> tuple[int, ...]:
    """Memory of each GPU, by NVIDIA's tool: torch, which could tell too, is not to be imported here."""
    question = [smi, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(question, capture_output=True, text=True, timeout=SMI_SECONDS, check=True)
        return tuple(int(line) << 20 for line in said.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
