"""The optimizers of `learner.optimizer`, with one gradient bound and one check for what is not finite."""

from __future__ import annotations

import math
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
    means about the same for both. Parameters that lie side by side in memory share one gradient vector and
    are moved as one: for a small net the calls cost more than the work.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        settings: Settings,
        tables: Iterable[nn.Parameter] = (),
    ):
        """Takes over the parameters' gradients, which are 0 afterwards. `tables`: those whose rows are looked
        up, and that are no matrix of a product: AdamW moves them in any case."""
        parameters = [p for p in parameters if p.requires_grad and p.numel()]  # a module may have empty ones
        looked_up = {id(p) for p in tables}
        self._max_norm = settings.max_grad_norm
        self._runs = [_Run(run) for run in _side_by_side(parameters)]
        self.gradients = [run.gradient for run in self._runs]
        """Into which backward adds; float32, one-dimensional."""
        self.norm = math.nan  # of the last gradient, before clipping
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = [run.whole for run in self._runs]
        if settings.optimizer == "muon":
            matrices = [p for p in parameters if p.ndim == 2 and id(p) not in looked_up]
            others = [p for p in parameters if p.ndim != 2 or id(p) in looked_up]
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
                    fused=True,
                )
            )

    def step(self, loss: Tensor, learning_rate: float) -> Tensor | None:
        """Backward has been called on `loss`; moves the parameters and clears their gradients. Returns the
        gradient's norm [] before clipping, or None where it or the loss is not finite: then nothing moves."""
        norm = _norm(self.gradients)
        self.norm = float(norm)
        finite = math.isfinite(self.norm) and math.isfinite(float(loss))
        if finite:
            if self._max_norm is not None and norm > self._max_norm:
                torch._foreach_mul_(self.gradients, self._max_norm / (norm + 1e-6))
            for part in self._parts:
                for group in part.param_groups:
                    group["lr"] = learning_rate
                part.step()
        self.clear()
        return norm if finite else None

    def clear(self) -> None:
        """Sets the gradients to 0: nothing of what backward added is used."""
        torch._foreach_zero_(self.gradients)

    @property
    def second_moment_max(self) -> float:
        """The largest of AdamW's running means of squared gradients, NaN where there are none."""
        moments = [state["exp_avg_sq"].max() for part in self._parts for state in part.state.values()
                   if "exp_avg_sq" in state]  # fmt: skip
        return float(torch.stack(moments).max()) if moments else math.nan

    def state_dict(self) -> list[dict]:
        """Its tensors are the optimizer's own: to be copied before the next step."""
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, state: list[dict]) -> None:
        """Takes over the moments, but no setting: those are of today. Another `learner.optimizer`, whose
        moments mean something else, begins anew."""
        if list(map(_kind, state)) != list(map(_kind, self.state_dict())):
            for part in self._parts:
                part.state.clear()
            return
        for part, one in zip(self._parts, state, strict=True):
            settings = [{k: v for k, v in group.items() if k != "params"} for group in part.param_groups]
            part.load_state_dict(one)
            for group, setting in zip(part.param_groups, settings, strict=True):
                group.update(setting)


def _kind(state: dict) -> list[tuple[list[str], int]]:
    """What tells the states of different optimizers apart."""
    return [(sorted(group), len(group["params"])) for group in state["param_groups"]]


class _Run:
    """Parameters side by side in memory: `whole` is all of them as one vector, `gradient` that of their
    gradients, into which backward adds."""

    def __init__(self, parameters: list[nn.Parameter]):
        first, count = parameters[0].detach(), sum(p.numel() for p in parameters)
        self.whole = nn.Parameter(first.as_strided((count,), (1,), first.storage_offset()))
        self.gradient = torch.zeros_like(self.whole, requires_grad=False)
        self.whole.grad = self.gradient
        pieces = self.gradient.split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view(parameter.shape)


def _side_by_side(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters in their order, cut where one does not begin in memory where the one before ends."""
    runs: list[list[nn.Parameter]] = []
    for p in parameters:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and p.is_contiguous()
            and p.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
            and p.data_ptr() == last.data_ptr() + last.numel() * last.element_size()
        ):
            runs[-1].append(p)
        else:
            runs.append([p])
    return runs


def _norm(gradients: list[Tensor]) -> Tensor:
    if len(gradients) == 1:
        return gradients[0].norm()
    return torch.stack([gradient.norm() for gradient in gradients]).norm()
