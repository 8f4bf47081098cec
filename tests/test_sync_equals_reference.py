"""`mode: sync` is PPO to the last bit, however many producers simulate."""

import json

import pytest
import reference_ppo
import torch
from command import supervise

RUN = """\
run: {{name: sync, seed: {seed}}}
sim: {{name: {sim}, max_steps: {max_steps}}}
mode: sync
producers: {{count: {producers}, agents: {agents}}}
rollout: {{horizon: {horizon}}}
ring: {{slots: {ring_slots}}}
policy: {{hidden: [32, 16], activation: tanh}}
learner:
  {{device: cpu, {arithmetic}, batch_slots: {batch_slots}, epochs: 2,
  minibatches: 4,
   correction: ppo, targets: batch, gamma: 0.98, gae_lambda: 0.9, clip: 0.2, value_coef: 0.5,
   max_grad_norm: 0.5, learning_rate: 1e-3, entropy_coef: 0.01}}
stop: {{versions: {versions}}}
monitor: {{port: 0}}
evaluate: {{episodes: 0}}
"""
SETTINGS = {
    "hidden": [32, 16],
    "activation": "tanh",
    "minibatches": 4,
    "epochs": 2,
    "gamma": 0.98,
    "gae_lambda": 0.9,
    "clip": 0.2,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "learning_rate": 1e-3,
    "entropy_coef": 0.01,
}


EXACT = "threads: 1, precision: float32, loss: torch"  # what the reference computes in


def run(folder, *, producers, agents, slots, arithmetic=EXACT, **rest):
    """Final weights and metrics of a run with `agents` agents and `slots` slots a ring in a batch, in all."""
    text = RUN.format(
        producers=producers,
        agents=agents // producers,
        batch_slots=slots * producers,
        ring_slots=slots + 1,
        arithmetic=arithmetic,
        **rest,
    )
    folder.mkdir()
    (folder / "sync.yaml").write_text(text)
    done = supervise(folder, "sync.yaml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    path = folder / "runs" / "sync"
    weights = torch.load(path / "checkpoints" / "latest" / "policy.pt", weights_only=True)
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((path / "summary.json").read_text())
    return weights, metrics, summary


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("sim", "max_steps", "slots", "producers"),
    [("cartpole", 11, 2, (1, 2)), ("breakout", 40, 1, (2,))],
    ids=["cartpole", "breakout"],
)
def test_sync_runs_equal_the_reference_bit_for_bit_with_any_number_of_producers(
    tmp_path, sim, max_steps, slots, producers
):
    setting = {"sim": sim, "seed": 5, "horizon": 16, "agents": 32, "slots": slots}
    torch.set_num_threads(1)
    reference = SETTINGS | setting | {"parameters": {"max_steps": max_steps}}
    expected = reference_ppo.train(reference, versions=4)
    assert not equal(expected[-1], expected[-2])
    for count in producers:
        folder = tmp_path / f"{count}"
        weights, metrics, summary = run(folder, producers=count, versions=4, max_steps=max_steps, **setting)
        assert equal(weights, expected[-1]), f"{count} producers"
        assert summary["version"] == 4
        assert summary["lag"]["max"] == 0
        assert all(line["lag_max"] == 0 for line in metrics)
        audited = [line for line in metrics if line["audit_label_steps"]]
        assert audited
        assert all(line["audit_label_error"] <= line["audit_label_tolerance"] for line in audited)


def test_runs_repeat_bit_for_bit_in_the_default_arithmetic_too(tmp_path):
    """All cores, bf16 where the machine has it, and the native loss; one producer against two."""
    runs = [
        run(
            tmp_path / f"{producers}",
            producers=producers,
            agents=64,
            slots=2,
            arithmetic="threads: auto, precision: auto, loss: auto",
            sim="breakout",
            max_steps=40,
            seed=9,
            horizon=16,
            versions=5,
        )[0]
        for producers in (1, 2)
    ]
    assert equal(*runs)
