"""The learner by its promises to the rest of the run: credit, versions, acks, books, and the order of its
end."""

import json
import threading

import pytest
from inprocess import AGENTS, DEADLINE_SECONDS, HORIZON, LEARNER, PRODUCER, runs
from rings import Raw
from segments import Slot

from consumers import audits, checkpoint, journal, learner, shelf
from ringbuf import books


@pytest.fixture
def start(tmp_path, monkeypatch):
    yield from runs(tmp_path, monkeypatch)


def test_version_0_and_its_checkpoint_come_before_any_experience(start):
    run = start()
    assert run.reader.published == 0
    saved = checkpoint.load(shelf.latest(run.folder / "checkpoints"))
    assert (saved.version, saved.state["steps"]) == (0, 0)
    published = run.reader.read(0)[1]
    first = run.learner.update.program.weights[0]
    assert (saved.policy[first.name].flatten().numpy() == published[: first.count]).all()


def test_a_batch_is_trained_published_and_acked_once_and_the_books_say_so(start):
    run = start(rings=2, batch_slots=2)
    sequences = {(ring, run.write(ring)) for ring in (0, 1)}
    run.until(lambda: run.counters()["updates"] == 1)
    assert run.reader.published == 1
    assert {(ring, s) for ring, s, _ in run.channel.consumed_list()} == sequences
    assert not (run.reader.read(0)[1] == run.reader.read(1)[1]).all()
    for ring in run.owned:
        assert books.at_rest(ring.books()) == []
        assert (ring.books()["consumed"], ring.books()["in_flight"]) == (1, 0)
    counted = run.counters()
    assert (counted["version"], counted["slots"], counted["sgd_steps"]) == (1, 2, 2)
    valid = sum(
        int(Slot(i, horizon=HORIZON, agents=AGENTS).fields["valid"].sum()) for i in range(run.written)
    )
    assert counted["steps"] == counted["samples"] == valid
    lag_bins, age_bins = run.control.bins(LEARNER)
    assert lag_bins[0] == sum(lag_bins) == valid
    assert sum(age_bins) == 2


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_credit_is_given_for_so_many_slots_as_the_limit_allows_and_no_more(start, limit):
    run = start(rings=2, batch_slots=2, slots=8, limit=limit)
    granted = [ring.observe().granted for ring in run.owned]
    assert sum(granted) == (limit + 1) * 2
    for _ in range(6):
        for ring in (0, 1):
            run.write(ring)
    run.until(lambda: run.counters()["updates"] == 6)
    assert run.counters()["lag_max"] <= limit


def test_without_a_limit_credit_is_given_for_all_that_the_rings_hold(start):
    run = start(rings=2, batch_slots=2, slots=5, limit=None)
    assert [ring.observe().granted for ring in run.owned] == [5, 5]


def test_a_dropping_ring_needs_no_credit(start):
    run = start(rings=1, batch_slots=1, slots=4, limit=None, full="drop_newest")
    assert run.owned[0].observe().granted == 0
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)


def test_a_publication_wakes_every_producer(start):
    run = start(
        rings=2, batch_slots=1, stop={"versions": 1}
    )  # no credit is given afterwards, which would ring
    waiting = threading.Thread(
        target=run.producers[0].wait_published, args=(run.reader, 0, 3600.0), daemon=True
    )
    waiting.start()
    run.write(1)
    waiting.join(DEADLINE_SECONDS)
    assert not waiting.is_alive()


def test_a_producer_that_does_not_run_gets_no_credit(start):
    run = start(rings=2, batch_slots=2)
    run.control.set_process(PRODUCER, state="backoff")
    given = run.owned[0].observe().granted
    run.owned[0].lower_granted_to_head()
    run.control.bell_ring(0)
    for _ in range(8):
        run.write(1)
    assert run.owned[0].observe().granted <= given
    run.until(lambda: run.counters()["updates"] == 4)


def test_lagged_batches_are_the_same_sequences_of_every_ring_whatever_comes_first(start):
    run = start(rings=2, slots=6, batch_slots=4, mode="lagged", exact=1)
    assert [ring.observe().granted for ring in run.owned] == [4, 4]
    for _ in range(4):
        run.write(1)
    for _ in range(2):
        run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)
    listed = [(ring, sequence) for ring, sequence, _ in run.channel.consumed_list()]
    assert listed == [(0, 0), (1, 0), (0, 1), (1, 1)]
    for _ in range(2):
        run.write(0)
    run.until(lambda: run.counters()["updates"] == 2)
    listed = [(ring, sequence) for ring, sequence, _ in run.channel.consumed_list()]
    assert listed == [(0, 2), (1, 2), (0, 3), (1, 3)]
    lag_bins, _ = run.control.bins(LEARNER)
    assert lag_bins[0] > 0, "the first batches are the warm-up, acted by version 0"
    assert lag_bins[1] > 0
    assert sum(lag_bins[2:]) == 0


