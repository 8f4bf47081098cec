"""Running statistics of observations and of value targets. Both change only between batches, so that
everything in one version is seen through the same ones."""

from __future__ import annotations

import torch
from torch import Tensor

OBSERVATION_ROWS = 4096  # of a batch enter the statistics: a full pass would cost as much as a layer
LEAST_VARIANCE = 1e-4  # a feature that has hardly moved yet must not explode when it does
VALUE_DECAY = 0.99  # weight of the past, a batch


class ObservationStatistics:
    """Mean and variance of each feature over all batches so far (Chan et al. 1983: pairwise, in float64)."""

    def __init__(self, features: int):
        self.count = 0
        self.mean = torch.zeros(features, dtype=torch.float64)
        self.squares = torch.zeros(features, dtype=torch.float64)  # sum of squared distances from the mean

    def add(self, n: int, mean: Tensor, squares: Tensor) -> None:
        """Takes rows, of which these are the `moments`."""
        if n == 0:
            return
        delta = mean - self.mean
        total = self.count + n
        self.squares += squares + delta.square() * (self.count * n / total)
        self.mean += delta * (n / total)
        self.count = total

    def mean_and_inv_std(self) -> tuple[Tensor, Tensor]:
        """What makes (x - mean) * inv_std of mean 0 and deviation 1: two float32 [features]. The identity
        before the first update."""
        if self.count == 0:
            return self.mean.float(), torch.ones_like(self.mean, dtype=torch.float32)
        variance = (self.squares / self.count).clamp(min=LEAST_VARIANCE)
        return self.mean.float(), variance.rsqrt().float()

    def state_dict(self) -> dict:
        return {"count": self.count, "mean": self.mean.clone(), "squares": self.squares.clone()}

    def load_state_dict(self, state: dict) -> None:
        self.count = state["count"]
        self.mean, self.squares = state["mean"].clone(), state["squares"].clone()


def moments(rows: Tensor) -> tuple[int, Tensor, Tensor]:
    """Of rows [n, features] of any dtype and device: how many, their mean and sum of squared distances from
    it, float64 [features]. A row that is not finite is left out: it would stay in the statistics for ever,
    and with them in every later version."""
    rows = rows.to("cpu", torch.float64)
    rows = rows[rows.isfinite().all(1)]
    if not len(rows):
        return 0, rows.new_zeros(rows.shape[1]), rows.new_zeros(rows.shape[1])
    mean = rows.mean(0)
    return len(rows), mean, (rows - mean).square().sum(0)


class ValueStatistics:
    """Mean and deviation of value targets, forgetting the old ones, and PopArt's correction of the value
    layer.

    The network's output n stands for the value n * deviation + mean. When the statistics move, the last
    layer is rescaled so that every value stays what it was (van Hasselt et al. 2016, arXiv 1602.07714).
    """

    def __init__(self) -> None:
        self.weight = 0.0  # how much of the moments is data, and not their start at zero
        self.first = 0.0
        self.second = 0.0

    @property
    def mean(self) -> float:
        return self.first / self.weight if self.weight else 0.0

    @property
    def deviation(self) -> float:
        if not self.weight:
            return 1.0
        return max(self.second / self.weight - self.mean**2, LEAST_VARIANCE) ** 0.5

    def normalize(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.deviation

    def denormalize(self, outputs: Tensor) -> Tensor:
        return outputs * self.deviation + self.mean

    def update(self, mean: float, mean_square: float, weight: Tensor, bias: Tensor) -> None:
        """Takes the first two moments of a batch of targets, and rescales the value layer (`weight` [1, in],
        `bias` [1]) in place. A batch that is not finite changes nothing."""
        if not (abs(mean) < float("inf") and abs(mean_square) < float("inf")):
            return
        old_mean, old_deviation = self.mean, self.deviation
        self.weight = VALUE_DECAY * self.weight + 1.0 - VALUE_DECAY
        self.first = VALUE_DECAY * self.first + (1.0 - VALUE_DECAY) * mean
        self.second = VALUE_DECAY * self.second + (1.0 - VALUE_DECAY) * mean_square
        with torch.no_grad():
            weight.mul_(old_deviation / self.deviation)
            bias.mul_(old_deviation).add_(old_mean - self.mean).div_(self.deviation)

    def state_dict(self) -> dict:
        return {"weight": self.weight, "first": self.first, "second": self.second}

    def load_state_dict(self, state: dict) -> None:
        self.weight, self.first, self.second = state["weight"], state["first"], state["second"]
