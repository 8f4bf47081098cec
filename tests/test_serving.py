"""The inference server acts as producers do: same actions, same log-probabilities, whoever dies in
between."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bench.rig import LEARNER_SLOT, Rig
from consumers.server import Server
from ringbuf import Control, Ring, Weights

RUN = """
run: {{seed: 7}}
sim: {{name: {sim}{params}}}
mode: {mode}
producers: {{count: {count}, agents: {agents}, cores: [0]}}
rollout: {{horizon: {horizon}}}
ring: {{slots: 4}}
policy: {{placement: {placement}, hidden: [32], activation: tanh, recurrent: {recurrent}, recurrent_width: 8}}
server: {{max_wait_us: 1000}}
learner: {{batch_slots: {count}, minibatches: 1}}
"""
DEADLINE_SECONDS = 60  # against hanging only
SERVER_SLOT = 50


class ServedRig(Rig):
    """Real producers; learner and inference server are the test's. `serve` begins a life of the server."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.thread = None

    def serve(self):
        """In a thread, which cannot be killed: a life ends where `die` says that it has."""
        fd = self.segments.control.fd
        self.supervisor.set_process(SERVER_SLOT, role="server", role_index=0, state="running")
        control = Control.attach(fd, SERVER_SLOT)
        rings = [Ring.attach(ring.fd, control, "server") for ring in self.segments.rings]
        server = Server(self.prepared.config, control, Weights.attach(self.segments.weights.fd), rings)
        self.thread = threading.Thread(target=server.run, daemon=True)
        self.thread.start()
        return server

    def close(self):
        self.supervisor.set_stop("signal")
        for ring in self.segments.rings:  # exact modes wait for the server, which may be none
            ring.lower_granted_to_head()
            ring.sweep_server()
        for child in self.children:
            child.kill()
        super().close()
        self.supervisor.set_producers_gone()
        if self.thread is not None:
            self.thread.join(DEADLINE_SECONDS)
            assert not self.thread.is_alive()


def run_file(tmp_path: Path, **values: object) -> Path:
    defaults = {"sim": "cartpole", "params": ", max_steps: 17", "mode": "async", "count": 1, "agents": 16,
                "horizon": 32, "placement": "server", "recurrent": "none"}
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(**defaults | values))
    return path


def slots(path, number, placement="server", seed=0):
    """The first slots of each ring, by ring and sequence: name -> array."""
    with ServedRig(path, [f"policy.placement={placement}"]) as rig:
        flat = np.random.default_rng(seed).normal(0, 0.3, rig.weights.count).astype(np.float32)
        rig.publish(0, flat)
        if placement == "server":
            rig.serve()
        rig.spawn()
        rig.grant()
        found = {}
        for lease in rig.leases():
            names = lease.plan.fields.keys() - {"episodes", "version"}
            found[lease.ring, lease.sequence] = {name: lease.array(name).copy() for name in names}
            lease.ack()
            rig.grant()
            if len(found) == number * len(rig.rings):
                break
        return found


CASES = [("cartpole", ", max_steps: 17", "none"), ("cartpole", ", max_steps: 17", "lstm"),
         ("breakout", ", max_steps: 37", "mingru"), ("pendulum", "", "none")]  # fmt: skip


@pytest.mark.parametrize(("sim", "params", "recurrent"), CASES)
def test_the_server_takes_the_actions_that_producers_would_take(tmp_path, one_thread, sim, params, recurrent):
    """The same noise, so the same actions; |Δ log-probability| ≤ 2e-4 a head + 1e-5 of the largest logit."""
    path = run_file(tmp_path, sim=sim, params=params, recurrent=recurrent)
    served, acted = slots(path, 2), slots(path, 2, "producer")
    for key, expected in acted.items():
        for name, array in expected.items():
            tolerance = 1e-3 if array.dtype == np.float32 and name != "logprob" else 2e-4
            found, where = served[key][name], f"{key} {name}"
            np.testing.assert_allclose(found, array, atol=tolerance, rtol=0, err_msg=where)
    ends = any(one["terminated"].any() or one["truncated"].any() for one in acted.values())
    assert ends or sim == "pendulum"