def test_scores_of_finished_episodes_reach_the_books_once(start):
    run = start(rings=1, batch_slots=1, stop={"window": 4, "versions": 99})
    run.write(0, scores=[10.0, 20.0])
    run.write(0)
    run.write(0, scores=[30.0, 40.0, 50.0, 60.0])
    run.until(lambda: run.counters()["updates"] == 3)
    assert run.counters()["episodes"] == 6
    gauges = run.control.gauges(LEARNER)
    assert gauges["score_mean"] == gauges["score_best"] == 35.0, "the window is no smaller than the agents"


def test_what_is_out_of_the_ordinary_is_told_ever_more_seldom(start, monkeypatch):
    monkeypatch.setattr(audits, "LOOKS_APART", 1)  # else most of so small batches are not looked at
    run = start(rings=1, batch_slots=1, slots=6)
    for _ in range(9):
        run.write(0)  # by a uniform policy, which is not the one that version 0 is
    run.until(lambda: run.counters()["updates"] == 9)
    run.stop("signal")
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if (event["event"], event.get("audit")) == ("audit", "label")]
    assert [event["times"] for event in told] == [1, 2, 4, 8]
    assert [event["version"] for event in told] == [1, 2, 4, 8]
    assert all(event["found"] > event["limit"] and "labelled" in event["cause"] for event in told)
    assert run.counters()["audit_label_alarms"] == 9
    assert run.counters()["audited_steps"] == run.counters()["steps"], "so few are all looked at"


def test_the_goal_ends_the_run(start):
    run = start(rings=1, batch_slots=1, stop={"window": 1, "score": 5.0})
    run.write(0, scores=[9.0] * 6)
    run.write(0, scores=[9.0] * 6)
    run.until(lambda: run.counters()["stop_request"])
    assert run.control.gauges(LEARNER)["solved_at_seconds"] > 0.0
    run.stop("score")
    assert run.reader.published == 2


def test_a_met_condition_asks_for_a_stop_and_what_is_left_is_dropped(start):
    run = start(rings=2, batch_slots=2, limit=1, stop={"versions": 1})
    for ring in (0, 1, 0, 1):
        run.write(ring)
    run.until(lambda: run.counters()["stop_request"])
    run.stop("versions")
    assert run.reader.published == 1
    for ring in run.owned:
        assert ring.books()["dropped"]["shutdown"] == 1
        assert ring.books()["in_flight"] == 0
        assert books.at_rest(ring.books()) == []
    assert checkpoint.load(shelf.latest(run.folder / "checkpoints")).version == 1


@pytest.mark.parametrize("condition", [{"steps": 1}, {"seconds": 0.001}], ids=["steps", "seconds"])
def test_steps_and_seconds_end_a_run_too(start, condition):
    run = start(rings=1, batch_slots=1, stop=condition)
    run.write(0)
    run.until(lambda: run.counters()["stop_request"])
    run.stop(next(iter(condition)))


def test_the_seconds_of_a_run_begin_with_its_first_slot_and_not_with_its_first_batch(start):
    run = start(stop={"seconds": 0.2})
    run.write(0)  # half a batch
    run.until(lambda: run.counters()["stop_request"])
    assert run.counters()["updates"] == 0
    run.stop("seconds")


def test_a_full_disk_costs_lines_and_not_the_training(start, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FLUSH_SECONDS", 0.0)
    for name in ("metrics.jsonl", "events.jsonl"):
        (tmp_path / name).symlink_to("/dev/full")
    run = start()
    for _ in range(3):
        run.write(0)
        run.write(1)
    run.until(lambda: run.counters()["updates"] == 3)
    run.stop("failure")
    assert (tmp_path / "checkpoints/latest/policy.pt").exists()
    assert run.learner.books.updates == 3


def test_after_a_signal_whole_batches_are_trained_and_the_rest_is_dropped(start):
    run = start(rings=2, batch_slots=2, slots=8, limit=4)
    begun = hold_first_update(run)
    for ring in (0, 1, 0, 1, 0):
        run.write(ring)
    assert begun.wait(DEADLINE_SECONDS)
    run.stop("signal")
    assert run.reader.published == 2
    assert sum(ring.books()["dropped"]["shutdown"] for ring in run.owned) == 1
    assert sum(ring.books()["in_flight"] for ring in run.owned) == 0
    saved = checkpoint.load(shelf.latest(run.folder / "checkpoints"))
    assert saved.version == 2
    assert [line["version"] for line in run.lines()] == [1, 2]


def hold_first_update(run):
    """Makes an update last until the stop flag is set; returns what is set when it has begun."""
    train, begun = run.learner.update.train, threading.Event()

    def held(*args):
        begun.set()
        run.until(lambda: run.control.stop)
        return train(*args)

    run.learner.update.train = held
    return begun


def test_no_batch_is_begun_between_the_stop_and_the_end_of_the_producers(start):
    run = start(rings=1, batch_slots=1)
    run.control.set_stop("signal")
    run.until(lambda: run.control.process(LEARNER).phase == "stopping")
    assert run.reader.published == 0
    run.stop("signal")


def test_a_failed_run_trains_nothing_further(start):
    run = start(rings=1, batch_slots=1)
    begun = hold_first_update(run)
    run.write(0)
    run.write(0)
    assert begun.wait(DEADLINE_SECONDS)
    run.stop("failure")
    assert run.reader.published == 1
    assert run.owned[0].books()["dropped"]["shutdown"] == 1


def test_a_torn_slot_is_set_aside_and_the_batch_filled_up(start):
    run = start(rings=1, slots=6, batch_slots=2, limit=1)
    raw = Raw(run.owned[0].fd)
    at = raw.payload(run.write(0))  # where the payload begins with its stamp
    raw.bytes[at : at + 8] = b"\xff" * 8
    run.write(0)
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)
    assert run.owned[0].books()["bad"] == 1
    listed = [sequence for _, sequence, _ in run.channel.consumed_list()]
    assert listed == [1, 2]


