"""A batch: the leased slots of one update as tensors, and its minibatches of whole agent segments.

The K slots stand side by side: segment k*B + b is agent b of slot k, so a batch is [T, K*B]. The small
fields are joined once. Observations, the bulk, stay where the producers wrote them; a minibatch copies its
own, and the copy is also the cast.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

BLOCKS = 4  # a minibatch is made of so many runs of neighbouring segments: shorter runs would copy slower


class Slot(Protocol):
    """What a batch needs of a lease."""

    def array(self, name: str, /) -> Any:
        """The field as a view, shaped by the plan."""


class Pieces(NamedTuple):
    """The segments of one minibatch: blocks of `length` neighbours, in ascending order, and the same as runs
    [start, stop) of segments."""

    blocks: Tensor  # [n] int64: block i is the segments from i * length on
    length: int
    runs: list[tuple[int, int]]

    @property
    def size(self) -> int:
        return len(self.blocks) * self.length

    @property
    def segments(self) -> Tensor:
        """The segments one by one: [m] int64."""
        within = torch.arange(self.length, device=self.blocks.device)
        return (self.blocks[:, None] * self.length + within).flatten()

    def take(self, x: Tensor) -> Tensor:
        """Their part of x [T, A, ...]: [T, m, ...]. By blocks, which copies several times faster than one by
        one."""
        rows, segments, *rest = x.shape
        grouped = x.view(rows, segments // self.length, self.length * math.prod(rest))
        return grouped.index_select(1, self.blocks).view(rows, self.size, *rest)

    def split(self, count: int) -> list[Pieces]:
        """The same segments in the same order, in `count` equal parts. Raises ValueError where they cannot
        be divided so."""
        size, rest = divmod(self.size, count)
        if rest:
            raise ValueError(f"{self.size} segments cannot be divided into {count} parts")
        if count == 1:
            return [self]
        length = math.gcd(self.length, size)
        blocks = [block for start, stop in self.runs for block in range(start // length, stop // length)]
        return [
            pieces(chosen, length, self.blocks.device)
            for chosen in torch.tensor(blocks).split(size // length)
        ]


class Batch:
    """Holds views into its slots until `close`."""

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        device: torch.device,
        has_mask: bool = False,
        discrete: bool = True,
        recurrent: bool = False,
        reward_scale: float = 1.0,
        reward_clip: float | None = None,
        oldest_version: int | None = None,
        burn_in: int = 0,
    ):
        """`recurrent`: slots hold state. Left out of the loss (`kept`) are steps acted by weights older than
        `oldest_version`, and the first `burn_in` of each segment."""
        with warnings.catch_warnings():  # leases are read-only, and torch warns of any such array
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            views = [
                {name: torch.from_numpy(slot.array(name)) for name in _names(has_mask, recurrent)}
                for slot in slots
            ]

        def joined(name: str, dim: int = 1) -> Tensor:
            return torch.cat([view[name] for view in views], dim).to(device)

        self.device = device
        self.observations = [view["obs"].to(device, non_blocking=True) for view in views]
        self.horizon, self.agents = views[0]["reward"].shape
        self.segments = self.agents * len(slots)
        self.action = joined("action")  # [T, A, heads] int64, or float32 where continuous
        if discrete:
            self.action = self.action.long()
        self.behaviour = joined("logprob")  # [T, A]
        self.mask = joined("mask").bool() if has_mask else None  # [T, A, logits]
        self.rewards = joined("reward") * reward_scale  # [T, A]
        if reward_clip is not None:
            self.rewards.clamp_(-reward_clip, reward_clip)
        self.terminated = joined("terminated").bool()  # [T, A]
        self.truncated = joined("truncated").bool()  # [T, A]
        valid = kept = joined("valid").bool()
        # [A, state_width] before step 0; None: there is none
        self.state0 = joined("state0", 0) if recurrent else None
        self._reset_before = _reset_before(self.terminated, valid) if recurrent else None  # [T+1, A]
        self._versions = joined("version")  # [T, K*G]: a slot's G groups are equal and contiguous
        self.group = self.segments // self._versions.shape[1]  # segments that the same weights act in
        self.newest_version = int(self._versions.max())
        if oldest_version is not None:
            everyone = torch.arange(self.segments, device=device)
            kept = valid & (self.acting(everyone) >= oldest_version)
        self.burn_in = burn_in
        self.burn_in_steps = int(valid[:burn_in].sum())  # valid ones
        if burn_in:
            kept = kept.clone()  # it may be `valid` itself
            kept[:burn_in] = False
        self.valid_steps, self.kept_steps = int(valid.sum()), int(kept.sum())
        # [T, A] bool, None where that is all of them; kept: in the loss
        self.valid = None if self.valid_steps == valid.numel() else valid
        self.kept = None if self.kept_steps == kept.numel() else kept
        if not discrete and self.valid is not None:  # else a gradient would be 0 times whatever stands there
            self.action = torch.where(self.valid.unsqueeze(-1), self.action, 0.0)

    def acting(self, index: Tensor) -> Tensor:
        """The versions of the weights that acted in the segments `index` [m]: [T, m] int64."""
        return self._versions.index_select(1, index // self.group)

    def memory(self, part: Pieces, rows: int) -> tuple[Tensor, ...]:
        """What a recurrent network reads beside the first `rows` observations of the segments: state0
        [m, state_width] and reset_before [rows, m] bool. () without state."""
        if self.state0 is None or self._reset_before is None:
            return ()
        return part.take(self.state0.unsqueeze(0))[0], part.take(self._reset_before)[:rows]

    def sample(self, count: int) -> Tensor:
        """About `count` observations spread over the steps of the first segments, [n, *obs_shape]."""
        segments = min(self.segments, count)
        rows = min(self.horizon, max(1, count // segments))
        steps = torch.arange(rows, device=self.device) * self.horizon // rows
        parts = [
            self.observations[slot][steps, start:stop]
            for slot, start, stop in _by_slot([(0, segments)], self.agents)
        ]
        return torch.cat(parts, 1).flatten(0, 1)

    def minibatches(self, count: int, generator: torch.Generator) -> Iterator[Pieces]:
        """`count` minibatches of equally many segments that together are the batch, drawn anew at each
        call. The draw depends on the number of segments and the generator alone, not on how segments lie
        in slots."""
        size, rest = divmod(self.segments, count)
        if rest:
            raise ValueError(f"{self.segments} segments cannot be divided into {count} minibatches")
        if count == 1:
            yield pieces(torch.arange(1), size, self.device)
            return
        blocks = max(n for n in range(1, BLOCKS + 1) if size % n == 0)
        length = size // blocks
        order = torch.randperm(self.segments // length, generator=generator)
        for chosen in order.view(count, blocks):
            yield pieces(chosen.sort().values, length, self.device)

    def observe(self, runs: Sequence[tuple[int, int]], rows: int, out: Tensor) -> Tensor:
        """The first `rows` observations of the segments in `runs`, cast to `out`'s dtype: [rows, m, ...].
        `out` [>= rows, m, ...] is where they are copied, unless they lie as they are wanted already."""
        at = 0
        for slot, start, stop in _by_slot(runs, self.agents):
            source = self.observations[slot]
            if start == 0 and stop == self.agents == out.shape[1] and source.dtype == out.dtype:
                return source[:rows]
            out[:rows, at : at + stop - start].copy_(source[:rows, start:stop])
            at += stop - start
        return out[:rows]

    def close(self) -> None:
        """Drops every view, so that the slots can be given back."""
        self.observations.clear()


def pieces(blocks: Tensor, length: int, device: torch.device) -> Pieces:
    """The segments of blocks [n] of `length` neighbours each; blocks in ascending order, on the CPU."""
    runs: list[tuple[int, int]] = []
    for block in blocks.tolist():
        start = block * length
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], start + length)
        else:
            runs.append((start, start + length))
    return Pieces(blocks.to(device), length, runs)


def _reset_before(terminated: Tensor, valid: Tensor) -> Tensor:
    """Where the recurrent state is zeroed before a row, [T+1, A] from [T, A]: behind an end, which after a
    truncation is the row of the final observation, whose step is not valid. Before row 0 the producer has
    done so already."""
    first = torch.zeros_like(valid[:1])
    return torch.cat([first, terminated | ~valid])


def _names(has_mask: bool, recurrent: bool) -> list[str]:
    names = ["obs", "action", "logprob", "reward", "terminated", "truncated", "valid", "version"]
    return names + ["mask"] * has_mask + ["state0"] * recurrent


def _by_slot(runs: Sequence[tuple[int, int]], agents: int) -> Iterator[tuple[int, int, int]]:
    """Runs cut at slot borders: (slot, first agent, agent after the last)."""
    for start, stop in runs:
        while start < stop:
            slot, first = divmod(start, agents)
            count = min(stop - start, agents - first)
            yield slot, first, first + count
            start += count
