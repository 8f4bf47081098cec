"""What a killed attempt leaves is taken over or counted: the books lose no slot, whatever dies when."""

import array
import contextlib
import dataclasses
import os
import time

import pytest
from command import CARTPOLE, SHM, segments
from rings import consume, produce

import config
from consumers import shelf
from monitor import rundir
from monitor.totals import Totals
from producers import takeover
from producers.prepare import Segments, prepare
from ringbuf import Control, Ring, Weights
from ringbuf import segments as shared

STEPS = 256  # of a slot: 16 steps of 16 agents


class Killed(BaseException):
    pass


class Life:
    """One attempt, from its start to its sudden end, with every role in this process."""

    def __init__(self, folder, *overrides):
        (folder / "run.yaml").write_text(CARTPOLE)
        prepared = prepare(str(folder / "run.yaml"), ["run.dir=" + str(folder / "runs"), *overrides])
        self.directory = rundir.RunDirectory.take(prepared.config.run_dir.absolute())
        try:
            self.segments = Segments.open(prepared, self.directory)
            self.directory.supersede()
        except BaseException:
            os.close(self.directory.lock_fd)
            raise
        (self.directory.path / rundir.RESOLVED).write_text(config.dump_resolved(prepared.config))
        manifest = {"simulator": prepared.spec, "program": prepared.program.fingerprint}
        rundir.write_json(self.directory.path / rundir.MANIFEST, manifest)
        self.control, self.rings = self.segments.control, self.segments.rings
        self.resume = self.segments.resume
        self.enlist(1, 1, 1)
        for ring in self.rings:
            ring.set_owner(0)

    def enlist(self, *lives):
        """Fills the process table: two producers and the learner, each started so often."""
        for index, epoch in enumerate(lives, 1):
            self.control.set_process(index, role="learner" if index == 3 else "producer", epoch=epoch)

    def producer(self, ring=0):
        return Ring.attach(self.rings[ring].fd, Control.attach(self.control.fd, 1 + ring), "producer")

    def learner(self, ring=0):
        return Ring.attach(self.rings[ring].fd, Control.attach(self.control.fd, 3), "learner")

    def produce(self, slots=1, ring=0):
        self.learner(ring).grant(slots)
        producer = self.producer(ring)
        return [produce(producer, valid_steps=STEPS) for _ in range(slots)]

    def publish(self, version, consumed=()):
        channel = Weights.attach(self.segments.weights.fd, "writer")
        channel.publish(version, array.array("f", [0.0] * channel.count), consumed=consumed)

    def totals(self):
        """Of the run so far, as status.json has them."""
        return self.resume.before + Totals.read(self.control, self.rings, (1, 2), 3)

    def in_flight(self):
        return sum(ring.books()["in_flight"] for ring in self.rings)

    def balanced(self):
        totals = self.totals()
        return totals.committed == totals.consumed + totals.dropped + self.in_flight()

    def report(self):
        """A status.json as it is written every second."""
        totals = self.totals().to_json()
        report = {"attempt": self.directory.attempt, "totals": totals, "version": 7}
        rundir.write_json(self.directory.path / rundir.STATUS, report)

    def die(self):
        """By SIGKILL, and all its processes with it: nothing is put in order."""
        os.close(self.directory.lock_fd)
        return self


@pytest.fixture
def life(tmp_path):
    """Begins an attempt in the same run directory; at the end of the test all names go."""
    before = segments()

    def begin(*overrides):
        return Life(tmp_path, *overrides)

    yield begin
    for name in segments() - before:
        if any(name in str(rundir.read_json(one)) for one in tmp_path.rglob("attempts/*.json")):
            (SHM / name).unlink()


def test_a_new_run_goes_on_from_nothing(life):
    first = life()
    assert first.resume == takeover.Resume()
    assert first.resume.arguments() == []
    assert first.control.directory == str(first.directory.path)
    first.die()


