"""What a ring promises its producer, its learner and its supervisor while nobody dies."""

import struct
import threading

import numpy as np
import pytest
import torch
from rings import NONE, consume, produce

from ringbuf import RingError, books

LAST = 2**45  # where sequence numbers end


def test_a_slot_shows_the_learner_the_very_memory_that_the_producer_wrote(rig):
    run = rig(grant=4)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    claim = producer.claim(7)
    claim.array("reward")[:] = np.arange(16, dtype=np.float32).reshape(4, 4)
    claim.commit(valid_steps=15, newest_version=9)
    lease = learner.lease(0)
    reward = lease.array("reward")
    assert reward.tolist() == np.arange(16).reshape(4, 4).tolist()
    assert (lease.sequence, lease.ring, lease.deliveries, lease.epoch) == (0, 0, 1, 0)
    assert (lease.version, lease.newest_version, lease.valid_steps) == (7, 9, 15)
    at = raw.payload(0) + run.ring.plan.fields["reward"].offset
    raw.bytes[at:at + 4] = np.float32(99).tobytes()  # no copy: what changes there changes here
    assert reward[0, 0] == 99


def test_a_slot_passes_through_its_states_in_order(rig):
    run = rig(slots=2, grant=4)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    assert raw.words() == [("free", 0), ("free", 1)]
    claim = producer.claim(0)
    assert raw.word(0) == ("writing", 0, 0, 100)
    claim.commit(16)
    assert raw.word(0) == ("ready", 0, 0, 0)
    lease = learner.lease(0)
    assert raw.word(0) == ("leased", 0, 1, 1)
    lease.ack()
    assert raw.word(0) == ("free", 2, 0, 0)


def test_a_producer_claims_only_with_an_owner_credit_and_room(rig):
    run = rig(slots=2, owner=None)
    producer, learner = run.producer(), run.learner()
    assert producer.claimable() == "wait_owner"
    run.ring.set_owner(0)
    assert producer.claimable() == "wait_credit"
    learner.grant(3)
    for _ in range(2):
        assert producer.claimable() == "claimable"
        produce(producer)
    assert producer.claimable() == "wait_full"
    assert producer.claim(0) is None
    consume(learner, 0)
    assert producer.claimable() == "claimable"
    produce(producer)
    assert producer.claimable() == "wait_credit"
    run.control.set_stop("signal")
    assert producer.claimable() == "stopped"


def test_after_a_stop_a_producer_finishes_what_was_granted_but_waits_for_no_room(rig):
    run = rig(slots=2, mode="exact", lagged_versions=3, batch_slots=1, grant=4)
    producer = run.producer()
    produce(producer)
    run.control.set_stop("versions")
    assert producer.claimable() == "claimable"
    produce(producer)
    assert producer.claimable() == "stopped"


def test_an_aborted_sequence_is_written_again(rig):
    run = rig(grant=1)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    claim = producer.claim(0)
    claim.abort()
    assert raw.word(0) == ("free", 0, 0, 0)
    assert produce(producer) == 0
    consume(learner, 0)
    assert books.at_rest(run.ring.books()) == []
    assert run.ring.books()["committed"] == 1


def test_what_is_not_ready_cannot_be_leased(rig):
    run = rig(grant=4)
    producer, learner = run.producer(), run.learner()
    assert learner.lease(0) is None
    claim = producer.claim(0)
    assert learner.lease(0) is None
    claim.commit(16)
    assert learner.lease(4) is None  # lives in the same slot
    held = learner.lease(0)
    assert learner.lease(0) is None
    assert learner.last_failure == "lost"
    held.ack()


@pytest.mark.parametrize("end", ["start", "end"])
def test_a_slot_with_a_wrong_stamp_is_set_aside_and_counted(rig, end):
    run = rig(grant=4)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    produce(producer)
    at = raw.payload(0) + (0 if end == "start" else run.ring.plan.payload_bytes - 64)
    raw.bytes[at] ^= 1
    assert learner.lease(0) is None
    assert learner.last_failure == "torn"
    assert raw.word(0) == ("bad", 0, 1, 0)
    assert run.ring.outstanding == 4  # a slot set aside holds its credit
    assert run.ring.books()["in_flight"] == 1
    assert books.at_rest(run.ring.books()) == []
    assert run.ring.drop(0, "bad")
    assert raw.word(0) == ("free", 4, 0, 0)
    assert run.ring.books()["dropped"]["bad"] == 1
    assert books.at_rest(run.ring.books()) == []
    assert not run.ring.drop(0, "bad")  # once


