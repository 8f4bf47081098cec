"""A user's torch module as an actor (consumers/actors.py)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from consumers.actors import Rows
from consumers.modules import make
from producers.opaque import Opaque
from producers.program import Program


class ModuleActor:
    """On one thread of the CPU."""

    def __init__(self, program: Opaque, agents: int):
        """Raises ProgramError where the class cannot be made."""
        torch.set_num_threads(1)
        self.program: Program = program
        self._model = make(program).requires_grad_(False).eval()

    def load(self, flat: Rows) -> None:
        self._model.load_flat(flat)

    @torch.inference_mode()
    def look(self, obs: NDArray, state: Rows, reset_before: NDArray[np.uint8]) -> tuple[Rows, Rows | None]:
        before, reset = torch.from_numpy(state), torch.from_numpy(reset_before).bool()
        logits, value, after = self._model.step(torch.from_numpy(obs), before, reset)
        state[...] = after.numpy()
        return logits.contiguous().numpy(), None if value is None else value.numpy()
