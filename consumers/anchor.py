"""Anchors: a second set of weights beside those in training, whose policy a correction compares with.

An anchor is a copy of the network that goes after it by a rule of its own. It begins as the weights in
training, and is part of the learner's state.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from consumers.modules import make
from producers.program import Program


class Anchor:
    """What all anchors have in common."""

    kind: ClassVar[str]  # by which a saved state is told from that of another rule
    first_count: ClassVar[float]
    steps: ClassVar[bool]  # whether it moves with each optimizer step, and not only with each batch

    def __init__(self, program: Program, device: torch.device):
        self.model = make(program).to(device).requires_grad_(False)
        self._count: float | None = None  # what the rule counts; None: the anchor has not begun

    @property
    def flat(self) -> Tensor:
        """The weights, float32 [program.count], where the network keeps them."""
        flat = self.model.flat_weights()
        assert isinstance(flat, Tensor)
        return flat

    def begin(self, weights: Tensor) -> None:
        """To be called before each batch: takes the weights in training, float32 [program.count], if there
        have been no others."""
        if self._count is None:
            self._take(weights)

    def step(self, weights: Tensor) -> None:
        """To be called after each optimizer step."""

    def settle(self, weights: Tensor) -> None:
        """To be called after each batch, when running statistics have moved."""

    def log_prob(
        self, obs: Tensor, memory: tuple[Tensor, ...], action: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Of the actions [T, m, heads]: [T, m] float32. `obs` has T rows or more, and `memory`, what
        Batch.memory gives, as many."""
        logits, *_ = self.model.unroll(obs, *memory) if memory else self.model(obs)
        return self.model.log_prob(logits[: len(action)], action, mask)

    def state_dict(self) -> dict[str, Any] | None:
        """None: it has not begun. The tensor is the one in use: to be copied before the next batch."""
        return None if self._count is None else {"kind": self.kind, "flat": self.flat, "count": self._count}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Without a state, or with that of another kind of anchor, it begins anew at the next batch."""
        self._count = None
        if state is not None and state["kind"] == self.kind:
            self.model.load_flat(state["flat"])
            self._count = state["count"]

    def _take(self, weights: Tensor) -> None:
        self.model.load_flat(weights)
        self._count = self.first_count


class TargetNetwork(Anchor):
    """The policy of up to `versions` versions ago, replaced as a whole every so many (Luo et al. 2020, arXiv
    1912.00167, section 3.1)."""

    kind, first_count, steps = "target", 0.0, False

    def __init__(self, program: Program, device: torch.device, versions: int):
        super().__init__(program, device)
        self._versions = versions

    def settle(self, weights: Tensor) -> None:
        assert self._count is not None
        self._count += 1.0
        if self._count >= self._versions:
            self._take(weights)


class Average(Anchor):
    """The mean of the weights as they were at first and after each optimizer step, those of n steps ago
    weighed by decay^n (Hilton, Cobbe, Schulman 2022, arXiv 2110.00641, section 3, as in its code).

    Divided by the sum of those factors, so that the first weights count no more than any others. What is not
    trained, statistics of observations, is that of the weights in training.
    """

    kind, first_count, steps = "ewma", 1.0, True

    def __init__(self, program: Program, device: torch.device, decay: float):
        super().__init__(program, device)
        self._decay = decay
        self._fixed = [weight for weight in program.weights if not weight.trainable]

    def step(self, weights: Tensor) -> None:
        assert self._count is not None
        self._count = self._decay * self._count + 1.0
        self.flat.lerp_(weights, 1.0 / self._count)

    def settle(self, weights: Tensor) -> None:
        for weight in self._fixed:
            part = slice(weight.offset, weight.offset + weight.count)
            self.flat[part] = weights[part]


def anchor_of(settings: Any, program: Program, device: torch.device) -> Anchor | None:
    """What a `learner` section asks for; None: nothing."""
    if settings.correction == "impact":
        return TargetNetwork(program, device, settings.impact_versions)
    if settings.proximal == "ewma":
        return Average(program, device, settings.proximal_decay)
    return None