def test_a_slot_can_be_dumped_by_who_does_not_map_it(rig):
    """The supervisor finds payload and header of a slot set aside, and the file holds them."""
    run = rig(grant=8)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    for _ in range(4):
        consume(learner, produce(producer))
    sequence = produce(producer, version=3, valid_steps=11)
    offset, size = run.ring.slot_range(sequence)
    assert size == run.ring.plan.payload_bytes
    assert struct.unpack_from("<Q", raw.bytes, offset)[0] == sequence
    obs = run.ring.plan.fields["obs"]
    begin = offset + obs.offset
    assert raw.bytes[begin:begin + obs.bytes] == bytes([sequence % 251]) * obs.bytes
    header = run.ring.header(sequence)
    assert header == header | {"state": "ready", "sequence": sequence, "deliveries": 0, "oldest_version": 3,
                               "newest_version": 3, "valid_steps": 11, "episodes": 0, "epoch": 0}
    assert run.ring.header(5)["sequence"] == 5
    assert run.ring.header(1)["sequence"] == 5, "the slot of 1 has gone on"


def test_a_slot_that_survives_its_examination_counts_as_delivered_once(rig):
    run = rig(grant=1)
    learner, raw = run.learner(), run.raw()
    produce(run.producer())
    raw.set_word("ready", 0, deliveries=2)
    lease = learner.lease(0)
    assert lease.deliveries == 3
    lease.examined()
    assert lease.deliveries == 1
    assert raw.word(0) == ("leased", 0, 1, 1)
    lease.ack()


def test_under_drop_newest_a_full_ring_makes_holes_and_counts_them(rig):
    run = rig(slots=2, full="drop_newest")
    producer, learner = run.producer(), run.learner()
    produce(producer)
    produce(producer)
    for _ in range(3):
        assert producer.claimable() == "skip"
        producer.skip()
    consume(learner, 0)
    assert producer.claimable() == "skip"  # sequence 5 lives in slot 1, which is still full
    producer.skip()
    assert produce(producer) == 6
    found = run.ring.books()
    assert (found["offered"], found["committed"], found["not_written"]) == (7, 3, 4)
    assert (found["consumed"], found["in_flight"]) == (1, 2)
    assert books.at_rest(found) == []
    consume(learner, 1)
    consume(learner, 6)
    assert books.at_rest(run.ring.books()) == []


def test_under_drop_oldest_a_full_ring_overwrites_what_is_ready_and_never_what_is_leased(rig):
    run = rig(slots=2, full="drop_oldest")
    producer, learner = run.producer(), run.learner()
    produce(producer)
    produce(producer)
    held = learner.lease(0)
    obs = held.array("obs")
    assert producer.claimable() == "skip"
    producer.skip()
    assert producer.claimable() == "claimable"
    assert produce(producer) == 3  # over sequence 1
    assert learner.lease(1) is None
    assert (obs == 0).all()
    del obs
    held.ack()
    consume(learner, 3)
    found = run.ring.books()
    assert (found["committed"], found["consumed"], found["not_written"]) == (3, 2, 1)
    assert found["dropped"]["overwritten"] == 1
    assert books.at_rest(found) == []


@pytest.mark.parametrize("reason", ["rollback", "shutdown", "lag"])
@pytest.mark.parametrize("full", ["block", "drop_oldest", "drop_newest"])
def test_a_learner_drops_ready_and_leased_slots_and_each_is_counted_once(rig, full, reason):
    run = rig(full=full, grant=4)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    for _ in range(3):
        produce(producer)
    assert learner.drop(0, reason)
    assert not learner.drop(0, reason)
    learner.lease(1).drop(reason)
    assert raw.words()[:2] == [("free", 4), ("free", 5)]
    found = run.ring.books()
    assert (found["dropped"][reason], found["in_flight"], found["consumed"]) == (2, 1, 0)
    assert books.at_rest(found) == []


def test_the_supervisor_drops_ready_slots_only_while_the_ring_has_no_owner(rig):
    run = rig(grant=2)
    produce(run.producer())
    with pytest.raises(RingError, match="owner"):
        run.ring.drop(0, "rollback")
    run.ring.set_owner(None)
    assert run.ring.drop(0, "rollback")
    assert books.at_rest(run.ring.books()) == []


