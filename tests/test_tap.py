"""The tap: copies that are whole or not accepted, and that nobody notices."""

import sys
import time
from array import array
from pathlib import Path

import numpy as np
import pytest
from rings import child, consume, produce
from stepper import Stepper

from ringbuf import Ring, RingError

DEADLINE_SECONDS = 60  # against hanging only
EVERY = pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.soak)])


class Tap:
    """Copies observations of ring 0, in pieces of `piece_bytes`."""

    def __init__(self, run, piece_bytes=None):
        self.ring = run._keep(Ring.attach(run.ring.fd, run.process(95), "tap"))
        field = self.ring.plan.fields["obs"]
        step = piece_bytes or field.bytes
        spans = [(at, min(step, field.bytes - at)) for at in range(0, field.bytes, step)]
        self.pieces = array("Q", [number for at, size in spans for number in (field.offset + at, size)])
        self.out = bytearray(field.bytes)
        self.records = bytearray(self.ring.plan.fields["episodes"].bytes)

    def __call__(self, sequence):
        """What is told of the slot, whose observations must be those of produce(); or why there is no
        copy."""
        facts = self.ring.tap(sequence, self.pieces, self.out, self.records)
        if facts is None:
            return self.ring.last_failure
        assert (np.frombuffer(self.out, np.uint8) == sequence % 251).all()
        return facts


def test_a_slot_is_copied_from_its_commit_until_it_is_claimed_again(rig):
    run = rig(slots=2, grant=5)
    tap, producer, learner = Tap(run), run.producer(), run.learner()
    assert tap(0) == "early"
    claim = producer.claim(3)
    assert tap(0) == "early"
    claim.abort()
    assert tap(0) == "early"
    produce(producer, version=3, valid_steps=7, episodes=2)
    ready = tap(0)
    assert (ready["oldest_version"], ready["valid_steps"], ready["episodes"], ready["epoch"]) == (3, 7, 2, 0)
    lease = learner.lease(0)
    assert tap(0) == ready
    lease.ack()
    assert tap(0) == ready
    produce(producer)
    claim = producer.claim(3)
    assert claim.sequence == 2
    assert tap(0) == "missed"
    claim.abort()  # the word is that of an acked slot again
    assert tap(0) == "missed"
    assert tap(2) == "early"
    assert produce(producer) == 2
    assert tap(2)["valid_steps"] == 16
    assert tap(0) == "missed"


def test_a_slot_that_was_set_aside_is_missed(rig):
    run = rig(slots=2, grant=1)
    tap = Tap(run)
    produce(run.producer())
    run.raw().set_word("bad", 0)
    assert tap(0) == "missed"


@pytest.mark.parametrize("full", ["drop_newest", "drop_oldest"])
def test_a_sequence_that_was_passed_over_is_told_from_one_that_is_to_come(rig, full):
    run = rig(slots=2, full=full)
    tap, producer, learner = Tap(run), run.producer(), run.learner()
    produce(producer)
    produce(producer)
    leases = [learner.lease(0), learner.lease(1)]
    assert producer.claimable() == "skip"
    assert tap(2) == "early"
    producer.skip()
    assert tap(2) == "hole"
    assert tap(3) == "early"
    assert tap(0)["valid_steps"] == 16
    for lease in leases:
        lease.ack()
    assert tap(2) == "hole"


def test_a_wrong_stamp_is_not_accepted(rig):
    run = rig(slots=2, grant=1)
    tap, raw = Tap(run), run.raw()
    produce(run.producer())
    raw.bytes[raw.payload(0) + run.ring.plan.payload_bytes - 64] ^= 1
    assert tap(0) == "missed"


def test_only_pieces_of_the_payload_are_copied_and_only_where_there_is_room(rig):
    run = rig(slots=2, grant=1)
    produce(run.producer())
    tap, payload = Tap(run), run.ring.plan.payload_bytes
    for pieces in ([payload, 1], [0, payload + 1], [2**64 - 8, 16], [8, 2**64 - 1]):
        with pytest.raises(ValueError, match="outside"):
            tap.ring.tap(0, array("Q", pieces), tap.out, tap.records)
    with pytest.raises(ValueError, match="pairs"):
        tap.ring.tap(0, array("Q", [0]), tap.out, tap.records)
    with pytest.raises(ValueError, match="room"):
        tap.ring.tap(0, tap.pieces, tap.out[:-1], tap.records)
    with pytest.raises(ValueError, match="room"):
        tap.ring.tap(0, tap.pieces, tap.out, tap.records[:-1])
    with pytest.raises((BufferError, TypeError)):
        tap.ring.tap(0, tap.pieces, bytes(len(tap.out)), tap.records)


def test_a_count_of_episodes_that_cannot_be_is_bounded(rig):
    run = rig(slots=2, grant=1)
    tap, most = Tap(run), run.ring.plan.fields["episodes"].shape[0]
    produce(run.producer(), episodes=2**63)
    assert tap(0)["episodes"] == most


