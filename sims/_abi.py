"""sim.h and host.h as ctypes sees them, and the opening of the libraries."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

SIM_ABI = 3
SIM_MAX_DIMS = 4
SIM_MAX_HEADS = 16
SIM_MAX_PARAMS = 64
SIM_MAX_PLANES = 16
SIM_MAX_STATISTICS = 16
SIM_CODES = 128

DTYPES = {1: "uint8", 2: "int8", 3: "int32", 4: "float32"}
KINDS = {1: "int", 2: "float", 3: "bool"}


class SimParam(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("help", c_char_p),
        ("kind", c_int),
        ("value", c_double),
        ("low", c_double),
        ("high", c_double),
    ]


class SimStatistic(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("help", c_char_p)]


class SimHead(ctypes.Structure):
    _fields_ = [("choices", c_int32), ("low", c_float), ("high", c_float)]


class SimShape(ctypes.Structure):
    _fields_ = [
        ("agents", c_int32),
        ("obs_dtype", c_int),
        ("obs_dims", c_int32),
        ("obs_shape", c_int32 * SIM_MAX_DIMS),
        ("heads", c_int32),
        ("head", SimHead * SIM_MAX_HEADS),
        ("has_mask", c_int32),
        ("grid_rows", c_int32),
        ("grid_columns", c_int32),
        ("grid_planes", c_int32),
        ("grid_values", c_int32 * SIM_MAX_PLANES),
        ("coded", c_int32),
    ]


class SimIo(ctypes.Structure):
    _fields_ = [
        (name, c_void_p)
        for name in ("actions", "obs", "mask", "rewards", "terminated", "truncated", "statistics")
    ]


class SimApi(ctypes.Structure):
    _fields_ = [
        ("abi", c_uint32),
        ("bytes", c_uint32),
        ("name", c_char_p),
        ("help", c_char_p),
        ("params", ctypes.POINTER(SimParam)),
        ("n_params", c_int32),
        ("statistics", ctypes.POINTER(SimStatistic)),
        ("n_statistics", c_int32),
        ("score", c_int32),
        ("shape", ctypes.CFUNCTYPE(c_int, ctypes.POINTER(c_double), ctypes.POINTER(SimShape))),
        ("create", ctypes.CFUNCTYPE(c_void_p, ctypes.POINTER(c_double), c_uint64)),
        ("destroy", ctypes.CFUNCTYPE(None, c_void_p)),
        ("reset", ctypes.CFUNCTYPE(c_int, c_void_p, ctypes.POINTER(SimIo))),
        ("step", ctypes.CFUNCTYPE(c_int, c_void_p, ctypes.POINTER(SimIo))),
        ("state_bytes", ctypes.CFUNCTYPE(c_size_t, c_void_p)),
        ("save", ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)),
        ("load", ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)),
        ("render_text", ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)),
        (
            "render_rgb",
            ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, ctypes.POINTER(c_int32), ctypes.POINTER(c_int32)),
        ),
        ("follow", ctypes.CFUNCTYPE(None, c_void_p, c_int32)),
    ]


class HostRows(ctypes.Structure):
    _fields_ = [
        (name, c_void_p) for name in ("actions", "obs", "mask", "rewards", "terminated", "truncated", "valid")
    ]


class SimulatorError(Exception):
    """A simulator is missing, of another ABI, wrongly parametrised, or failed; the message says which."""


def open_library(path: Path) -> ctypes.CDLL:
    if not path.is_file():
        name = path.relative_to(FOLDER.parent) if path.is_relative_to(FOLDER.parent) else path
        raise SimulatorError(f"{name} is missing: run `make build`")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise SimulatorError(f"cannot load {path}: {error}") from error


@cache
def host() -> ctypes.CDLL:
    """host.so with the C types of its functions; sim_host stays opaque, in memory of host_bytes()."""
    library = open_library(FOLDER / "host.so")
    rows = ctypes.POINTER(HostRows)
    doubles = ctypes.POINTER(c_double)
    for name, result, arguments in (
        ("host_bytes", c_size_t, []),
        ("host_shape_fits", c_int, [ctypes.POINTER(SimShape)]),
        ("host_world_seeds", None, [c_uint64, c_uint64, c_int32, c_uint64, c_uint64, c_void_p]),
        ("host_create", c_int, [c_void_p, ctypes.POINTER(SimApi), doubles, c_int32, c_void_p]),
        ("host_destroy", None, [c_void_p]),
        ("host_reset", c_int, [c_void_p, c_void_p, c_void_p]),
        ("host_step", c_int, [c_void_p, rows, c_void_p]),
        ("host_step_range", c_int, [c_void_p, c_int32, c_int32, rows, c_void_p]),
        ("host_play", ctypes.c_int64, [c_void_p, rows, c_int32, c_void_p]),
        ("host_world", c_void_p, [c_void_p, c_int32]),
        ("host_state_bytes", c_size_t, [c_void_p, c_int32]),
        ("host_save", c_int, [c_void_p, c_int32, c_void_p]),
        ("host_load", c_int, [c_void_p, c_int32, c_void_p]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