@pytest.mark.parametrize("full", ["block", "drop_oldest", "drop_newest"])
@pytest.mark.parametrize("start", [2**32 - 5, 2**32 - 1, LAST - 2 * 3 - 12])
def test_sequences_pass_32_bits_and_stop_before_45(rig, full, start):
    run = rig(slots=3, full=full, start_sequence=start, grant=10**6)
    producer, learner = run.producer(), run.learner()
    written = 0
    while producer.claimable() == "claimable" and written < 12:
        sequence = produce(producer)
        assert sequence == start + written
        consume(learner, sequence)
        written += 1
    assert written == 12
    found = run.ring.books()
    assert (found["committed"], found["consumed"], found["head"]) == (12, 12, start + 12)
    assert books.at_rest(found) == []
    assert producer.claimable() == ("exhausted" if start > 2**40 else "claimable")


def test_outstanding_is_what_was_granted_and_is_not_done(rig):
    run = rig(slots=4)
    producer, learner = run.producer(), run.learner()
    learner.grant(3)
    assert learner.outstanding == 3
    produce(producer)
    produce(producer)
    assert learner.outstanding == 3
    lease = learner.lease(0)
    assert learner.outstanding == 3
    lease.ack()
    assert learner.outstanding == 2
    assert run.ring.lower_granted_to_head()  # the producer died, say
    assert not run.ring.lower_granted_to_head()
    assert learner.outstanding == 1
    assert run.ring.books()["granted"] == 2


def test_the_acting_version_is_shown_before_the_claim_and_gone_after_commit_or_abort(rig):
    run = rig(grant=4)
    producer, learner, writer, reader = run.producer(), run.learner(), run.writer(), run.reader()
    assert producer.announce(reader) is None  # nobody acts before version 0
    assert learner.observe().acting is None
    for version in range(3):
        writer.publish(version, np.zeros(8, np.float32))
        assert producer.announce(reader) == version
        assert learner.observe().acting == version
        claim = producer.claim(version)
        assert learner.observe().slots[version][:2] == ("writing", version)
        claim.commit(16)
        assert learner.observe().acting is None
        assert learner.observe().slots[version] == ("ready", version, 0, version)
    producer.announce(reader)
    producer.abort()  # before the claim
    assert learner.observe().acting is None


def test_in_exact_modes_the_version_follows_from_the_sequence(rig):
    run = rig(slots=8, rings=2, mode="exact", lagged_versions=1, batch_slots=6)
    producer, learner = run.producer(), run.learner()
    learner.set_base(0, 0)
    learner.grant(100)
    acted = []
    for _ in range(8):
        acted.append(producer.exact_version())
        consume(learner, produce(producer, acted[-1]))
    assert acted == [0, 0, 0, 0, 0, 0, 1, 1]  # three slots a ring and batch; batch n acts with n - 1
    learner.set_base(8, 7)  # a roll-back: what came before version 7 is abandoned
    acted = []
    for _ in range(8):
        acted.append(producer.exact_version())
        consume(learner, produce(producer, acted[-1]))
    assert acted == [7, 7, 7, 7, 7, 7, 8, 8]


def test_a_slot_below_a_new_base_is_acted_with_a_version_that_exists(rig):
    """At a roll-back a producer may hold credit from before; its slot is dropped, so it must not wait."""
    run = rig(mode="exact", batch_slots=2)
    producer, learner = run.producer(), run.learner()
    learner.grant(2)
    produce(producer)
    learner.set_base(2, 9)
    assert producer.exact_version() == 9
    produce(producer)
    assert producer.exact_version() == 9


def test_a_request_for_the_state_rings_the_producer_and_is_asked_of_it_at_that_sequence(rig):
    run = rig(grant=3, mode="exact", batch_slots=1, world_state_bytes=8)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    learner.request_state(1)
    assert producer.claimable() == "claimable"
    produce(producer)
    assert producer.claimable() == "save"
    assert producer.wait(600), "nothing to sleep for"
    assert learner.state_sequence is None
    raw["state_sequence"] = 1
    assert learner.state_sequence == 1
    assert producer.claimable() == "claimable"
    produce(producer)
    produce(producer)
    assert producer.claimable() == "wait_credit"
    waiter = threading.Timer(0.05, learner.request_state, (3,))
    waiter.start()
    assert producer.wait(600), "woken by the request"
    assert producer.claimable() == "save"
    waiter.join()


