"""The objective of a minibatch: policy loss + value_coef * value loss - entropy_coef * entropy, and its
gradient.

Two ways to the same figures: `TorchObjective` composes consumers/corrections.py and works for every
correction and device; `NativeObjective` makes one call of consumers/loss.c, for learners on a CPU, where
with a small network the many small calls of the first cost more than the network.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from consumers.batch import Pieces
from consumers.corrections import (
    CORRECTIONS,
    Segments,
    Steps,
    kept_mean,
    normalize,
    ratio,
    value_loss,
)
from consumers.models import PolicyModel
from consumers.normalizers import ValueStatistics

LIBRARY = Path(__file__).with_name("loss.so")
ABI = 2

COLUMNS = (
    "loss_policy",
    "loss_value",
    "loss_entropy",
    "loss_total",
    "approx_kl",
    "clipped_ratio",
    "update_kl",
    "bounded_weight",
)


class View(NamedTuple):
    """What the weights say of segments [T, m], float32, and the estimates made of it."""

    log_prob: Tensor  # of the actions
    output: Tensor  # of the value head
    target: Tensor  # in the value head's units
    advantage: Tensor
    bootstrap: Tensor  # [1, m] output of the value head at row T
    proximal: Tensor  # log-probability of the same actions under prox, which may be this policy

    def take(self, part: Pieces) -> View:
        return View(*(part.take(x) for x in self))


class Fields(NamedTuple):
    """The small fields of segments, [T, m] each but action [T, m, heads] and mask [T, m, logits]."""

    action: Tensor
    behaviour: Tensor
    rewards: Tensor
    discounts: Tensor
    traces: Tensor
    valid: Tensor | None  # None: all are; so with kept
    kept: Tensor | None
    mask: Tensor | None  # None: every choice is allowed

    def take(self, part: Pieces) -> Fields:
        return Fields._make(None if x is None else part.take(x) for x in self)


class Outcome(NamedTuple):
    """Of one minibatch, before backward."""

    figures: Tensor  # of COLUMNS, means over the kept steps; loss_policy over those of its own
    view: View
    backward: Callable[..., None]  # adds the gradient of the loss, times a share (1), to the parameters'


class Objective(Protocol):
    def __call__(
        self,
        logits: Tensor,
        output: Tensor,
        steps: Fields,
        prior: View | None,
        entropy_coef: float,
        normalized: bool = False,
    ) -> Outcome:
        """`logits` [rows, m, logits] and `output` [rows, m] of the model, T + 1 rows where targets and
        advantages are to be made of them, T where `prior` gives them. `normalized`: the given advantages are
        to be taken as they are, whatever the settings say."""


class TorchObjective:
    """By torch, operation by operation, with gradients by autograd."""

    def __init__(self, settings: Any, model: PolicyModel, values: ValueStatistics):
        self._settings, self._model, self._values = settings, model, values
        self._correction = CORRECTIONS[settings.correction]

    def __call__(
        self,
        logits: Tensor,
        output: Tensor,
        steps: Fields,
        prior: View | None,
        entropy_coef: float,
        normalized: bool = False,
    ) -> Outcome:
        s, kept, horizon = self._settings, steps.kept, len(steps.rewards)
        count = steps.rewards.numel() if kept is None else kept.sum().clamp(min=1)
        log_prob, entropy = self._model.log_prob_entropy(logits[:horizon], steps.action, steps.mask)
        view = prior
        if view is None:
            view = self.estimate(log_prob.detach(), output.detach(), steps)
        output = output[:horizon]

        advantage = view.advantage
        if s.normalize_advantage and not normalized:
            advantage = normalize(advantage, kept, count)
        terms = Steps(log_prob, steps.behaviour, view.proximal, advantage, kept)
        each = self._correction.policy_loss(terms, s)
        if each.kept is None or each.kept is kept:
            policy = kept_mean(each.loss, kept, count)
        else:  # what the arm leaves out would else only make the step smaller
            policy = kept_mean(each.loss, each.kept, each.kept.sum().clamp(min=1))
        value = kept_mean(value_loss(output, view.target, view.output, s.value_clip), kept, count)
        entropy = kept_mean(entropy, kept, count)
        loss = policy + s.value_coef * value - entropy_coef * entropy

        with torch.no_grad():
            kl = kept_mean(_k3(log_prob - steps.behaviour), kept, count)
            apart = (ratio(log_prob - self._correction.anchor(terms, s)) - 1.0).abs() > s.clip
            clipped = _share(apart, kept, count)
            bounded = policy.new_zeros(()) if each.bounded is None else _share(each.bounded, kept, count)
            moved = kl if prior is None else kept_mean(_k3(log_prob - view.log_prob), kept, count)
            figures = torch.stack([policy, value, entropy, loss, kl, clipped, moved, bounded])

        def backward(share: float = 1.0) -> None:
            loss.backward(loss.new_tensor(share))

        return Outcome(figures, view, backward)

    @torch.no_grad()
    def estimate(
        self, log_prob: Tensor, output: Tensor, steps: Fields, proximal: Tensor | None = None
    ) -> View:
        """Targets and advantages from log_prob [T, m] and the value head's output [T+1, m], where `proximal`
        [T, m] says what an anchor gives the actions (None: prox is this policy)."""
        s, values = self._settings, output
        proximal = log_prob if proximal is None else proximal
        if s.normalize_value:
            values = self._values.denormalize(output)
        segments = Segments(values, steps.rewards, steps.discounts, steps.traces, steps.valid)
        evaluated = proximal if self._correction.target else log_prob
        target, advantage = self._correction.estimate(segments, evaluated - steps.behaviour, s)
        if s.normalize_value:
            target = self._values.normalize(target)
        return View(log_prob, output[:-1], target, advantage, output[-1:], proximal)


class NativeObjective:
    """By consumers/loss.c. Raises OSError where the library is missing or of another ABI."""

    def __init__(self, settings: Any, model: PolicyModel, values: ValueStatistics):
        form = CORRECTIONS[settings.correction].native
        if form is None:
            raise ValueError(f"correction {settings.correction} has no native form")
        try:
            self._library = ctypes.CDLL(str(LIBRARY))
        except OSError as error:
            raise OSError(
                f"{LIBRARY.parent.name}/{LIBRARY.name} is missing or broken; run: make build"
            ) from error
        self._library.hr_objective_scratch.restype = ctypes.c_int64
        self._library.hr_objective_scratch.argtypes = [ctypes.POINTER(_Objective)]
        self._library.hr_objective_run.argtypes = [ctypes.POINTER(_Objective)]
        self._settings, self._values = settings, values
        choices = model.program.choices
        self._choices = (ctypes.c_int32 * len(choices))(*choices)
        self._arguments = _Objective(
            abi=ABI,
            heads=len(choices),
            choices=self._choices,
            corrected=form.corrected,
            proximal=form.proximal,
            weighted=form.weighted,
            rho_clip=settings.rho_clip,
            c_clip=settings.c_clip,
            tis_cap=settings.tis_cap,
            clip=settings.clip,
            value_coef=settings.value_coef,
            value_clip=-1.0 if settings.value_clip is None else settings.value_clip,
            value_deviation=1.0,
        )
        self._scratch = torch.empty(0)

    def __call__(
        self,
        logits: Tensor,
        output: Tensor,
        steps: Fields,
        prior: View | None,
        entropy_coef: float,
        normalized: bool = False,
    ) -> Outcome:
        columns = logits.detach().movedim(-1, 0).contiguous()  # as the model lays them out already
        values, d_columns, d_output = (
            output.detach().contiguous(),
            torch.empty_like(columns),
            torch.empty_like(output),
        )
        log_prob = torch.empty_like(steps.rewards)
        if prior is None:
            target, advantage = torch.empty_like(log_prob), torch.empty_like(log_prob)
        else:
            target, advantage = prior.target, prior.advantage
        o = self._arguments
        o.horizon, o.segments = steps.rewards.shape
        o.rows = len(output)
        o.entropy_coef = entropy_coef
        o.normalize = self._settings.normalize_advantage and not normalized
        if self._settings.normalize_value:
            o.value_mean, o.value_deviation = self._values.mean, self._values.deviation
        self._point(
            logits=columns,
            output=values,
            d_logits=d_columns,
            d_output=d_output,
            log_prob=log_prob,
            target=target,
            advantage=advantage,
            given_log_prob=None if prior is None else prior.log_prob,
            given_output=None if prior is None else prior.output,
            given_target=None if prior is None else prior.target,
            given_advantage=None if prior is None else prior.advantage,
            **steps._asdict(),
        )
        need = self._library.hr_objective_scratch(o)
        if self._scratch.numel() < need:
            self._scratch = torch.empty(need)
        self._point(scratch=self._scratch)
        if self._library.hr_objective_run(o) != 0:
            raise OSError(f"{LIBRARY.parent.name}/{LIBRARY.name} is of another ABI; run: make build")
        loss = o.policy + self._settings.value_coef * o.value - entropy_coef * o.entropy
        figures = torch.tensor([o.policy, o.value, o.entropy, loss, o.kl, o.clipped, o.moved, o.capped])
        view = prior
        if view is None:
            view = View(log_prob, values[:-1], target, advantage, values[-1:], log_prob)

        def backward(share: float = 1.0) -> None:
            if share != 1.0:
                torch._foreach_mul_([d_columns, d_output], share)
            torch.autograd.backward([logits, output], [d_columns.movedim(0, -1), d_output])

        return Outcome(figures, view, backward)

    def _point(self, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            if tensor is not None and not tensor.is_contiguous():
                raise ValueError(f"{name} {tuple(tensor.shape)} is not contiguous")
            setattr(self._arguments, name, None if tensor is None else tensor.data_ptr())


class _Objective(ctypes.Structure):
    """hr_objective of loss.h."""

    _fields_ = [
        ("abi", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("horizon", "segments", "rows", "heads")),
        ("choices", ctypes.POINTER(ctypes.c_int32)),
        *((name, ctypes.c_int32) for name in ("corrected", "proximal", "weighted", "normalize")),
        *(
            (name, ctypes.c_float)
            for name in ("rho_clip", "c_clip", "tis_cap", "clip", "value_coef", "entropy_coef")
        ),
        *((name, ctypes.c_float) for name in ("value_clip", "value_mean", "value_deviation")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "logits",
                "output",
                "action",
                "mask",
                "behaviour",
                "rewards",
                "discounts",
                "traces",
                "valid",
                "kept",
                "given_log_prob",
                "given_output",
                "given_target",
                "given_advantage",
                "log_prob",
                "target",
                "advantage",
                "d_logits",
                "d_output",
                "scratch",
            )
        ),
        *((name, ctypes.c_double) for name in ("policy", "value", "entropy", "kl", "moved")),
        *((name, ctypes.c_double) for name in ("clipped", "capped")),
    ]


def choose(settings: Any, model: PolicyModel, values: ValueStatistics, device: torch.device) -> Objective:
    """`learner.loss`: auto takes the native form where there is one for the correction and the device."""
    form = CORRECTIONS[settings.correction].native if settings.proximal == "batch" else None
    able = device.type == "cpu" and model.program.choices and form
    if settings.loss == "native" or (settings.loss == "auto" and able):
        return NativeObjective(settings, model, values)
    return TorchObjective(settings, model, values)


def _share(flags: Tensor, kept: Tensor | None, count: Tensor | int) -> Tensor:
    """Of the `count` steps kept, those that are flagged."""
    return (flags if kept is None else flags & kept).sum() / count


def _k3(log_ratio: Tensor) -> Tensor:
    """(w - 1) - log w: its mean under mu estimates KL(mu || pi), without bias and never below 0 (J. Schulman,
    Approximating KL Divergence, 2020)."""
    return ratio(log_ratio) - 1.0 - log_ratio
