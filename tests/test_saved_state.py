"""A producer's saved state holds all that its next slots depend on: who takes it up writes the same bytes."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native import DATA, compile_simulator

from bench.rig import Rig
from ringbuf import RingError
from sims.loader import load, world_seeds

PER_BATCH = 2
RUN = """
run: {{seed: {seed}}}
sim: {{name: {sim}{params}}}
mode: sync
producers: {{count: 1, agents: 12, cores: [0]}}
rollout: {{horizon: 16}}
ring: {{slots: 4}}
policy: {{hidden: [32], activation: tanh}}
learner: {{batch_slots: 2, minibatches: 1}}
"""


PARAMETERS = {"cartpole": ", max_steps: 37", "breakout": ", max_steps: 37", "relay": ", agents: 3"}


def run_file(folder: Path, sim: str, seed: int = 7) -> Path:
    path, name = folder / f"{sim}-{seed}.yaml", sim
    if sim == "relay":  # action masks, two heads, several agents a world
        name = str(compile_simulator((DATA / "relay.c").read_text(), folder / "relay.so"))
    path.write_text(RUN.format(sim=name, params=PARAMETERS[sim], seed=seed))
    return path


def weights_of(rig: Rig, version: int) -> np.ndarray:
    return np.random.default_rng(version).normal(0, 0.3, rig.weights.count).astype(np.float32)


def batch(rig: Rig, version: int) -> list[dict[str, Any]]:
    """Publishes `version` and returns the slots that are acted with it, every array as bytes."""
    rig.publish(version, weights_of(rig, version))
    rig.rings[0].grant(PER_BATCH)
    slots = []
    for lease in rig.leases():
        assert lease.version == lease.newest_version == version
        arrays = {name: lease.array(name).tobytes() for name in lease.plan.fields if name != "episodes"}
        slots.append(arrays | {"episodes": repr(lease.episodes().tolist())})  # between records lies anything
        lease.ack()
        if len(slots) == PER_BATCH:
            return slots
    raise AssertionError


def saved(rig: Rig, sequence: int) -> bytes:
    """The state at `sequence`, on request."""
    ring, deadline = rig.rings[0], time.monotonic() + 60
    ring.request_state(sequence)
    while True:
        seen = rig.control.bell_value(0)
        if ring.state_sequence == sequence:
            return ring.state()
        assert time.monotonic() < deadline
        rig.control.bell_wait(0, seen, 5)


def kill(rig: Rig) -> None:
    child = rig.children.pop()
    child.send_signal(signal.SIGKILL)
    child.wait()
    rig.segments.rings[0].sweep_producer()


@pytest.mark.parametrize("sim", ["breakout", "cartpole", "relay"])
@pytest.mark.parametrize("how", ["on request", "at a stop"])
def test_a_run_taken_up_from_a_saved_state_goes_on_bit_for_bit(tmp_path: Path, sim: str, how: str) -> None:
    path = run_file(tmp_path, sim)
    with Rig(path) as rig:
        rig.spawn()
        for version in range(2):
            batch(rig, version)
        state = saved(rig, 2 * PER_BATCH)
        expected = [batch(rig, version) for version in (2, 3, 4)]
        kill(rig)
    if how == "at a stop":
        with Rig(path) as rig:
            rig.spawn()
            for version in range(2):
                batch(rig, version)
            rig.supervisor.set_stop("versions")
            assert rig.children[0].wait(timeout=60) == 0
            assert rig.rings[0].state_sequence == 2 * PER_BATCH
            state = rig.rings[0].state()
    with Rig(path) as rig:
        rig.segments.rings[0].load_state(state)
        assert rig.rings[0].state_sequence == 0
        rig.rings[0].set_base(0, 2)
        rig.spawn()
        assert [batch(rig, version) for version in (2, 3, 4)] == expected
    if sim == "breakout":
        assert any(b"\0" in slot["valid"] for slots in expected for slot in slots), "some were cut short"


def test_a_state_is_taken_up_once_and_a_later_producer_begins_from_new_seeds(tmp_path: Path) -> None:
    with Rig(run_file(tmp_path, "cartpole")) as rig:
        rig.spawn()
        batch(rig, 0)
        state = saved(rig, PER_BATCH)
        kill(rig)
    with Rig(run_file(tmp_path, "cartpole")) as rig:
        rig.segments.rings[0].load_state(state)
        rig.rings[0].set_base(0, 1)
        rig.spawn()
        batch(rig, 1)
        kill(rig)
        rig.spawn()
        first = batch(rig, 2)[0]
        plan = rig.rings[0].plan
        worlds = load("cartpole").create(
            plan.worlds, rig.prepared.parameters, world_seeds(7, plan.worlds, restart=plan.restart_base + 1)
        )
        worlds.reset()
        obs = np.frombuffer(first["obs"], np.float32).reshape(plan.fields["obs"].shape)
        np.testing.assert_array_equal(obs[0], worlds.obs)
        worlds.close()


def test_a_restarted_producer_repeats_neither_worlds_nor_noise(tmp_path: Path) -> None:
    """The dead one's first slots would otherwise be learned from a second time."""
    with Rig(run_file(tmp_path, "cartpole")) as rig:
        rig.spawn()
        dead = batch(rig, 0)
        kill(rig)
        rig.publish(1, weights_of(rig, 0))
        rig.rings[0].set_base(PER_BATCH, 1)
        rig.spawn()
        rig.rings[0].grant(1)
        lease = next(rig.leases())
        assert lease.array("obs").tobytes() != dead[0]["obs"]
        assert lease.array("action").tobytes() != dead[0]["action"]
        lease.ack()


def test_a_request_holds_the_producer_at_its_border_until_the_state_lies_there(tmp_path: Path) -> None:
    """However much credit there is: the state is that of the border asked for."""
    with Rig(run_file(tmp_path, "cartpole")) as rig:
        rig.publish(0, weights_of(rig, 0))
        ring = rig.rings[0]
        ring.request_state(1)
        ring.grant(PER_BATCH)
        rig.spawn()
        leases = rig.leases()
        first, second = next(leases), next(leases)
        assert (first.sequence, second.sequence) == (0, 1)
        assert ring.state_sequence == 1
        width = ring.plan.fields["obs"].bytes // (ring.plan.horizon + 1)
        row = ring.state()[64 : 64 + width]
        assert row == first.array("obs")[-1].tobytes() == second.array("obs")[0].tobytes()
        first.ack()
        second.ack()


def test_a_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with Rig(run_file(tmp_path, "cartpole")) as rig:
        rig.spawn()
        batch(rig, 0)
        state = saved(rig, PER_BATCH)
    with Rig(run_file(tmp_path, "cartpole", seed=8)) as rig:
        ring = rig.segments.rings[0]
        for wrong in (state, state[:-1], b"", b"x" * len(state)):
            with pytest.raises(RingError, match="saved state"):
                ring.load_state(wrong)
        assert ring.state_sequence is None
        with pytest.raises(RingError, match="no complete state"):
            rig.rings[0].state()
    path = run_file(tmp_path, "cartpole")
    path.write_text(path.read_text().replace("mode: sync", "mode: async"))
    with Rig(path) as rig:
        with pytest.raises(RingError, match="keeps no state"):
            rig.segments.rings[0].load_state(state)
        with pytest.raises(RingError, match="keeps no state"):
            rig.rings[0].request_state(0)
