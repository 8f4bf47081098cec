"""A simulator that breaks down is named with world, seed and step, and nothing of it reaches a learner."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from native import DATA, compile_simulator

from bench.rig import LEARNER_SLOT, Rig
from ringbuf import books
from sims.loader import world_seeds

FAULTS = ("none", "divide", "null", "endless", "obs overrun", "reward overrun", "nan", "infinite", "error",
          "recursion", "abort")
SEED, WORLDS, HORIZON = 7, 6, 8
STEP = 3 * HORIZON + 4  # counted from 0, as the report does; in the fourth slot
PRODUCER = LEARNER_SLOT + 1
NO_SIGNAL = 255
RUN = """
run: {{seed: {seed}}}
sim: {{name: {library}, fault: {fault}, at: {at}, odd: {odd}}}
producers: {{count: 1, agents: {worlds}, cores: [0]}}
rollout: {{horizon: {horizon}}}
ring: {{slots: 4}}
policy: {{hidden: [8]}}
learner: {{batch_slots: 1, minibatches: 1}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_simulator((DATA / "faulty.c").read_text(), tmp_path_factory.mktemp("faulty") / "faulty.so")


class Broken:
    """A run whose simulator breaks down, up to its end."""

    def __init__(self, library: Path, folder: Path, fault: str, *, step: int = STEP, odd: bool = True):
        path, self.log = folder / "run.yaml", folder / "logs" / "producer-0.log"
        self.log.parent.mkdir()
        path.write_text(RUN.format(seed=SEED, library=library, fault=FAULTS.index(fault), at=step + 1,
                                   odd=str(odd).lower(), worlds=WORLDS, horizon=HORIZON))
        self.slots: list[np.ndarray] = []
        self.deadline = time.monotonic() + 60
        with Rig(path) as rig, open(self.log, "ab") as log:
            rig.publish(0, np.zeros(rig.weights.count, np.float32))
            rig.spawn(folder, log)
            child = rig.children[0]
            while child.poll() is None:
                rig.grant()
                self.consume(rig)
                self.meanwhile(rig, child.pid)
                assert time.monotonic() < self.deadline
                rig.control.bell_wait(0, rig.control.bell_value(0), 0.01)
            rig.segments.rings[0].sweep_producer()
            self.consume(rig)
            self.code = child.returncode
            self.counters = rig.supervisor.counters(PRODUCER)
            self.left = {slot[0] for slot in rig.rings[0].observe().slots}
            self.wrong = books.at_rest(rig.rings[0].books())
        self.said = self.log.read_text()

    def meanwhile(self, rig: Rig, pid: int) -> None:
        """What the supervisor does while the producer lives."""

    def consume(self, rig: Rig) -> None:
        ring = rig.rings[0]
        for sequence in sorted(slot[1] for slot in ring.observe().slots if slot[0] == "ready"):
            lease = ring.lease(sequence)
            assert lease is not None, ring.last_failure
            assert (lease.array("reward") == 1).all()
            self.slots.append(lease.array("obs")[:, :, 0].copy())
            lease.ack()

    @property
    def culprit(self) -> tuple[int, int]:
        """World and seed of the first world that breaks down."""
        seeds = world_seeds(SEED, WORLDS)
        world = int(np.flatnonzero(seeds % 2 == 1)[0])
        assert world > 0, "a world that is not just the first"
        return world, int(seeds[world])

    def nothing_of_it_was_handed_out(self) -> None:
        """Slots before the fault are whole; the one in which it happened is free again."""
        assert len(self.slots) == STEP // HORIZON
        for number, obs in enumerate(self.slots):
            steps = np.arange(number * HORIZON, (number + 1) * HORIZON + 1)
            np.testing.assert_array_equal(obs, np.repeat(steps[:, None], WORLDS, axis=1))
        assert self.left == {"free"}
        assert self.wrong == []


@pytest.mark.parametrize(("fault", "killed"), [
    ("divide", signal.SIGFPE), ("null", signal.SIGSEGV), ("recursion", signal.SIGSEGV),
    ("abort", signal.SIGABRT)])
def test_a_simulator_that_crashes_is_named_with_signal_world_seed_and_step(
        library: Path, tmp_path: Path, fault: str, killed: signal.Signals) -> None:
    run = Broken(library, tmp_path, fault)
    world, seed = run.culprit
    assert run.code == -killed
    assert (f"{killed.name} in phase step, in simulator faulty: world {world}, seed {seed}, step {STEP}\n"
            in run.said)
    assert "faulty.so" in run.said.split("\n", 1)[1], "a backtrace that shows the simulator"
    assert run.counters == run.counters | {
        "crash_signal": killed, "crash_world": world + 1, "crash_seed": seed, "crash_step": STEP}
    run.nothing_of_it_was_handed_out()


@pytest.mark.parametrize(("fault", "what"), [
    ("error", "returned the error -7"), ("nan", "gave the reward nan"), ("infinite", "gave the reward -inf")])
def test_a_simulator_that_fails_or_rewards_nonsense_is_named_with_world_seed_and_step(
        library: Path, tmp_path: Path, fault: str, what: str) -> None:
    run = Broken(library, tmp_path, fault)
    world, seed = run.culprit
    assert run.code == 70
    assert f"simulator faulty {what}: world {world}, seed {seed}, step {STEP}\n" in run.said
    assert run.counters == run.counters | {
        "crash_signal": NO_SIGNAL, "crash_world": world + 1, "crash_seed": seed, "crash_step": STEP}
    run.nothing_of_it_was_handed_out()


@pytest.mark.parametrize("field", ["obs", "reward"])
def test_a_simulator_that_writes_past_its_rows_is_named_with_the_field(
        library: Path, tmp_path: Path, field: str) -> None:
    run = Broken(library, tmp_path, f"{field} overrun", odd=False)
    assert run.code == 70
    last, seed = WORLDS - 1, int(world_seeds(SEED, WORLDS)[-1])
    end = (STEP // HORIZON + 1) * HORIZON - 1
    assert (f"simulator faulty wrote past its rows of {field} within {HORIZON} steps; of the worlds 0 to "
            f"{last} the nearest is: world {last}, seed {seed}, step {end}\n" in run.said)
    assert (run.counters["crash_signal"], run.counters["crash_world"]) == (NO_SIGNAL, last + 1)
    run.nothing_of_it_was_handed_out()


class Hung(Broken):
    """The supervisor aborts the producer once it has burnt processor time without a step."""

    burnt: tuple[int, int] | None = None

    def meanwhile(self, rig: Rig, pid: int) -> None:
        progress = rig.supervisor.process(PRODUCER).progress
        try:
            ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])
        except (OSError, ProcessLookupError):
            return  # it is gone already
        if self.burnt is None or self.burnt[0] != progress:
            self.burnt = progress, ticks
        elif progress == STEP and ticks > self.burnt[1] + 10:
            os.kill(pid, signal.SIGABRT)


