"""One update: a batch through forward, correction, loss and optimizer step.

docs/details.md lists every choice here that changes results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from consumers.anchor import anchor_of
from consumers.audits import Audits
from consumers.batch import Batch, Pieces, pieces
from consumers.corrections import Segments, decays, effective_share, gae, kept_mean, weight_moments
from consumers.diagnostics import (
    explained_variance,
    ratio_statistics,
    truncated_shares,
    update_ratio,
    watch,
)
from consumers.gradient import Gradient, Made
from consumers.modules import make
from consumers.normalizers import OBSERVATION_ROWS, ObservationStatistics, ValueStatistics, moments
from consumers.objective import COLUMNS, Fields, TorchObjective, View, choose
from consumers.optimizer import Optimizer
from consumers.passes import Passes
from consumers.peers import Alone, Peers
from consumers.schedules import value_at
from consumers.stopwatch import Stopwatch
from producers.footprint import KEPT_VERSIONS
from producers.program import Program, Weight

SEEDS_APART = 0x9E3779B97F4A7C15  # of the learners' generators: far, so that no two runs have the same
LOSS = COLUMNS.index("loss_total")


class Update:
    """The weights in training and all that changes with them."""

    def __init__(
        self,
        settings: Any,
        program: Program,
        *,
        seed: int,
        device: torch.device,
        bf16: bool,
        versions: int = KEPT_VERSIONS,
        peers: Peers | None = None,
    ):
        """`settings`: the `learner` section of a run file. `bf16`: matrix products in bfloat16. `versions`:
        of how many the weights are kept for the audits. `peers`: the learners of the run, each of which
        trains on a part of every batch; None: there is one."""
        self.peers = peers or Alone()
        self.settings, self.program, self.device = settings, program, device
        self.model = make(program, seed=seed).to(device)
        tables = [op.weights[0].name for op in program.ops if op.kind == "embedding"]
        self.optimizer = Optimizer(
            self.model.parameters(), settings, [self.model.get_parameter(name) for name in tables]
        )
        self.generator = torch.Generator()  # draws minibatches
        self.generator.manual_seed((seed + self.peers.index * SEEDS_APART) % 2**64)
        self.values = ValueStatistics()
        self._normalizer = next((op for op in program.ops if any(not w.trainable for w in op.weights)), None)
        features = 0 if self._normalizer is None else self._normalizer.weights[0].count
        self.observations = ObservationStatistics(features)
        self._estimator = TorchObjective(settings, self.model, self.values)
        self._clock = Stopwatch(("copy", "forward", "backward", "optimizer", "allreduce"))
        self._bf16 = bf16
        self.audits = Audits(settings, program, seed=seed, device=device, bf16=bf16, versions=versions)
        self._passes = Passes(
            self.model,
            recurrent=program.state_width > 0,
            device=device,
            bf16=bf16,
            compiled=settings.compile,
        )
        self.anchor = anchor_of(settings, program, device)
        self.gradient = Gradient(
            settings,
            self._passes,
            choose(settings, self.model, self.values, device),
            self._anchored if self.anchor is not None and self.anchor.steps else None,
            self._clock,
            lambda: self.pulse(),
        )
        self._value_layer = next((op for op in program.ops if op.output == program.value), None)
        self._most_entropy = sum(math.log(n) for n in program.choices) or math.nan
        self.nonfinite_steps = 0  # in a row, over all updates; stays once it has reached the settings' limit
        self.pulse: Callable[[], None] = lambda: None
        """Called once a minibatch or a part of one, or a part of a batch of that size."""

    @property
    def spent_ns(self) -> dict[str, int]:
        """Wall time of the last update by phase."""
        return self._clock.spent_ns

    @property
    def is_good(self) -> bool:
        """Whether the last optimizer step was made and the weights are finite."""
        return self.nonfinite_steps == 0 and bool(self.flat_weights.isfinite().all())

    @property
    def is_lost(self) -> bool:
        """Whether so many steps in a row were skipped that training would not find back by itself."""
        return self.nonfinite_steps >= int(self.settings.nonfinite_steps)

    def train(self, batch: Batch, version: int, trained_steps: int) -> dict[str, Any]:
        """Trains on the batch as the learner of `version`; `trained_steps` is where the schedules stand.

        Returns figures, NaN where there is nothing to tell: means over the minibatches that moved the
        weights; `sgd_steps`, how many these are; `skipped`, how many did not because loss or gradient was
        not finite, and `nonfinite` what the last of them was, None: there was none; `samples`, the kept steps
        with reuse; `burn_in`, the valid steps that only warmed the state up; `masked`, the other valid steps
        that were not kept; `alarms` of the audits; and what docs/metrics.md names beside."""
        s = self.settings
        self.learning_rate = value_at(s.learning_rate, trained_steps)
        self.entropy_coef = value_at(s.entropy_coef, trained_steps)
        self._clock.reset()
        fields = self._fields(batch)
        if self.anchor is not None:
            self.anchor.begin(self.flat_weights)
        weights = self.audits.begin(batch, version, self.flat_weights)
        changes = self._watch(batch, version)
        prior = self._prior(batch, fields) if s.targets == "batch" else None
        if prior is not None and s.ess_learning_rate:
            first_two = weight_moments(prior.log_prob - batch.behaviour, batch.kept)
            first_two, _ = self.peers.average(first_two, batch.kept_steps)
            self.learning_rate *= math.sqrt(effective_share(first_two))
        views: list[tuple[Pieces, View]] = []
        rows: list[Tensor] = []
        epochs = skipped = 0
        nonfinite: dict[str, Any] | None = None
        while epochs < s.epochs:
            epochs, first = epochs + 1, len(rows)
            for part in batch.minibatches(s.minibatches, self.generator):
                made = self.gradient(batch, fields, part, prior, self.entropy_coef)
                row, moved = self._step(made)
                if moved:
                    rows.append(row)
                    if not self.is_lost:
                        self.nonfinite_steps = 0
                elif moved is not None:
                    skipped += 1
                    self.nonfinite_steps += 1
                    nonfinite = self._seen(batch, part, row)
                if made.view is not None:
                    views.append((part, made.view))
                self.pulse()
            if s.target_kl is not None and _mean(rows[first:])["update_kl"] > s.target_kl:
                break
        whole = _joined(views) if prior is None else prior
        self._audit(batch, version, whole, views)
        figures = _mean(rows) | self.audits.figures | changes()
        figures |= self._explain(batch, whole)
        figures["update_ratio"] = update_ratio(weights, self.flat_weights)
        figures["second_moment_max"] = self.optimizer.second_moment_max
        self._settle(batch, whole)
        figures["entropy_ratio"] = figures["loss_entropy"] / self._most_entropy
        return figures | {
            "learning_rate": self.learning_rate,
            "entropy_coef": self.entropy_coef,
            "samples": batch.kept_steps * epochs,
            "burn_in": batch.burn_in_steps,
            "masked": batch.valid_steps - batch.burn_in_steps - batch.kept_steps,
            "sgd_steps": len(rows),
            "skipped": skipped,
            "nonfinite": nonfinite,
            "alarms": self.audits.alarms,
        }

    def examine(self, batch: Batch) -> None:
        """Forward and backward over every step of the batch, in parts no larger than those of training, of
        which nothing stays: whatever in it kills a learner has then killed this one."""
        fields = self._fields(batch)
        most = max(1, batch.segments // (self.settings.minibatches * self.settings.parts))
        size = max(n for n in range(1, most + 1) if batch.segments % n == 0)
        for i in range(batch.segments // size):
            part = pieces(torch.tensor([i]), size, self.device)
            logits, output = self._passes.run(
                self._passes.observe(batch, part, batch.horizon + 1), batch, part
            )
            self.gradient.objective(logits, output, fields.take(part), None, 0.0).backward()
            self.pulse()
        self.optimizer.clear()

    def _seen(self, batch: Batch, part: Pieces, row: Tensor) -> dict[str, Any]:
        """What a skipped step was: its losses and gradient, the learning rate, and the `slots` of the batch,
        by their place in it, whose segments were in it."""
        losses = {name: float(x) for name, x in zip(COLUMNS, row, strict=False) if name.startswith("loss_")}
        slots = sorted({segment // batch.agents for segment in part.segments.tolist()})
        return {
            **losses, "grad_norm": self.optimizer.norm, "learning_rate": self.learning_rate, "slots": slots,
        }  # fmt: skip

    def _fields(self, batch: Batch) -> Fields:
        discounts, traces = decays(
            batch.terminated,
            batch.truncated,
            batch.valid,
            gamma=self.settings.gamma,
            lambda_=self.settings.gae_lambda,
        )
        return Fields(
            batch.action,
            batch.behaviour,
            batch.rewards,
            discounts,
            traces,
            batch.valid,
            batch.kept,
            batch.mask,
        )

    @torch.no_grad()
    def _prior(self, batch: Batch, fields: Fields) -> View:
        """One pass over the batch at its start, in runs as long as a minibatch or a part of one."""
        count = self.settings.minibatches * self.settings.parts
        size = batch.segments // count
        found = []
        for i in range(count):
            self._clock.start()
            part = pieces(torch.tensor([i]), size, self.device)
            obs = self._passes.observe(batch, part, batch.horizon + 1)
            steps = fields.take(part)
            self._clock.lap("copy")
            logits, output = self._passes.run(obs, batch, part)
            log_prob = self.model.log_prob(logits[:-1], steps.action, steps.mask)
            stands = self.anchor is not None and not self.anchor.steps
            proximal = self._anchored(obs, batch, part, steps) if stands else log_prob
            found.append((log_prob, output, proximal))
            self._clock.lap("forward")
            self.pulse()
        self._clock.start()
        log_prob, output, proximal = (torch.cat(x, 1) for x in zip(*found, strict=True))
        view = self._estimator.estimate(log_prob, output, fields, proximal)
        self._clock.lap("forward")
        return view

    def _step(self, made: Made) -> tuple[Tensor, bool | None]:
        """One optimizer step by the gradient that was made: its figures, and whether the weights moved. They
        did not where something was not finite (False), or no step of the minibatch is kept (None)."""
        self._clock.start()
        figures, kept_by_all = self._averaged(made.figures, made.kept)
        self._clock.lap("allreduce")

        # With nothing kept there is no gradient, but an optimizer with momentum would move.
        moved = None
        if kept_by_all:
            moved = self.optimizer.step(figures[LOSS], self.learning_rate) is not None
        if moved and self.anchor is not None:
            self.anchor.step(self.flat_weights)
        figures = torch.cat([figures, figures.new_tensor([self.optimizer.norm])])
        self._clock.lap("optimizer")
        return figures, moved

    def _averaged(self, figures: Tensor, kept: int) -> tuple[Tensor, float]:
        """Makes the gradient that of all learners' steps; returns their figures and how many are kept."""
        if self.peers.count == 1:
            return figures, kept
        gradients = self.optimizer.gradients
        parts = [*gradients, figures]
        mean, kept_by_all = self.peers.average(torch.cat(parts), kept)
        *averaged, figures = mean.split([len(part) for part in parts])
        torch._foreach_copy_(gradients, averaged)
        return figures, kept_by_all

    @torch.no_grad()
    def _anchored(self, obs: Tensor, batch: Batch, part: Pieces, steps: Fields) -> Tensor:
        """Log-probabilities [T, m] of the segments' actions under the anchor's policy; `obs` their first
        rows."""
        assert self.anchor is not None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            return self.anchor.log_prob(obs, batch.memory(part, len(obs)), steps.action, steps.mask)

    def _audit(self, batch: Batch, version: int, whole: View, views: list[tuple[Pieces, View]]) -> None:
        """What the audits are to know of an update: the ratios before any step of it, its estimates."""
        if views:  # the others' weights have been trained on the batch
            part, first = views[0]
            kept = None if batch.kept is None else part.take(batch.kept)
            self.audits.ratios(first.log_prob, part.take(batch.behaviour), kept)
        else:
            self.audits.ratios(whole.log_prob, batch.behaviour, batch.kept)
        if self.audits.sums_up(version):
            target = whole.target
            if self.settings.normalize_value:
                target = self.values.denormalize(target)
            self.audits.targets(batch, version, whole, self._values(whole), target)

    def _watch(self, batch: Batch, version: int) -> Callable[[], dict[str, float]]:
        """What to call after the update for what it changed."""
        unit = self.values.deviation if self.settings.normalize_value else 1.0
        return watch(self._passes.look, batch, version, self.program.choices, unit)

    def _explain(self, batch: Batch, whole: View) -> dict[str, float]:
        """Of the ratios before the update, and of how well the values predict what the arm makes them learn
        and what was really returned."""
        s, values, kept = self.settings, self._values(whole), batch.kept
        flags = batch.terminated, batch.truncated, batch.valid
        discounts, traces = decays(*flags, gamma=s.gamma, lambda_=1.0)
        returns = gae(Segments(values, batch.rewards, discounts, traces, batch.valid)).targets
        log_ratio = whole.log_prob - batch.behaviour
        return {
            **{f"ratio_{name}": x for name, x in ratio_statistics(log_ratio, kept).items()},
            **truncated_shares(log_ratio, kept, rho_clip=s.rho_clip, c_clip=s.c_clip),
            "explained_variance": explained_variance(whole.output, whole.target, kept),
            "explained_variance_plain": explained_variance(values[:-1], returns, kept),
        }

    def _values(self, whole: View) -> Tensor:
        """[T+1, A] in the units of the rewards."""
        values = torch.cat([whole.output, whole.bootstrap])
        return self.values.denormalize(values) if self.settings.normalize_value else values

    @torch.no_grad()
    def _settle(self, batch: Batch, whole: View) -> None:
        """After a batch and before its version is published: running statistics move."""
        if self.settings.normalize_value:
            count = max(1, batch.kept_steps)
            target = self.values.denormalize(whole.target)
            first_two = torch.stack([kept_mean(x, batch.kept, count) for x in (target, target.square())])
            first_two, kept = self.peers.average(first_two, batch.kept_steps)
            if kept:
                mean, mean_square = first_two.tolist()
                assert self._value_layer is not None
                layer, bias = (self._tensor(weight) for weight in self._value_layer.weights)
                self.values.update(mean, mean_square, layer, bias)
        if self._normalizer is not None:
            first, features = self._normalizer.attrs["start"], len(self.observations.mean)
            rows = batch.sample(OBSERVATION_ROWS // self.peers.count).flatten(1)[:, first : first + features]
            for some in self.peers.gather(moments(rows)):
                self.observations.add(*some)
            for weight, statistic in zip(
                self._normalizer.weights, self.observations.mean_and_inv_std(), strict=True
            ):
                self._tensor(weight).copy_(statistic)
        if self.anchor is not None:
            self.anchor.settle(self.flat_weights)

    @property
    def flat_weights(self) -> Tensor:
        """All weights, float32 [program.count], where the module keeps them."""
        flat = self.model.flat_weights()
        assert isinstance(flat, Tensor)
        return flat

    def _tensor(self, weight: Weight) -> Tensor:
        """Where the weight lies in the module."""
        flat = self.flat_weights
        return flat[weight.offset : weight.offset + weight.count].view(weight.shape)

    def state_dict(self) -> dict[str, Any]:
        """All but the weights. Some tensors are those in use: to be copied before the next update."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "values": self.values.state_dict(),
            "observations": None if self._normalizer is None else self.observations.state_dict(),
            "nonfinite_steps": self.nonfinite_steps,
            "anchor": None if self.anchor is None else self.anchor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the state's tensors over."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.values.load_state_dict(state["values"])
        if state["observations"] is not None:
            self.observations.load_state_dict(state["observations"])
        self.nonfinite_steps = state["nonfinite_steps"]
        if self.anchor is not None:
            self.anchor.load_state_dict(state.get("anchor"))

    @torch.no_grad()
    def load_weights(self, flat: Tensor) -> None:
        """Takes float32 [program.count] as the weights."""
        self.flat_weights.copy_(flat)


def _joined(views: list[tuple[Pieces, View]]) -> View:
    """The views of all minibatches, in the batch's order."""
    order = torch.cat([part.blocks for part, _ in views]).argsort()
    sorted_ = Pieces(order, views[0][0].length, [])
    return View(*(sorted_.take(torch.cat(x, 1)) for x in zip(*(view for _, view in views), strict=True)))


def _mean(rows: list[Tensor]) -> dict[str, float]:
    names = (*COLUMNS, "grad_norm")
    means = torch.stack(rows).mean(0).tolist() if rows else [math.nan] * len(names)
    return dict(zip(names, means, strict=True))
