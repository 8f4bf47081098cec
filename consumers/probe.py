"""Looks at a user's torch module in a process of its own: `python -m consumers.probe package.module:Class`
reads {"spec": ..., "settings": ...} as JSON from standard input and prints {"state_width": ..., "tensors":
[[name, shape], ...]}, or ends with exit code 64 and a line that says what the module lacks."""

from __future__ import annotations

import contextlib
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
    state = module.initial_state(AGENTS)  # type: ignore[operator]
    good = isinstance(state, Tensor) and state.dim() == 2 and len(state) == AGENTS and not state.any()
    if not good or state.dtype != torch.float32:
        raise ProgramError(f"{name}.initial_state(agents) must give zeros [agents, width] float32")
    return int(state.shape[1])


def _try(name: str, model: ModulePolicy) -> None:
    """From zeros, and once more from the state that this led to."""
    program = model.program
    obs = program.buffers[program.obs]
    rows = torch.zeros((STEPS, AGENTS, *obs.shape), dtype=getattr(torch, obs.dtype))
    rows[1::2] = 1  # as much as any simulator's observations allow
    state = model.initial_state(AGENTS)
    resets = torch.zeros(STEPS, AGENTS, dtype=torch.bool)
    resets[STEPS // 2, 0] = True
    for _ in range(2):
        state = _try_segment(name, model, rows, state, resets)


def _try_segment(name: str, model: ModulePolicy, rows: Tensor, state: Tensor, resets: Tensor) -> Tensor:
    """Returns the state behind it."""
    before = state.clone()
    logits, value, last = model.unroll(rows, before.clone(), resets)
    wanted = (STEPS, AGENTS, model.program.logits)
    assert value is not None
    if logits.shape != wanted or value.shape != wanted[:2]:
        found = f"{tuple(logits.shape)} and {tuple(value.shape)}"
        raise ProgramError(f"{name} gives logits and value of shape {found}; needs {wanted} and {wanted[:2]}")
    if not (logits.isfinite().all() and value.isfinite().all()):
        raise ProgramError(f"{name} gives logits or values that are not finite")
    for t in range(STEPS):
        one, worth, state = model.step(rows[t], state, resets[t])
        if state.shape != (AGENTS, model.program.state_width) or state.dtype != torch.float32:
            found = f"{tuple(state.shape)} {state.dtype}"
            raise ProgramError(f"{name} gives a state of {found}; needs that of initial_state, float32")
        for what, stepped, unrolled in (("logits", one, logits[t]), ("values", worth, value[t])):
            if not _equal(stepped, unrolled):
                raise ProgramError(
                    f"{name}: step by step gives other {what} than unroll, at step {t} of {STEPS}"
                )
    if not _equal(last, state):
        raise ProgramError(f"{name}: step by step leads to another state than unroll")
    alone, _, _ = model.unroll(rows[:, -1:], before[-1:], resets[:, -1:])
    if not _equal(alone[:, 0], logits[:, -1]):
        raise ProgramError(f"{name} gives a row other logits alone than beside others")
    return state


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    assert a is not None
    assert b is not None
    return torch.allclose(a, b, atol=TOLERANCE)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(
            "usage: python -m consumers.probe package.module:Class < spec-and-settings.json", file=sys.stderr
        )
        return exits.USAGE
    torch.set_num_threads(1)
    given = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the module may print what it likes
            found = probe(arguments[0], given["spec"], given["settings"])
        print(json.dumps(found))
    except ProgramError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return exits.CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
