"""The gradient of a minibatch, at once or in parts that add up to the same.

A minibatch may be larger than memory allows for the activations of all its steps. In parts, only those of
one part are held at a time. Everything that is a matter of the whole minibatch stays so: advantages are
normalised over it, losses are means over its kept steps, and an arm chooses the steps that it leaves out
among all of them. Parts change nothing but rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consumers.batch import Batch, Pieces
from consumers.corrections import CORRECTIONS, normalize
from consumers.objective import COLUMNS, Fields, Objective, View
from consumers.passes import Passes
from consumers.stopwatch import Stopwatch


class Made(NamedTuple):
    """Of a minibatch whose gradient has been added to the parameters'."""

    figures: Tensor  # of COLUMNS, as in Outcome
    kept: int  # steps; 0: there is no gradient
    view: View | None  # None: it was given


class Gradient:
    """Adds gradients of minibatches to those of the parameters."""

    def __init__(
        self,
        settings: Any,
        passes: Passes,
        objective: Objective,
        anchored: Callable[[Tensor, Batch, Pieces, Fields], Tensor] | None,
        clock: Stopwatch,
        pulse: Callable[[], None],
    ):
        """`settings`: the `learner` section. `anchored`: gives the log-probabilities of the proximal policy
        where that moves with every step, None elsewhere. `pulse` is called after each part but the last."""
        self.objective = objective
        self._passes, self._anchored, self._clock, self._pulse = passes, anchored, clock, pulse
        self._parts, self._normalize = settings.parts, settings.normalize_advantage
        self._selects = CORRECTIONS[settings.correction].selects

    def __call__(
        self, batch: Batch, fields: Fields, part: Pieces, prior: View | None, entropy_coef: float
    ) -> Made:
        """Of the minibatch `part`. `fields` and `prior` are those of the batch; without `prior` targets and
        advantages are made of the minibatch's own forward."""
        self._clock.start()
        kept = _kept(batch, fields, part)
        unknown = prior is None and self._normalize
        if self._parts > 1 and (unknown or self._selects):
            return self._twice(batch, fields, part, prior, entropy_coef, kept)
        return self._added(batch, fields, part, prior, entropy_coef, kept)

    def _added(
        self, batch: Batch, fields: Fields, part: Pieces, prior: View | None, entropy_coef: float, kept: int
    ) -> Made:
        """Losses are means over kept steps, so that those of the parts add up, weighed by their shares of
        them: if what enters them is known beforehand for the whole minibatch."""
        parts = part.split(self._parts)
        alone = len(parts) == 1
        advantages: list[Tensor | None] = [None] * len(parts)
        if prior is not None and self._normalize and not alone:
            mask = None if fields.kept is None else part.take(fields.kept)
            whole = normalize(part.take(prior.advantage), mask, max(1, kept))
            advantages = [x.contiguous() for x in whole.split(parts[0].size, 1)]
        figures, views = torch.zeros(len(COLUMNS), device=batch.device), []
        for i, (one, advantage) in enumerate(zip(parts, advantages, strict=True)):
            obs, steps, given = self._inputs(batch, fields, one, prior)
            if given is not None and advantage is not None:
                given = given._replace(advantage=advantage)
            logits, output = self._passes.run(obs, batch, one)
            outcome = self.objective(logits, output, steps, given, entropy_coef, advantage is not None)
            self._clock.lap("forward")
            share = 1.0 if alone else _kept(batch, fields, one) / max(1, kept)
            if kept and share:
                outcome.backward(share)
            figures = outcome.figures if alone else figures + share * outcome.figures
            views.append(outcome.view)
            self._clock.lap("backward")
            if i + 1 < len(parts):
                self._pulse()
        view = None
        if prior is None:
            view = views[0] if alone else View(*(torch.cat(x, 1) for x in zip(*views, strict=True)))
        return Made(figures, kept, view)

    def _twice(
        self, batch: Batch, fields: Fields, part: Pieces, prior: View | None, entropy_coef: float, kept: int
    ) -> Made:
        """Runs the parts without gradients, makes the loss of all their outputs and its gradient with respect
        to those, and runs them again to take that back to the weights (Gao et al. 2021, arXiv 2101.06983).
        One more forward pass, and right for any loss."""
        parts = part.split(self._parts)
        outputs: list[tuple[Tensor, Tensor]] = []
        proximal: list[Tensor] = []
        for one in parts:
            obs, _, given = self._inputs(batch, fields, one, prior)
            with torch.no_grad():
                outputs.append(self._passes.run(obs, batch, one))
            if given is not None:
                proximal.append(given.proximal)
            self._clock.lap("forward")
            self._pulse()
        logits, output = (torch.cat(x, 1).requires_grad_() for x in zip(*outputs, strict=True))
        given = None
        if prior is not None:
            given = prior.take(part)._replace(proximal=torch.cat(proximal, 1))
        outcome = self.objective(logits, output, fields.take(part), given, entropy_coef)
        del outputs
        self._clock.lap("forward")
        if kept:
            outcome.backward()
            self._clock.lap("backward")
            size = parts[0].size
            assert logits.grad is not None
            assert output.grad is not None
            for i, (one, *gradients) in enumerate(
                zip(parts, logits.grad.split(size, 1), output.grad.split(size, 1), strict=True)
            ):
                obs = self._passes.observe(batch, one, len(output))
                self._clock.lap("copy")
                found = self._passes.run(obs, batch, one)
                self._clock.lap("forward")
                torch.autograd.backward(found, gradients)
                self._clock.lap("backward")
                if i + 1 < len(parts):
                    self._pulse()
        return Made(outcome.figures, kept, None if prior is not None else outcome.view)

    def _inputs(
        self, batch: Batch, fields: Fields, part: Pieces, prior: View | None
    ) -> tuple[Tensor, Fields, View | None]:
        """Observations and steps of a part, and what is given of them."""
        obs = self._passes.observe(batch, part, batch.horizon + (prior is None))
        steps = fields.take(part)
        given = None if prior is None else prior.take(part)
        self._clock.lap("copy")
        if given is not None and self._anchored is not None:
            given = given._replace(proximal=self._anchored(obs, batch, part, steps))
        return obs, steps, given


def _kept(batch: Batch, fields: Fields, part: Pieces) -> int:
    """Kept steps of the segments."""
    return batch.horizon * part.size if fields.kept is None else int(part.take(fields.kept).sum())
