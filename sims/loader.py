"""Simulators from Python, for tests, evaluation and benchmarks.

    with load("breakout").create(1000, {"frameskip": 4}, world_seeds(run_seed=1, worlds=1000)) as worlds:
        worlds.reset()
        episodes = worlds.step(actions)  # worlds.obs, worlds.rewards, ... are rewritten in place

Worlds are stepped by host.c, the same code as the producer's, so ends of episodes mean the same everywhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sims import _abi
from sims._abi import FOLDER, SimulatorError
from sims.worlds import Worlds

__all__ = [
    "EVALUATE",
    "TRAIN",
    "Grid",
    "Head",
    "Parameter",
    "Shape",
    "Simulator",
    "SimulatorError",
    "Statistic",
    "Worlds",
    "available",
    "load",
    "world_seeds",
]

TRAIN = 0
EVALUATE = 1

Value = bool | int | float


@dataclass(frozen=True)
class Parameter:
    name: str
    help: str
    kind: str  # int, float or bool
    default: Value
    low: float
    high: float


@dataclass(frozen=True)
class Statistic:
    name: str
    help: str


@dataclass(frozen=True)
class Head:
    choices: int  # 0: continuous within [low, high]
    low: float
    high: float


@dataclass(frozen=True)
class Grid:
    rows: int
    columns: int
    values: tuple[int, ...]  # categories of each plane: bytes of cells [rows, columns, planes] are below

    @property
    def width(self) -> int:
        """Bytes of an observation that it takes."""
        return self.rows * self.columns * len(self.values)


@dataclass(frozen=True)
class Shape:
    agents: int  # in one world
    obs_dtype: np.dtype[np.generic]
    obs_shape: tuple[int, ...]
    heads: tuple[Head, ...]
    has_mask: bool
    grid: Grid | None  # what a one-dimensional observation of bytes begins with
    coded: int  # the bytes behind it that are codes below 128

    @property
    def discrete(self) -> bool:
        return self.heads[0].choices > 0

    @property
    def choices(self) -> int:
        """Sum over the heads: the width of a mask."""
        return sum(head.choices for head in self.heads)

    @property
    def action_dtype(self) -> np.dtype[np.generic]:
        return np.dtype(np.int32 if self.discrete else np.float32)


def available() -> list[str]:
    """The names of the simulators whose sources are here."""
    return sorted(source.parent.name for source in FOLDER.glob("*/*.c") if source.stem == source.parent.name)


def load(name_or_path: str | Path) -> Simulator:
    """Loads `sims/<name>/<name>.so`, or the library at a path (with a slash or ending in .so).

    Raises SimulatorError for an unknown name, a missing or broken library and another ABI.
    """
    text = str(name_or_path)
    if "/" in text or text.endswith(".so"):
        path = Path(text).resolve()
        if not path.is_file():
            raise SimulatorError(f"{text}: no such file")
    else:
        path = FOLDER / text / f"{text}.so"
        if text not in available():
            raise SimulatorError(f"no simulator is called {text!r}; there are: {', '.join(available())}")
    return Simulator(_abi.open_library(path), path)


def world_seeds(
    run_seed: int, worlds: int, first: int = 0, restart: int = 0, domain: int = TRAIN
) -> npt.NDArray[np.uint64]:
    """The seeds [worlds] of the worlds from `first` on; those of EVALUATE are disjoint from TRAIN's.

    Worlds are numbered over the whole run; `restart` counts the restarts of these worlds.
    """
    seeds = np.empty(worlds, np.uint64)
    _abi.host().host_world_seeds(run_seed, first, worlds, restart, domain, seeds.ctypes.data)
    return seeds


class Simulator:
    """One simulator's table: what it is, and worlds of it."""

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        try:
            entry = library.sim_entry
        except AttributeError as error:
            raise SimulatorError(f"{path} exports no sim_entry, so it is not a simulator") from error
        entry.restype = ctypes.POINTER(_abi.SimApi)
        entry.argtypes = []
        self.library, self.path, self.table = library, path, entry()
        if not self.table:
            raise SimulatorError(f"{path}: sim_entry returned NULL")
        api = self.table.contents
        if api.abi != _abi.SIM_ABI or api.bytes != ctypes.sizeof(_abi.SimApi):
            raise SimulatorError(
                f"{path} was built for ABI {api.abi} ({api.bytes} bytes), not for {_abi.SIM_ABI} "
                f"({ctypes.sizeof(_abi.SimApi)} bytes): run `make build`"
            )
        if not 0 <= api.n_params <= _abi.SIM_MAX_PARAMS:
            raise SimulatorError(f"{path} has {api.n_params} parameters: see sim.h")
        if not 1 <= api.n_statistics <= _abi.SIM_MAX_STATISTICS:
            raise SimulatorError(f"{path} has {api.n_statistics} statistics: see sim.h")
        if not 0 <= api.score < api.n_statistics:
            raise SimulatorError(f"{path}: score is statistic {api.score} of {api.n_statistics}")
        self.api = api
        self.name = api.name.decode()
        self.help = api.help.decode()
        self.params = tuple(_parameter(api.params[i]) for i in range(api.n_params))
        self.statistics = tuple(
            Statistic(api.statistics[i].name.decode(), api.statistics[i].help.decode())
            for i in range(api.n_statistics)
        )
        self.score_index = int(api.score)
        self.score = self.statistics[self.score_index].name

    def values(self, params: Mapping[str, Value] | None = None) -> ctypes.Array[ctypes.c_double]:
        """All parameters in the table's order as C takes them, defaults filled in.

        Raises SimulatorError for an unknown name, a wrong type or a value out of bounds.
        """
        given = dict(params or {})
        values = (ctypes.c_double * max(1, len(self.params)))()
        for i, parameter in enumerate(self.params):
            values[i] = self._checked(parameter, given.pop(parameter.name, parameter.default))
        if given:
            known = ", ".join(parameter.name for parameter in self.params) or "none"
            raise SimulatorError(f"{self.name} has no parameter {next(iter(given))!r}; there are: {known}")
        return values

    def _checked(self, parameter: Parameter, value: Value) -> float:
        what = f"{self.name}: {parameter.name} = {value!r}"
        if parameter.kind == "bool":
            if not isinstance(value, bool):
                raise SimulatorError(f"{what} is not true or false")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise SimulatorError(f"{what} is not a number")
        if not parameter.low <= value <= parameter.high:
            raise SimulatorError(f"{what} is outside {parameter.low:.12g} to {parameter.high:.12g}")
        if parameter.kind == "int" and value != int(value):
            raise SimulatorError(f"{what} is not a whole number")
        return float(value)

    def shape(self, params: Mapping[str, Value] | None = None) -> Shape:
        shape = _abi.SimShape()
        result = self.api.shape(self.values(params), ctypes.byref(shape))
        if result < 0:
            raise SimulatorError(f"{self.name}: shape returned {result} for {dict(params or {})}")
        if not _abi.host().host_shape_fits(ctypes.byref(shape)):
            raise SimulatorError(f"{self.name}: shape breaks a limit of sim.h")
        return Shape(
            agents=shape.agents,
            obs_dtype=np.dtype(_abi.DTYPES[shape.obs_dtype]),
            obs_shape=tuple(shape.obs_shape[: shape.obs_dims]),
            heads=tuple(Head(head.choices, head.low, head.high) for head in shape.head[: shape.heads]),
            has_mask=bool(shape.has_mask),
            grid=_grid(shape),
            coded=shape.coded,
        )

    def create(
        self,
        worlds: int,
        params: Mapping[str, Value] | None = None,
        seeds: Sequence[int] | npt.NDArray[np.uint64] | None = None,
    ) -> Worlds:
        """Builds `worlds` worlds; seeds [worlds] default to those of training with run seed 0."""
        given = world_seeds(0, worlds) if seeds is None else np.ascontiguousarray(seeds, np.uint64)
        return Worlds(self, worlds, params, given)


def _grid(shape: _abi.SimShape) -> Grid | None:
    if shape.grid_planes == 0:
        return None
    return Grid(shape.grid_rows, shape.grid_columns, tuple(shape.grid_values[: shape.grid_planes]))


def _parameter(param: _abi.SimParam) -> Parameter:
    kind = _abi.KINDS.get(param.kind)
    if kind is None:
        raise SimulatorError(f"parameter {param.name.decode()} is of kind {param.kind}: see sim.h")
    default = {"int": int, "float": float, "bool": bool}[kind](param.value)
    return Parameter(param.name.decode(), param.help.decode(), kind, default, param.low, param.high)
