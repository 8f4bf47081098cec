"""Rings for tests: small plans, all the sides of a run in one process, and a look at the raw bytes.

`Raw` knows the layout from the documentation (docs/architecture.md) and not from the code under test.
"""

import mmap
import os
import struct
import subprocess
import sys
from typing import ClassVar

from ringbuf import Control, Plan, Ring, RingError, Weights, segments

STATES = {"free": 1, "writing": 2, "ready": 3, "leased": 4, "bad": 5}
NONE = 2**64 - 1


def small_plan(**changes):
    """Two heads, four agents, one payload page."""
    return Plan.build(**{
        "sim": "toy", "horizon": 4, "worlds": 4, "world_agents": 1, "obs_dtype": "uint8", "obs_shape": (3,),
        "choices": (3, 2), "has_mask": True, "statistics": 2, "unpacked_step_bytes": 3, "batch_slots": 2,
    } | changes)


class Rig:
    """A control block, rings and a weights channel, with every side attached on demand."""

    made: ClassVar[list["Rig"]] = []

    def __init__(self, *, slots=4, rings=1, weights=8, owner=0, grant=None, **plan):
        Rig.made.append(self)
        self.run_id = os.urandom(16)
        self.names = [segments.name(self.run_id, part)
                      for part in ("control", "weights", *(f"ring-{i}" for i in range(rings)))]
        self.open = []
        self.control = self._keep(segments.create_control(self.names[0], self.run_id))
        self.channel = self._keep(segments.create_weights(
            self.names[1], count=weights, buffers=3, program=b"program", snapshot_bytes=100, list_entries=16,
            run_id=self.run_id))
        plan.setdefault("producers", rings)
        self.rings = [self._keep(segments.create_ring(name, small_plan(ring=i, **plan), slots, self.run_id,
                                                      self.control))
                      for i, name in enumerate(self.names[2:])]
        for ring in self.rings:
            ring.set_owner(owner)
            if grant:
                self.learner(ring.index).grant(grant)

    def _keep(self, thing):
        self.open.append(thing)
        return thing

    @property
    def ring(self):
        """Ring 0 as the supervisor has it."""
        return self.rings[0]

    def process(self, index):
        """The control block as process `index` has it."""
        return self._keep(Control.attach(self.control.fd, index))

    def producer(self, ring=0):
        """Ring `ring` as its producer (process 100 + ring) has it."""
        return self._keep(Ring.attach(self.rings[ring].fd, self.process(100 + ring), "producer"))

    def learner(self, ring=0, process=1):
        """Ring `ring` as its owner learner (process 1) has it."""
        return self._keep(Ring.attach(self.rings[ring].fd, self.process(process), "learner"))

    def server(self, ring=0):
        """Ring `ring` as its inference server (process 90) has it."""
        return self._keep(Ring.attach(self.rings[ring].fd, self.process(90), "server"))

    def writer(self):
        """The weights channel as its writer has it."""
        return self._keep(Weights.attach(self.channel.fd, "writer"))

    def reader(self):
        """The weights channel as a reader has it."""
        return self._keep(Weights.attach(self.channel.fd))

    def raw(self, ring=0):
        """The bytes of ring `ring`."""
        return Raw(self.rings[ring].fd)

    def close(self):
        """Unlinks first, so that nothing stays whatever the rest does."""
        for name in self.names:
            segments.unlink(name)
        for thing in reversed(self.open):  # rings before the control block that they were attached through
            try:
                thing.close()
            except BufferError:
                pass  # a test that failed holds a view; the memory goes with it
            except RingError:
                pass  # the control block of such a ring


VALID_STEPS = 16  # of a slot that produce() writes


