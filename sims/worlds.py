"""Many worlds of one simulator, stepped together: the arrays and calls behind `sims.loader`."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sims import _abi
from sims._abi import SimulatorError

if TYPE_CHECKING:
    from sims.loader import Simulator, Value

TEXT_BYTES, MOST_TEXT_BYTES = 1 << 16, 1 << 22  # of a picture: at first, and at most

Array = npt.NDArray[Any]


class Worlds:
    """Many worlds of one simulator; agent = world * agents of a world + row, B agents in all.

    The arrays are rewritten in place by `reset` and `step`; copy what must outlive the next call.

    obs: [B, *obs_shape]; mask: [B, choices] uint8 or None; rewards: [B] float32, raw;
    terminated, truncated: [B] uint8; valid: [B] uint8, 0 for the step after a truncation, no experience.
    """

    def __init__(
        self,
        simulator: Simulator,
        worlds: int,
        params: Mapping[str, Value] | None,
        seeds: npt.NDArray[np.uint64],
    ) -> None:
        self.simulator, self.worlds = simulator, worlds
        self.shape = simulator.shape(params)
        if worlds < 1 or seeds.shape != (worlds,):
            raise ValueError(f"seeds have the shape {seeds.shape}, for {worlds} worlds")
        self._host = _abi.host()
        self._self = ctypes.create_string_buffer(self._host.host_bytes())
        result = self._host.host_create(
            self._self, simulator.table, simulator.values(params), worlds, seeds.ctypes.data
        )
        if result < 0:
            raise SimulatorError(f"{simulator.name}: {worlds} worlds could not be created")
        self._finalizer = weakref.finalize(self, self._host.host_destroy, self._self)

        self.agents = worlds * self.shape.agents
        self.obs = np.zeros((self.agents, *self.shape.obs_shape), self.shape.obs_dtype)
        self.mask = np.ones((self.agents, self.shape.choices), np.uint8) if self.shape.has_mask else None
        self.rewards = np.zeros(self.agents, np.float32)
        self.terminated = np.zeros(self.agents, np.uint8)
        self.truncated = np.zeros(self.agents, np.uint8)
        self.valid = np.ones(self.agents, np.uint8)
        self._episodes = np.zeros(self.agents, self.episode_dtype)
        self._rows = _abi.HostRows(
            None,
            self.obs.ctypes.data,
            None if self.mask is None else self.mask.ctypes.data,
            self.rewards.ctypes.data,
            self.terminated.ctypes.data,
            self.truncated.ctypes.data,
            self.valid.ctypes.data,
        )

    @cached_property
    def episode_dtype(self) -> np.dtype[np.void]:
        """Of a finished episode: agent, length (valid steps), return (raw rewards), statistics [n]."""
        n = len(self.simulator.statistics)
        return np.dtype([("agent", "i4"), ("length", "i4"), ("return", "f4"), ("statistics", "f4", (n,))])

    def reset(self) -> Array:
        """Begins an episode of every agent and forgets the episodes under way; returns obs."""
        self._check(self._host.host_reset(self._open(), self._rows.obs, self._rows.mask), "reset")
        for array, value in ((self.rewards, 0), (self.terminated, 0), (self.truncated, 0), (self.valid, 1)):
            array.fill(value)
        return self.obs

    def step(self, actions: Array) -> npt.NDArray[np.void]:
        """Steps every world once; returns the episodes that ended, [k] of `episode_dtype`.

        actions: [B, heads] (or [B] where there is one head) whole numbers below `choices`, or floats.
        """
        rows = np.ascontiguousarray(self._checked(actions), self.shape.action_dtype)
        self._rows.actions = rows.ctypes.data
        count = self._host.host_step(self._open(), ctypes.byref(self._rows), self._episodes.ctypes.data)
        self._check(count, "step")
        return self._episodes[:count].copy()

    def play(self, actions: Array) -> int:
        """Steps every world by actions [steps, B, heads], unchecked; returns how many episodes ended."""
        rows = np.ascontiguousarray(actions, self.shape.action_dtype)
        if rows.ndim != 3 or rows.shape[1:] != (self.agents, len(self.shape.heads)):
            raise ValueError(f"actions have the shape {rows.shape}, for {self.agents} agents")
        self._rows.actions = rows.ctypes.data
        count = self._host.host_play(
            self._open(), ctypes.byref(self._rows), len(rows), self._episodes.ctypes.data
        )
        self._check(count, "step")
        return int(count)

    def _checked(self, actions: Array) -> Array:
        rows = np.asarray(actions)
        if rows.ndim == 1 and len(self.shape.heads) == 1:
            rows = rows[:, None]
        if rows.shape != (self.agents, len(self.shape.heads)):
            wanted = (self.agents, len(self.shape.heads))
            raise ValueError(f"actions have the shape {rows.shape}, not {wanted} (agents, heads)")
        if self.shape.discrete:
            if rows.dtype.kind not in "iu":
                raise ValueError(f"actions are {rows.dtype}, not whole numbers")
            choices = [head.choices for head in self.shape.heads]
            if (rows < 0).any() or (rows >= choices).any():
                raise ValueError(f"an action is outside 0 to {', '.join(str(c - 1) for c in choices)}")
        return rows

    def save(self, world: int) -> bytes:
        """All of one world: state, generator, episode under way, observation and mask. See `load`."""
        state = ctypes.create_string_buffer(self._state_bytes(world))
        self._check(self._host.host_save(self._open(), world, state), "save")
        return state.raw + b"".join(rows.tobytes() for rows in self._rows_of(world))

    def load(self, world: int, saved: bytes) -> None:
        """Puts world `world` into the state of `save`, its rows of obs and mask included."""
        size = self._state_bytes(world)
        rows = self._rows_of(world)
        if len(saved) != size + sum(row.nbytes for row in rows):
            raise SimulatorError(f"{self.simulator.name}: {len(saved)} bytes are no saved world of this one")
        self._check(self._host.host_load(self._open(), world, saved[:size]), "load")
        for row in rows:
            row[...] = np.frombuffer(saved, row.dtype, row.size, size).reshape(row.shape)
            size += row.nbytes

    def _rows_of(self, world: int) -> list[Array]:
        agents = slice(world * self.shape.agents, (world + 1) * self.shape.agents)
        return [rows[agents] for rows in (self.obs, self.mask) if rows is not None]

    def _state_bytes(self, world: int) -> int:
        size = int(self._host.host_state_bytes(self._open(), self._in_range(world)))
        if size == 0:
            raise SimulatorError(f"{self.simulator.name} has no save and load")
        return size

    def follow(self, world: int, agent: int) -> None:
        """Has pictures of a world show what is around this of its agents, where the simulator can."""
        if not 0 <= agent < self.shape.agents:
            raise IndexError(f"agent {agent} of {self.shape.agents}")
        if self.simulator.api.follow:
            self.simulator.api.follow(self._world(world), agent)

    def render_text(self, world: int) -> str:
        render = self.simulator.api.render_text
        if not render:
            raise SimulatorError(f"{self.simulator.name} has no render_text")
        size, length = TEXT_BYTES, -1
        while length < 0 and size <= MOST_TEXT_BYTES:
            text = ctypes.create_string_buffer(size)
            length = render(self._world(world), text, size)
            size *= 4
        self._check(length, "render_text")
        return text.value.decode()

    def render_rgb(self, world: int) -> npt.NDArray[np.uint8]:
        """[height, width, 3] uint8."""
        render = self.simulator.api.render_rgb
        if not render:
            raise SimulatorError(f"{self.simulator.name} has no render_rgb")
        width, height = ctypes.c_int32(), ctypes.c_int32()
        at = self._world(world)
        self._check(render(at, None, ctypes.byref(width), ctypes.byref(height)), "render_rgb")
        picture = np.zeros((height.value, width.value, 3), np.uint8)
        self._check(render(at, picture.ctypes.data, ctypes.byref(width), ctypes.byref(height)), "render_rgb")
        return picture

    def close(self) -> None:
        """Frees the worlds; closing twice is harmless, any other use afterwards raises."""
        self._finalizer()

    def __enter__(self) -> Worlds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> ctypes.Array[ctypes.c_char]:
        if not self._finalizer.alive:
            raise SimulatorError(f"these worlds of {self.simulator.name} are closed")
        return self._self

    def _in_range(self, world: int) -> int:
        if not 0 <= world < self.worlds:
            raise IndexError(f"world {world} of {self.worlds}")
        return world

    def _world(self, world: int) -> int:
        return int(self._host.host_world(self._open(), self._in_range(world)))

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            raise SimulatorError(f"{self.simulator.name}: {what} returned {result}")