VIEWS = {
    "array": lambda lease: lease.array("obs"),
    "part of an array": lambda lease: lease.array("obs")[2, :, :1],
    "np.frombuffer": lambda lease: np.frombuffer(lease, np.uint8),
    "memoryview": lambda lease: memoryview(lease)[64:],
    "torch.from_numpy": lambda lease: torch.from_numpy(lease.array("reward")).view(-1)[3:],
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("make", VIEWS.values(), ids=list(VIEWS))
def test_a_slot_cannot_be_given_away_while_a_view_of_it_lives(rig, make):
    run = rig(grant=1)
    produce(run.producer())
    learner = run.learner()
    lease = learner.lease(0)
    view = make(lease)
    for give_away in (lease.ack, lambda: lease.drop("lag"), learner.close):
        with pytest.raises(BufferError, match="live"):
            give_away()
    assert learner.observe().slots[0][0] == "leased"
    del view
    lease.ack()
    with pytest.raises(BufferError, match="given away"):
        memoryview(lease)
    with pytest.raises(RingError, match="given away"):
        lease.ack()


def test_a_producer_cannot_commit_while_a_view_of_the_slot_lives(rig):
    run = rig(grant=1)
    claim = run.producer().claim(0)
    obs = claim.array("obs")
    with pytest.raises(BufferError):
        claim.commit(16)
    with pytest.raises(BufferError):
        claim.abort()
    del obs
    claim.commit(16)


def test_a_learner_cannot_write_into_a_payload(rig):
    run = rig(grant=1)
    produce(run.producer())
    lease = run.learner().lease(0)
    assert not lease.array("obs").flags.writeable
    with pytest.raises(ValueError):
        lease.array("obs")[:] = 1


def test_episode_records_reach_the_learner_as_a_copy(rig):
    run = rig(grant=1)
    claim = run.producer().claim(3)
    record = [("version", "<i8"), ("agent", "<i4"), ("length", "<i4"), ("ret", "<f4"),
              ("statistics", "<f4", (2,)), ("padding", "<i4")]
    records = claim.array("episodes").view(record)[:, 0]
    records[0] = (3, 1, 40, 2.5, (7, 8), 0)
    records[1] = (4, 2, 50, -1, (9, 10), 0)
    del records
    claim.commit(16, episodes=2)
    lease = run.learner().lease(0)
    got = lease.episodes()
    lease.ack()  # no view: it is a copy
    assert got["version"].tolist() == [3, 4]
    assert got["agent"].tolist() == [1, 2]
    assert got["length"].tolist() == [40, 50]
    assert got["ret"].tolist() == [2.5, -1]
    assert got["statistics"].tolist() == [[7, 8], [9, 10]]


def test_absent_fields_are_none_and_unknown_ones_an_error(rig):
    run = rig(has_mask=False, grant=1)
    claim = run.producer().claim(0)
    assert claim.array("mask") is None
    with pytest.raises(KeyError, match="obs"):
        claim.array("observation")
    claim.abort()


def test_the_check_of_the_books_can_fail(rig):
    run = rig(grant=4)
    producer, learner, raw = run.producer(), run.learner(), run.raw()
    for sequence in range(2):
        produce(producer)
        consume(learner, sequence)
    assert books.at_rest(run.ring.books()) == []
    raw["consumed"] = 1
    assert books.at_rest(run.ring.books()) != []
    raw["consumed"] = 2
    raw.set_word("free", 6)  # a slot that vanished
    assert books.at_rest(run.ring.books()) != []
    raw.set_word("writing", 2)
    assert books.at_rest(run.ring.books()) != []


def test_each_side_may_do_only_what_is_its_own(rig):
    run = rig(grant=1)
    producer, learner = run.producer(), run.learner()
    for forbidden in (lambda: learner.claim(0), lambda: producer.lease(0), lambda: producer.grant(),
                      lambda: learner.sweep_producer(), lambda: run.ring.lease(0)):
        with pytest.raises(RingError, match="cannot do this"):
            forbidden()
    with pytest.raises(RingError, match="blocks"):
        producer.skip()
    with pytest.raises(ValueError, match="rollback"):
        learner.drop(0, "tired")


def test_a_ring_without_payload_mapped_still_tells_its_books(rig):
    run = rig(grant=2)
    produce(run.producer())
    monitor = type(run.ring).attach(run.ring.fd, run.control, "monitor")
    assert monitor.books()["committed"] == 1
    assert monitor.observe().slots[0][0] == "ready"
    assert monitor.plan == run.ring.plan
    monitor.close()
    with pytest.raises(RingError, match="closed"):
        monitor.books()


def test_a_producer_is_refused_until_the_dead_one_was_swept(rig):
    run = rig(grant=2)
    first = run.producer()
    assert first.claim(0) is not None
    with pytest.raises(RingError, match="not swept"):
        run.producer()
    run.ring.sweep_producer()
    assert run.producer().sequence == 0
    assert run.raw()["acting"] == NONE
