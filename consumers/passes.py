"""Passes of a network over segments of a batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from consumers.batch import Batch, Pieces


class Passes:
    """Copies the observations of segments to where the network reads them, and runs it over them."""

    def __init__(self, model: Any, *, recurrent: bool, device: torch.device, bf16: bool, compiled: bool):
        """`model`: of consumers.models. `bf16`: matrix products in bfloat16. `compiled`: whether `run` goes
        through torch.compile."""
        self._exact = model.unroll if recurrent else model
        self._forward = torch.compile(self._exact) if compiled else self._exact
        self._device, self._bf16 = device, bf16
        self._dtype = model.obs_dtype(torch.bfloat16 if bf16 else torch.float32)
        self._buffer = torch.empty(0)

    def observe(self, batch: Batch, part: Pieces, rows: int) -> Tensor:
        """The first `rows` observations of the segments, in memory that the next call writes again."""
        shape = (rows, part.size, *batch.observations[0].shape[2:])
        if self._buffer.numel() < math.prod(shape):
            self._buffer = torch.empty(math.prod(shape), dtype=self._dtype, device=self._device)
        return batch.observe(part.runs, rows, self._buffer[: math.prod(shape)].view(shape))

    def run(self, obs: Tensor, batch: Batch, part: Pieces) -> tuple[Tensor, Tensor]:
        """Logits and value of the segments' first rows, which are `obs`. The rows of the burn-in get no
        gradient: they are there for the state that they leave behind, which is a constant."""
        memory, n = batch.memory(part, len(obs)), batch.burn_in
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            if n == 0 or not torch.is_grad_enabled():
                logits, output, *_ = self._forward(obs, *memory)
                return logits, output
            state, reset_before = memory
            with torch.no_grad():
                first_logits, first_output, state = self._forward(obs[:n], state, reset_before[:n])
            logits, output, _ = self._forward(obs[n:], state, reset_before[n:])
        return torch.cat([first_logits, logits]), torch.cat([first_output, output])

    @torch.no_grad()
    def look(self, batch: Batch, part: Pieces) -> tuple[Tensor, Tensor]:
        """Logits and value of the segments' steps, uncompiled: compiling takes longer than all of it."""
        obs = self.observe(batch, part, batch.horizon)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            logits, output, *_ = self._exact(obs, *batch.memory(part, len(obs)))
        return logits, output
