"""Real producers and a learner under random SIGKILL, SIGSTOP and SIGCONT: the books balance to the slot.

A supervisor's loop reaps, repairs and starts again as supervisor.py does. Every payload tells its ring, epoch
and sequence and is checked byte by byte at each lease. The learner writes down what it publishes; at the end
that record, the words and the counters must agree: nothing is consumed twice and nothing is lost.

    HEADRACE_SOAK_SECONDS=N   how long each case lasts (4)
    HEADRACE_SOAK_SEED=N      of the random deaths (0)
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command import CARTPOLE
from rings import Raw

from bench.rig import Rig as BenchRig
from ringbuf import books
from ringbuf.repair import Repair

ROOT = Path(__file__).resolve().parent.parent
SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "4"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0"))
TICK_SECONDS = 0.005
STALL_SECONDS = 60.0  # against hanging only
RINGS, SLOTS, BATCH, LIMIT = 2, 4, 3, 1
LEARNER = 1
RANGE_END = 2**45 - 2 * SLOTS


@pytest.fixture(scope="module")
def producer(tmp_path_factory):
    program = tmp_path_factory.mktemp("soak") / "soak_producer"
    core = [path for path in (ROOT / "ringbuf").glob("*.c") if not path.name.startswith("_")]
    source = ROOT / "tests" / "data" / "soak_producer.c"
    flags = ["-std=gnu11", "-O2", "-D_GNU_SOURCE", f"-I{ROOT}"]
    subprocess.run(["gcc", *flags, "-o", program, source, *core], check=True)
    return program


class Soak:
    """Spawns, kills, repairs; the caller says how long."""

    def __init__(self, rig, program, folder, *, full="block", start=0, seed=0):
        self.run = rig(slots=SLOTS, rings=RINGS, weights=64, full=full, start_sequence=start,
                       batch_slots=BATCH, obs_shape=(512,))
        self.program, self.full = program, full
        self.record = folder / "record"
        self.repair = Repair(self.run.control, self.run.channel, self.run.rings)
        self.random = random.Random(seed)
        self.alive, self.due, self.stopped = {}, {}, {}  # by slot of the process table
        self.ended, self.deaths = set(), 0
        self.began = None  # the version that the learner took up
        for ring in range(RINGS):
            self.enlist(100 + ring, "producer", ring)
        self.enlist(LEARNER, "learner", 0)

    def enlist(self, slot, role, index):
        self.run.control.set_process(slot, role=role, role_index=index, state="starting")
        self.due[slot] = 0.0

    def spawn(self, slot):
        run = self.run
        control, weights = run.control.fd, run.channel.fd
        fds = [control, weights, *(ring.fd for ring in run.rings)]
        if slot == LEARNER:
            rings = ",".join(str(ring.fd) for ring in run.rings)
            limit = LIMIT if self.full == "block" else -1
            learner = ROOT / "tests" / "soak_learner.py"
            command = [sys.executable, learner, control, weights, rings, slot, limit, self.record]
            self.repair.hand_over(0)
            self.began = run.channel.published
        else:
            self.repair.take_back_credit(slot - 100)
            command = [self.program, control, run.rings[slot - 100].fd, weights, slot]
        run.control.set_process(slot, state="running")
        run.control.bell_ring(0)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.alive[slot] = subprocess.Popen([*map(str, command)], pass_fds=fds, env=environment)
        del self.due[slot]

    def reap(self):
        for slot, process in list(self.alive.items()):
            code = process.poll()
            if code is None:
                continue
            del self.alive[slot]
            self.stopped.pop(slot, None)
            assert code in (0, 70, -signal.SIGKILL), f"process {slot} ended with {code}"
            self.run.control.set_process(slot, state="exited" if code >= 0 else "backoff")
            if slot == LEARNER:
                self.repair.of_learner(slot)
            else:
                self.repair.of_producer(slot - 100)
            self.run.control.bell_ring(0)
            if code >= 0:
                self.ended.add((slot, code))
            else:
                self.deaths += 1
                self.due[slot] = time.monotonic() + self.random.choice((0.0, 0.0, 0.05))

    def tick(self):
        """One turn of the supervisor's loop."""
        self.reap()
        now = time.monotonic()
        for slot in list(self.due):
            if now >= self.due[slot]:
                self.spawn(slot)
            elif slot != LEARNER:
                self.repair.take_back_credit(slot - 100)
        for slot, _ in self.ended:  # for good: the credit that it still has would be missed by the others
            if slot != LEARNER:
                self.repair.take_back_credit(slot - 100)
        for slot, until in list(self.stopped.items()):
            if now >= until:
                del self.stopped[slot]
                self.alive[slot].send_signal(signal.SIGCONT)
        self.repair.free_bad(lambda ring, sequence: ring.header(sequence))
        for ring in self.run.rings:
            assert books.live(ring.books()) == []
        time.sleep(TICK_SECONDS)

    def harm(self):
        """Kills or stops somebody; the learner, which takes a while to come up, mostly once it is at work."""
        chosen = self.random.random()
        slot = LEARNER if chosen < 0.02 else 100 + self.random.randrange(RINGS) if chosen < 0.2 else None
        at_work = slot != LEARNER or self.run.channel.published != self.began or self.random.random() < 0.1
        if slot not in self.alive or not at_work:
            return
        if self.random.random() < 0.25 and slot not in self.stopped:
            self.alive[slot].send_signal(signal.SIGSTOP)
            self.stopped[slot] = time.monotonic() + self.random.uniform(0.0, 0.1)
        else:
            self.alive[slot].send_signal(signal.SIGKILL)

    def until(self, condition, harmful):
        version, moved = self.run.channel.published, time.monotonic()
        while not condition():
            if harmful:
                self.harm()
            self.tick()
            if self.run.channel.published != version:
                version, moved = self.run.channel.published, time.monotonic()
            assert time.monotonic() < moved + STALL_SECONDS, self.picture()

    def picture(self):
        """What a run that stands still looks like."""
        return [ring.observe() for ring in self.run.rings], self.alive, self.ended

    def stop(self):
        """The order of a shutdown, with deaths in it."""
        self.run.control.set_stop("signal")
        for ring in self.run.rings:
            ring.ring_producer()
        producers = {100 + ring for ring in range(RINGS)}
        self.until(lambda: producers <= {slot for slot, _ in self.ended}, harmful=False)
        self.run.control.set_producers_gone()
        self.until(lambda: LEARNER in {slot for slot, _ in self.ended}, harmful=True)
        self.repair.free_bad(lambda ring, sequence: ring.header(sequence))
        self.repair.drop_ready()

    def close(self):
        for process in self.alive.values():
            process.kill()
            process.wait()

    def balance(self):
        """Compares the words, the counters and the learner's record. Returns the number of consumed slots."""
        last = {}
        for line in self.record.read_text().splitlines():
            version, slots = json.loads(line)
            last[version] = slots
        published = self.run.channel.published
        made = [tuple(slot[:2]) for version in range(published + 1) for slot in last[version]]
        assert len(made) == len(set(made)), "consumed twice"
        assert json.loads(self.run.reader().snapshot()) == len(made)
        for ring in self.run.rings:
            found = ring.books()
            assert books.at_rest(found) == []
            assert found["in_flight"] == 0
            mine = {sequence for index, sequence in made if index == ring.index}
            assert len(mine) == found["consumed"]
            assert all(found["start"] <= sequence < found["head"] for sequence in mine)
            away = found["not_written"] + sum(found["dropped"].values())
            assert found["head"] - found["start"] - len(mine) == away, "lost"
        redelivered = sum(ring.books()["redelivered"] for ring in self.run.rings)
        print(f"{published} versions, {len(made)} slots, {self.deaths} deaths, {redelivered} delivered again")
        return len(made)


