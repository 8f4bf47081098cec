"""Shards written by accident or with bad intent: an error that names file and place, never more than that."""

import random
import struct
import subprocess
import sys
import tracemalloc
import zlib

import msgpack
import numpy as np
import pytest
import zstandard
from archives import Trajectories, all_of, schema_of, write
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.archive import blocks, reading
from consumers.archive.blocks import Damaged
from consumers.archive.episodes import Assembler, Reader

MOST_BYTES = 4 * blocks.MAX_RAW_BYTES


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A small shard, and its (header, content) by block."""
    folder = tmp_path_factory.mktemp("good")
    shard, _ = write(folder, slots=4, blocks=2, agents=2)
    found = [(header, zstandard.decompress(frame)) for _, header, frame in reading.frames_of(shard)]
    return shard.read_bytes(), found


def read(path):
    """All that there is to read, or why not; either within bounds."""
    reader, damage = Reader([path]), None
    episodes = list(reader.episodes())
    try:
        for _, record in reading.records_of(path):
            assert record.columns["obs"].shape[1] > 0
    except Damaged as found:
        damage = found
    assert list(map(str, reader.damage)) == ([] if damage is None else [str(damage)])
    if damage is not None:
        assert str(path) in str(damage)
        assert 0 <= damage.offset <= path.stat().st_size
    return damage, episodes


def block(raw, meta, /, *, kind=blocks.DATA, count=1, level=1, **lies):
    """A block with a right crc, whatever else is wrong with it."""
    frame = lies.pop("frame", None) or zstandard.ZstdCompressor(level=level, write_checksum=True).compress(
        raw
    )
    facts = {"compressed": len(frame), "raw": len(raw), "meta": meta} | lies
    header = blocks.Header(kind, count, **facts)
    return header.pack(zlib.crc32(frame, zlib.crc32(header.pack()))) + frame


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_bytes_changed_at_random_are_found(good, tmp_path_factory, seed, changes):
    data, _ = good
    draw, made = random.Random(seed), bytearray(data)
    for _ in range(changes):
        at = draw.randrange(len(made))
        how = draw.randrange(4)
        if how == 0:
            made[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            del made[at : at + draw.randrange(1, 200)]
        elif how == 2:
            made[at:at] = draw.randbytes(draw.randrange(1, 50))
        else:
            other = draw.randrange(len(made))
            made[at : at + 40] = made[other : other + 40]
    path = tmp_path_factory.getbasetemp() / "changed.zst"
    path.write_bytes(made)
    damage, _ = read(path)
    assert (damage is None) == (made == data)


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_no_shard(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.zst"
    path.write_bytes(data)
    damage, episodes = read(path)
    assert damage is not None
    assert episodes == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_maps_that_say_anything_at_all_with_a_right_crc_are_read_or_refused(good, tmp_path_factory, data):
    """The schema, or what stands about some records: one value is another one, or gone."""
    _, found = good
    made = []
    victim = data.draw(st.integers(0, 1))
    for number, (header, raw) in enumerate(found):
        meta = msgpack.unpackb(raw[: header.meta])
        if number == victim:
            where = meta
            path = data.draw(st.sampled_from(list(meta)))
            if isinstance(where[path], list) and where[path] and data.draw(st.booleans()):
                where, path = where[path], data.draw(st.integers(0, len(where[path]) - 1))
            if data.draw(st.booleans()):
                where[path] = data.draw(VALUES)
            else:
                del where[path]
        packed = msgpack.packb(meta)
        made.append(block(packed + raw[header.meta :], len(packed), kind=header.kind, count=header.count))
    path = tmp_path_factory.getbasetemp() / "lies.open"
    path.write_bytes(b"".join(made))
    read(path)


def frame_without_checksum(raw):
    return zstandard.ZstdCompressor().compress(raw)


def frame_without_length(raw):
    compressor = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True)
    return compressor.compress(raw)


META = msgpack.packb({"columns": []})
COLUMN = msgpack.packb({"columns": ["a"]})
NESTED = b"\x91" * 100_000 + b"\xc0"
LIES = {
    "a length beyond all bounds": lambda: block(META, len(META), raw=2**63),
    "a content larger than it says": lambda: block(META + bytes(50 << 20), len(META), raw=len(META)),
    "a content smaller than it says": lambda: block(META, len(META), raw=1 << 20),
    "a bomb": lambda: block(META + bytes(60 << 20), len(META)),
    "a bomb of more than a block": lambda: block(META, len(META), frame=zstandard.compress(bytes(1 << 28))),
    "a frame without its length": lambda: block(META, len(META), frame=frame_without_length(META)),
    "a frame without its checksum": lambda: block(META, len(META), frame=frame_without_checksum(META)),
    "two frames": lambda: block(META, len(META), frame=zstandard.compress(META) + zstandard.compress(META)),
    "no zstd": lambda: block(META, len(META), frame=bytes(40)),
    "nothing about it": lambda: block(META, 0),
    "more about it than there is": lambda: block(META, len(META) + 1),
    "an array for a map": lambda: block(msgpack.packb([1]), 2),
    "no msgpack": lambda: block(b"\xc1", 1),
    "a map that goes on": lambda: block(META + META, 2 * len(META)),
    "nesting": lambda: block(NESTED, len(NESTED)),
    "many objects": lambda: block(b"\x81\xa1a\xdd\x00\x0f\x00\x00" + bytes(0xF0000), 8 + 0xF0000),
    "an array of two milliards": lambda: block(b"\x81\xa1a\xdd\x7f\xff\xff\xff", 8),
    "an extension": lambda: block(b"\x81\xa1a\xd4\x00\x00", 6),
    "a timestamp": lambda: block(b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", 9),
    "a key that is no text": lambda: block(b"\x81\x01\x01", 3),
    "a column longer than the rest": lambda: block(COLUMN + b"\xc6\xff\xff\xff\xff", len(COLUMN)),
    "kind 7": lambda: block(META, len(META), kind=7),
    "records before the schema": lambda: block(META, len(META)),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused_within_bounds(tmp_path, lie):
    path = tmp_path / "lie.open"
    path.write_bytes(LIES[lie]())
    tracemalloc.start()
    damage, episodes = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert damage is not None
    assert damage.offset == 0
    assert episodes == []
    assert peak < MOST_BYTES


def test_a_schema_of_sizes_that_no_memory_holds_is_refused(good, tmp_path):
    _, found = good
    (header, raw), path = found[0], tmp_path / "large.open"
    for name, value in (("horizon", 2**40), ("agents", 2**62), ("episode_bytes", 2**50), ("groups", 3)):
        packed = msgpack.packb(msgpack.unpackb(raw[: header.meta]) | {name: value})
        path.write_bytes(block(packed, len(packed), kind=blocks.SCHEMA, count=0))
        damage, _ = read(path)
        assert damage is not None
        assert "schema" in damage.why


def test_a_count_of_records_that_is_not_theirs_is_refused(good, tmp_path):
    _, found = good
    schema, (header, raw) = found[0], found[1]
    path = tmp_path / "count.open"
    first = block(schema[1], schema[0].meta, kind=blocks.SCHEMA, count=0)
    path.write_bytes(first + block(raw, header.meta, count=2**31))
    damage, _ = read(path)
    assert damage is not None
    assert damage.offset == len(first)


def test_more_records_than_a_writer_makes_are_refused_before_they_are_made(tmp_path):
    path = tmp_path / "many.open"
    count = blocks.MAX_RECORDS + 1
    path.write_bytes(block(META, len(META), count=count))
    damage, _ = read(path)
    assert damage is not None
    assert f"{count} records" in damage.why
    with pytest.raises(ValueError, match="a block of"):
        blocks.encode(blocks.DATA, META, [], 1, count)


def test_a_second_schema_is_refused(good, tmp_path):
    """Each could bring agents of its own, without end."""
    _, found = good
    path = tmp_path / "twice.open"
    schema = block(found[0][1], found[0][0].meta, kind=blocks.SCHEMA, count=0)
    path.write_bytes(schema + schema)
    damage, _ = read(path)
    assert damage is not None
    assert damage.offset == len(schema)


def test_agents_that_never_step_are_not_remembered(tmp_path):
    """Nor do short parts of episodes cost more than they are reckoned with."""
    shard, _ = write(tmp_path, slots=3, agents=400, end=0.0, horizon=1)
    assembler = Assembler(open_bytes=100_000)
    for schema, record in reading.records_of(shard):
        assert list(assembler.take(schema, record)) == []
        held = [part for one in assembler._open.values() for part in one.parts]
        objects = [array for part in held for array in part.values()]
        assert sum(map(sys.getsizeof, objects)) < 100_000
    record.columns["valid"] = np.zeros_like(record.columns["valid"])
    idle = Assembler()
    assert list(idle.take(schema, record)) == []
    assert not idle._open


def test_nothing_that_reads_archives_can_run_code_of_theirs():
    """No pickle, neither by name nor by way of numpy."""
    code = (
        "import sys, consumers.archive.reading, consumers.archive.episodes, consumers.archive.__main__\n"
        "from pathlib import Path\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.startswith('consumers.archive'):\n"
        "        text = Path(module.__file__).read_text()\n"
        "        assert 'pickle' not in text and 'eval(' not in text and 'np.load' not in text, name\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_recorder_needs_neither_torch_nor_numpy():
    code = "import sys, consumers.recorder; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_no_reader_would_take_no_writer_makes():
    made = Trajectories()
    schema = schema_of(made.plan, all_of(made.plan))
    assert schema.encode(1) == schema.encode(1)
    with pytest.raises(ValueError, match="a block of"):
        blocks.encode(blocks.DATA, META, [[np.zeros(65 << 20, np.uint8)]], 1)
    with pytest.raises(ValueError, match="a block of"):
        blocks.encode(blocks.DATA, bytes(blocks.MAX_META_BYTES + 1), [], 1)
    header = blocks.encode(blocks.DATA, META, [], 1)[0]
    assert len(header) == blocks.HEADER.size == struct.calcsize("<II8sIIQQQQqqI")
