"""The multi-hot convolution of a policy program: over cells whose bytes each name one of several categories.

On a CPU a native kernel (gathered.c) adds up the weights of the categories that are there; elsewhere, and
under torch.compile, the ones and zeros are written down and convolved. docs/details.md has what each costs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

LIBRARY = Path(__file__).with_name("gathered.so")
MAX_PLANES = 16
ALIGNMENT_BYTES = 64
LEAST_ROWS_A_THREAD = 64

T = TypeVar("T")


@dataclass(frozen=True)
class Geometry:
    """Of the grid [rows, columns, planes], plane p with values[p] categories, and of the convolution."""

    rows: int
    columns: int
    values: tuple[int, ...]
    kernel: tuple[int, int]
    stride: int
    out: int

    @property
    def width(self) -> int:
        """Bytes of one grid."""
        return self.rows * self.columns * len(self.values)

    @property
    def positions(self) -> int:
        down = (self.rows - self.kernel[0]) // self.stride + 1
        return down * ((self.columns - self.kernel[1]) // self.stride + 1)

    @cached_property
    def native(self) -> ctypes.Array[ctypes.c_int32]:
        """The C struct."""
        values = self.values + (0,) * (MAX_PLANES - len(self.values))
        numbers = (self.rows, self.columns, len(self.values), *self.kernel, self.stride, self.out, *values)
        return (ctypes.c_int32 * len(numbers))(*numbers)


def convolve(
    grid: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry, *, relu: bool, dtype: torch.dtype
) -> Tensor:
    """Grids [n, geometry.width] uint8, rows of any stride, to [n, positions * out] in `dtype`, channels last
    within a row; weight [out, sum(values), *kernel] and bias [out] float32, which get float32 gradients. A
    byte beyond its plane's categories counts as the last of them. Raises TypeError for a grid of anything
    but bytes, which the native kernel would read as such."""
    if grid.dtype != torch.uint8:
        raise TypeError(
            f"a grid of {grid.dtype}: its cells are bytes that name categories; needs torch.uint8"
        )
    return _Convolve.apply(grid, weight, bias, geometry, relu, dtype)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grid: Tensor,
        weight: Tensor,
        bias: Tensor,
        geometry: Geometry,
        relu: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.geometry = geometry
        ctx.native = grid.device.type == "cpu" and not torch.compiler.is_compiling()
        if ctx.native:
            y = _forward(grid, weight, bias, geometry, relu).to(dtype)
        else:
            x = _ones(grid, geometry, dtype)
            w = weight.to(dtype, memory_format=torch.channels_last)
            y = F.conv2d(x, w, bias.to(dtype), geometry.stride).permute(0, 2, 3, 1).reshape(len(grid), -1)
            y = torch.relu(y) if relu else y
        ctx.save_for_backward(grid, weight, y if relu else None)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grid, weight, y = ctx.saved_tensors
        geometry = ctx.geometry
        grad = grads[0] if y is None else torch.ops.aten.threshold_backward(grads[0], y, 0)
        grad_weight = grad_bias = None
        if ctx.needs_input_grad[1] and ctx.native:
            grad_weight = _weight_gradient(grid, grad.float().contiguous(), weight, geometry)
        elif ctx.needs_input_grad[1]:
            grad_weight = _dense_gradient(grid, grad, weight, geometry)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.view(-1, geometry.out).sum(0, dtype=torch.float32)
        return None, grad_weight, grad_bias, None, None, None


def _ones(grid: Tensor, geometry: Geometry, dtype: torch.dtype) -> Tensor:
    """The channels written down: [n, sum(values), rows, columns], channels last in memory."""
    plane, category, last = _channels(geometry.values, grid.device)
    cells = grid.reshape(len(grid), -1, len(geometry.values)).minimum(last)
    ones = (cells[:, :, plane] == category).to(dtype)
    return ones.view(len(grid), geometry.rows, geometry.columns, -1).permute(0, 3, 1, 2)


@cache
def _channels(values: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Plane and category of each channel, and each plane's last category."""
    plane = [p for p, count in enumerate(values) for _ in range(count)]
    category = [one for count in values for one in range(count)]
    last = torch.tensor([count - 1 for count in values], dtype=torch.uint8, device=device)
    return torch.tensor(plane, device=device), torch.tensor(category, dtype=torch.uint8, device=device), last


