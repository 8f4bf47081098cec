"""A learner that is lost goes back to its last good checkpoint, and nothing of the abandoned policy is
trained on, whenever it appears."""

import json
import threading

import pytest
import torch
from inprocess import AGENTS, DEADLINE_SECONDS, LEARNER, runs
from rings import Raw

from consumers import checkpoint, shelf
from ringbuf import books

LOST = {"nonfinite_steps": 2}  # after one batch that is not finite


@pytest.fixture
def start(tmp_path, monkeypatch):
    yield from runs(tmp_path, monkeypatch)


def hold(run):
    """Makes the next update wait; returns (set when it has begun, lets it go on)."""
    train, begun, go = run.learner.update.train, threading.Event(), threading.Event()

    def held(*args):
        begun.set()
        assert go.wait(DEADLINE_SECONDS)
        return train(*args)

    run.learner.update.train = held
    return begun, go


def dropped(run):
    return [ring.books()["dropped"]["rollback"] for ring in run.owned]


def events(run, name):
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_exactly_the_slots_older_than_the_floor_are_dropped_whenever_they_appear(start):
    run = start(rings=2, batch_slots=2, slots=6, limit=2, learner=LOST)
    begun, go = hold(run)
    run.write(0, poisoned=True)
    run.write(1)
    assert begun.wait(DEADLINE_SECONDS)
    run.write(0)  # ready when the learner goes back
    late = run.begin_to_write(1)  # written then, and committed afterwards
    go.set()
    run.until(lambda: dropped(run) == [1, 0])
    assert run.reader.published == run.channel.floor == 2
    assert run.channel.consumed_list() == []
    run.write(0)
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 2)  # the gate does not wait for what will be dropped
    assert run.reader.published == 3
    late()
    run.until(lambda: dropped(run) == [1, 1])
    assert [ring.books()["consumed"] for ring in run.owned] == [3, 1]
    for ring in run.owned:
        assert books.at_rest(ring.books()) == []


def test_weights_steps_and_score_are_those_of_the_checkpoint_and_the_run_s_counts_go_on(start):
    run = start(rings=1, batch_slots=1, learner=LOST, checkpoint={"interval_seconds": 1e-6})
    run.write(0, scores=[1.0])
    run.until(lambda: run.counters()["checkpoints"] == 2 and not run.learner.saver._writer.busy)
    good = run.reader.read(1)[1]
    at = run.counters()
    run.change(checkpoint={"interval_seconds": 1e9})
    run.write(0, scores=[2.0])
    run.until(lambda: run.counters()["updates"] == 2)
    run.write(0, scores=[3.0], poisoned=True)
    run.until(lambda: run.counters()["rollbacks"] == 1)
    run.until(lambda: run.reader.published == 4)
    assert (run.reader.read(4)[1] == good).all()
    now = run.counters()
    assert (now["run_steps"], now["run_updates"], now["run_episodes"]) == (at["steps"], 1, 1)
    assert (now["updates"], now["episodes"], now["nonfinite_steps"]) == (3, 3, 2)
    assert now["steps"] > at["steps"]
    run.until(lambda: events(run, "rolled_back"))
    (told,) = events(run, "rolled_back")
    assert (told["version"], told["from_version"], told["checkpoint"]) == (4, 3, "version-000000001")
    assert told["slots"] == [[0, 2]]
    (told,) = events(run, "nonfinite")
    assert told["slots"] == [[0, 2]]


def test_in_exact_modes_all_that_has_credit_is_abandoned_and_batches_are_counted_anew(start):
    run = start(rings=2, slots=6, batch_slots=2, mode="lagged", exact=1, learner=LOST)
    begun, go = hold(run)
    run.write(0, poisoned=True)
    run.write(1)
    assert begun.wait(DEADLINE_SECONDS)
    run.write(0)  # of the next batch
    go.set()
    run.until(lambda: dropped(run) == [1, 0])
    assert run.reader.published == 2
    run.write(1)  # it had credit for that
    run.until(lambda: dropped(run) == [1, 1])
    for ring in (0, 1):
        run.write(ring)
    run.until(lambda: run.counters()["updates"] == 2)
    assert [entry[:2] for entry in run.channel.consumed_list()] == [(0, 2), (1, 2)]
    assert dropped(run) == [1, 1]
    assert run.reader.published == 3