def test_a_killed_attempt_is_taken_over_with_every_slot_in_its_place(life):
    first = life()
    sequences = first.produce(4)
    consume(first.learner(), sequences[0])
    lease = first.learner().lease(sequences[1])
    trained = first.learner().lease(sequences[2])
    first.publish(5, [(0, trained.sequence, trained.epoch)])
    first.learner(1).grant(1)
    claim = first.producer(1).claim(5)
    assert None not in (lease, claim)
    first.control.set_stop("signal")
    first.control.set_producers_gone()
    Control.attach(first.control.fd, 3).request_stop("steps")
    first.die()

    second = life()
    assert second.resume.kind == "attached"
    assert second.resume.notes == ("attempt 2: goes on in memory from version 5 (hot snapshot)",)
    assert (second.resume.version, second.resume.above, second.resume.attempt) == (5, 5, 2)
    assert (second.segments.names, second.segments.run_id) == (first.segments.names, first.segments.run_id)
    states = {sequence: state for state, sequence, *_ in second.rings[0].observe().slots}
    assert states[sequences[1]] == states[sequences[3]] == "ready"
    assert [state for state, *_ in second.rings[1].observe().slots] == ["free"] * 4
    totals = second.totals()
    assert (totals.committed, totals.consumed, totals.dropped, totals.redelivered) == (4, 2, 0, 1)
    assert second.control.stop is None
    assert not second.control.producers_gone
    assert second.control.counters(3)["stop_request"] == 0
    assert second.produce() == [sequences[3] + 1]
    second.die()


def test_an_attempt_that_cannot_begin_leaves_what_it_took_over(life):
    first = life()
    first.produce(2)
    first.die()
    second = life()
    second.segments.leave()
    second.segments.close()
    second.die()
    third = life()
    assert (third.resume.kind, third.in_flight()) == ("attached", 2)
    third.segments.close()
    third.die()
    assert not {name.removeprefix("/") for name in first.segments.names} & segments()


def test_what_no_run_can_go_on_in_is_counted_and_removed(life):
    first = life()
    consume(first.learner(), first.produce(3)[0])
    first.die()
    second = life("ring.slots=8")
    assert second.resume.kind == "new"
    assert second.resume.notes == (
        "attempt 2: no checkpoint yet, begins at version 0",
        "changed since attempt 1: ring.slots 4 -> 8",
        "what attempt 1 left in memory is dropped: it has rings of 4 slots",
    )
    totals = second.totals()
    assert (totals.committed, totals.consumed, totals.dropped) == (3, 1, 2)
    assert not {name.removeprefix("/") for name in first.segments.names} & segments()
    second.produce(2)
    second.die()
    third = life("ring.slots=8")
    assert third.resume.kind == "attached"
    assert (third.totals().committed, third.totals().dropped, third.in_flight()) == (5, 2, 2)
    assert third.balanced()
    third.die()


@pytest.mark.parametrize(("overrides", "why"), [
    (("rollout.horizon=8",), "slots or producers are laid out otherwise"),
    (("producers.count=1",), "it has 2 rings, and this run needs 1"),
    (("learner.batch_slots=4",), "the weights are laid out otherwise"),
])
def test_another_geometry_does_not_fit(life, overrides, why):
    life().die()
    second = life(*overrides)
    assert second.resume.notes[-1].endswith(why)
    second.die()


def test_a_mode_that_repeats_goes_back_and_drops_what_is_in_flight(life):
    first = life("mode=sync")
    first.rings[0].set_owner(0)
    learner = first.learner()
    learner.set_base(0, 0)
    learner.grant(1)
    produce(first.producer(), valid_steps=STEPS)
    first.die()
    second = life("mode=sync")
    assert second.resume.kind == "new"
    assert (second.totals().committed, second.totals().dropped) == (1, 1)
    assert second.rings[0].plan.restart_base == 0, "nothing was learnt: it is the run it would have been"
    second.die()


def test_worlds_never_take_up_the_seeds_of_an_earlier_attempt(life):
    bases = []
    for slots in (4, 5, 6):
        one = life(f"ring.slots={slots}")
        bases.append(one.rings[0].plan.restart_base)
        one.die()
    assert bases == [0, 1 << 16, 2 << 16]
    one = life("ring.slots=6")
    assert one.rings[0].plan.restart_base == 2 << 16  # and its epoch goes on
    one.die()


