"""One shard: a file that blocks are appended to, whole or not at all, and that is sealed when it is full.

While it is written it is called `shard-000123.open`. A kill leaves whole blocks and perhaps a part of one,
which the next writer cuts off. Sealing appends a seek table in zstd's seekable format, an index of all
frames, and renames the file to `shard-000123.zst`; from then on it never changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from consumers.archive.blocks import HEADER, SCHEMA, Damaged, Header, read_frame, read_header

NAME = re.compile(r"shard-(\d{6,12})\.(open|zst)")
SEEK_TABLE = 0x184D2A5E
SEEKABLE = 0x8F92EAB1
ENTRY = struct.Struct("<II")  # compressed and decompressed bytes of one frame
FOOTER = struct.Struct("<IBI")  # frames, descriptor, magic
COPY_BYTES = 1 << 20


def path_of(folder: Path, number: int, ending: str) -> Path:
    return folder / f"shard-{number:06d}.{ending}"


def number_of(path: Path) -> int | None:
    """None for a file that is no shard."""
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def find(folder: Path) -> list[Path]:
    """The shards of an archive, oldest first."""
    return sorted((path for path in folder.glob("shard-*") if number_of(path) is not None), key=_order)


def _order(path: Path) -> tuple[int, str]:
    return number_of(path) or 0, path.name


class Shard:
    """A shard that is being written. Its methods raise OSError where the disk does; what was whole before
    stays."""

    def __init__(self, path: Path, schema: Sequence[bytes]):
        """A new one, that begins with the block `schema`."""
        self._begin(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        try:
            self.append(schema)
        except OSError:
            self.abandon()
            path.unlink()
            raise

    def _begin(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd
        self.bytes = 0
        self.opened = time.monotonic()
        self.blocks = 0
        self._table = bytearray()
        self._sha256 = hashlib.sha256()

    @classmethod
    def recover(cls, path: Path) -> Shard | None:
        """What a killed writer left, cut behind its last whole block; None, and the file is gone, where there
        is none."""
        shard = cls.__new__(cls)
        shard._begin(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        try:
            shard._read_whole_blocks()
            os.ftruncate(shard._fd, shard.bytes)
        except OSError:
            shard.abandon()
            raise
        if shard.blocks > 0:
            return shard
        shard.abandon()
        path.unlink()
        return None

    def _read_whole_blocks(self) -> None:
        with open(self.path, "rb") as stream:
            try:
                while True:
                    header, crc = read_header(stream.read(HEADER.size), self.path.name, self.bytes)
                    frame = read_frame(stream, header, crc, self.path.name, self.bytes)
                    if (header.kind == SCHEMA) != (self.blocks == 0):
                        break
                    self._count(header, [header.pack(crc), frame])
            except Damaged:
                pass  # here the last whole block ends

    @property
    def schema(self) -> bytes:
        """The shard's first block, as it stands in the file."""
        first, _ = read_header(os.pread(self._fd, HEADER.size, 0), self.path.name, 0)
        return os.pread(self._fd, HEADER.size + first.compressed, 0)

    def _count(self, header: Header, parts: Sequence[bytes]) -> None:
        self._table += ENTRY.pack(HEADER.size, 0) + ENTRY.pack(header.compressed, header.raw)
        self.bytes += HEADER.size + header.compressed
        self.blocks += 1
        for part in parts:
            self._sha256.update(part)

    def append(self, parts: Sequence[bytes]) -> None:
        """Appends an encoded block. OSError: it is not there, and nothing of it."""
        header, _ = read_header(parts[0], self.path.name, self.bytes)
        self._write(b"".join(parts))
        self._count(header, parts)

    def _write(self, data: bytes) -> None:
        """At the end of what is whole."""
        view, at = memoryview(data), self.bytes
        try:
            while view:
                done = os.pwrite(self._fd, view, at)
                view, at = view[done:], at + done
        except OSError:
            os.ftruncate(self._fd, self.bytes)
            raise

    def sync(self) -> None:
        os.fsync(self._fd)

    def seal(self) -> tuple[Path, str]:
        """Writes the seek table and gives the file its name for good: (path, sha256 of the file)."""
        index = index_of(self._table)
        self._write(index)
        self.sync()
        self._sha256.update(index)
        self.bytes += len(index)
        sealed = self.path.with_suffix(".zst")
        self.path.rename(sealed)
        sync_folder(sealed.parent)
        os.close(self._fd)  # last, so that who hears of an error has it to close
        return sealed, self._sha256.hexdigest()

    def abandon(self) -> None:
        """Closes the file as it is, for the next writer."""
        os.close(self._fd)


def index_of(table: bytes | bytearray) -> bytes:
    """The seek table of frames with these entries, a skippable frame."""
    body = bytes(table) + FOOTER.pack(len(table) // ENTRY.size, 0, SEEKABLE)
    return ENTRY.pack(SEEK_TABLE, len(body)) + body


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
