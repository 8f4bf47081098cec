"""Networks that act: the weights of several versions at hand, and one step of a batch of agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consumers import modules
from producers.program import Program
from ringbuf import Weights


class Versions:
    """Networks by the version of their weights. `spent`: counts and times, by the names of the server's
    counters."""

    def __init__(self, program: Program, weights: Weights, device: torch.device):
        self._program, self._weights, self._device = program, weights, device
        self._flat = np.empty(weights.count, np.float32)
        self._models: dict[int, Any] = {}
        self.spent = dict.fromkeys(("pickups", "pickup_retries", "pickup_ns"), 0)

    def exactly(self, version: int, held: Collection[int]) -> Any | None:
        """The network of that version; None: its weights have left the channel. Of the others only those in
        `held` are sure to stay."""
        if version not in self._models:
            begin = time.monotonic_ns()
            if not self._weights.copy_into(version, self._flat):
                self.spent["pickup_retries"] += 1
                return None
            self._load(version, held)
            self.spent["pickup_ns"] += time.monotonic_ns() - begin
        return self._models[version]

    def newest(self, held: Collection[int]) -> tuple[int, Any]:
        """The newest version that is published, and its network."""
        while True:
            version = self._weights.published
            assert version is not None, "asked before there were weights"
            model = self.exactly(version, held)
            if model is not None:
                return version, model

    def _load(self, version: int, held: Collection[int]) -> None:
        spare = next((one for one in self._models if one not in held), None)
        if spare is None:
            model = modules.make(self._program).to(self._device).requires_grad_(False).eval()
        else:
            model = self._models.pop(spare)
        model.load_flat(self._flat)
        self._models[version] = model
        self.spent["pickups"] += 1


class Step:
    """One step of up to `rows` agents: buffers of fixed size for what goes in and comes out, the recurrent
    state of all. On a GPU one CUDA graph a network, which needs all of them each time."""

    def __init__(self, program: Program, rows: int, device: torch.device):
        obs = program.buffers[program.obs]
        self.device, self.width = device, program.state_width
        pinned = device.type == "cuda"
        self.obs = torch.empty((rows, *obs.shape), dtype=getattr(torch, obs.dtype), pin_memory=pinned)
        self.reset_before = torch.zeros(rows, dtype=torch.bool, pin_memory=pinned)
        self.state = torch.zeros((rows, self.width), device=device)
        self._graphs: dict[int, Callable[[], tuple[Tensor, Tensor]]] = {}  # by id of the network
        if pinned:
            self._obs = torch.empty_like(self.obs, device=device)
            self._reset = torch.empty_like(self.reset_before, device=device)
            self._logits = torch.empty((rows, program.logits), pin_memory=True)

    def run(self, model: Any, obs: Tensor, state: Tensor) -> tuple[np.ndarray, Tensor]:
        """Logits float32 [n, logits] of `obs` [n, ...], and the state behind them; `state` [n, S] is that
        before them, `reset_before` [:n] which of it to zero."""
        if self.device.type == "cuda":
            return self._run_graph(model)
        if self.width == 0:
            logits, _ = model(obs)
            return logits.float().contiguous().numpy(), state
        logits, _, state = model.step(obs, state, self.reset_before[: len(obs)])
        return logits.float().contiguous().numpy(), state

    def _run_graph(self, model: Any) -> tuple[np.ndarray, Tensor]:
        """All rows. Not tried on a GPU."""
        self._obs.copy_(self.obs, non_blocking=True)
        self._reset.copy_(self.reset_before, non_blocking=True)
        if id(model) not in self._graphs:
            self._graphs[id(model)] = self._capture(model)
        logits, state = self._graphs[id(model)]()
        self._logits.copy_(logits, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return self._logits.numpy(), state

    def _capture(self, model: Any) -> Callable[[], tuple[Tensor, Tensor]]:
        def step() -> tuple[Tensor, Tensor]:
            if self.width == 0:
                return model(self._obs)[0].float().contiguous(), self.state
            logits, _, state = model.step(self._obs, self.state, self._reset)
            return logits.float().contiguous(), state

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their kernels and take their memory at the first calls
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step()

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return results

        return replay