@pytest.fixture
def soak(rig, producer, tmp_path):
    made = []

    def make(**options):
        made.append(Soak(rig, producer, tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("full", ["block", "drop_newest", "drop_oldest"])
def test_whoever_is_killed_every_slot_is_consumed_once_or_counted(soak, full):
    run = soak(full=full, start=2**32 - 100, seed=SEED)
    end = time.monotonic() + SECONDS
    run.until(lambda: time.monotonic() > end and run.run.channel.published is not None, harmful=True)
    run.stop()
    assert run.balance() > 0
    assert run.deaths > 0


def test_a_run_ends_in_order_where_the_sequence_numbers_end(soak):
    run = soak(start=RANGE_END - 150, seed=SEED)
    used_up = {(100 + ring, 70) for ring in range(RINGS)}
    run.until(lambda: used_up <= run.ended, harmful=True)
    run.stop()
    assert run.balance() > 0
    assert [ring.books()["head"] for ring in run.run.rings] == [RANGE_END] * RINGS


def test_a_real_producer_writes_its_last_slots_and_says_that_its_sequence_numbers_are_used_up(tmp_path):
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    errors = tmp_path / "errors"
    with errors.open("w") as file, BenchRig(tmp_path / "run.yaml", ["producers.count=1"]) as rig:
        raw, ring = Raw(rig.segments.rings[0].fd), rig.rings[0]
        end = 2**45 - 2 * ring.slots
        first = end - 2
        for sequence in range(first, first + ring.slots):  # as after so many slots
            raw.set_word("free", sequence)
        raw["granted"] = end + ring.slots
        rig.spawn(errors=file)
        rig.publish(0, np.zeros(rig.weights.count, np.float32))
        taken = []
        for lease in rig.leases():
            taken.append(lease.sequence)
            lease.ack()
            if len(taken) == 2:
                break
        assert rig.children[0].wait(STALL_SECONDS) == 70
        raw.bytes.close()
    assert taken == [end - 2, end - 1]
    assert "ring 0 has used up its sequence numbers (2^45); start a new run" in errors.read_text()
