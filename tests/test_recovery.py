"""What the sweep repairs: the state that each death leaves behind is built by hand, then repaired.

KP, KC and KS name the crash points of docs/architecture.md: producer, consumer (learner), supervisor.
Every case is swept once, twice, and by a supervisor that dies in the middle of its own sweep.
"""

import pytest
from rings import NONE, VALID_STEPS, consume, produce

from ringbuf import books

PRODUCER, LEARNER = 100, 1  # process indices that Rig gives


def settled(run, **expected):
    """The books balance, and these of their figures are as expected."""
    found = run.ring.books()
    assert books.at_rest(found) == []
    assert found["consumed_steps"] == VALID_STEPS * found["consumed"]
    assert found["in_flight_steps"] == VALID_STEPS * found["in_flight"]
    assert found["dropped_steps"] == {reason: VALID_STEPS * n for reason, n in found["dropped"].items()}
    flat = found | found["dropped"] | {"set_aside": found["bad"]}
    assert {name: flat[name] for name in expected} == expected


def goes_on(run, next_sequence):
    """A new producer and a new learner work on the swept ring."""
    producer, learner = run.producer(), run.learner()
    assert producer.sequence == next_sequence
    learner.grant(8)
    for state, sequence, _, _ in sorted(run.ring.observe().slots, key=lambda slot: slot[1]):
        if state == "ready":
            lease = learner.lease(sequence)
            lease.ack()
    assert produce(producer) == next_sequence
    consume(learner, next_sequence)
    assert books.at_rest(run.ring.books()) == []


@pytest.fixture(params=[1, 2, "half-way"])
def sweep_producer(request):
    """Sweeps once, twice, or twice with the first one cut short after the words, before bells and epoch."""
    def sweep(run):
        if request.param == "half-way":
            raw, epoch, pid = run.raw(), run.raw()["epoch"], run.raw()["pid"]
            run.ring.sweep_producer()
            raw["epoch"], raw["pid"] = epoch, pid
        else:
            for _ in range(request.param - 1):
                run.ring.sweep_producer()
        run.ring.sweep_producer()
    return sweep


@pytest.fixture(params=[1, 2])
def sweep_learner(request):
    """Sweeps once or twice."""
    def sweep(run, listed=()):
        for _ in range(request.param):
            run.ring.sweep_learner(LEARNER, listed)
    return sweep


# ---- producer ----

def test_kp0_a_producer_killed_before_its_claim_leaves_no_acting_version(rig, sweep_producer):
    run = rig(grant=4)
    produce(run.producer())
    run.raw()["acting"] = 0
    sweep_producer(run)
    assert run.ring.observe().acting is None
    settled(run, committed=1, in_flight=1, epoch=1)
    goes_on(run, 1)


def test_kp1_a_slot_under_way_is_written_again(rig, sweep_producer):
    run = rig(grant=4)
    producer = run.producer()
    produce(producer)
    claim = producer.claim(0)
    claim.array("obs")[:] = 77
    sweep_producer(run)
    assert run.raw().words()[:2] == [("ready", 0), ("free", 1)]
    settled(run, committed=1, writing=0)
    goes_on(run, 1)


def test_kp1_in_a_ring_of_one_slot(rig, sweep_producer):
    run = rig(slots=1, grant=4)
    producer, learner = run.producer(), run.learner()
    produce(producer)
    consume(learner, 0)
    producer.claim(0)
    sweep_producer(run)
    goes_on(run, 1)


def test_kp2_a_commit_counts_though_the_head_was_not_stored(rig, sweep_producer):
    run = rig(grant=4)
    raw, producer = run.raw(), run.producer()
    produce(producer)
    produce(producer)
    raw["head"] = 1
    raw["acting"] = 0
    sweep_producer(run)
    assert raw["head"] == 2
    assert raw["acting"] == NONE
    settled(run, committed=2, in_flight=2)
    goes_on(run, 2)


def test_kp2_a_commit_counts_though_it_was_acked_before_the_head_was_stored(rig, sweep_producer):
    run = rig(grant=4)
    raw, producer, learner = run.raw(), run.producer(), run.learner()
    for sequence in range(3):
        produce(producer)
        consume(learner, sequence)
    raw["head"] = 2
    sweep_producer(run)  # only the FREE words know of sequence 2
    settled(run, committed=3, consumed=3, head=3)
    goes_on(run, 3)


def test_kp4_an_overwrite_that_came_about_is_counted_once(rig, sweep_producer):
    run = rig(slots=2, full="drop_oldest")
    raw, producer = run.raw(), run.producer()
    produce(producer)
    produce(producer)
    producer.claim(0)  # over sequence 0
    raw["overwritten"] = 0
    raw.pend("producer", "overwritten", 0, 0)
    sweep_producer(run)
    assert raw.words() == [("free", 2), ("ready", 1)]
    settled(run, committed=2, overwritten=1, in_flight=1)
    goes_on(run, 2)