class Raw:
    """One ring's segment byte by byte, for building by hand what a crash leaves behind."""

    LINES: ClassVar = {
        "head": 0, "acting": 8, "not_written": 16, "overwritten": 24, "producer_before": 32,
        "producer_cause": 40, "producer_sequence": 48,
        "epoch": 80, "pid": 88, "owner": 128, "dropped_bad": 136, "redelivered": 144,
        "supervisor_before": 152, "supervisor_cause": 160, "supervisor_sequence": 168, "granted": 256,
        "consumed": 264, "rollback": 272, "shutdown": 280, "lag": 288, "learner_before": 296,
        "learner_cause": 304, "learner_sequence": 312, "bell": 384,
        "overwritten_steps": 96, "producer_steps_before": 104, "producer_steps": 112,
        "bad_steps": 176, "supervisor_steps_before": 184, "supervisor_steps": 192,
        "consumed_steps": 512, "rollback_steps": 520, "shutdown_steps": 528, "lag_steps": 536,
        "learner_steps_before": 544, "learner_steps": 552,
        "state_sequence": 120, "state_load": 200, "state_request": 560}
    CAUSES: ClassVar = {
        "not_written": 0, "overwritten": 1, "bad": 2, "redelivered": 3, "consumed": 4, "rollback": 5,
        "shutdown": 6, "lag": 7}

    def __init__(self, fd):
        self.bytes = mmap.mmap(fd, 0)
        self.slots, self.lines, self.headers, self.data, self.stride = struct.unpack_from(
            "<I4x4Q", self.bytes, 256)

    def __getitem__(self, line):
        return struct.unpack_from("<Q", self.bytes, self.lines + self.LINES[line])[0]

    def __setitem__(self, line, value):
        struct.pack_into("<Q", self.bytes, self.lines + self.LINES[line], value)

    def word(self, slot):
        """(state, sequence, deliveries, owner)"""
        word = struct.unpack_from("<Q", self.bytes, self.headers + 128 * slot)[0]
        names = {number: name for name, number in STATES.items()}
        return names[word & 15], word >> 19, word >> 16 & 7, word >> 4 & 0xFFF

    def set_word(self, state, sequence, deliveries=0, owner=0):
        """Of the slot where `sequence` lives."""
        word = sequence << 19 | deliveries << 16 | owner << 4 | STATES[state]
        struct.pack_into("<Q", self.bytes, self.headers + 128 * (sequence % self.slots), word)

    def words(self):
        """(state, sequence) of all slots"""
        return [self.word(slot)[:2] for slot in range(self.slots)]

    def payload(self, sequence):
        """Offset of the slot's payload in `bytes`."""
        return self.data + self.stride * (sequence % self.slots)

    def pend(self, writer, cause, before, sequence):
        """What a writer leaves that is killed between storing its intent and clearing it; every slot before
        had as many valid steps as produce() writes."""
        self[f"{writer}_steps_before"] = before * VALID_STEPS
        self[f"{writer}_steps"] = VALID_STEPS
        self[f"{writer}_before"] = before
        self[f"{writer}_cause"] = self.CAUSES[cause]
        self[f"{writer}_sequence"] = sequence


def child(code, fds, *arguments):
    """A Python process that runs `code` with descriptors and arguments in argv; it dies with us."""
    dies_with_us = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    return subprocess.Popen([sys.executable, "-c", dies_with_us + code, *map(str, fds), *map(str, arguments)],
                            pass_fds=fds, stdout=subprocess.PIPE, text=True)


def produce(ring, version=0, valid_steps=VALID_STEPS, episodes=0):
    """Writes the next slot with its sequence all over the observations; returns the sequence."""
    claim = ring.claim(version)
    assert claim is not None, ring.claimable()
    obs = claim.array("obs")
    obs[:] = claim.sequence % 251
    del obs
    claim.commit(valid_steps, episodes)
    return claim.sequence


def consume(ring, sequence):
    """Leases the slot, checks what produce() wrote, and acks it."""
    lease = ring.lease(sequence)
    assert lease is not None, ring.last_failure
    obs = lease.array("obs")
    assert (obs == sequence % 251).all()
    del obs
    lease.ack()