def forge_boot_id(first):
    for name in first.segments.names:
        with (SHM / name.removeprefix("/")).open("r+b") as file:
            file.seek(72)
            file.write(bytes(16))


def forge_ready(first):
    with (SHM / first.segments.names[-1].removeprefix("/")).open("r+b") as file:
        file.seek(128)
        file.write(bytes(8))


def remove_one(first):
    (SHM / first.segments.names[-1].removeprefix("/")).unlink()


@pytest.mark.parametrize("harm", [forge_boot_id, forge_ready, remove_one])
def test_memory_that_is_gone_or_unsound_is_counted_from_the_last_report(life, harm):
    first = life()
    consume(first.learner(), first.produce(3)[0])
    first.report()
    harm(first)
    first.die()
    second = life()
    assert second.resume.kind == "new"
    totals = second.totals()
    assert (totals.committed, totals.consumed, totals.dropped) == (3, 1, 2)
    assert second.balanced()
    assert second.resume.above == 7
    assert not {name.removeprefix("/") for name in first.segments.names} & segments()
    second.die()


def test_words_that_do_not_balance_are_not_gone_on_with(life):
    first = life()
    first.produce(2)
    first.report()
    with (SHM / first.segments.names[2].removeprefix("/")).open("r+b") as file:
        offset = int.from_bytes(file.read()[256 + 8 : 256 + 16], "little")
        file.seek(offset + 264)  # consumed
        file.write((5).to_bytes(8, "little"))
    first.die()
    second = life()
    assert second.resume.kind == "new"
    assert "committed 2 != consumed 5" in second.resume.notes[-1]
    assert (second.totals().committed, second.totals().dropped) == (2, 2)
    second.die()


def test_a_directory_that_was_moved_is_not_served_by_the_old_memory(life, tmp_path):
    first = life()
    first.produce(1)
    first.die()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere/toy").rename(tmp_path / "runs/boat")
    second = life("run.name=boat")
    assert second.resume.notes[-1].endswith(f"it was made for {tmp_path}/runs/toy")
    assert second.totals().dropped == 1
    second.die()


def interrupt(patch, owner, name, after):
    """The next call of `name` ends in a SIGKILL: before its work or behind it."""
    real = getattr(owner, name)

    def dies(*args, **kwargs):
        if after:
            real(*args, **kwargs)
        raise Killed

    patch.setattr(owner, name, dies)


