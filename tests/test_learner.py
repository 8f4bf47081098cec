"""The learner by its promises to the rest of the run: credit, versions, acks, books, and the order of its
end."""

import json
import os
import struct
import threading
import time

import pytest
import torch
from rings import Raw
from segments import Slot

import config
from consumers import checkpoint, journal, learner, shelf
from producers.program import build
from ringbuf import Control, Plan, Ring, Weights, books, segments

HORIZON, AGENTS = 8, 6
SPEC = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": False}
DEADLINE_SECONDS = 60  # against hanging only
SUPERVISOR, LEARNER, PRODUCER = 0, 1, 100  # places in the process table


class Run:
    """A learner in a thread of its own; the test is its supervisor and its producers."""

    def __init__(self, folder, *, rings=2, slots=4, mode="async", exact=0, limit=1, full="block", **sections):
        batch_slots = sections.pop("batch_slots", rings)
        self.folder, self.rings, run_id = folder, rings, os.urandom(16)
        settings = {"minibatches": 2, "batch_slots": batch_slots, "threads": 1, "precision": "float32"}
        base = {
            "sim": {"name": "toy"},
            "mode": mode,
            "staleness": {"limit": "none" if limit is None else limit, "exact": exact},
            "producers": {"count": rings, "agents": AGENTS},
            "rollout": {"horizon": HORIZON},
            "ring": {"slots": slots, "full": full},
            "learner": settings | sections.pop("learner", {}),
        }
        (folder / "config.resolved.yaml").write_text(json.dumps(base | sections))
        self.config = config.load_resolved(folder / "config.resolved.yaml")
        program = build({"hidden": [8], "activation": "tanh"}, SPEC)
        parts = ["control", "weights", *(f"ring-{i}" for i in range(rings))]
        self.names = [segments.name(run_id, part) for part in parts]
        self.control = segments.create_control(self.names[0], run_id)
        self.channel = segments.create_weights(
            self.names[1],
            count=program.count,
            buffers=3 + exact,
            program=program.encode(),
            snapshot_bytes=1 << 17,
            list_entries=batch_slots,
            run_id=run_id,
        )
        self.owned = []
        for i in range(rings):
            plan = Plan.build(
                sim="toy",
                horizon=HORIZON,
                worlds=AGENTS,
                world_agents=1,
                obs_dtype="float32",
                obs_shape=(5,),
                choices=(3,),
                statistics=2,
                score=1,
                unpacked_step_bytes=20,
                mode="async" if mode == "async" else "exact",
                full=full,
                pickup="slot",
                lagged_versions=exact,
                producers=rings,
                batch_slots=batch_slots,
                ring=i,
            )
            self.owned.append(segments.create_ring(self.names[2 + i], plan, slots, run_id, self.control))
            self.owned[i].set_owner(0)
            self.control.set_process(PRODUCER + i, role="producer", role_index=i, state="running")
        self.control.set_process(LEARNER, role="learner", role_index=0, state="running")
        self.reader = Weights.attach(self.channel.fd)
        self.producers = [
            Ring.attach(ring.fd, Control.attach(self.control.fd, PRODUCER + i), "producer")
            for i, ring in enumerate(self.owned)
        ]
        self.written = 0
        self.learner = learner.Learner(
            self.config,
            folder,
            Control.attach(self.control.fd, LEARNER),
            Weights.attach(self.channel.fd, "writer"),
            [Ring.attach(ring.fd, Control.attach(self.control.fd, LEARNER)) for ring in self.owned],
        )
        self.thread = threading.Thread(target=self.learner.run, daemon=True)

    def start(self):
        self.thread.start()
        self.until(lambda: self.control.process(LEARNER).phase == "wait_data")

    def until(self, condition):
        """Waits for what must happen; hanging is the failure."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            assert self.thread.is_alive() or condition(), "the learner ended"
            time.sleep(0.001)

    def claimable(self, ring):
        return self.producers[ring].claimable() == "claimable"

    def write(self, ring, scores=()):
        """One slot as its producer writes it; `scores` of the episodes that end in it. Returns its
        sequence."""
        self.until(lambda: self.claimable(ring))
        producer = self.producers[ring]
        if producer.plan.mode == "exact":
            version = producer.exact_version()
            self.until(lambda: self.reader.published >= version)
        else:
            version = producer.announce(self.reader)
        claim = producer.claim(version)
        slot = Slot(self.written, horizon=HORIZON, agents=AGENTS, version=version)
        self.written += 1
        for name in ("obs", "action", "logprob", "reward", "terminated", "truncated", "valid", "version"):
            claim.array(name)[...] = slot.fields[name]
        records = claim.array("episodes")
        for i, score in enumerate(scores):
            record = struct.pack("<qiifff", version, 0, 7, 1.0, 99.0, score)
            records[i, : len(record)] = memoryview(record)
        del records
        sequence = claim.sequence
        claim.commit(int(slot.fields["valid"].sum()), len(scores), version)
        return sequence

    def counters(self):
        return self.control.counters(LEARNER)

    def stop(self, reason):
        """What the supervisor does at a stop, up to the point where every producer is gone."""
        self.control.set_stop(reason)
        for ring in self.owned:
            ring.sweep_producer()
        self.control.set_producers_gone()
        self.thread.join(DEADLINE_SECONDS)
        assert not self.thread.is_alive(), "the learner did not end"

    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def close(self):
        for name in self.names:
            segments.unlink(name)
        if self.thread.is_alive():
            self.control.set_stop("failure")
            self.control.set_producers_gone()
            self.thread.join(DEADLINE_SECONDS)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Begins a Run. Its learner wakes up for bells alone: what no bell tells it would hang."""
    monkeypatch.setattr(learner, "SLICE_SECONDS", 3600.0)
    made = []
    torch.set_num_threads(1)

    def begin(**options):
        run = Run(tmp_path, **options)
        made.append(run)
        run.start()
        return run

    yield begin
    for run in made:
        run.close()


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


def test_what_is_out_of_the_ordinary_is_told_ever_more_seldom(start):
    run = start(rings=1, batch_slots=1, slots=6)
    for _ in range(9):
        run.write(0)  # by a uniform policy, which is not the one that version 0 is
    run.until(lambda: run.counters()["updates"] == 9)
    run.stop("signal")
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    told = [event["times"] for event in events if event["event"] == "logprob_mismatch"]
    assert told == [1, 2, 4, 8][: len(told)]
    assert told


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
