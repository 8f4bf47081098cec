"""One block of a shard: a skippable zstd frame that says what follows, then one zstd frame of msgpack.

    header   skippable frame of fixed size: kind, lengths, what is inside, and a crc32 of header and
    frame frame    zstd, its content's length in its head and its checksum behind it: one msgpack map, then
             one msgpack bin for each column that the map names

So `zstd -d` of a whole shard gives a stream of msgpack objects, and a reader that knows the header finds
block after block without decompressing any. Nothing is believed: lengths have bounds, and what a frame holds
must agree with what its header says. A block that does not raises Damaged, with file and offset.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

import msgpack
import zstandard

SKIPPABLE = 0x184D2A53
TAG = b"HRBLOCK1"
SCHEMA, DATA = 0, 1
HEADER = struct.Struct("<II8sIIQQQQqqI")
NAMES = ("kind", "count", "compressed", "raw", "meta", "sequence", "oldest", "newest")

MAX_RAW_BYTES = (
    64 << 20
)  # of one block, decompressed; a writer stays far below where one agent's segment is not more
MAX_COMPRESSED_BYTES = MAX_RAW_BYTES + (MAX_RAW_BYTES >> 7) + 1024  # what zstd can make of it
MAX_META_BYTES = 4 << 20
MAX_RECORDS = 4096
MAX_COLUMNS = 64
BIN32 = b"\xc6"
BIN_BYTES = 5  # before the bytes of a column
LIMITS = {
    "max_str_len": 4096,
    "max_bin_len": MAX_META_BYTES,
    "max_array_len": MAX_META_BYTES,
    "max_map_len": 4096,
    "max_ext_len": 0,
}


class Damaged(Exception):
    """A file that is not what an archive's writer wrote."""

    def __init__(self, file: str, offset: int, why: str):
        super().__init__(f"{file}: byte {offset}: {why}")
        self.file, self.offset, self.why = file, offset, why


@dataclass(frozen=True)
class Header:
    """What stands before a block's frame."""

    kind: int
    """SCHEMA or DATA."""
    count: int
    """Records."""
    compressed: int
    """Bytes of the frame."""
    raw: int
    """Bytes of its content."""
    meta: int
    """Bytes of the map that its content begins with."""
    sequence: int = 0
    """Of the first record's slot."""
    oldest: int = -1
    """Version of the weights that acted; -1: no record."""
    newest: int = -1

    def pack(self, crc: int = 0) -> bytes:
        """The skippable frame."""
        rest = (getattr(self, name) for name in NAMES)
        return HEADER.pack(SKIPPABLE, HEADER.size - 8, TAG, *rest, crc)


@dataclass(frozen=True)
class Block:
    header: Header
    meta: dict[str, Any]
    columns: dict[str, memoryview]
    """Read-only, by name; they share the memory of the decompressed block."""


def encode(
    kind: int, meta: bytes, columns: Sequence[Sequence[Any]], level: int, count: int = 0, *facts: int
) -> list[bytes]:
    """The block in pieces, to be written one behind the other. `meta`: the packed map; `columns`: of each the
    buffers that make it up; `facts`: sequence, oldest and newest, as in Header. ValueError for more than a
    reader would take."""
    parts: list[Any] = [meta]
    for column in columns:
        size = sum(memoryview(buffer).nbytes for buffer in column)
        parts += [BIN32 + size.to_bytes(4, "big"), *column]
    raw = sum(memoryview(part).nbytes for part in parts)
    if raw > MAX_RAW_BYTES or len(meta) > MAX_META_BYTES or count > MAX_RECORDS:
        raise ValueError(f"a block of {raw} bytes, {len(meta)} of them about the rest")
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True).compressobj(size=raw)
    frame = [piece for part in parts if (piece := compressor.compress(part))] + [compressor.flush()]
    made = Header(kind, count, sum(map(len, frame)), raw, len(meta), *facts)
    return [made.pack(_crc([made.pack(), *frame])), *frame]