PLACES = [
    (takeover.Left, "sweep"), (takeover.Left, "totals"), (takeover.Left, "take_over"),
    (takeover.Left, "drop"), (takeover, "enter_supervisor"), (rundir.RunDirectory, "settle_earlier"),
    (rundir.RunDirectory, "begin"), (rundir.RunDirectory, "write_attempt"), (shared, "create_control"),
    (shared, "create_weights"), (shared, "create_ring"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("overrides", [(), ("ring.slots=8",)], ids=["attach", "create"])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_a_start_killed_anywhere_leaves_what_the_next_one_handles(life, owner, name, overrides, after):
    first = life()
    first.enlist(4, 1, 1)
    consume(first.learner(), first.produce(3)[0])
    first.publish(2)
    first.die()
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, owner, name, after)
            patch.setattr(rundir.RunDirectory, "withdraw_attempt", lambda self: None)  # the dead do not tidy
            patch.setattr(Segments, "close", lambda self: None)
            with contextlib.suppress(Killed):
                life(*overrides).die()
    last = life(*overrides)
    totals = last.totals()
    assert (totals.committed, totals.consumed) == (3, 1)
    assert last.balanced()
    assert totals.restarts == {"learner": 0, "producer": 3}
    assert last.resume.above == 2
    last.die()


def test_half_made_segments_of_a_killed_start_are_cleared_away(life, tmp_path):
    life().die()
    attempt = tmp_path / "runs/toy/attempts/0001.json"
    record = rundir.read_json(attempt)
    for name in record["segments"]:
        os.truncate(SHM / name.removeprefix("/"), 0)
    second = life()
    assert second.resume.kind == "new"
    assert set(second.segments.names) == {f"/{name}" for name in segments() if name.split("-")[2] in str(
        rundir.read_json(tmp_path / "runs/toy/attempts/0002.json"))}
    second.die()


def test_seconds_and_restarts_of_every_attempt_add_up(life, monkeypatch):
    first = life()
    first.produce(1)
    first.enlist(3, 1, 2)
    books = first.rings[0].books()
    monkeypatch.setattr(takeover.Left, "_seconds", lambda self: 10.0)
    first.die()
    second = life()
    assert second.resume.before.seconds == 10.0
    assert second.resume.before.restarts == {"learner": 1, "producer": 2}
    assert second.resume.arguments() == [
        "--seconds-before", "10.0", "--began", str(second.resume.began_ns)]
    assert second.resume.began_ns > books["first_commit_ns"]
    assert second.control.process(0).epoch == 2
    assert second.control.process(0).pid == os.getpid()
    second.enlist(2, 1, 1)
    second.die()
    third = life("ring.slots=8")
    assert third.resume.before.seconds == 20.0
    assert third.resume.before.restarts == {"learner": 1, "producer": 3}
    third.die()


def test_a_clock_counts_to_the_last_sign_of_the_supervisor_unless_it_was_to_stop(life):
    for stop, longer in ((None, True), ("signal", False)):
        first = life("ring.slots=4" if stop is None else "ring.slots=5")
        before = first.resume.before.seconds
        first.produce(1)
        commit = first.rings[0].books()["first_commit_ns"]
        time.sleep(0.02)
        first.control.pulse("step", 1)
        seconds = (first.control.process(0).heartbeat_ns - commit) / 1e9
        if stop:
            first.control.set_stop(stop)
        first.die()
        second = life("ring.slots=6")
        counted = second.resume.before.seconds - before
        assert counted == pytest.approx(seconds if longer else 0.0, abs=1e-3)
        second.die()


def test_a_clock_counts_from_the_first_commit_to_the_last(life):
    first = life()
    first.produce(2)
    books = first.rings[0].books()
    first.die()
    second = life()
    seconds = (books["last_commit_ns"] - books["first_commit_ns"]) / 1e9
    assert second.resume.before.seconds == pytest.approx(seconds, abs=1e-6)
    second.die()
    third = life()  # the second committed nothing: its clock never moved
    assert third.resume.before.seconds == pytest.approx(seconds, abs=1e-6)
    third.die()


# Configuration


@pytest.mark.parametrize(("override", "message"), [
    ("policy.hidden=[32]", r"policy.hidden: \[32\] now, but this run began with \[16\], which its weights"),
    ("sim.max_steps=99", r"sim.max_steps: 99 now, but this run began with \d+, .*--fresh moves it aside"),
    ("sim.name=breakout", r"sim.\w+: .* now, but this run began with"),
])
def test_what_the_weights_are_made_for_cannot_change(life, override, message):
    first = life()
    first.produce(2)
    first.die()
    with pytest.raises(config.ConfigError, match=message):
        life(override)
    second = life()  # and nothing was touched
    assert (second.resume.kind, second.in_flight()) == ("attached", 2)
    second.die()


def test_what_else_changes_is_told_in_one_line(life):
    life().die()
    second = life(
        "learner.learning_rate=0.5", "stop.steps=9", "learner.normalize_value=true", "producers.agents=16"
    )
    told = (
        "changed since attempt 1: learner.learning_rate 0.0003 -> 0.5, "
        "learner.normalize_value false -> true, stop.steps nothing -> 9"
    )
    assert second.resume.notes[1] == told
    second.die()


# Checkpoints


def put(path, version, worlds=()):
    def write(folder):
        (folder / "policy.pt").write_bytes(b"weights")
        (folder / "learner.pt").write_bytes(b"the rest")
        (folder / "state.json").write_text(f'{{"version": {version}, "steps": 70, "updates": 3}}')
        for ring, blob in enumerate(worlds):
            (folder / shelf.worlds_name(ring)).write_bytes(blob)

    shelf.put(path / "checkpoints", version, write, keep=5)


def test_without_memory_a_run_goes_on_from_its_newest_good_checkpoint(life):
    first = life()
    put(first.directory.path, 3)
    put(first.directory.path, 4)
    os.truncate(first.directory.path / "checkpoints/version-000000004/policy.pt", 2)
    first.report()
    first.die()
    second = life("ring.slots=8")
    assert (second.resume.kind, second.resume.version, second.resume.above) == ("checkpoint", 3, 7)
    assert second.resume.checkpoint.name == "version-000000003"
    assert second.resume.lineage["steps"] == 70
    assert second.resume.notes[0] == "attempt 2: goes on from version 3 (checkpoint)"
    assert any("version-000000004/policy.pt: damaged" in note for note in second.resume.notes)
    second.die()


def test_a_run_whose_checkpoints_were_deleted_is_told_that_it_begins_again(life):
    first = life()
    first.publish(9)
    first.die()
    second = life("ring.slots=8")
    assert second.resume.notes[0] == "attempt 2: its checkpoints are gone, begins at version 0"
    second.die()


def test_a_taken_over_run_names_its_checkpoint_too(life):
    first = life()
    put(first.directory.path, 3)
    first.publish(9)
    first.die()
    second = life()
    assert (second.resume.kind, second.resume.version) == ("attached", 9)
    assert second.resume.checkpoint.name == "version-000000003"
    second.die()


@pytest.mark.parametrize(("overrides", "worlds", "why"), [
    (("mode=sync",), 0, "the checkpoint holds no worlds"),
    (("mode=sync",), 1, "producers.count is 2, and the checkpoint has the worlds of 1"),
    (("mode=sync",), 2, "the checkpoint's worlds are of another size"),
    (("mode=lagged", "staleness.exact=1"), 2, "producers are ahead of the learner by staleness.exact"),
])
def test_a_resume_that_is_not_exact_says_why(life, overrides, worlds, why):
    first = life(*overrides)
    put(first.directory.path, 3, [b"a state"] * worlds)
    first.die()
    second = life(*overrides)
    assert second.resume.notes[0].startswith(
        f"attempt 2: goes on from version 3 (checkpoint); resume: not exact, because {why}")
    assert not second.resume.report()["exact"]
    second.die()


@pytest.mark.parametrize("overrides", [("mode=sync",), ("mode=lagged", "staleness.exact=1")])
def test_a_stop_before_anything_was_learnt_changes_nothing(life, overrides):
    """Without worlds the next attempt steps those of the first, from the same seeds."""
    first = life(*overrides)
    put(first.directory.path, 0)
    first.die()
    second = life(*overrides)
    assert second.resume.notes == ("attempt 2: goes on from version 0 (checkpoint)",)
    assert [ring.plan.restart_base for ring in second.rings] == [0, 0]
    assert second.resume.report()["exact"]
    second.die()


def test_worlds_that_no_ring_takes_are_left_out(life):
    first = life("mode=sync")
    put(first.directory.path, 3, [bytes(ring.plan.state_bytes) for ring in first.rings])
    first.die()
    second = life("mode=sync")
    assert "resume: not exact, because " in second.resume.notes[0]
    assert "worlds-000.bin: " in second.resume.notes[0]
    assert second.resume.worlds == ()
    second.die()


# Totals


def test_totals_survive_their_file_and_add_up():
    one = Totals(committed=5, consumed=3, lag_bins=(1, 2, 0, 0), lag_max=2, seconds=1.5,
                 restarts={"learner": 2})
    assert Totals.from_json(one.to_json()) == dataclasses.replace(one, lag_bins=(1, 2))
    both = one + Totals(committed=1, lag_bins=(0, 0, 7), lag_max=1, seconds=2.0, restarts={"producer": 1})
    assert (both.committed, both.consumed, both.lag_bins, both.lag_max) == (6, 3, (1, 2, 7, 0), 2)
    assert (both.seconds, both.restarts) == (3.5, {"learner": 2, "producer": 1})
    assert one.settled().dropped == 2
    assert Totals.from_json({"committed": 4, "of another version": 1}) == Totals(committed=4)
    assert Totals.from_json(None) == Totals()
