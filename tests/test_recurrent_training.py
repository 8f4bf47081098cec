"""Recurrent policies from the producer's slots to a solved task: state is carried, zeroed and trained on."""

import json
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from command import supervise

from bench.rig import Rig
from consumers.batch import Batch, pieces
from consumers.models import PolicyModel
from monitor import rundir

MEMORY = """\
run: {{name: toy, seed: 5}}
sim: {{name: memory, corridor: 3, patience: 2}}
mode: {mode}
producers: {{count: 1, agents: 32, cores: [0]}}
rollout: {{horizon: 16}}
ring: {{slots: 3}}
policy: {{hidden: [16], activation: tanh, recurrent: {kind}, recurrent_width: 20}}
learner:
  {{batch_slots: 1, epochs: 4, minibatches: 4, learning_rate: 5e-3, precision: float32, threads: 1}}
monitor: {{port: 0, interval_seconds: 0.5}}
evaluate: {{episodes: 64, worlds: 16, seconds: 60}}
"""
KINDS = ("lstm", "mingru")
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=KINDS)
def slots(request, tmp_path_factory):
    """(model, slots one after another) of a real producer: {field: array} each."""
    path = tmp_path_factory.mktemp("slots") / "run.yaml"
    path.write_text(MEMORY.format(mode="async", kind=request.param))
    with Rig(path) as rig:
        names, program = list(rig.rings[0].plan.fields), rig.prepared.program
        model = PolicyModel(program)
        generator = np.random.default_rng(2)
        model.load_flat(generator.normal(0, 0.5, program.count).astype(np.float32))
        rig.publish(0, model.flat_weights().numpy())
        rig.spawn()
        rig.grant()
        found = []
        for lease in islice(rig.leases(), 6):
            found.append({name: lease.array(name).copy() for name in names if name != "episodes"})
            lease.ack()
            rig.grant()
    return model, found


class Held:
    """A slot that is no longer leased."""

    def __init__(self, fields):
        self.array = fields.__getitem__


def batch_of(*slots) -> Batch:
    return Batch([Held(slot) for slot in slots], device=CPU, recurrent=True)


def everyone(batch: Batch):
    return pieces(torch.arange(1), batch.segments, CPU)


def error_of(model, batch, memory) -> tuple[float, float]:
    """The largest difference between the slot's log-probabilities and the learner's, and what is allowed."""
    with torch.no_grad():
        obs = torch.cat([obs[:-1] for obs in batch.observations], 1)
        logits, _, _ = model.unroll(obs, *memory)
        log_prob = model.log_prob(logits, batch.action)
    return float((log_prob - batch.behaviour).abs().max()), 2e-4 + 1e-5 * float(logits.abs().max())


def test_the_learner_finds_the_log_probabilities_of_every_step_of_every_slot(slots):
    model, found = slots
    assert any(not slot["valid"].all() for slot in found), "no truncation"
    assert any(slot["terminated"].any() for slot in found), "no termination"
    assert any(not slot["valid"][0].all() for slot in found), "no reset that crosses a border of slots"
    batch = batch_of(*found)
    error, allowed = error_of(model, batch, batch.memory(everyone(batch), batch.horizon))
    assert error <= allowed


def test_a_reset_or_a_beginning_that_is_left_out_shows(slots):
    model, found = slots
    batch = batch_of(*found)
    state0, reset = batch.memory(everyone(batch), batch.horizon)
    once_more = torch.cat([reset[1:], reset[:1]])
    for wrong in ((state0, None), (torch.zeros_like(state0), reset), (state0, once_more)):
        error, allowed = error_of(model, batch, wrong)
        assert error > 10 * allowed


def test_a_slot_goes_on_with_the_state_that_the_one_before_ended_with(slots):
    model, found = slots
    ends = 0
    for before, after in pairwise(found):
        batch = batch_of(before)
        with torch.no_grad():
            memory = batch.memory(everyone(batch), batch.horizon)
            _, _, state = model.unroll(batch.observations[0][:-1], *memory)
        ended = (before["terminated"][-1] == 1) | (before["valid"][-1] == 0)
        ends += int(ended.sum())
        assert (after["state0"][ended] == 0).all()
        np.testing.assert_allclose(
            after["state0"][~ended], state.numpy()[~ended], rtol=0, atol=1e-5 * (1 + float(state.abs().max()))
        )
    assert ends > 0


def test_the_state_is_zeroed_behind_an_end_and_not_behind_a_final_observation():
    """Agent 0 terminates at step 1; agent 1 is truncated at step 1, so row 2 is its final observation and
    step 2 only resets; agent 2's truncation lies in the slot before."""
    fields = {
        "obs": np.zeros((6, 3, 4), np.float32),
        "action": np.zeros((5, 3, 1), np.int32),
        "version": np.zeros((5, 1), np.int64),
        "state0": np.arange(6, dtype=np.float32).reshape(3, 2),
    }
    for name in ("logprob", "reward"):
        fields[name] = np.zeros((5, 3), np.float32)
    for name, value in (("terminated", 0), ("truncated", 0), ("valid", 1)):
        fields[name] = np.full((5, 3), value, np.uint8)
    fields["terminated"][1, 0] = fields["truncated"][1, 1] = 1
    fields["valid"][2, 1] = fields["valid"][0, 2] = 0
    batch = batch_of(fields, fields)
    state0, reset = batch.memory(pieces(torch.tensor([1, 5]), 1, CPU), 6)
    assert state0.tolist() == [[2, 3], [4, 5]]
    assert reset.int().argmax(0).tolist() == [3, 1]
    assert reset.sum(0).tolist() == [1, 1]
    _, reset = batch.memory(pieces(torch.tensor([0]), 1, CPU), 5)
    assert reset[:, 0].tolist() == [False, False, True, False, False]
    assert Batch([Held(fields)], device=CPU).memory(pieces(torch.tensor([0]), 1, CPU), 5) == ()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_needs_memory_is_solved(kind, tmp_path):
    """Without memory half the signs are guessed. In sync every batch is acted by the weights that train on
    it: each audit must find actor and learner agreed. Batches as small as these get one look in 16,384 steps,
    so training goes on behind the goal until there have been some."""
    (tmp_path / "run.yaml").write_text(MEMORY.format(mode="sync", kind=kind))
    done = supervise(tmp_path, "run.yaml", "producers.agents=128", "stop.window=200", "stop.steps=200000")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/toy"
    score = rundir.read_json(run / rundir.SUMMARY)["score"]
    assert score["best"] >= 0.95
    assert score["evaluated"]["mean"] > 0.8
    assert score["evaluated"]["argmax"]["mean"] > 0.8
    updates = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    audits = [u for u in updates if u.get("audit_label_error") is not None]
    assert len(audits) > 10
    assert all(u["audit_label_error"] <= u["audit_label_tolerance"] for u in audits)


@pytest.mark.soak
def test_a_run_goes_on_from_its_checkpoint_as_if_its_state_had_never_left_the_producer(tmp_path):
    runs = {
        "straight": [["stop.versions=8"]],
        "resumed": [["stop.versions=4"], ["stop.versions=8", "--resume"]],
    }
    saved = {}
    for name, attempts in runs.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.yaml").write_text(MEMORY.format(mode="sync", kind="lstm"))
        for arguments in attempts:
            done = supervise(folder, "run.yaml", "evaluate.episodes=0", *arguments)
            assert done.returncode == 0, done.stderr
        saved[name] = torch.load(folder / "runs/toy/checkpoints/latest/policy.pt", weights_only=True)
    for name, weight in saved["straight"].items():
        assert torch.equal(saved["resumed"][name], weight)
