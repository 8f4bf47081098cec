"""Anchors: a second set of weights beside those in training, whose policy a correction compares with.

An anchor is a copy of the network that goes after it by a rule of its own. It begins as the weights in
training, and is part of the learner's state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from consumers.models import PolicyModel
from producers.program import Program


class TargetNetwork:
    """The policy of up to `versions` versions ago, replaced as a whole every so many (Luo et al. 2020, arXiv
    1912.00167, section 3.1)."""

    def __init__(self, program: Program, device: torch.device, versions: int):
        self.model = PolicyModel(program).to(device).requires_grad_(False)
        self._versions = versions
        self._age: int | None = None  # in versions; None: it has not begun

    @property
    def flat(self) -> Tensor:
        """The weights, float32 [program.count], where the network keeps them."""
        flat = self.model.flat_weights()
        assert isinstance(flat, Tensor)
        return flat

    def begin(self, weights: Tensor) -> None:
        """To be called before each batch: takes the weights in training, float32 [program.count], if there
        have been no others."""
        if self._age is None:
            self._take(weights)

    def settle(self, weights: Tensor) -> None:
        """To be called after each batch, when running statistics have moved."""
        assert self._age is not None
        self._age += 1
        if self._age >= self._versions:
            self._take(weights)

    def log_prob(
        self, obs: Tensor, memory: tuple[Tensor, ...], action: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Of the actions [T, m, heads]: [T, m] float32. `obs` has T rows or more, and `memory`, what
        Batch.memory gives, as many."""
        logits, *_ = self.model.unroll(obs, *memory) if memory else self.model(obs)
        return self.model.log_prob(logits[: len(action)], action, mask)

    def state_dict(self) -> dict[str, Any] | None:
        """None: it has not begun. The tensor is the one in use: to be copied before the next batch."""
        return None if self._age is None else {"kind": "target", "flat": self.flat, "age": self._age}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Without a state, or with that of another kind of anchor, it begins anew at the next batch."""
        self._age = None
        if state is not None and state["kind"] == "target":
            self.model.load_flat(state["flat"])
            self._age = state["age"]

    def _take(self, weights: Tensor) -> None:
        self.model.load_flat(weights)
        self._age = 0
