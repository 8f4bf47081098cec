"""What the weights channel promises: complete versions, in order, and nobody waits for anybody."""

import mmap
import struct

import numpy as np
import pytest
from rings import child

from ringbuf import RingError, Weights, segments

WRITER = """
import sys
import numpy as np
from ringbuf import Weights
channel = Weights.attach(int(sys.argv[1]), "writer")
weights = np.empty(channel.count, np.float32)
for version in range(int(sys.argv[2])):
    weights[:] = version
    channel.publish(version, weights, snapshot=version.to_bytes(8, "little") * 8,
                    consumed=[(0, version, version), (1, version + 1, 0)], floor=version // 2)
"""


def test_readers_never_get_a_torn_version_from_a_writer_at_full_speed(rig):
    run = rig(weights=50_000)
    reader, versions = run.reader(), 4000
    writer = child(WRITER, [run.channel.fd], versions)
    try:
        newest, reads = -1, 0
        while newest < versions - 1:
            assert writer.poll() in (None, 0)
            if reader.published is None:
                continue
            version, weights = reader.read()
            assert weights.min() == weights.max() == version
            snapshot = reader.snapshot()
            assert len(set(struct.unpack("<8Q", snapshot))) == 1
            (_, sequence, epoch), (_, following, _) = reader.consumed_list()
            assert sequence == epoch == following - 1
            assert version >= newest
            newest, reads = version, reads + 1
        assert reads > 0
        assert writer.wait(30) == 0
        assert reader.floor == (versions - 1) // 2
    finally:
        writer.kill()
        writer.communicate()


def test_a_copy_counts_only_if_no_later_version_had_begun_to_overwrite_it(rig):
    run = rig()
    writer, reader = run.writer(), run.reader()
    out = np.empty(8, np.float32)
    for version in range(4):
        writer.publish(version, np.full(8, version, np.float32))
    assert [reader.copy_into(version, out) for version in range(4)] == [False, True, True, True]
    raw = mmap.mmap(run.channel.fd, 0)
    words = struct.unpack_from("<Q", raw, 256 + 32)[0]
    assert struct.unpack_from("<QQ", raw, words) == (3, 3)
    struct.pack_into("<Q", raw, words, 4)  # version 4 begins to overwrite version 1
    assert [reader.copy_into(version, out) for version in range(1, 4)] == [False, True, True]
    with pytest.raises(RingError, match="overwritten"):
        reader.read(1)


def test_nothing_can_be_read_before_version_0(rig):
    run = rig()
    reader = run.reader()
    assert reader.published is None
    for read in (reader.read, reader.snapshot, reader.consumed_list, lambda: reader.floor):
        with pytest.raises(RingError, match="no version"):
            read()
    run.writer().publish(0, np.zeros(8, np.float32))
    assert reader.read(0)[0] == 0
    with pytest.raises(RingError, match="not there yet"):
        reader.read(1)


def test_a_writer_that_died_in_the_middle_takes_its_version_up_again(rig):
    run = rig()
    run.writer().publish(0, np.zeros(8, np.float32), snapshot=b"state 0", consumed=[(0, 5, 1)], floor=3)
    raw = mmap.mmap(run.channel.fd, 0)
    words = struct.unpack_from("<Q", raw, 256 + 32)[0]
    struct.pack_into("<Q", raw, words, 1)  # began version 1, then was killed
    successor = run.writer()
    assert successor.published == 0
    assert (successor.snapshot(), successor.consumed_list(), successor.floor) == (b"state 0", [(0, 5, 1)], 3)
    assert successor.read()[0] == 0
    successor.publish(1, np.ones(8, np.float32))
    assert run.reader().read()[1].tolist() == [1] * 8


def test_the_supervisor_sees_versions_and_lists_without_mapping_the_weights(rig):
    run = rig()
    run.writer().publish(0, np.zeros(8, np.float32), consumed=[(2, 3, 4)])
    assert run.channel.published == 0
    assert run.channel.consumed_list() == [(2, 3, 4)]
    for refused in (run.channel.read, run.channel.snapshot):
        with pytest.raises(RingError, match="does not map"):
            refused()


def test_the_program_and_the_sizes_stand_in_the_header(rig):
    reader = rig().reader()
    assert reader.program == b"program"
    assert (reader.count, reader.buffers, reader.snapshot_bytes, reader.list_entries) == (8, 3, 100, 16)


@pytest.mark.parametrize(("arguments", "message"), [
    ((np.zeros(7, np.float32),), "8 float32"), ((np.zeros(8, np.float64),), "float32"),
    ((np.zeros(8, np.int32),), "float32"), ((np.zeros((8, 2), np.float32)[:, 0],), "contiguous")])
def test_weights_of_another_kind_are_refused(rig, arguments, message):
    writer = rig().writer()
    with pytest.raises((ValueError, BufferError), match=message):
        writer.publish(0, *arguments)
    assert writer.published is None


def test_versions_only_rise_and_what_has_no_room_is_refused(rig):
    writer, weights = rig().writer(), np.zeros(8, np.float32)
    writer.publish(4, weights)
    for version in (4, 3, 2**63):
        with pytest.raises(ValueError, match="4 is published"):
            writer.publish(version, weights)
    with pytest.raises(ValueError, match="room"):
        writer.publish(5, weights, snapshot=b"x" * 101)
    with pytest.raises(ValueError, match="room"):
        writer.publish(5, weights, consumed=[(0, 0, 0)] * 17)
    with pytest.raises(TypeError):
        writer.publish(5, weights, consumed=[(0, 0)])
    assert writer.published == 4


def test_a_version_that_was_left_out_cannot_be_read(rig):
    run = rig()
    writer, reader, out = run.writer(), run.reader(), np.empty(8, np.float32)
    writer.publish(0, np.zeros(8, np.float32))
    writer.publish(5, np.ones(8, np.float32))
    assert [reader.copy_into(version, out) for version in range(6)] == [False] * 5 + [True]


def test_only_the_writer_publishes(rig):
    with pytest.raises(RingError, match="writer"):
        rig().reader().publish(0, np.zeros(8, np.float32))


def test_a_version_is_held_until_as_many_later_ones_began_as_there_are_buffers(rig):
    run = rig()
    writer, reader = run.writer(), run.reader()
    for version in range(10):
        writer.publish(version, np.full(8, version, np.float32))
        for held in range(max(0, version - 2), version + 1):
            assert reader.read(held)[1][0] == held


def test_fewer_than_three_buffers_are_refused():
    with pytest.raises(RingError, match="3"):
        segments.weights_bytes(8, 2, 0, 0, 1)


def test_a_closed_channel_says_so(rig):
    reader = Weights.attach(rig().channel.fd)
    reader.close()
    with pytest.raises(RingError, match="closed"):
        reader.read()
