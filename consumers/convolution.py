"""The convolution of a policy program: no padding, rows of [rows, columns, channels].

With channels last a patch is a few runs of memory, so on a CPU patches are copied side by side and multiplied
as one matrix; elsewhere torch's own convolution reads them in place. docs/details.md has what each costs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def takes_patches(device: torch.device) -> bool:
    """Whether `patches` and a matrix product are the faster way there, or else `dense`."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def dense(x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """x [n, rows * columns * in], of which `shape` is (rows, columns, in), weight [out, in, *kernel] and bias
    [out], all of one dtype, to [n, rows' * columns' * out]."""
    x = x.view(len(x), *shape).permute(0, 3, 1, 2)
    y = F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), bias, stride)
    return y.permute(0, 2, 3, 1).reshape(len(x), -1)


def patches(x: Tensor, shape: tuple[int, ...], kernel: tuple[int, int], stride: int) -> Tensor:
    """x [n, rows * columns * in] to what lies under the kernel at each output position: rows of
    [kernel rows, kernel columns, in], one for each of n * rows' * columns' positions."""
    return _Patches.apply(x.view(len(x), *shape), kernel, stride)


class _Patches(torch.autograd.Function):
    """Its gradient is added up a whole patch or kernel cell at a time, where torch's own goes by elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int], stride: int) -> Tensor:
        ctx.shape, ctx.kernel, ctx.stride = x.shape, kernel, stride
        places = x.unfold(1, kernel[0], stride).unfold(2, kernel[1], stride)
        return places.permute(0, 1, 2, 4, 5, 3).reshape(-1, kernel[0] * kernel[1] * x.shape[3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        n, rows, columns, channels = ctx.shape
        (high, wide), stride = ctx.kernel, ctx.stride
        down, across = (rows - high) // stride + 1, (columns - wide) // stride + 1
        grad = grads[0].view(n, down, across, high, wide, channels)
        total = grad.new_zeros(ctx.shape)
        if down * across <= high * wide:  # the fewer additions
            for y in range(down):
                for x in range(across):
                    place = total[:, y * stride : y * stride + high, x * stride : x * stride + wide]
                    place += grad[:, y, x]
        else:
            for y in range(high):
                for x in range(wide):
                    lines = total[:, y : y + (down - 1) * stride + 1 : stride]
                    place = lines[:, :, x : x + (across - 1) * stride + 1 : stride]
                    place += grad[:, :, :, y, x]
        return total, None, None
