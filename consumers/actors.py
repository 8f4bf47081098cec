"""What a policy thinks of observations: logits and values, without torch where a program describes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from producers.c_policy import CPolicy
from producers.opaque import Opaque
from producers.program_format import Buffer, Op, Program

Rows = NDArray[np.float32]


class Actor(Protocol):
    """The network of a run, for a fixed number of agents."""

    program: Program

    def load(self, flat: Rows) -> None:
        """Takes the weights [program.count] in the program's order."""

    def look(self, obs: NDArray, state: Rows, reset_before: NDArray[np.uint8]) -> tuple[Rows, Rows | None]:
        """Logits [B, logits] before masking, or a Gaussian's means, and values [B], None where the network
        has none, of obs [B, ...]. Rewrites `state` [B, state_width], the rows in `reset_before` [B] zeroed
        first."""


def actor(program: Program, agents: int) -> Actor:
    """Raises ProgramError where the network cannot be made."""
    if not isinstance(program, Opaque):
        return ProgramActor(program, agents)
    from consumers.module_actor import ModuleActor  # torch, which nobody else needs here

    return ModuleActor(program, agents)


class ProgramActor:
    """By the code that producers act with."""

    def __init__(self, program: Program, agents: int):
        self.program = program
        self._policy = CPolicy(with_value(program), agents)

    def load(self, flat: Rows) -> None:
        self._policy.load(flat)

    def look(self, obs: NDArray, state: Rows, reset_before: NDArray[np.uint8]) -> tuple[Rows, Rows | None]:
        found = self._policy.logits(obs, state=state, reset_before=reset_before)
        width = self.program.logits
        value = None if self.program.value is None else found[:, width]
        return np.ascontiguousarray(found[:, :width]), value


def with_value(program: Program) -> Program:
    """The same network and weights, whose logits have the value as one more at their end: an actor skips what
    no action depends on. Without a value the program itself."""
    if program.value is None:
        return program
    head = next(op for op in program.ops if op.kind == "head")
    logits = head.inputs[0]
    before = next(op for op in program.ops if op.output == logits)
    if before.kind == "mask":
        logits = before.inputs[0]
    joined, action = len(program.buffers), len(program.buffers) + 1
    return replace(
        program,
        buffers=(
            *program.buffers,
            Buffer("float32", (program.logits + 1,)),
            Buffer("int32", (1,)),
        ),
        ops=(
            *program.ops,
            Op("concat", (logits, program.value), joined),
            Op("head", (joined,), action, {"distribution": "categorical"}),
        ),
        mask=None,
        action=action,
        choices=(program.logits + 1,),
        action_low=(),
        action_high=(),
    )