def test_kp4_an_overwrite_that_did_not_come_about_is_not_counted(rig, sweep_producer):
    run = rig(slots=2, full="drop_oldest")
    raw, producer = run.raw(), run.producer()
    produce(producer)
    produce(producer)
    raw.pend("producer", "overwritten", 0, 0)
    sweep_producer(run)
    settled(run, committed=2, overwritten=0, in_flight=2)


def test_kp4_an_overwrite_lost_to_a_lease_is_not_counted_though_the_slot_was_acked(rig, sweep_producer):
    run = rig(slots=2, full="drop_oldest")
    raw, producer, learner = run.raw(), run.producer(), run.learner()
    produce(producer)
    produce(producer)
    raw.pend("producer", "overwritten", 0, 0)
    consume(learner, 0)
    sweep_producer(run)
    settled(run, committed=2, overwritten=0, consumed=1, in_flight=1)


@pytest.mark.parametrize(("head", "count"), [(2, 0), (3, 0), (3, 1)],
                         ids=["before the head", "before the count", "before the intent is cleared"])
def test_a_sequence_passed_over_is_counted_only_if_the_head_passed_it(rig, sweep_producer, head, count):
    run = rig(slots=2, full="drop_newest")
    raw, producer = run.raw(), run.producer()
    produce(producer)
    produce(producer)
    producer.skip()
    raw["head"], raw["not_written"] = head, count
    raw.pend("producer", "not_written", 0, 2)
    sweep_producer(run)
    settled(run, committed=2, not_written=head - 2, offered=head)
    assert run.producer().sequence == head


def test_a_producers_death_raises_the_epoch_that_its_successors_slots_carry(rig):
    run = rig(grant=4)
    produce(run.producer())
    run.ring.sweep_producer()
    produce(run.producer())
    learner = run.learner()
    assert [learner.lease(s).epoch for s in (0, 1)] == [0, 1]


# ---- learner ----

def test_kc1_a_leased_slot_is_delivered_again(rig, sweep_learner):
    run = rig(grant=4)
    producer, learner = run.producer(), run.learner()
    for _ in range(3):
        produce(producer)
    learner.lease(0)
    learner.lease(1)
    sweep_learner(run)
    assert run.raw().words()[:3] == [("ready", 0), ("ready", 1), ("ready", 2)]
    settled(run, in_flight=3, redelivered=2, consumed=0)
    successor = run.learner()
    assert successor.lease(0).deliveries == 2
    assert successor.lease(2).deliveries == 1


def test_kc1_a_leased_slot_on_the_published_list_is_consumed_and_not_delivered_again(rig, sweep_learner):
    run = rig(grant=4)
    producer, learner = run.producer(), run.learner()
    for _ in range(3):
        produce(producer)
    for sequence in range(3):
        learner.lease(sequence)
    sweep_learner(run, [(0, 0, 0), (1, 1, 0), (0, 2, 5), (0, 4, 0)])
    assert run.raw().words()[:3] == [("free", 4), ("ready", 1), ("free", 6)]
    settled(run, in_flight=1, redelivered=1, consumed=2)
    goes_on(run, 3)


def test_kc1_a_slot_that_was_acked_before_the_death_is_not_consumed_twice(rig, sweep_learner):
    run = rig(grant=8)
    producer, learner = run.producer(), run.learner()
    produce(producer)
    consume(learner, 0)
    for _ in range(4):
        produce(producer)  # sequence 4 lives where 0 did
    learner.lease(4)
    sweep_learner(run, [(0, 0)])
    settled(run, consumed=1, in_flight=4, redelivered=1)


@pytest.mark.parametrize("cause", ["consumed", "rollback", "shutdown", "lag"])
@pytest.mark.parametrize(("moved", "counted"), [(False, False), (True, False), (True, True)])
def test_kc1_an_ack_is_counted_if_and_only_if_the_slot_was_freed(rig, sweep_learner, cause, moved, counted):
    run = rig(grant=4)
    raw, learner = run.raw(), run.learner()
    produce(run.producer())
    learner.lease(0)
    if moved:
        raw.set_word("free", 4)
    raw[cause], raw[f"{cause}_steps"] = 5 + counted, VALID_STEPS * (5 + counted)
    raw.pend("learner", cause, 5, 0)
    other = "lag" if cause == "consumed" else "consumed"
    sweep_learner(run)
    assert raw[cause] == 5 + moved
    assert raw[f"{cause}_steps"] == VALID_STEPS * (5 + moved)
    assert raw[other] == 0
    assert raw["learner_sequence"] == NONE


def test_kc1_an_acked_slot_may_have_been_written_again_before_the_sweep(rig, sweep_learner):
    run = rig(slots=2, grant=8)
    raw, producer, learner = run.raw(), run.producer(), run.learner()
    produce(producer)
    learner.lease(0)
    raw.set_word("free", 2)
    raw.pend("learner", "consumed", 0, 0)
    produce(producer)
    produce(producer)  # sequence 2
    sweep_learner(run)
    settled(run, consumed=1, committed=3, in_flight=2)


