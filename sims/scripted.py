"""Scripted agents of a simulator, to compare a policy with: each sees its own observations and nothing else.

    agents = Scripted(load("realm"), "trade", worlds.agents, seed=1)
    episodes = worlds.step(agents.act(worlds.obs))

A simulator that has some exports `<name>_script(kind, obs, agents, state, actions)` beside `sim_entry`: see
sims/realm/scripts.h.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from sims.loader import Simulator, SimulatorError

# The scripts of each simulator, in the order of its C code.
KINDS = {"realm": ("wander", "fight", "trade")}


def kinds(simulator: Simulator) -> tuple[str, ...]:
    """The names of a simulator's scripts, () if it has none."""
    return KINDS.get(simulator.name, ())


class Scripted:
    """`agents` agents that act by one script; `seed` is that of their own chance.

    Raises SimulatorError for a simulator without such a script.
    """

    def __init__(self, simulator: Simulator, kind: str, agents: int, seed: int) -> None:
        if kind not in kinds(simulator):
            there = ", ".join(kinds(simulator)) or "none"
            raise SimulatorError(f"{simulator.name} has no script {kind!r}; there are: {there}")
        self._kind = kinds(simulator).index(kind)
        self._shape = (agents, *simulator.shape().obs_shape)
        self._state = np.random.default_rng(seed).integers(1, 1 << 32, agents, np.uint32)
        self._script = getattr(simulator.library, f"{simulator.name}_script")
        self._script.restype = ctypes.c_int
        self._script.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]

    def act(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Actions [B] for observations [B, ...] uint8."""
        rows = np.ascontiguousarray(obs, np.uint8)
        if rows.shape != self._shape:
            raise ValueError(f"observations have the shape {rows.shape}, not {self._shape}")
        actions = np.empty(len(rows), np.int32)
        result = self._script(
            self._kind, rows.ctypes.data, len(rows), self._state.ctypes.data, actions.ctypes.data
        )
        if result < 0:
            raise SimulatorError(f"the script returned {result}")
        return actions
