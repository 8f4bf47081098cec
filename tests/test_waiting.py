"""No wake-up is lost: real processes hand slots back and forth, with slices so long that each must be rung.

A slice that passed without a ring although what was waited for is there is a lost wake-up; each process
counts its own. A slice that passed because the other side is slow is none.
"""

import subprocess
import sys

import numpy as np
import pytest

from ringbuf import books

TURNS = 10_000
SLICE_SECONDS = 5.0

PRODUCER = """
import sys
from ringbuf import Control, Ring, Weights
control_fd, ring_fd, weights_fd, turns, slice_seconds = *map(int, sys.argv[1:5]), float(sys.argv[5])
ring = Ring.attach(ring_fd, Control.attach(control_fd, 100), "producer")
weights = Weights.attach(weights_fd)
lost = 0
while weights.published is None:
    lost += not ring.wait_published(weights, None, slice_seconds) and weights.published is not None
for turn in range(turns):
    while (why := ring.claimable()) != "claimable":
        assert why.startswith("wait"), why
        lost += not ring.wait(slice_seconds) and ring.claimable() != why
    claim = ring.claim(ring.announce(weights))
    claim.commit(1)
while (why := ring.claimable()) != "stopped":
    lost += not ring.wait(slice_seconds) and ring.claimable() != why
print(lost)
"""


def is_ready(learner, sequence):
    return learner.observe().slots[sequence % learner.slots][:2] == ("ready", sequence)


def learn(learner, control, turns):
    """Takes `turns` slots one by one, granting one at a time; returns the number of lost wake-ups."""
    lost = 0
    for turn in range(turns):
        learner.grant()
        while True:
            seen = control.bell_value(0)
            if is_ready(learner, turn):
                break
            lost += not control.bell_wait(0, seen, SLICE_SECONDS) and is_ready(learner, turn)
        learner.lease(turn).ack()
    return lost


@pytest.mark.parametrize("slots", [1, 3])
def test_no_wake_up_is_lost_in_ten_thousand_turns(rig, slots):
    run = rig(slots=slots)
    learner, control, writer = run.learner(), run.process(1), run.writer()
    descriptors = [run.control.fd, run.ring.fd, run.channel.fd]
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, *map(str, descriptors), str(TURNS), str(SLICE_SECONDS)],
        pass_fds=descriptors, stdout=subprocess.PIPE, text=True)
    try:
        writer.publish(0, np.zeros(8, np.float32))
        learner.ring_producer()
        assert learn(learner, control, TURNS) == 0
        run.control.set_stop("signal")
        out, _ = producer.communicate(timeout=120)
        assert producer.returncode == 0
        assert int(out) == 0
    finally:
        producer.kill()
        producer.wait()
    assert books.at_rest(run.ring.books()) == []
    assert run.ring.books()["consumed"] == TURNS


OWNED = """
import sys
from ringbuf import Control, Ring
ring = Ring.attach(int(sys.argv[2]), Control.attach(int(sys.argv[1]), 100), "producer")
assert ring.claimable() == "wait_owner"
print("waiting", flush=True)
lost = 0
while ring.claimable() != "claimable":
    lost += not ring.wait(5.0) and ring.claimable() == "claimable"
ring.claim(0).commit(1)
print(lost)
"""


def test_a_new_owner_and_its_credit_wake_a_producer_whose_slot_wakes_the_new_owner(rig):
    run = rig(owner=None)
    learner, control = run.learner(), run.process(1)
    producer = subprocess.Popen([sys.executable, "-c", OWNED, str(run.control.fd), str(run.ring.fd)],
                                pass_fds=[run.control.fd, run.ring.fd], stdout=subprocess.PIPE, text=True)
    try:
        assert producer.stdout.readline() == "waiting\n"
        seen = control.bell_value(7)
        run.ring.set_owner(7)
        assert control.bell_wait(7, seen, 0)  # the change itself is news
        seen = control.bell_value(7)
        learner.grant()
        assert control.bell_wait(7, seen, 600)
        out, _ = producer.communicate(timeout=120)
        assert (producer.returncode, out) == (0, "0\n")
        assert learner.observe().slots[0][0] == "ready"
    finally:
        producer.kill()
        producer.wait()
