"""Continuous actions from the producer to the evaluation: stored as drawn, clipped only for the simulator."""

import numpy as np
import torch
from command import supervise

from bench.rig import Rig
from consumers.evaluate import Player
from consumers.models import PolicyModel
from monitor import rundir
from sims.loader import load, world_seeds

PENDULUM = """\
run: {name: toy, seed: 7}
sim: {name: pendulum, max_steps: 20}
producers: {count: 1, agents: 16, cores: [0]}
rollout: {horizon: 32}
ring: {slots: 3}
policy: {hidden: [32], activation: tanh, log_std: 0.7}
learner: {batch_slots: 1, minibatches: 2}
monitor: {port: 0, interval_seconds: 0.5}
evaluate: {episodes: 8, worlds: 8, seconds: 60}
"""


def test_slots_hold_the_sample_and_its_log_probability_and_the_simulator_got_it_clipped(tmp_path):
    (tmp_path / "run.yaml").write_text(PENDULUM)
    with Rig(tmp_path / "run.yaml") as rig:
        plan, program = rig.rings[0].plan, rig.prepared.program
        worlds = load("pendulum").create(plan.worlds, rig.prepared.parameters, world_seeds(7, plan.worlds))
        worlds.reset()
        model = PolicyModel(program, seed=3)
        rig.publish(0, model.flat_weights().numpy())
        rig.spawn()
        rig.grant()
        beyond = 0
        for count, lease in enumerate(rig.leases(), start=1):
            obs, action = lease.array("obs").copy(), lease.array("action").copy()
            log_prob = lease.array("logprob").copy()
            assert action.dtype == np.float32
            for t in range(plan.horizon):
                worlds.step(np.clip(action[t], -2, 2))
                np.testing.assert_array_equal(obs[t + 1], worlds.obs)
                np.testing.assert_array_equal(lease.array("reward")[t], worlds.rewards)
            with torch.no_grad():
                mean, _ = model(torch.from_numpy(obs[:-1]))
                expected = model.log_prob(mean, torch.from_numpy(action)).numpy()
            assert np.abs(log_prob - expected).max() <= 2e-4 + 1e-5 * float(mean.abs().max())
            beyond += int((np.abs(action) > 2).sum())
            lease.ack()
            rig.grant()
            if count == 3:
                break
        assert beyond > 100, "with such a deviation a third of the samples is out of bounds"
        worlds.close()


def test_a_run_on_continuous_actions_trains_and_is_evaluated_within_bounds(tmp_path):
    (tmp_path / "run.yaml").write_text(PENDULUM)
    done = supervise(tmp_path, "run.yaml", "stop.versions=4", "learner.precision=float32")
    assert done.returncode == 0, done.stderr
    summary = rundir.read_json(tmp_path / "runs/toy" / rundir.SUMMARY)
    assert summary["version"] == 4
    for policy in (summary["score"]["evaluated"], summary["score"]["evaluated"]["argmax"]):
        assert policy["n"] == 8
        assert -16.28 * 20 <= policy["mean"] < 0, "what steps cost at most and at least"
    player = Player.load(tmp_path / "runs/toy")
    with player.worlds(64) as worlds:
        worlds.reset()
        state = player.model.initial_state(worlds.agents)
        actions, _ = player.act(worlds, state, torch.Generator().manual_seed(0))
        assert np.abs(actions).max() == 2, "clipped"
    saved = torch.load(tmp_path / "runs/toy/checkpoints/latest/policy.pt", weights_only=True)
    assert saved["log_std"].item() != np.float32(0.7), "the deviation was not trained"


def test_the_native_loss_is_refused_for_continuous_actions(tmp_path):
    (tmp_path / "run.yaml").write_text(PENDULUM)
    done = supervise(tmp_path, "run.yaml", "learner.loss=native")
    assert done.returncode == 64
    assert "learner.loss: native has no form for the continuous actions of pendulum" in done.stderr