def _dense_gradient(grid: Tensor, grad: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The channels are written down again rather than kept: they are 59 times the size of their byte."""
    x = _ones(grid, geometry, grad.dtype)
    down = (geometry.rows - geometry.kernel[0]) // geometry.stride + 1
    dense = grad.view(len(grid), down, -1, geometry.out).permute(0, 3, 1, 2)
    stride = [geometry.stride] * 2
    _, grad_weight, _ = torch.ops.aten.convolution_backward(
        dense, x, weight.to(grad.dtype), None, stride, [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    )
    return grad_weight.float()


def _forward(grid: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry, relu: bool) -> Tensor:
    """float32."""
    library, packed = _library(), _packed(geometry)
    library.hr_multihot_pack(geometry.native, _address(weight), _address(bias), packed.data_ptr())
    y = torch.empty(len(grid), geometry.positions * geometry.out)

    def run(first: int, rows: int) -> None:
        part, out, scratch = grid[first : first + rows], y[first : first + rows], _scratch(geometry)
        library.hr_multihot_forward(
            geometry.native, part.data_ptr(), part.stride(0), packed.data_ptr(), out.data_ptr(), rows, relu,
            scratch.data_ptr(),
        )  # fmt: skip

    _share(len(grid), run)
    return y


def _weight_gradient(grid: Tensor, grad: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    library = _library()

    def run(first: int, rows: int) -> Tensor:
        part, sums, scratch = grid[first : first + rows], _packed(geometry).zero_(), _scratch(geometry)
        library.hr_multihot_backward(
            geometry.native, part.data_ptr(), part.stride(0), grad[first:].data_ptr(), sums.data_ptr(), rows,
            scratch.data_ptr(),
        )  # fmt: skip
        return sums

    total, *others = _share(len(grid), run)
    for sums in others:
        total += sums
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    library.hr_multihot_unpack(geometry.native, total.data_ptr(), grad_weight.data_ptr())
    return grad_weight


def _share(n: int, run: Callable[[int, int], T]) -> list[T]:
    """Calls run(first, rows) for as many runs of n rows as torch has threads, side by side."""
    parts = max(1, min(torch.get_num_threads(), n // LEAST_ROWS_A_THREAD))
    borders = [n * part // parts for part in range(parts + 1)]
    pieces = [(first, last - first) for first, last in pairwise(borders)]
    if parts == 1:
        return [run(*pieces[0])]
    return list(_threads(parts).map(lambda piece: run(*piece), pieces))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "multihot")


def _packed(geometry: Geometry) -> Tensor:
    return _aligned(_library().hr_multihot_packed_floats(geometry.native) * 4).view(torch.float32)


def _scratch(geometry: Geometry) -> Tensor:
    return _aligned(_library().hr_multihot_scratch_bytes(geometry.native))


def _aligned(size: int) -> Tensor:
    """So many bytes that begin where a vector may."""
    memory = torch.empty(size + ALIGNMENT_BYTES, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT_BYTES
    return memory[start : start + size]


def _address(weight: Tensor) -> int:
    if not weight.is_contiguous() or weight.dtype != torch.float32:
        raise ValueError(f"{weight.dtype} weights {tuple(weight.shape)}: contiguous float32 is needed")
    return weight.data_ptr()


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("hr_multihot_packed_floats", size, [pointer]),
        ("hr_multihot_scratch_bytes", size, [pointer]),
        ("hr_multihot_pack", None, [pointer] * 4),
        (
            "hr_multihot_forward",
            None,
            [pointer, pointer, size, pointer, pointer, size, ctypes.c_int32, pointer],
        ),
        ("hr_multihot_backward", None, [pointer, pointer, size, pointer, pointer, size, pointer]),
        ("hr_multihot_unpack", None, [pointer] * 3),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
