"""The archive's files: what was written is read again, whole or with an error that says where it is not."""

import hashlib
import os
import shutil
import subprocess
import sys

import msgpack
import numpy as np
import pytest
from archives import ROOMY, Trajectories, all_of, block_of, gather, gathering_of, schema_of, store_of, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_outcomes import in_namespace, needs_mount

from consumers.archive import blocks, choice, reading, shards
from consumers.archive.blocks import Damaged
from consumers.archive.episodes import Reader
from consumers.archive.store import Bounds, read_sums
from ringbuf import Plan


def records(path):
    return [record for _, record in reading.records_of(path)]


def same(episode, expected):
    row, sequence, first, steps, final = expected
    return (
        (episode.agent, episode.sequence, episode.length) == (row, sequence, len(steps))
        and episode.obs.tolist() == [obs for obs, _, _ in steps]
        and episode.action[:, 0].tolist() == [action for _, action, _ in steps]
        and episode.reward.tolist() == [reward for _, _, reward in steps]
        and (episode.version % 10 == row // (episode.schema.agents // episode.schema.groups)).all()
        and (episode.version // 10).tolist()[:: max(1, len(steps) - 1)][:2] == [first, sequence][: len(steps)]
        and episode.terminated == (final is None)
        and (final is None or episode.final_obs.tolist() == final)
        and episode.ret == sum(reward for _, _, reward in steps) == episode.statistics[1]
    )


def all_the_same(found, expected):
    found = sorted(found, key=lambda one: (one.sequence, one.agent))  # stable: those of an agent in
    expected = sorted(expected, key=lambda one: (one[1], one[0]))  # one slot stay in order
    return len(found) == len(expected) and all(map(same, found, expected))


# What is chosen


@pytest.mark.parametrize("fraction", [1e-9, 0.01, 0.1, 0.5, 1.0])
def test_a_fraction_of_the_agents_is_chosen_world_by_world_and_always_the_same(fraction):
    plans = [plan_of(ring) for ring in range(4)]
    cuts = choice.choose(plans, fraction, 5)
    chosen = [(cut.ring, agent) for cut in cuts for agent in cut.agents]
    assert len(chosen) == len(set(chosen)) == max(1, int(np.ceil(fraction * 4 * 24)))
    assert cuts == choice.choose(plans, fraction, 5)
    assert fraction == 1.0 or cuts != choice.choose(plans, fraction, 6)
    worlds = [(ring, agent // 8) for ring, agent in chosen]
    partial = [world for world in set(worlds) if worlds.count(world) < 8]
    assert len(partial) <= 1


def plan_of(ring, **changes):
    sizes = {"worlds": 3, "world_agents": 8, "obs_shape": (5,), "horizon": 6} | changes
    return Plan.build(sim="toy", obs_dtype="uint8", choices=(3, 2), has_mask=True, state_width=2,
                      statistics=1, unpacked_step_bytes=5, batch_slots=1, ring=ring, **sizes)  # fmt: skip


@pytest.mark.parametrize("agents", [(0,), (3, 4, 5, 9, 23), tuple(range(24))])
def test_the_pieces_of_a_cut_are_its_columns(agents):
    plan, cut = plan_of(0), choice.Cut(0, agents)
    payload = np.random.default_rng(1).integers(0, 256, plan.payload_bytes, np.uint8)
    pieces = choice.pieces(plan, [cut]).tolist()
    copied = np.concatenate(
        [payload[at : at + size] for at, size in zip(pieces[::2], pieces[1::2], strict=True)]
    )
    at = 0
    for column in choice.columns(plan):
        field, shape, size = (
            plan.fields[column.name],
            column.shape_of(len(agents)),
            column.bytes_of(len(agents)),
        )
        whole = payload[field.offset : field.offset + field.bytes].view(field.dtype).reshape(field.shape)
        if column.name not in choice.WHOLE:
            whole = np.take(whole, agents, axis=0 if column.name in choice.BATCH_FIRST else 1)
        assert whole.shape == shape
        assert copied[at : at + size].tobytes() == np.ascontiguousarray(whole).tobytes(), column.name
        at += size
    assert at == len(copied)
    assert len(agents) < 24 or len(pieces) == 2 * len(choice.columns(plan))


def test_agents_of_large_segments_stand_in_cuts_of_their_own():
    plans = [plan_of(0, obs_shape=(1 << 20,))]
    assert [cut.agents for cut in choice.choose(plans, 1.0, 1)] == [(agent,) for agent in range(24)]


# Writing and reading


@given(
    seed=st.integers(0, 2**32), agents=st.integers(1, 5), horizon=st.integers(1, 6),
    end=st.sampled_from([0.02, 0.3, 0.9]), parts=st.integers(1, 3),
    slots=st.lists(
        st.sampled_from(["kept"] * 3 + ["missed", "death", "new block", "new shard"]), max_size=25
    ),
)  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_episode_without_a_hole_is_found_and_no_other(
    tmp_path_factory, seed, agents, horizon, end, parts, slots
):
    folder = tmp_path_factory.mktemp("archive")
    groups = 2 if agents % 2 == 0 else 1
    made = Trajectories(seed, agents=agents, horizon=horizon, end=end, groups=groups, state_width=groups - 1)
    cuts, missed = all_of(made.plan, parts), set()
    store, gathering = store_of(folder, schema_of(made.plan, cuts)), gathering_of(made.plan)

    def flush():
        if gathering.records:
            assert store.write(gathering.encode(1))
        return gathering_of(made.plan)

    for what in slots:
        if what == "new shard":
            store._close_shard()
        elif what == "death":
            made.die()
        elif what == "new block":
            gathering = flush()
        else:
            slot = made.slot()
            if what == "kept":
                gather(gathering, cuts, slot, made.epoch)
            else:
                missed.add(slot[0])
    flush()
    store.close()
    if not any(folder.glob("*.zst")):
        return
    whole = [one for one in made.episodes if not missed.intersection(range(one[2], one[1] + 1))]
    reader = Reader([folder], strict=True)
    assert all_the_same(list(reader.episodes()), whole)
    for parts in (2, 3):
        again = [one for part in range(parts) for one in Reader([folder]).episodes(part, parts)]
        assert all_the_same(again, whole)


def test_what_a_reader_must_hold_of_episodes_without_an_end_is_bounded(tmp_path):
    shard, made = write(tmp_path, slots=60, agents=2, end=0.0)
    made_of = sum(len(steps) for steps in made.under_way) * 40
    reader = Reader([shard], open_bytes=2000)
    assert list(reader.episodes()) == []
    assert made_of > 4000


def test_a_shard_is_read_by_plain_zstd_and_msgpack(tmp_path):
    if shutil.which("zstd") is None:
        pytest.skip("needs zstd (apt-get install zstd)")
    shard, made = write(tmp_path, blocks=2)
    stream = subprocess.run(["zstd", "-dc", shard], capture_output=True, check=True).stdout
    assert subprocess.run(["zstd", "-t", shard], capture_output=True, check=False).returncode == 0
    unpacker = msgpack.Unpacker(strict_map_key=True)
    unpacker.feed(stream)
    schema, *rest = list(unpacker)
    assert (schema["format"], schema["sim"], schema["statistics"]) == (1, "toy", ["figure_0", "figure_1"])
    columns = 1 + len(choice.columns(made.plan)) + 1
    maps, bins = rest[::columns], [one for at, one in enumerate(rest) if at % columns]
    assert [one["sequence"] for one in maps] == [[0, 1, 2], [3, 4, 5]]
    assert len(bins) == 2 * (columns - 1)
    assert all(isinstance(one, bytes) for one in bins)


def test_the_index_lets_a_reader_of_seekable_files_find_every_frame(tmp_path):
    shard, _ = write(tmp_path)
    data = shard.read_bytes()
    frames, descriptor, magic = shards.FOOTER.unpack(data[-9:])
    assert (descriptor, magic) == (0, 0x8F92EAB1)
    table = data[-9 - 8 * frames : -9]
    assert data[-9 - 8 * frames - 8 : -9 - 8 * frames] == shards.ENTRY.pack(0x184D2A5E, 8 * frames + 9)
    at = 0
    for compressed, raw in shards.ENTRY.iter_unpack(table):
        frame = data[at : at + compressed]
        assert frame[:4] in (b"\x28\xb5\x2f\xfd", blocks.SKIPPABLE.to_bytes(4, "little"))
        assert raw == (0 if frame[0] == 0x53 else len(_decompressed(frame)))
        at += compressed
    assert at == len(data) - 9 - 8 * frames - 8


def _decompressed(frame):
    import zstandard

    return zstandard.ZstdDecompressor().decompress(frame)


# Crashes


def test_a_shard_cut_short_at_any_byte_gives_every_whole_block_and_an_error(tmp_path):
    shard, _ = write(tmp_path, slots=3, blocks=3, agents=1)
    data, cut = shard.read_bytes(), tmp_path / "shard-000007.zst"
    ends = [offset for offset, _ in reading.blocks_of(shard)][1:]
    whole = [record.sequence for record in records(shard)]
    index = len(data) - 9 - 8 * 8 - 8
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        got = []
        with pytest.raises(Damaged) as damaged:
            got.extend(record.sequence for _, record in reading.records_of(cut))
        complete = sum(end <= size for end in [*ends[1:], index])
        assert got == whole[:complete], size
        assert str(cut) in str(damaged.value)
        assert damaged.value.offset <= size


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_a_shard_that_was_being_written_goes_on_behind_its_last_whole_block_wherever_it_was_cut(
    tmp_path, monkeypatch, every
):
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # two thousand times
    shard, made = write(tmp_path / "whole", slots=4, blocks=2, agents=2)
    data = shard.read_bytes()
    cuts = all_of(made.plan)
    starts = [offset for offset, _ in reading.blocks_of(shard)]
    index = len(data) - 9 - 8 * 6 - 8
    more = block_of(made.plan, cuts, [made.slot()])
    borders = {size + near for size in [*starts, index] for near in (-1, 0, 1) if 0 <= size + near <= index}
    for size in sorted({*range(0, index + 1, every), *borders}):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "shard-000000.open").write_bytes(data[:size])
        kept = sum(end <= size for end in [*starts[1:], index])
        assert [record.sequence for record in _open_records(folder)] == list(range(2 * max(0, kept - 1)))
        store = store_of(folder, schema_of(made.plan, cuts))
        assert store.write(more)
        store.close()
        (sealed,) = folder.glob("*.zst")
        assert [record.sequence for record in records(sealed)] == [*range(2 * max(0, kept - 1)), 4], size
        assert read_sums(folder) == {sealed.name: hashlib.sha256(sealed.read_bytes()).hexdigest()}


def _open_records(folder):
    """What a reader finds while the shard is written: nothing of what is not whole, and no error once the
    schema is there."""
    try:
        return records(folder / "shard-000000.open")
    except Damaged:
        return []


@pytest.mark.parametrize("there", [10, 100])
def test_a_block_that_is_written_while_it_is_read_is_no_damage(tmp_path, monkeypatch, there):
    shard, _ = write(tmp_path, slots=2, blocks=2)
    *_, (offset, header, _) = reading.frames_of(shard)
    data, growing = shard.read_bytes(), shard.with_suffix(".open")
    end = offset + blocks.HEADER.size + header.compressed
    growing.write_bytes(data[: offset + there])

    def late(function):
        def read(*arguments):
            try:
                return function(*arguments)
            except Damaged:
                growing.write_bytes(data[:end])
                raise

        return read

    for name in ("read_header", "read_frame"):
        monkeypatch.setattr(reading, name, late(getattr(reading, name)))
    assert len(list(reading.frames_of(growing))) == 2  # the schema, and the first
    assert len(list(reading.frames_of(growing))) == 3


def test_another_schema_begins_another_shard(tmp_path):
    folder = tmp_path / "archive"
    made = Trajectories()
    one, two = all_of(made.plan), all_of(made.plan, 2)
    for cuts in (one, one, two):
        store = store_of(folder, schema_of(made.plan, cuts))
        assert store.write(block_of(made.plan, cuts, [made.slot()]))
        store._shard.abandon()  # a kill
    names = sorted(path.name for path in folder.glob("shard-*"))
    assert names == ["shard-000000.zst", "shard-000001.open"]
    assert [record.sequence for record in records(folder / names[0])] == [0, 1]
    assert [record.sequence for record in records(folder / names[1])] == [2, 2]


# Bounds


def test_the_oldest_shards_go_when_all_outgrow_their_bound(tmp_path):
    made = Trajectories()
    cuts = all_of(made.plan)
    size = sum(map(len, block_of(made.plan, cuts, [made.slot()])))
    schema = schema_of(made.plan, cuts)
    bounds = Bounds(4 * size, 1e9, 20 * size, None, 0, 1e9)
    store = store_of(tmp_path, schema, bounds)
    for _ in range(60):
        assert store.write(block_of(made.plan, cuts, [made.slot()]))
        on_disk = sum(path.stat().st_size for path in tmp_path.glob("shard-*"))
        assert store.bytes == on_disk <= 20 * size
    store.close()
    left = [record.sequence for path in shards.find(tmp_path) for record in records(path)]
    assert left == list(range(left[0], 61))
    assert store.deleted > 0
    assert sorted(read_sums(tmp_path)) == [path.name for path in shards.find(tmp_path)]


def test_shards_go_by_age_and_are_sealed_by_age(tmp_path):
    made = Trajectories()
    cuts = all_of(made.plan)
    store = store_of(tmp_path, schema_of(made.plan, cuts), Bounds(1 << 30, 1e-9, 1 << 40, 3600.0, 0, 1e9))
    for number in range(3):
        assert store.write(block_of(made.plan, cuts, [made.slot()]))
        store.tick()
        assert len(list(tmp_path.glob("*.zst"))) == number + 1
    os.utime(tmp_path / "shard-000000.zst", (0, 0))
    store_of(tmp_path, schema_of(made.plan, cuts), Bounds(1 << 30, 1e9, 1 << 40, 3600.0, 0, 1e9))
    assert sorted(path.name for path in tmp_path.glob("*.zst")) == ["shard-000001.zst", "shard-000002.zst"]
    assert set(read_sums(tmp_path)) == {"shard-000001.zst", "shard-000002.zst"}


# Trouble with the disk


def test_where_the_disk_has_too_little_room_nothing_is_written_until_it_has(tmp_path, monkeypatch):
    made, told = Trajectories(), []
    cuts = all_of(made.plan)
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    store = store_of(
        tmp_path, schema_of(made.plan, cuts), Bounds(1 << 30, 1e9, 1 << 40, None, 2 * free, 1e9), told
    )
    assert not store.write(block_of(made.plan, cuts, [made.slot()]))
    assert not store.write(block_of(made.plan, cuts, [made.slot()]))
    assert store.halted
    assert [event for event, _ in told] == ["archive halted"]
    assert "archive.free_bytes" in told[0][1]["message"]
    store.bounds, store._retry = ROOMY, 0.0
    assert store.write(block_of(made.plan, cuts, [made.slot()]))
    assert not store.halted
    assert [event for event, _ in told] == ["archive halted", "archive goes on"]
    store.close()
    assert [record.sequence for record in records(next(tmp_path.glob("*.zst")))] == [2]


@pytest.mark.parametrize("error", [28, 5], ids=["full", "broken"])
@pytest.mark.parametrize("written", [0, 1, 70, 200])
def test_a_block_that_cannot_be_written_whole_is_not_there_at_all(tmp_path, monkeypatch, written, error):
    made, told = Trajectories(), []
    cuts = all_of(made.plan)
    store = store_of(tmp_path, schema_of(made.plan, cuts), told=told)
    assert store.write(block_of(made.plan, cuts, [made.slot()]))
    pwrite = os.pwrite
    left = [written]

    def fails(fd, data, at):
        if left[0] == 0:
            raise OSError(error, os.strerror(error))
        done, left[0] = pwrite(fd, bytes(data)[: left[0]], at), 0
        return done

    monkeypatch.setattr(os, "pwrite", fails)
    assert not store.write(block_of(made.plan, cuts, [made.slot()]))
    assert (store.halted, store.errors) == (True, 1)
    assert [event for event, _ in told] == ["archive halted"]
    monkeypatch.setattr(os, "pwrite", pwrite)
    store._retry = 0.0
    assert store.write(block_of(made.plan, cuts, [made.slot()]))
    store.close()
    left = [record.sequence for path in shards.find(tmp_path) for record in records(path)]
    assert left == [0, 2]


@pytest.mark.parametrize("fails", ["rename", "write"])
def test_a_shard_that_could_not_be_sealed_is_sealed_once_it_can(tmp_path, monkeypatch, fails):
    """And its descriptor is closed once: a second time it could be somebody else's."""
    made, told, closed = Trajectories(), [], []
    cuts = all_of(made.plan)
    store = store_of(tmp_path, schema_of(made.plan, cuts), told=told)
    assert store.write(block_of(made.plan, cuts, [made.slot()]))
    fd, close = store._shard._fd, os.close

    def refuse(*_):
        raise OSError(28, os.strerror(28))

    def counted(one):
        closed.append(one)
        close(one)

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", counted)
        patch.setattr(*((type(tmp_path), "rename") if fails == "rename" else (os, "pwrite")), refuse)
        store._does(store._close_shard)
    assert (store.halted, store.errors) == (True, 1)
    assert closed.count(fd) == 1
    store._retry = 0.0
    assert store.write(block_of(made.plan, cuts, [made.slot()]))
    assert store.shards == 1
    store.close()
    (shard,) = shards.find(tmp_path)
    assert shard.suffix == ".zst"
    assert [record.sequence for record in records(shard)] == [0, 1]


def test_a_folder_that_is_lost_is_made_again(tmp_path):
    made, folder = Trajectories(), tmp_path / "archive"
    cuts = all_of(made.plan)
    bounds = Bounds(1, 1e9, 1 << 40, None, 0, 1e9)  # a shard a block
    store = store_of(folder, schema_of(made.plan, cuts), bounds)
    assert store.write(block_of(made.plan, cuts, [made.slot()]))
    shutil.rmtree(folder)
    for _ in range(3):
        store.write(block_of(made.plan, cuts, [made.slot()]))
        store._retry = 0.0
    store.close()
    assert [record.sequence for path in shards.find(folder) for record in records(path)][-1] == 3


FULL = """
import sys
sys.path[:0] = sys.argv[2:]
from dataclasses import replace
from pathlib import Path
from archives import ROOMY, Trajectories, all_of, block_of, schema_of, store_of
folder, told, made = Path(sys.argv[1]), [], Trajectories()
cuts = all_of(made.plan)
(folder / "ballast").write_bytes(bytes(50_000))
bounds = replace(ROOMY, free_bytes=-1 << 40)  # nothing is asked beforehand
store = store_of(folder / "archive", schema_of(made.plan, cuts), bounds, told)
kept = []

def write(times):
    for _ in range(times):
        slot = made.slot()
        if store.write(block_of(made.plan, cuts, [slot])):
            kept.append(slot[0])

write(1000)
assert store.halted and len(kept) < 1000
(folder / "ballast").unlink()
store._retry = 0.0
write(20)
assert kept[-1] == 1019
store.close()
from consumers.archive import reading, shards
read = [record.sequence for path in shards.find(folder / "archive") for _, record in reading.records_of(path)]
assert read == kept, (read, kept)
assert [event for event, _ in told] == ["archive halted", "archive goes on"], told
assert "no space left" in told[0][1]["message"]
print("whole")
"""


@needs_mount
def test_a_disk_that_is_really_full_takes_no_block_and_breaks_none(tmp_path):
    prefix = in_namespace(f"mount -t tmpfs -o size=200k tmpfs {tmp_path}")
    command = [*prefix, sys.executable, "-c", FULL, tmp_path, *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "whole\n", done.stderr


def test_a_shard_that_is_sealed_or_deleted_while_others_are_read_stops_nobody(tmp_path):
    made = Trajectories(end=0.5)
    cuts = all_of(made.plan)
    bounds = Bounds(1, 1e9, 1 << 40, None, 0, 1e9)  # a shard a block
    store = store_of(tmp_path, schema_of(made.plan, cuts), bounds)
    for _ in range(4):
        assert store.write(block_of(made.plan, cuts, [made.slot() for _ in range(3)]))
    reader = Reader([tmp_path], strict=True)
    assert [path.suffix for path in reader.shards] == [".zst", ".zst", ".zst", ".open"]
    store.close()
    reader.shards[1].unlink()
    found = [one.sequence for one in reader.episodes()]
    assert {0, 11} <= set(found)
    assert not {3, 4, 5} & set(found)