def test_a_torn_slot_of_an_exact_mode_is_a_roll_back_and_no_end(start):
    run = start(rings=2, slots=4, batch_slots=4, mode="sync")
    raw = Raw(run.owned[1].fd)
    run.write(0)
    run.write(0)
    at = raw.payload(run.write(1))
    raw.bytes[at : at + 8] = b"\xff" * 8
    run.write(1)
    run.until(lambda: run.owned[1].books()["bad"] == 1 and sum(dropped(run)) == 3)
    assert run.reader.published == 1
    assert run.owned[1].drop(0, "bad")
    for ring in (0, 0, 1, 1):
        run.write(ring)
    run.until(lambda: run.counters()["updates"] == 1)
    assert [entry[:2] for entry in run.channel.consumed_list()] == [(0, 2), (1, 2), (0, 3), (1, 3)]
    for ring in run.owned:
        assert books.at_rest(ring.books()) == []


def test_what_is_not_good_is_not_saved(start):
    run = start(rings=1, batch_slots=1, checkpoint={"interval_seconds": 1e-6})
    run.write(0, poisoned=True)
    run.until(lambda: run.counters()["updates"] == 1)
    run.write(0)
    run.until(lambda: run.counters()["checkpoints"] == 2)
    saved = [folder.name for folder in shelf.versions(run.folder / "checkpoints")]
    assert saved == ["version-000000000", "version-000000002"]
    run.write(0, poisoned=True)
    run.until(lambda: run.counters()["updates"] == 3)
    run.stop("signal")
    assert checkpoint.load(shelf.latest(run.folder / "checkpoints")).version == 2
    assert run.control.counters(LEARNER)["nonfinite_batches"] == 2


def test_weights_that_are_no_numbers_are_not_saved_although_every_step_was_made(start):
    run = start(rings=1, batch_slots=1, checkpoint={"interval_seconds": 1e-6})
    train = run.learner.update.train

    def overflowing(*args):
        figures = train(*args)
        run.learner.update.flat_weights[0] = torch.inf
        return figures

    run.learner.update.train = overflowing
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)
    run.stop("failure")
    assert [folder.name for folder in shelf.versions(run.folder / "checkpoints")] == ["version-000000000"]


def test_a_slot_is_examined_while_no_other_of_its_batch_is_leased(start):
    run = start(rings=2, batch_slots=2)
    seen = []

    def look(batch):
        states = [slot[:3] for ring in run.owned for slot in ring.observe().slots if slot[0] == "leased"]
        seen.append((batch.segments, states))

    run.learner.update.examine = look
    sequence = run.write(1)
    Raw(run.owned[1].fd).set_word("ready", sequence, deliveries=2)
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)
    assert seen == [(AGENTS, [("leased", sequence, 3)])]
    assert run.counters()["examined_slots"] == 1
    assert [ring.books()["consumed"] for ring in run.owned] == [1, 1]


def test_a_later_checkpoint_in_between_begins_the_count_anew(start):
    run = start(rings=1, batch_slots=1, learner=LOST | {"nonfinite_rollbacks": 1},
                checkpoint={"interval_seconds": 1e-6})  # fmt: skip
    for times in range(1, 4):
        saved = run.counters()["checkpoints"]
        run.write(0)
        run.until(lambda saved=saved: run.counters()["checkpoints"] > saved)
        run.until(lambda: not run.learner.saver._writer.busy)
        run.write(0, poisoned=True)
        run.until(lambda times=times: run.counters()["rollbacks"] == times)
    assert run.thread.is_alive()
