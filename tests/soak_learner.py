"""A learner without torch: leases, checks every byte, writes down, publishes with its list, acks.

    python soak_learner.py CONTROL_FD WEIGHTS_FD RING_FD,... PROCESS LIMIT RECORD

What a version was made of goes to the file RECORD before it is published; the last line of a version counts.
LIMIT is the bound of the lag in versions, -1: none."""

import ctypes
import json
import os
import signal
import sys
import time

import numpy as np

from consumers.intake import Intake
from ringbuf import Control, Ring, Weights

SLICE_SECONDS = 5.0  # so long that a missed wake-up is seen
NAP_SECONDS = 0.002  # before a publication or before its acks, now and then: more deaths fall there


def check(lease):
    """Every byte is what the slot's producer has written for this ring, epoch and sequence."""
    obs = lease.array("obs").reshape(-1)
    head = (lease.ring, lease.epoch, lease.sequence)
    assert tuple(obs[:24].view(np.uint64)) == head, (head, obs[:24].view(np.uint64))
    first = lease.ring * 7 + lease.epoch * 31 + lease.sequence * 131
    expected = ((first + np.arange(24, obs.size, dtype=np.uint64)) % 256).astype(np.uint8)
    assert (obs[24:] == expected).all(), f"torn: {head}"


def main(control, weights, rings, process, limit, record):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    control = Control.attach(int(control), int(process))
    weights = Weights.attach(int(weights), "writer")
    rings = [Ring.attach(int(fd), control, "learner", 0) for fd in rings.split(",")]
    limit = None if limit == "-1" else int(limit)
    intake = Intake(rings, control, limit, check)
    book = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def publish(version, leases, consumed):
        slots = [(lease.ring, lease.sequence, lease.epoch) for lease in leases]
        os.write(book, (json.dumps([version, slots]) + "\n").encode())
        flat = np.full(weights.count, version, np.float32)
        weights.publish(version, flat, snapshot=json.dumps(consumed).encode(), consumed=slots)
        intake.wake_producers()

    def train(leases):
        nonlocal version, consumed
        for lease in leases:
            check(lease)
            assert limit is None or version - lease.version <= limit, (version, lease.version)
        time.sleep(NAP_SECONDS if version % 4 == 1 else 0)
        version, consumed = version + 1, consumed + len(leases)
        publish(version, leases, consumed)
        time.sleep(NAP_SECONDS if version % 4 == 0 else 0)
        while leases:
            leases.pop().ack()
        control.counter_set("version", version)

    if weights.published is None:
        version, consumed = 0, 0
        publish(0, [], 0)
    else:
        version, consumed = weights.published, json.loads(weights.snapshot())
    while not control.stop:
        seen = control.bell_value(0)
        intake.grant(version)
        leases = intake.lease(version)
        if leases is not None:
            train(leases)
        elif not control.stop:
            control.bell_wait(0, seen, SLICE_SECONDS)
    while not control.producers_gone:
        seen = control.bell_value(0)
        if not control.producers_gone:
            control.bell_wait(0, seen, SLICE_SECONDS)
    while (leases := intake.lease(version)) is not None:
        train(leases)
    intake.drop("shutdown")


if __name__ == "__main__":
    main(*sys.argv[1:])