def _crc(parts: Iterable[bytes]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def read_header(data: bytes, file: str, offset: int) -> tuple[Header, int]:
    """The header that stands in `data`, and the crc it gives. Raises Damaged."""
    if len(data) != HEADER.size:
        _damaged(
            file, offset, f"the file ends within the head of a block ({len(data)} of {HEADER.size} bytes)"
        )
    magic, size, tag, *fields, crc = HEADER.unpack(data)
    if magic != SKIPPABLE or size != HEADER.size - 8 or tag != TAG:
        _damaged(file, offset, "no block begins here")
    header = Header(*fields)
    if header.kind not in (SCHEMA, DATA):
        _damaged(file, offset, f"a block of kind {header.kind}")
    for name, most in (
        ("compressed", MAX_COMPRESSED_BYTES),
        ("raw", MAX_RAW_BYTES),
        ("meta", MAX_META_BYTES),
    ):
        if not 0 < getattr(header, name) <= most:
            _damaged(
                file, offset, f"a block of {getattr(header, name)} {name} bytes; at most {most} are read"
            )
    if header.count > MAX_RECORDS:
        _damaged(file, offset, f"a block of {header.count} records; at most {MAX_RECORDS} are read")
    if header.meta > header.raw:
        _damaged(file, offset, f"{header.meta} of {header.raw} bytes are about the rest")
    return header, crc


def read_frame(stream: BinaryIO, header: Header, crc: int, file: str, offset: int) -> bytes:
    """The frame that follows, checked against the crc but not decompressed. Raises Damaged."""
    frame = stream.read(header.compressed)
    if len(frame) != header.compressed:
        _damaged(file, offset, f"the file ends within a block ({len(frame)} of {header.compressed} bytes)")
    if _crc([header.pack(), frame]) != crc:
        _damaged(file, offset, "the block's crc32 is wrong")
    return frame


def decode(header: Header, frame: bytes, file: str, offset: int) -> Block:
    """What a block holds. Raises Damaged."""
    try:
        said = zstandard.get_frame_parameters(frame)
        # Before anything is allocated by what the frame says of itself.
        if said.content_size != header.raw or not said.has_checksum or said.dict_id:
            _damaged(
                file,
                offset,
                f"a zstd frame of {said.content_size} bytes, not of {header.raw} with a checksum",
            )
        whole = zstandard.ZstdDecompressor(max_window_size=MAX_RAW_BYTES)
        raw = whole.decompress(frame, max_output_size=header.raw, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        _damaged(file, offset, f"zstd: {error}")
    if len(raw) != header.raw:
        _damaged(file, offset, f"{len(raw)} bytes came out of a block of {header.raw}")
    try:
        meta = msgpack.unpackb(raw[: header.meta], strict_map_key=True, **LIMITS)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        _damaged(file, offset, f"msgpack: {type(error).__name__}: {error}")
    if not isinstance(meta, dict):
        _damaged(file, offset, f"a block about a {type(meta).__name__}")
    return Block(header, meta, _columns(meta, memoryview(raw), header.meta, file, offset))


def _columns(meta: dict[str, Any], raw: memoryview, at: int, file: str, offset: int) -> dict[str, memoryview]:
    named = meta.get("columns", [])
    good = isinstance(named, list) and all(isinstance(name, str) for name in named)
    if not good or len(named) > MAX_COLUMNS or len(set(named)) != len(named):
        _damaged(file, offset, "names of columns that are none")
    found = {}
    for name in named:
        size = int.from_bytes(raw[at + 1 : at + BIN_BYTES], "big")
        if len(raw) - at < BIN_BYTES + size or raw[at : at + 1] != BIN32:
            _damaged(file, offset, f"no column {name!r} of {size} bytes")
        found[name] = raw[at + BIN_BYTES : at + BIN_BYTES + size]
        at += BIN_BYTES + size
    if at != len(raw):
        _damaged(file, offset, f"{len(raw) - at} bytes are no column's")
    return found


def _damaged(file: str, offset: int, why: str) -> NoReturn:
    raise Damaged(file, offset, why)