def test_an_endless_loop_is_named_when_the_producer_is_aborted(library: Path, tmp_path: Path) -> None:
    run = Hung(library, tmp_path, "endless")
    world, seed = run.culprit
    assert run.code == -signal.SIGABRT
    assert (f"SIGABRT in phase step, in simulator faulty: world {world}, seed {seed}, step {STEP}\n"
            in run.said)
    run.nothing_of_it_was_handed_out()


def test_a_fault_at_reset_is_named_too(library: Path, tmp_path: Path) -> None:
    run = Broken(library, tmp_path, "error", step=-1, odd=False)
    assert run.code == 70
    assert f"returned the error -7 at reset: world 0, seed {world_seeds(SEED, 1)[0]}, step 0\n" in run.said
    assert run.slots == []


class Rotated(Broken):
    """The log is set aside while the producer runs, and then the simulator fails."""

    moved = False

    def meanwhile(self, rig: Rig, pid: int) -> None:
        if not self.moved and self.slots:
            self.log.rename(self.log.with_suffix(".old"))
            os.kill(pid, signal.SIGUSR1)
            self.moved = True


def test_a_producer_opens_its_log_again_when_told(library: Path, tmp_path: Path) -> None:
    run = Rotated(library, tmp_path, "error", step=2_000)
    assert run.moved
    assert run.code == 70
    assert "returned the error -7" in run.said
    assert run.log.with_suffix(".old").read_text() == ""


def test_a_healthy_producer_reports_no_crash_and_forgets_that_of_the_one_before(
        library: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(seed=SEED, library=library, fault=0, at=0, odd="false", worlds=WORLDS,
                               horizon=HORIZON))
    with Rig(path) as rig:
        rig.publish(0, np.zeros(rig.weights.count, np.float32))
        rig.supervisor.set_process(PRODUCER, role="producer")
        rig.control.attach(rig.supervisor.fd, PRODUCER).counter_set("crash_signal", 11)
        rig.spawn()
        rig.grant()
        next(rig.leases()).ack()
        assert not any(value for name, value in rig.supervisor.counters(PRODUCER).items() if "crash" in name)
