"""The optimizers of `learner.optimizer`, with one gradient bound and one check for what is not finite."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn


class Settings(Protocol):
    """What this file reads of run.yaml's `learner` section."""

    optimizer: str
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    momentum: float
    max_grad_norm: float | None


class Optimizer:
    """AdamW (arXiv 1711.05101), or Muon for 2-D weights with AdamW for the rest.

    Muon's updates are scaled to the root mean square of AdamW's (arXiv 2502.16982), so that one learning rate
    means about the same for both.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], settings: Settings):
        self.parameters = [p for p in parameters if p.requires_grad]
        self._max_norm = settings.max_grad_norm
        matrices = [p for p in self.parameters if p.ndim == 2 and settings.optimizer == "muon"]
        others = [p for p in self.parameters if not any(p is m for m in matrices)]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(
                torch.optim.Muon(
                    matrices,
                    weight_decay=settings.weight_decay,
                    momentum=settings.momentum,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if others:
            self._parts.append(
                torch.optim.AdamW(
                    others,
                    betas=settings.betas,
                    eps=settings.eps,
                    weight_decay=settings.weight_decay,
                    fused=True,  # one kernel: with a small net the calls cost more than the work
                )
            )

    def step(self, loss: Tensor, learning_rate: float) -> Tensor | None:
        """Backward has been called on `loss`; moves the parameters and clears their gradients. Returns the
        gradient's norm [] before clipping, or None where it or the loss is not finite: then nothing moves."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        finite = bool(torch.isfinite(norm) & torch.isfinite(loss))
        if finite:
            if self._max_norm is not None:
                nn.utils.clip_grads_with_norm_(self.parameters, self._max_norm, norm, foreach=True)
            for part in self._parts:
                for group in part.param_groups:
                    group["lr"] = learning_rate
                part.step()
        for part in self._parts:
            part.zero_grad(set_to_none=True)
        return norm if finite else None

    def state_dict(self) -> list[dict]:
        """A copy, which later steps leave alone."""
        return [copy.deepcopy(part.state_dict()) for part in self._parts]

    def load_state_dict(self, state: list[dict]) -> None:
        for part, one in zip(self._parts, state, strict=True):
            part.load_state_dict(one)