def test_a_slot_whose_learner_died_at_the_third_delivery_is_set_aside(rig, sweep_learner):
    run = rig(grant=4)
    raw, learner = run.raw(), run.learner()
    produce(run.producer())
    for _ in range(2):
        learner.lease(0)
        run.ring.sweep_learner(LEARNER, [])
        learner = run.learner()
    assert learner.lease(0).deliveries == 3
    sweep_learner(run)
    assert raw.word(0)[:3] == ("bad", 0, 3)
    settled(run, redelivered=2, set_aside=1, in_flight=1)


def test_a_slot_that_survived_its_examination_is_delivered_again_after_a_later_death(rig, sweep_learner):
    run = rig(grant=4)
    raw = run.raw()
    produce(run.producer())
    raw.set_word("ready", 0, deliveries=2)
    run.learner().lease(0).examined()
    sweep_learner(run)
    assert raw.word(0)[:3] == ("ready", 0, 1)


def test_the_sweep_of_one_learner_leaves_anothers_leases_alone(rig):
    run = rig(grant=4)
    producer = run.producer()
    produce(producer)
    produce(producer)
    run.learner(process=1).lease(0)
    held = run.learner(process=2).lease(1)
    run.ring.sweep_learner(1, [])
    assert run.raw().words()[:2] == [("ready", 0), ("leased", 1)]
    held.ack()
    run.learner(process=3).lease(0)
    run.ring.sweep_learner(None, [])  # whoever it was
    assert run.raw().words()[0] == ("ready", 0)


def test_a_learner_that_was_ended_because_of_anothers_death_is_not_held_against_its_slots(rig):
    run = rig(grant=4)
    raw, learner = run.raw(), run.learner()
    for _ in range(3):
        produce(run.producer())
    for sequence, deliveries in ((0, 2), (1, 0), (2, 2)):
        raw.set_word("ready", sequence, deliveries=deliveries)
        learner.lease(sequence)
    for _ in range(2):
        run.ring.sweep_learner(LEARNER, [(0, 2)], True)
        assert [raw.word(slot)[:3] for slot in range(2)] == [("ready", 0, 2), ("ready", 1, 0)]
    settled(run, redelivered=2, consumed=1, in_flight=2)


# ---- supervisor ----

@pytest.mark.parametrize("moved", [False, True])
def test_ks1_a_supervisor_killed_while_it_consumed_a_listed_slot(rig, moved):
    run = rig(grant=4)
    raw, learner = run.raw(), run.learner()
    produce(run.producer())
    learner.lease(0)
    raw.pend("learner", "consumed", 0, 0)
    if moved:
        raw.set_word("free", 4)
    run.ring.sweep_learner(LEARNER, [(0, 0)])
    settled(run, consumed=1, in_flight=0)


@pytest.mark.parametrize("moved", [False, True])
def test_ks1_a_supervisor_killed_while_it_gave_a_slot_back(rig, moved):
    run = rig(grant=4)
    raw, learner = run.raw(), run.learner()
    produce(run.producer())
    learner.lease(0)
    raw.pend("supervisor", "redelivered", 0, 0)
    if moved:
        raw.set_word("ready", 0, deliveries=1)
    run.ring.sweep_learner(LEARNER, [])
    settled(run, redelivered=1, in_flight=1)


@pytest.mark.parametrize("moved", [False, True])
def test_ks1_a_supervisor_killed_while_it_freed_a_bad_slot(rig, moved):
    run = rig(grant=4)
    raw = run.raw()
    produce(run.producer())
    raw.set_word("bad", 0, deliveries=1)
    raw.pend("supervisor", "bad", 0, 0)
    if moved:
        raw.set_word("free", 4)
    assert run.ring.drop(0, "bad") == (not moved)
    settled(run, bad=1, in_flight=0)


def test_a_learner_and_a_producer_may_die_together(rig):
    run = rig(grant=4)
    producer, learner = run.producer(), run.learner()
    produce(producer)
    produce(producer)
    learner.lease(0)
    learner.lease(1)
    producer.claim(0)
    run.ring.sweep_producer()
    run.ring.sweep_learner(None, [(0, 1)])
    settled(run, consumed=1, redelivered=1, in_flight=1, committed=2)
    goes_on(run, 2)


# ---- wakes ----

def test_a_sweep_wakes_everybody_who_sleeps_though_the_dead_had_taken_the_flag(rig):
    run = rig(grant=4)
    raw, learner = run.raw(), run.process(LEARNER)
    for sweep in (run.ring.sweep_producer, lambda: run.ring.sweep_learner(LEARNER, [])):
        seen = learner.bell_value(0)
        producer_bell = raw["bell"] & 0xFFFFFFFF
        sweep()
        assert learner.bell_wait(0, seen, 0)
        assert raw["bell"] & 0xFFFFFFFF != producer_bell


def test_credit_of_a_producer_in_back_off_goes_back_to_the_learner(rig):
    run = rig(slots=4, grant=3)
    producer, learner = run.producer(), run.learner()
    produce(producer)
    producer.claim(0)
    run.ring.sweep_producer()
    seen = run.process(LEARNER).bell_value(0)
    assert run.ring.lower_granted_to_head()
    assert run.control.bell_wait(0, seen, 0)
    assert (learner.outstanding, run.ring.books()["granted"]) == (1, 1)
