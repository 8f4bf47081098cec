"""The hot snapshot: all that a learner knows beside the weights, as one run of bytes.

    magic 8 | layout u32 | crc32 u32 of what follows | bytes of the tree u64 | tree, msgpack | tensors, raw

The tree is made of None, booleans, numbers, strings, bytes, lists, tuples and dicts; a tensor in it names its
dtype, its shape and where its bytes lie among the raw ones. Nothing in it is ever executed, and whatever was
damaged is refused.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import msgpack
import torch
from torch import Tensor

MAGIC = b"HRSNAP\r\n"
LAYOUT = 1
HEAD = struct.Struct("<8sIIQ")  # magic, layout, crc, bytes of the tree
CHECKED = 16  # the crc is that of everything from here on
ALIGN = 64
TENSOR, TUPLE = 1, 2  # msgpack's extension types
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
WIDTH = {name: torch.empty(0, dtype=dtype).element_size() for name, dtype in DTYPES.items()}


class SnapshotError(Exception):
    """A snapshot cannot be made or read. The message is one line."""


class Packer:
    """Packs one state after the other into the same memory."""

    def __init__(self, room_bytes: int):
        self.room_bytes = room_bytes
        self._buffer = bytearray()

    def pack(self, state: Any) -> memoryview:
        """The state's bytes, which the next call overwrites. Raises SnapshotError where they do not fit the
        room or hold what no snapshot can."""
        tensors: list[Tensor] = []
        end = 0

        def describe(value: Any) -> msgpack.ExtType:
            nonlocal end
            if isinstance(value, tuple):
                return msgpack.ExtType(TUPLE, pack(list(value)))
            if not isinstance(value, Tensor):
                raise SnapshotError(f"a snapshot cannot hold {type(value).__name__}")
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype not in DTYPES:
                raise SnapshotError(f"a snapshot cannot hold tensors of {dtype}")
            start = _aligned(end)
            end = start + value.numel() * value.element_size()
            tensors.append(value)
            return msgpack.ExtType(TENSOR, pack([dtype, list(value.shape), start]))

        def pack(value: Any) -> bytes:
            # Strict, or tuples would come back as lists.
            return bytes(msgpack.packb(value, default=describe, strict_types=True))

        try:
            tree = pack(state)
        except (ValueError, OverflowError, TypeError) as error:
            raise SnapshotError(f"a snapshot cannot hold this state: {error}") from error
        data = _aligned(HEAD.size + len(tree))
        total = data + end
        if total > self.room_bytes:
            raise SnapshotError(f"a snapshot of {total} bytes does not fit its {self.room_bytes}")
        if len(self._buffer) < total:
            self._buffer = bytearray(total)
        whole = memoryview(self._buffer)[:total]
        whole[HEAD.size : HEAD.size + len(tree)] = tree
        raw = torch.frombuffer(self._buffer, dtype=torch.uint8)
        at, edge = HEAD.size + len(tree), data
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            edge = _aligned(edge)
            raw[at:edge] = 0
            if size:
                raw[edge : edge + size].view(tensor.dtype).copy_(tensor.detach().reshape(-1))
            at = edge = edge + size
        raw[at:total] = 0
        HEAD.pack_into(self._buffer, 0, MAGIC, LAYOUT, 0, len(tree))
        struct.pack_into("<I", self._buffer, 12, zlib.crc32(whole[CHECKED:]))
        return whole


def unpack(data: bytes | memoryview) -> Any:
    """The state of which `pack` made these bytes; tensors are on the CPU and nobody else's. Raises
    SnapshotError where a bit is not as it was written."""
    whole = memoryview(data)
    if len(whole) < HEAD.size:
        raise SnapshotError(f"a snapshot of {len(whole)} bytes is cut short")
    magic, layout, crc, tree_bytes = HEAD.unpack_from(whole)
    if magic != MAGIC or layout != LAYOUT:
        raise SnapshotError("not a snapshot, or one of another layout")
    if zlib.crc32(whole[CHECKED:]) != crc:
        raise SnapshotError("a damaged snapshot: its checksum is not the one noted in it")
    begin = _aligned(HEAD.size + tree_bytes)
    if begin > len(whole):
        raise SnapshotError("a damaged snapshot: its tree does not fit it")
    raw = whole[begin:]

    def revive(code: int, content: bytes) -> Any:
        value = read(content)
        if code == TUPLE:
            return tuple(value)
        if code != TENSOR:
            raise SnapshotError(f"a damaged snapshot: it holds something of kind {code}")
        dtype, shape, start = value
        size = math.prod(shape) * WIDTH[dtype]
        if min([start, *shape]) < 0 or start + size > len(raw):
            raise SnapshotError(f"a damaged snapshot: a tensor of {shape} does not fit it")
        if not size:
            return torch.empty(shape, dtype=DTYPES[dtype])
        bytes_ = bytearray(raw[start : start + size])
        return torch.frombuffer(bytes_, dtype=DTYPES[dtype]).reshape(shape)

    def read(content: bytes | memoryview) -> Any:
        return msgpack.unpackb(content, ext_hook=revive, strict_map_key=False)

    try:
        return read(whole[HEAD.size : HEAD.size + tree_bytes])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise SnapshotError(f"a damaged snapshot: {type(error).__name__}: {error}") from error


def _aligned(at: int) -> int:
    return (at + ALIGN - 1) // ALIGN * ALIGN
