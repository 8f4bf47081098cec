"""No wake-up is lost: real processes hand slots back and forth, with slices so long that each must be rung.

A slice that passed without a ring although what was waited for is there is a lost wake-up; each process
counts its own. A slice that passed because the other side is slow is none.
"""

import numpy as np
import pytest
from rings import child

from ringbuf import books

TURNS = 10_000
SLICE_SECONDS = 5.0

PRODUCER = """
import sys
from ringbuf import Control, Ring, Weights
control_fd, ring_fd, weights_fd, turns, slice_seconds = *map(int, sys.argv[1:5]), float(sys.argv[5])
ring = Ring.attach(ring_fd, Control.attach(control_fd, 100), "producer")
weights = Weights.attach(weights_fd)

def wait_while(reason):
    if not ring.wait(slice_seconds) and ring.claimable() != reason:
        sys.exit(f"a wake-up was lost in {reason}")

while weights.published is None:
    if not ring.wait_published(weights, None, slice_seconds) and weights.published is not None:
        sys.exit("the publication was lost")
for turn in range(turns):
    while (why := ring.claimable()) != "claimable":
        wait_while(why)
    ring.claim(ring.announce(weights)).commit(1)
while (why := ring.claimable()) != "stopped":
    wait_while(why)
"""


def is_ready(learner, sequence):
    return learner.observe().slots[sequence % learner.slots][:2] == ("ready", sequence)


def take(learner, control, sequence, producer):
    """Waits for the slot, which must be announced by a ring, and acks it."""
    while True:
        seen = control.bell_value(0)
        if is_ready(learner, sequence):
            break
        if not control.bell_wait(0, seen, SLICE_SECONDS):
            assert not is_ready(learner, sequence), "the wake-up was lost"
            assert producer.poll() is None, "the producer lost a wake-up"
    learner.lease(sequence).ack()


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("wakes", ["acks", "grants"])
def test_no_wake_up_is_lost_in_ten_thousand_turns(rig, slots, wakes):
    run = rig(slots=slots)
    learner, control, writer = run.learner(), run.process(1), run.writer()
    producer = child(PRODUCER, [run.control.fd, run.ring.fd, run.channel.fd], TURNS, SLICE_SECONDS)
    try:
        writer.publish(0, np.zeros(8, np.float32))
        learner.ring_producer()
        if wakes == "acks":
            learner.grant(TURNS)
        for turn in range(TURNS):
            if wakes == "grants":
                learner.grant()
            take(learner, control, turn, producer)
        run.control.set_stop("signal")
        producer.communicate(timeout=600)
        assert producer.returncode == 0
    finally:
        producer.kill()
        producer.communicate()
    assert books.at_rest(run.ring.books()) == []
    assert run.ring.books()["consumed"] == TURNS


OWNED = """
import sys
from ringbuf import Control, Ring
ring = Ring.attach(int(sys.argv[2]), Control.attach(int(sys.argv[1]), 100), "producer")
assert ring.claimable() == "wait_owner"
print("waiting", flush=True)
while ring.claimable() != "claimable":
    if not ring.wait(5.0) and ring.claimable() == "claimable":
        sys.exit("a wake-up was lost")
ring.claim(0).commit(1)
"""


def test_a_new_owner_and_its_credit_wake_a_producer_whose_slot_wakes_the_new_owner(rig):
    run = rig(owner=None)
    learner, control = run.learner(), run.process(1)
    producer = child(OWNED, [run.control.fd, run.ring.fd])
    try:
        assert producer.stdout.readline() == "waiting\n"
        seen = control.bell_value(7)
        run.ring.set_owner(7)
        assert control.bell_wait(7, seen, 0)  # the change itself is news
        seen = control.bell_value(7)
        learner.grant()
        assert control.bell_wait(7, seen, 600)
        producer.communicate(timeout=600)
        assert producer.returncode == 0
        assert learner.observe().slots[0][0] == "ready"
    finally:
        producer.kill()
        producer.communicate()
