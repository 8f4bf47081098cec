"""Looks at a user's torch module in a process of its own: `python -m consumers.probe package.module:Class`
reads {"spec": ..., "settings": ...} as JSON from standard input and prints {"state_width": ..., "tensors":
[[name, shape], ...]}, or ends with exit code 64 and a line that says what the module lacks."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor, nn

from config import exits
from consumers.modules import ModulePolicy, create, parameters_of
from producers.opaque import opaque
from producers.program_format import ProgramError

AGENTS, STEPS = 3, 4  # of the trial
TOLERANCE = 1e-4  # between unroll and step by step


def probe(name: str, spec: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Sizes of the module, once it has shown that it works. Raises ProgramError."""
    module = create(name, spec, settings)
    tensors = parameters_of(module)
    width = _state_width(name, module)
    model = ModulePolicy(opaque(name, spec, settings, width, tensors)).requires_grad_(False)
    try:
        _try(name, model)
    except ProgramError:
        raise
    except Exception as error:
        raise ProgramError(
            f"{name} fails on a trial of {AGENTS} agents: {type(error).__name__}: {error}"
        ) from error
    return {"state_width": width, "tensors": tensors}


def _state_width(name: str, module: nn.Module) -> int:
    if not hasattr(module, "initial_state"):
        return 0
    state = module.initial_state(AGENTS)
    if not isinstance(state, Tensor) or state.dim() != 2 or len(state) != AGENTS or bool(state.any()):
        raise ProgramError(f"{name}.initial_state(agents) must give zeros [agents, width]")
    return int(state.shape[1])


def _try(name: str, model: ModulePolicy) -> None:
    program = model.program
    obs = program.buffers[program.obs]
    rows = torch.zeros((STEPS, AGENTS, *obs.shape), dtype=getattr(torch, obs.dtype))
    state = model.initial_state(AGENTS)
    resets = torch.zeros(STEPS, AGENTS, dtype=torch.bool)
    resets[STEPS // 2, 0] = True
    logits, value, _ = model.unroll(rows, state, resets)
    wanted = (STEPS, AGENTS, program.logits)
    assert value is not None
    if logits.shape != wanted or value.shape != wanted[:2]:
        found = f"{tuple(logits.shape)} and {tuple(value.shape)}"
        raise ProgramError(f"{name} gives logits and value of shape {found}; needs {wanted} and {wanted[:2]}")
    for t in range(STEPS):
        one, _, state = model.step(rows[t], state, resets[t])
        if not torch.allclose(one, logits[t], atol=TOLERANCE):
            raise ProgramError(f"{name}: step by step gives other logits than unroll, at step {t} of {STEPS}")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(
            "usage: python -m consumers.probe package.module:Class < spec-and-settings.json", file=sys.stderr
        )
        return exits.USAGE
    torch.set_num_threads(1)
    given = json.load(sys.stdin)
    try:
        print(json.dumps(probe(arguments[0], given["spec"], given["settings"])))
    except ProgramError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return exits.CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