def test_exact_modes_repeat_bit_for_bit(tmp_path, one_thread):
    path = run_file(tmp_path, mode="sync", count=2, recurrent="lstm")
    first, second = slots(path, 1), slots(path, 1)
    assert first.keys() == second.keys()
    for key in first:
        for name, array in first[key].items():
            np.testing.assert_array_equal(array, second[key][name], err_msg=f"{key} {name}")


def test_a_slot_whose_server_died_is_given_up_and_its_worlds_go_on_with_zero_state(tmp_path, one_thread):
    """The next slot begins where the worlds stand, not from a reset."""
    with ServedRig(run_file(tmp_path, agents=4, horizon=768, recurrent="mingru", params="")) as rig:
        rig.publish(0, np.full(rig.weights.count, 0.01, np.float32))
        ring = rig.segments.rings[0]
        first = rig.serve()
        rig.spawn()
        rig.grant()
        counters = lambda slot: rig.supervisor.counters(slot)  # noqa: E731
        until(lambda: counters(SERVER_SLOT)["rows"] > 400)
        for lane in first.lanes:
            for group in lane.groups:
                group.life = 1000  # it answers nobody any more
        ring.sweep_server()
        until(lambda: counters(LEARNER_SLOT + 1)["abandoned_steps_server"] > 90)
        rig.serve()
        lease = next(rig.leases())
        assert not lease.array("state0").any()
        assert np.abs(lease.array("obs")[0]).max() > 0.05, "a reset of cartpole stays within 0.05"
        assert lease.valid_steps > 0
        lease.ack()


@pytest.mark.parametrize(("agents", "groups"), [(1, 1), (3, 1), (4, 2)])
def test_groups_are_equal_and_whole_worlds_or_there_is_one(tmp_path, agents, groups):
    with ServedRig(run_file(tmp_path, agents=agents)) as rig:
        plan = rig.rings[0].plan
        assert plan.groups == groups
        assert {end - begin for begin, end in plan.group_agents} == {agents // groups}
        assert any("one group of agents" in text for text in rig.prepared.warnings) == (groups == 1)


def test_lives_are_each_rings_own(tmp_path, one_thread):
    """A supervisor that was killed in its sweep, and the next one's, leave rings with different ones."""
    with ServedRig(run_file(tmp_path, count=2)) as rig:
        rig.segments.rings[0].sweep_server()
        rig.publish(0, np.zeros(rig.weights.count, np.float32))
        rig.serve()
        rig.spawn()
        rig.grant()
        found = set()
        for lease in rig.leases():
            found.add(lease.ring)
            lease.ack()
            if len(found) == 2:
                break


def test_versions_are_those_asked_for_or_newer_ones(tmp_path, one_thread):
    """Each step bears the version that acted, in async the newest there was."""
    with ServedRig(run_file(tmp_path, horizon=64)) as rig:
        rig.serve()
        rig.spawn()
        for version in range(4):
            rig.publish(version, np.full(rig.weights.count, version, np.float32))
            rig.grant()
            lease = next(rig.leases())
            versions = lease.array("version").copy()
            assert versions.shape == (64, 2)
            assert versions.min() >= lease.version
            assert (np.diff(versions, axis=0) >= 0).all()
            assert versions.max() == lease.newest_version <= version
            lease.ack()


def test_a_question_for_weights_that_are_gone_is_refused(tmp_path, one_thread):
    """In the exact modes; the producer gives up the slot and asks what it is due by then."""
    with ServedRig(run_file(tmp_path, mode="sync")) as rig:
        for version in range(5):
            rig.publish(version, np.zeros(rig.weights.count, np.float32))
        rig.rings[0].set_base(0, 4)
        server = rig.serve()
        control = Control.attach(rig.segments.control.fd, 60)
        producer = Ring.attach(rig.segments.rings[0].fd, control, "producer")
        rig.grant()
        assert producer.claim(4) is not None
        refused, answered = (producer.ask(group, 0, 0, 0, 0, version) for group, version in ((0, 1), (1, 4)))
        until(lambda: producer.answered(0, refused, 0) != "unanswered")
        assert producer.answered(0, refused, 0) == "refused"
        until(lambda: producer.answered(1, answered, 0) == "answered")
        assert server.control.counters(SERVER_SLOT)["refused"] == 1
        producer.abort()
        producer.close()
        rig.segments.rings[0].sweep_producer()


def until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)