def test_what_may_change_in_a_live_run_does(start, tmp_path):
    run = start(rings=1, batch_slots=1, learner={"learning_rate": 1e-3})
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)
    run.change(
        learner={"learning_rate": 0.5, "entropy_coef": 0.25},
        stop={"versions": 3, "window": 200, "score": 1.0},
        checkpoint={"interval_seconds": 1e-6},
        monitor={"log_bytes": 1, "log_files": 2},
    )
    run.until(lambda: run.learner.config.learner.learning_rate == 0.5)
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 2)
    gauges = run.control.gauges(LEARNER)
    assert (gauges["learning_rate"], gauges["entropy_coef"]) == (0.5, 0.25)
    run.until(lambda: run.counters()["checkpoints"] == 2)
    assert (run.learner.books.score.window, run.learner.books.score.goal) == (200, 1.0)
    assert not run.counters()["stop_request"]
    run.write(0)
    run.until(lambda: run.counters()["stop_request"])
    run.stop("versions")
    assert (tmp_path / "metrics.jsonl.1").exists()


def test_settings_that_change_while_a_learner_begins_are_taken_over_too(start, monkeypatch):
    saver = learner.Saver

    def edited(config, folder, program, books, control, *rest):
        """The supervisor is told when this learner has read the configuration already."""
        path = folder / "config.resolved.yaml"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"stop": {"versions": 3}}))
        control.announce_settings()
        return saver(config, folder, program, books, control, *rest)

    monkeypatch.setattr(learner, "Saver", edited)
    run = start(rings=1, batch_slots=1)
    run.until(lambda: run.learner.config.stop.versions == 3)


def test_a_learner_that_begins_with_such_a_window_cuts_it_too(start):
    """One that is started again after the run file was edited."""
    run = start(rings=1, batch_slots=1, stop={"window": 10**9})
    assert 1000 < run.learner.books.score.window < (1 << 17) / 8


def test_a_window_for_which_a_snapshot_has_no_room_is_cut_and_training_goes_on(start):
    run = start(rings=1, batch_slots=1)
    run.change(stop={"window": 10**9})
    run.write(0, scores=[1.0])
    run.until(lambda: run.counters()["updates"] == 1)
    assert 1000 < run.learner.books.score.window < (1 << 17) / 8


def test_a_checkpoint_that_failed_is_tried_again_soon_and_said_to_have_failed(start, monkeypatch):
    run = start(rings=1, batch_slots=1, checkpoint={"interval_seconds": 1e9, "retry_seconds": 1e-6})
    put, full = shelf.put, []

    def refused(*args, **options):
        if not full:
            full.append(1)
            raise OSError(28, "No space left on device")
        return put(*args, **options)

    monkeypatch.setattr(shelf, "put", refused)
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)
    assert run.counters()["checkpoint_failures"] == 0
    run.change(checkpoint={"interval_seconds": 1e-6})
    run.write(0)
    run.until(lambda: run.counters()["checkpoint_failures"] == 1)
    run.change(checkpoint={"interval_seconds": 1e9})
    run.write(0)
    run.until(lambda: run.counters()["checkpoints"] == 2)
    lines = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    told = [event for event in lines if event["event"] == "checkpoint_failed"]
    assert len(told) == 1
    assert "No space" in told[0]["why"]


def test_progress_is_minibatches_done_and_beats_with_each(start):
    run = start(rings=1, batch_slots=1, learner={"epochs": 3})
    before = run.control.process(LEARNER)
    run.write(0)
    run.until(lambda: run.counters()["updates"] == 1)
    run.until(lambda: run.control.process(LEARNER).phase == "wait_data")
    after = run.control.process(LEARNER)
    assert after.progress - before.progress == 2 + 3 * 2
    assert after.heartbeat_ns > before.heartbeat_ns


def test_lines_are_whole_and_the_file_is_set_aside_when_it_has_grown(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FLUSH_SECONDS", 0.0)
    path = tmp_path / "metrics.jsonl"
    lines = journal.Journal(path, limit_bytes=30, files=2)
    for i in range(12):
        lines.add(f"line {i:04d}")  # ten bytes
    aside = "".join(path.with_name(f"{path.name}.{n}").read_text() for n in (2, 1))
    assert aside == "".join(f"line {i:04d}\n" for i in range(6, 12))
    assert not path.exists()
    lines.add("more")
    assert path.read_text() == "more\n"
