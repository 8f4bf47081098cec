"""The network of a run as a torch module: built from its program, or the user's own class around its
parameters.

docs/modules.md says what such a class must have.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from consumers.models import PolicyModel
from producers.opaque import Opaque
from producers.program_format import Program, ProgramError, Weight


def make(program: Program, *, seed: int = 0) -> PolicyModel:
    """With fresh weights, from `seed` alone. Raises ProgramError where a user's class cannot be made or is
    another one by now."""
    return (
        ModulePolicy(program, seed=seed) if isinstance(program, Opaque) else PolicyModel(program, seed=seed)
    )


def create(name: str, spec: Mapping[str, Any], settings: Mapping[str, Any], *, seed: int = 0) -> nn.Module:
    """The user's module; the global generator is left as it was. Raises ProgramError with what its code
    said."""
    path, _, attribute = name.partition(":")
    try:
        made_by = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ProgramError(f"{name}: {error}") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            made = made_by(dict(spec), dict(settings))
        except Exception as error:
            raise ProgramError(f"{name}(spec, settings): {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ProgramError(f"{name}(spec, settings) is no torch.nn.Module, but {type(made).__name__}")
    return made


def parameters_of(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of all that travels, in order. Raises ProgramError where one is not float32."""
    found = []
    for name, one in module.named_parameters():
        if one.dtype != torch.float32:
            raise ProgramError(f"parameter {name} is {one.dtype}; all must be float32")
        found.append((name, tuple(one.shape)))
    if not found:
        raise ProgramError("a module without parameters has nothing to learn")
    return found


class ModulePolicy(PolicyModel):
    """The user's module with the face of every other policy: its parameters are views of one flat vector."""

    def __init__(self, program: Opaque, *, seed: int = 0):
        nn.Module.__init__(self)
        self.program = program
        self.inner: Any = create(
            program.module, json.loads(program.spec), json.loads(program.settings), seed=seed
        )
        if parameters_of(self.inner) != [(one.name, one.shape) for one in program.weights]:
            raise ProgramError(f"{program.module} has other parameters than those of this run")
        self._tensors: dict[str, Any] = dict(self.inner.named_parameters())
        self._flat = torch.empty(program.count)
        with torch.no_grad():
            for weight, view in self._views():
                tensor = self._tensors[weight.name]
                view.copy_(tensor)
                tensor.data = view

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Fresh weights; the global generator is neither read nor moved."""
        self.load_flat(ModulePolicy(self.program, seed=seed)._flat)  # type: ignore[arg-type]

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.program.state_width:
            raise ValueError("a recurrent module needs its state: unroll and step take it")
        lead = obs.shape[: obs.dim() - len(self.program.buffers[self.program.obs].shape)]
        logits, value = self.inner(obs.reshape(-1, *obs.shape[len(lead) :]))
        return self._finished(logits.view(*lead, -1), value.view(lead), mask)

    def unroll(
        self, obs: Tensor, state0: Tensor, reset_before: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        if not self.program.state_width:
            return *self.forward(obs, mask), state0
        if hasattr(self.inner, "unroll"):
            logits, value, state = self.inner.unroll(obs, state0, reset_before)
            return *self._finished(logits, value, mask), state
        rows, state = [], state0
        for t, row in enumerate(obs):
            *outputs, state = self._step(row, state, None if reset_before is None else reset_before[t])
            rows.append(outputs)
        logits, value = (torch.stack(each) for each in zip(*rows, strict=True))
        return *self._finished(logits, value, mask), state

    def step(
        self, obs: Tensor, state: Tensor, reset_before: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        if not self.program.state_width:
            return *self.forward(obs, mask), state
        logits, value, state = self._step(obs, state, reset_before)
        return *self._finished(logits, value, mask), state

    def _step(self, obs: Tensor, state: Tensor, reset_before: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if reset_before is not None:
            state = state.masked_fill(reset_before.unsqueeze(-1), 0.0)
        logits, value, state = self.inner.step(obs, state)
        return logits, value, state

    def _finished(self, logits: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = logits.float()
        if mask is not None:
            logits = torch.where(mask.bool(), logits, -torch.inf)
        return logits, value.float()

    def obs_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The simulator's own: nothing is known of what the module does with observations."""
        found = getattr(torch, self.program.buffers[self.program.obs].dtype)
        assert isinstance(found, torch.dtype)
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Of the user's module, whose names a checkpoint's policy.pt has."""
        return self.inner.load_state_dict(state_dict, strict=strict)

    def _views(self) -> Iterator[tuple[Weight, Tensor]]:
        for weight in self.program.weights:
            yield weight, self._flat[weight.offset : weight.offset + weight.count].view(weight.shape)

    def _apply(self, fn: Any, recurse: bool = True) -> ModulePolicy:
        """Moves to another device as a whole, so that the parameters stay views of one vector."""
        nn.Module._apply(self, fn, recurse)
        self._tensors = dict(self.inner.named_parameters())
        self._flat = fn(self._flat)
        for weight, view in self._views():
            self._tensors[weight.name].data = view
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ModulePolicy:
        assert isinstance(self.program, Opaque)
        copy = ModulePolicy(self.program).to(self._flat.device).train(self.training)
        copy.load_flat(self._flat)
        memo[id(self)] = copy
        return copy
