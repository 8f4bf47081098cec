"""The recorder at work: what it keeps is what was acted, whatever kills it, and nobody notices it."""

import json
import signal
import time

import pytest
from recording import RUN, Recording

from config import ConfigError
from consumers.archive import reading
from consumers.archive.episodes import Reader
from producers.prepare import Layout, prepare

WHOLE = (
    "archive.enabled=true", "archive.fraction=1", "archive.free_bytes=1MB", "archive.sync_seconds=0.2",
)  # fmt: skip
QUICK = ("supervisor.backoff_seconds=0.01", "supervisor.backoff_max_seconds=0.1")


@pytest.fixture
def record(tmp_path):
    """Makes Recordings, of which nothing is left afterwards."""
    made = []

    def make(*overrides):
        made.append(Recording(tmp_path / f"{len(made)}", *overrides))
        return made[-1]

    yield make
    for one in made:
        one.close()


def slots_of(path):
    """{(run id, ring, sequence): valid steps} of an archive; a slot must be there once."""
    found = {}
    for shard in reading.find([path]):
        for schema, record in reading.records_of(shard):
            key = schema.run_id, schema.cuts[record.cut].ring, record.sequence
            assert key not in found
            found[key] = int(record.columns["valid"].sum())
    return found


def recorded(run):
    """Counters of a whole run's recorder, which live as long as its memory."""
    control, _ = run.attach()
    row = next(index for index in range(20) if control.process(index).role == "recorder")
    return control.counters(row)


def test_every_step_and_every_episode_of_all_agents_is_in_the_archive_and_no_other(record):
    run = record()
    run.record()
    run.learn(14)
    assert run.stop() == 0
    found = slots_of(run.folder)
    assert {(ring, sequence) for _, ring, sequence in found} == {(r, s) for r in range(2) for s in range(14)}
    acted = [run.control.counters(index) for index in run.table.producers]
    assert sum(found.values()) == sum(one["steps"] for one in acted) == run.counts["steps"]
    reader = Reader([run.folder], strict=True)
    episodes = list(reader.episodes())
    assert len(episodes) == sum(one["episodes"] for one in acted) > 0
    assert reader.broken == 0
    for episode in episodes:
        assert episode.reward.sum() == episode.ret == episode.length == episode.statistics[0]
        assert (episode.terminated, episode.final_obs is None) in ((True, True), (False, False))
        assert set(episode.version.tolist()) == {0}
    counts = run.counts
    (shard,) = (run.folder / "archive").glob("shard-*")
    assert shard.suffix == ".zst"
    assert (counts["slots_missed"], counts["dropped_blocks"], counts["errors"], counts["shards"]) == (
        0,
        0,
        0,
        1,
    )
    assert counts["bytes"] == shard.stat().st_size
    assert counts["raw_bytes"] > counts["written_bytes"] > 0


def test_a_killed_recorder_loses_what_was_not_written_and_the_next_goes_on_behind_it(record):
    run = record()
    run.record()
    run.learn(8)
    run.until(lambda: run.counts["raw_bytes"] > 0)
    run.kill("recorder")
    run.learn(8, wait=False)
    run.record()
    assert run.looked == 2 * 16  # what nobody looked at is missed
    run.learn(8)
    assert run.stop() == 0
    found, counts = slots_of(run.folder), run.counts
    assert counts["slots_copied"] + counts["slots_missed"] == 2 * 24
    assert counts["slots_missed"] >= 2 * 8
    assert {(ring, sequence) for _, ring, sequence in found} >= {
        (r, s) for r in range(2) for s in range(16, 24)
    }
    assert len(found) <= counts["slots_copied"]
    assert [path.name for path in reading.find([run.folder])] == ["shard-000000.zst"]
    for episode in Reader([run.folder], strict=True).episodes():
        assert episode.reward.sum() == episode.ret


def test_nobody_waits_for_a_recorder_that_stands_still(record):
    run = record()
    run.record()
    run.learn(4)
    run.kill("recorder", number=signal.SIGSTOP)
    run.learn(40, wait=False)
    run.kill("recorder", number=signal.SIGCONT)
    run.until(lambda: run.looked == 2 * 44)
    assert run.stop() == 0
    counts = run.counts
    assert counts["slots_missed"] >= 2 * 36
    assert len(slots_of(run.folder)) == counts["slots_copied"]


def test_a_disk_without_room_stops_the_archive_and_nobody_else(record):
    run = record("archive.free_bytes=1000TB")
    run.record()
    run.learn(8)
    run.until(lambda: run.counts["halted"] == 1 and run.counts["dropped_blocks"] > 0)
    run.learn(8)
    assert run.stop() == 0
    lines = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["archive halted"]
    assert "archive.free_bytes" in lines[0]["message"]
    assert list((run.folder / "archive").glob("shard-*")) == []


def test_what_would_fit_no_block_is_refused_before_the_start(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    with pytest.raises(
        ConfigError, match=r"archive\.enabled: .* at most 33554432 can be recorded: make rollout"
    ):
        Layout(prepare(str(file), ["rollout.horizon=1e6"]))
    Layout(prepare(str(file), ["rollout.horizon=1e6", "archive.enabled=false"]))
    with pytest.raises(ConfigError, match=r"archive\.fraction: .* agents; needs 500000 or fewer"):
        Layout(prepare(str(file), ["producers.agents=600000", "rollout.horizon=2", "archive.fraction=1"]))


def test_a_whole_run_is_recorded_to_its_end_though_its_recorder_is_killed(start):
    run = start(*WHOLE, *QUICK, "stop.versions=100000")
    run.running()
    run.when(lambda: recorded(run)["blocks"] > 0)
    run.kill("recorder")
    run.until(lambda status: status["restarts"]["recorder"] == 1)
    before = recorded(run)["blocks"]
    run.when(lambda: recorded(run)["blocks"] > before)
    _, rings = run.attach()
    run.process.terminate()
    assert run.end() == 0
    found, counts = slots_of(run.path), recorded(run)
    committed = sum(ring.books()["committed"] for ring in rings)
    assert counts["slots_copied"] + counts["slots_missed"] == committed
    last = max(sequence for _, _, sequence in found)
    assert last == max(ring.books()["head"] for ring in rings) - 1  # up to the stop
    assert run.summary()["restarts"]["learner"] == run.summary()["restarts"]["producer"] == 0
    assert [path.suffix for path in reading.find([run.path])] == [".zst"]


@pytest.mark.soak
def test_recorders_killed_for_half_a_minute_keep_every_block_they_wrote(start):
    small = ("archive.shard_bytes=200KB", "archive.total_bytes=100MB")
    run = start(*WHOLE, *QUICK, *small, "stop.versions=100000")
    run.running()
    end, kills, pid = time.monotonic() + 30, 0, None
    while time.monotonic() < end:
        time.sleep(0.13)
        new = next((one["pid"] for one in run.status()["processes"] if one["role"] == "recorder"), None)
        if new not in (None, pid) and recorded(run)["blocks"]:
            pid, kills = run.kill("recorder"), kills + 1
    run.process.terminate()
    assert run.end() == 0
    assert kills > 3
    shards = reading.find([run.path])
    blocks = sum(1 for shard in shards for _ in reading.blocks_of(shard))
    assert blocks - len(shards) >= recorded(run)["blocks"]
    slots_of(run.path)
