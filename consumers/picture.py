"""Pictures as PNG: small enough to send many a second, and drawn by every browser."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

MOST_PIXELS = 1 << 20
COMPRESSION = 1  # of zlib: the quickest; a simulator's flat colours compress well in any case
RGB, EIGHT_BITS = 2, 8


def png(rgb: NDArray[np.uint8]) -> bytes:
    """Of [height, width, 3]; one of more than MOST_PIXELS is thinned out to every second, third, ... pixel of
    both directions."""
    thin = math.ceil(math.sqrt(rgb.shape[0] * rgb.shape[1] / MOST_PIXELS))
    rgb = rgb[::thin, ::thin] if thin > 1 else rgb
    height, width, _ = rgb.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with the number of its filter: none
    rows[:, 1:] = rgb.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, EIGHT_BITS, RGB, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), COMPRESSION)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
