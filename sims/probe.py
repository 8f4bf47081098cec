"""One world of a simulator in guarded memory: the instrument behind `sims.check`.

Every array lies between two canaries, aligned for its element type and no more. Before each call the
observation is filled with a pattern and the statistics with NaN, so that what was left unwritten shows.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from sims import _abi
from sims.loader import Simulator, Value

Array = npt.NDArray[Any]

CANARY = 0xC3
CANARY_BYTES = 256


class Failure(Exception):
    """A rule of sim.h is broken; the message says where."""


class Guarded:
    """An array between canaries, at an address that is a multiple of its item size but not of twice that."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        dtype = np.dtype(dtype)
        self._size = int(np.prod(shape)) * dtype.itemsize
        self._memory = np.full(self._size + 2 * CANARY_BYTES + 128, CANARY, np.uint8)
        to_boundary = -(self._memory.ctypes.data + CANARY_BYTES) % 64
        self._begin = CANARY_BYTES + to_boundary + dtype.itemsize
        self.array: Array = self._memory[self._begin : self._begin + self._size].view(dtype).reshape(shape)
        self.pointer = self.array.ctypes.data

    def intact(self) -> bool:
        before, after = self._memory[: self._begin], self._memory[self._begin + self._size :]
        return bool((before == CANARY).all() and (after == CANARY).all())


class Probe:
    """One world; `pattern` is the byte that observations are filled with before each call."""

    def __init__(self, simulator: Simulator, params: Mapping[str, Value], seed: int, pattern: int) -> None:
        self.simulator, self.pattern = simulator, pattern
        self.shape = shape = simulator.shape(params)
        agents, choices = shape.agents, shape.choices
        self._guarded = {
            "actions": Guarded((agents, len(shape.heads)), shape.action_dtype),
            "obs": Guarded((agents, *shape.obs_shape), shape.obs_dtype),
            "rewards": Guarded((agents,), np.float32),
            "terminated": Guarded((agents,), np.uint8),
            "truncated": Guarded((agents,), np.uint8),
            "statistics": Guarded((agents, len(simulator.statistics)), np.float32),
        }
        if shape.has_mask:
            self._guarded["mask"] = Guarded((agents, choices), np.uint8)
        arrays = {name: guarded.array for name, guarded in self._guarded.items()}
        self.obs, self.rewards, self.statistics = arrays["obs"], arrays["rewards"], arrays["statistics"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self.mask = arrays.get("mask")
        self._actions = arrays["actions"]
        self._io = _abi.SimIo(**{name: guarded.pointer for name, guarded in self._guarded.items()})
        self._world = simulator.api.create(simulator.values(params), seed)
        if not self._world:
            raise Failure("create returned NULL")
        self.calls = 0

    def reset(self) -> None:
        self._call(self.simulator.api.reset, "reset")

    def step(self, actions: Array) -> None:
        """actions: [agents, heads]."""
        self._actions[...] = actions
        self._call(self.simulator.api.step, "step")

    def _call(self, function: Any, what: str) -> None:
        self.obs.view(np.uint8)[...] = self.pattern
        self.statistics.fill(np.nan)
        for array in (self.rewards, self.terminated, self.truncated):
            array.fill(0)
        if self.mask is not None:
            self.mask.fill(1)
        result = function(self._world, ctypes.byref(self._io))
        if result < 0:
            raise Failure(f"{what} returned {result} in call {self.calls}")
        for name, guarded in self._guarded.items():
            if not guarded.intact():
                raise Failure(f"{what} wrote outside `{name}` in call {self.calls}")
        self.calls += 1

    def ended(self) -> npt.NDArray[np.bool_]:
        """[agents]"""
        return np.logical_or(self.terminated, self.truncated)

    def digest(self) -> bytes:
        """Of all that the last call wrote; statistics count where an agent has ended."""
        state = hashlib.blake2b(digest_size=16)
        for array in (self.obs, self.rewards, self.terminated, self.truncated, self.statistics[self.ended()]):
            state.update(array.tobytes())
        if self.mask is not None:
            state.update(self.mask.tobytes())
        return state.digest()

    def random_actions(self, generator: np.random.Generator) -> Array:
        """[agents, heads] uniform among what is allowed, or within the bounds."""
        actions = np.empty(self._actions.shape, self._actions.dtype)
        first = 0
        for i, head in enumerate(self.shape.heads):
            if head.choices == 0:
                actions[:, i] = generator.uniform(head.low, head.high, len(actions))
                continue
            weights = generator.random((len(actions), head.choices))
            if self.mask is not None:
                weights[self.mask[:, first : first + head.choices] == 0] = -1.0
            actions[:, i] = weights.argmax(axis=1)
            first += head.choices
        return actions

    def save(self, pattern: int) -> bytes:
        """The saved state, in memory that was filled with `pattern`."""
        api = self.simulator.api
        state = Guarded((int(api.state_bytes(self._world)),), np.uint8)
        state.array.fill(pattern)
        result = api.save(self._world, state.pointer)
        if result < 0:
            raise Failure(f"save returned {result}")
        if not state.intact():
            raise Failure("save wrote more than state_bytes")
        return bytes(state.array)

    def load(self, saved: bytes) -> None:
        result = self.simulator.api.load(self._world, saved)
        if result < 0:
            raise Failure(f"load returned {result}")

    def follow(self, agent: int) -> None:
        if self.simulator.api.follow:
            self.simulator.api.follow(self._world, agent)

    def render_text(self, capacity: int = 1 << 16) -> str:
        text = Guarded((capacity,), np.uint8)
        length = self.simulator.api.render_text(self._world, text.pointer, capacity)
        if not text.intact():
            raise Failure("render_text wrote more than its capacity")
        if not 0 <= length < capacity or text.array[length] != 0:
            raise Failure(f"render_text returned {length}, and no final NUL is there")
        try:
            return bytes(text.array[:length]).decode()
        except UnicodeDecodeError as error:
            raise Failure(f"render_text wrote no UTF-8: {error}") from error

    def render_rgb(self) -> Array:
        """[height, width, 3] uint8."""
        width, height = ctypes.c_int32(), ctypes.c_int32()
        size = ctypes.byref(width), ctypes.byref(height)
        if self.simulator.api.render_rgb(self._world, None, *size) < 0 or min(width.value, height.value) < 1:
            raise Failure(f"render_rgb gives the size {width.value} x {height.value}")
        picture = Guarded((height.value, width.value, 3), np.uint8)
        if self.simulator.api.render_rgb(self._world, picture.pointer, *size) < 0 or not picture.intact():
            raise Failure("render_rgb failed, or wrote more than the picture")
        return picture.array

    def close(self) -> None:
        if self._world:
            self.simulator.api.destroy(self._world)
            self._world = None

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