def test_a_tap_cannot_write_and_takes_no_part(rig):
    run = rig(slots=2, grant=1)
    produce(run.producer())
    tap, raw = Tap(run), run.raw()
    before = bytes(raw.bytes)
    tap(0)
    assert bytes(raw.bytes) == before
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert any("r--s 00000000" in line for line in maps if run.names[2] in line)
    for act in (
        lambda: tap.ring.lease(0),
        lambda: tap.ring.drop(0, "lag"),
        tap.ring.grant,
        tap.ring.sweep_producer,
    ):
        with pytest.raises(RingError, match="attached as tap"):
            act()


@EVERY
@pytest.mark.parametrize("operation", ["produce", "give_up"])
def test_a_copy_taken_at_any_instruction_of_the_next_writer_is_whole_or_refused(rig, operation, every):
    """`operation` writes sequence 2 over sequence 0."""
    run = rig(slots=2, horizon=2, worlds=2, obs_shape=(8,), grant=3)
    run.writer().publish(3, np.zeros(8, np.float32))
    producer, learner = run.producer(), run.learner()
    for sequence in range(2):
        produce(producer)
        consume(learner, sequence)
    tap, copied, refused = Tap(run, 8), 0, 0
    with Stepper(every, run, operation) as stepper:
        for _ in stepper.stops():
            got = tap(0)
            copied += got != "missed"
            refused += got == "missed"
            assert tap(2) == "early" or (operation == "produce" and tap(2)["valid_steps"] == 16)
            stepper.go()
            assert tap(0) == "missed"
    assert copied > 0
    assert refused > 0


@EVERY
@pytest.mark.parametrize("then", ["commits", "writes", "gives up", "dies"])
def test_a_tap_that_is_overtaken_at_any_instruction_refuses_its_copy(rig, then, every):
    """The copy itself is looked at in the other process, which dies where it accepts one that is torn."""
    run = rig(slots=2, horizon=2, worlds=2, obs_shape=(8,), grant=3)
    producer, learner = run.producer(), run.learner()
    for sequence in range(2):
        produce(producer)
        consume(learner, sequence)
    with Stepper(every, run, "tap", 0) as stepper:
        for _ in stepper.stops():
            again = Ring.attach(run.ring.fd, run.process(100), "producer")
            if then == "commits":
                produce(again)
            else:
                claim = again.claim(3)
                obs = claim.array("obs")
                obs[:] = 2
                del obs
                if then == "gives up":
                    claim.abort()
                elif then == "dies":
                    run.ring.sweep_producer()
            stepper.go()
            again.close()


@EVERY
def test_a_tap_that_began_before_the_commit_refuses_what_it_had_copied(rig, every):
    """The slot is WRITING, with a right start stamp; it is written and committed while the tap is stopped."""
    run = rig(slots=2, horizon=2, worlds=2, obs_shape=(8,), grant=3)
    raw, field = run.raw(), run.ring.plan.fields["obs"]
    at = raw.payload(0) + field.offset
    raw.bytes[at : at + field.bytes] = b"\7" * field.bytes
    raw.set_word("writing", 0, owner=100)
    with Stepper(every, run, "tap", 0) as stepper:
        for _ in stepper.stops():
            raw.bytes[at : at + field.bytes] = bytes(field.bytes)
            raw.set_word("ready", 0)
            stepper.go()


WRITER = """
import sys
sys.path[:0] = sys.argv[3:]
from ringbuf import Control, Ring
from rings import produce
ring = Ring.attach(int(sys.argv[2]), Control.attach(int(sys.argv[1]), 100), "producer")
print("ready", flush=True)
while True:
    produce(ring)
"""


def test_copies_taken_while_another_process_overwrites_them_are_whole(rig):
    run = rig(slots=2, horizon=8, worlds=8, obs_shape=(16384,), full="drop_oldest")
    tap, raw = Tap(run), run.raw()
    size = len(tap.out)
    writer = child(WRITER, [run.control.fd, run.ring.fd], *sys.path)
    try:
        assert writer.stdout.readline() == "ready\n"
        copied = missed = torn = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while min(copied, missed, torn) < 10 and time.monotonic() < deadline:
            sequence = max(1, raw["head"]) - 1  # the newest, which is overwritten after the next
            got = tap(sequence)
            copied += isinstance(got, dict)
            missed += got == "missed"
            # Without looking afterwards, what comes of it?
            at = raw.payload(sequence) + run.ring.plan.fields["obs"].offset
            seen = np.frombuffer(raw.bytes[at : at + size], np.uint8)
            torn += (seen != seen[0]).any()
    finally:
        writer.kill()
        writer.communicate()
    assert min(copied, missed, torn) >= 10, (copied, missed, torn)
