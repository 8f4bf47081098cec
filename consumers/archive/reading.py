"""Shards read again: block by block, and each block's records as numpy arrays that share its memory.

A shard may be cut short, damaged or written by somebody with bad intent. What is whole before the first
damage is given out, then Damaged is raised with file and offset; memory stays within some times
blocks.MAX_RAW_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from consumers.archive import shards
from consumers.archive.blocks import HEADER, SCHEMA, Block, Damaged, Header, decode, read_frame, read_header
from consumers.archive.schema import EPISODES, Schema
from consumers.archive.shards import ENTRY, SEEK_TABLE

MARKS = ("cut", "sequence", "epoch", "commit_unix_ns", "oldest_version", "newest_version", "episodes")


@dataclass(frozen=True)
class Record:
    """The columns of one cut of one slot; T steps of b agents."""

    cut: int
    """Which of the schema's."""
    sequence: int
    """Of the slot within its ring."""
    epoch: int
    """Deaths of the ring's producer before it: worlds begin anew with each."""
    commit_unix_ns: int
    oldest_version: int
    newest_version: int
    columns: dict[str, NDArray]
    """[T, b, ...] each, "obs" with T+1 rows, "state0" [b, S], "version" [T, groups]."""
    episodes: NDArray
    """Of episodes that ended here: version, agent (row of the ring), length, ret, statistics."""


def find(paths: Iterable[Path]) -> list[Path]:
    """The shards that are meant: files, and those of folders (an archive, or a run's directory)."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = shards.find(path) or shards.find(path / "archive")
            if not inside:
                raise FileNotFoundError(f"{path}: no shards")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"{path}: no such file")
    return list(dict.fromkeys(found))  # an archive may be named beside its run


def now_at(path: Path) -> Path:
    """Where a shard is that may have been sealed since it was found."""
    return path.with_suffix(".zst") if path.suffix == ".open" and not path.exists() else path


def frames_of(path: Path) -> Iterator[tuple[int, Header, bytes]]:
    """(offset, header, compressed frame) of each block, in order. Raises Damaged at the first that is not
    whole; a shard that is still being written just ends there."""
    name, sealed = str(path), path.suffix != ".open"
    offset, table = 0, bytearray()
    with open(path, "rb") as stream:
        while head := stream.read(HEADER.size):
            if head[:4] == SEEK_TABLE.to_bytes(4, "little"):
                stream.seek(offset)
                _check_table(stream, table, offset, name)
                return
            end = offset + HEADER.size
            try:
                header, crc = read_header(head, name, offset)
                end += header.compressed
                frame = read_frame(stream, header, crc, name, offset)
            except Damaged:
                if not sealed and (stream.tell() < end or not stream.read(1)):  # it may have grown since
                    return
                raise
            yield offset, header, frame
            offset += HEADER.size + header.compressed
            table += ENTRY.pack(HEADER.size, 0) + ENTRY.pack(header.compressed, header.raw)
    if sealed:
        raise Damaged(name, offset, "the file ends without its index: it was cut short")


def blocks_of(path: Path) -> Iterator[tuple[int, Block]]:
    """(offset, block) of each, in order. Raises Damaged as frames_of() does."""
    for offset, header, frame in frames_of(path):
        yield offset, decode(header, frame, str(path), offset)


def _check_table(stream: BinaryIO, table: bytearray, offset: int, name: str) -> None:
    """The index: of these frames, and the file's end."""
    wanted = shards.index_of(table)
    if stream.read(len(wanted) + 1) != wanted:
        raise Damaged(name, offset, "the index is not that of the frames before it, or not the file's end")


def records_of(path: Path) -> Iterator[tuple[Schema, Record]]:
    """Of one shard, with its schema. Raises Damaged."""
    schema, episode = None, np.dtype([])
    for offset, block in blocks_of(path):
        if block.header.kind == SCHEMA:
            if schema is not None:
                raise Damaged(str(path), offset, "a second schema")
            schema = Schema.read(block, str(path), offset)
            episode = _episode(schema)
        elif schema is None:
            raise Damaged(str(path), offset, "a shard that does not begin with its schema")
        else:
            try:
                records = list(_records(block, schema, episode))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                why = f"record: {type(error).__name__}: {error}"
                raise Damaged(str(path), offset, why) from None
            for record in records:
                yield schema, record


def _episode(schema: Schema) -> np.dtype:
    return np.dtype({
        "names": ["version", "agent", "length", "ret", "statistics"],
        "formats": ["<i8", "<i4", "<i4", "<f4", ("<f4", (len(schema.statistics),))],
        "offsets": [0, 8, 12, 16, 20],
        "itemsize": schema.episode_bytes,
    })  # fmt: skip


def _records(block: Block, schema: Schema, episode: np.dtype) -> Iterator[Record]:
    count, meta = block.header.count, block.meta
    marks = []
    for name in MARKS:
        values = meta[name]
        if (
            not isinstance(values, list)
            or len(values) != count
            or not all(type(one) is int for one in values)
        ):
            raise ValueError(f"{name} is not {count} numbers")
        marks.append(values)
    names = [column.name for column in schema.columns]
    if list(block.columns) != [*names, EPISODES]:
        raise ValueError(f"columns {list(block.columns)}")
    at = dict.fromkeys(block.columns, 0)
    for cut, sequence, epoch, commit_unix_ns, oldest, newest, ended in zip(*marks, strict=True):
        if not 0 <= cut < len(schema.cuts) or ended < 0:
            raise ValueError(f"{ended} episodes of cut {cut}")
        columns = {}
        for column in schema.columns:
            agents = len(schema.cuts[cut].agents)
            taken, size = at[column.name], column.bytes_of(agents)
            data = block.columns[column.name][taken : taken + size]
            columns[column.name] = np.frombuffer(data, np.dtype(column.dtype)).reshape(
                column.shape_of(agents)
            )
            at[column.name] += size
        data = block.columns[EPISODES][at[EPISODES] : at[EPISODES] + ended * episode.itemsize]
        at[EPISODES] += ended * episode.itemsize
        if len(data) != ended * episode.itemsize:
            raise ValueError(f"{len(data)} bytes of {ended} episodes")
        told = np.frombuffer(data, episode)
        yield Record(cut, sequence, epoch, commit_unix_ns, oldest, newest, columns, told)
    left = {
        name: len(block.columns[name]) - end for name, end in at.items() if len(block.columns[name]) != end
    }
    if left:
        raise ValueError(f"bytes of no record: {left}")
