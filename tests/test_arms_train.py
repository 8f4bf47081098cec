"""Every correction goes through the learner's own update: it learns CartPole from steps one version old, its
settings reach it, and what a step without experience holds does not."""

from collections import deque

import numpy as np
import pytest
import segments
import torch
from reference_ppo import Actors

import config
from consumers.batch import Batch
from consumers.corrections import CORRECTIONS
from consumers.update import Update
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
ARMS = sorted(CORRECTIONS)
BOUNDS = [
    ("vtrace_pg", "pg_rho_clip", 0.9),
    ("decoupled", "decoupled_cap", 1.05),
    ("tis", "tis_cap", 1.05),
    ("mis", "mis_cap", 1.05),
    ("mis", "mis_veto", 0.9),
    ("mis", "mis_mean", 1.02),
    ("cispo", "cispo_clip", 0.05),
    ("m2po", "m2po_bound", 1e-3),
    ("impact", "impact_rho", 0.9),
]


def update(features, choices, **learner):
    spec = {
        "obs": {"dtype": "float32", "shape": [features]},
        "heads": [{"choices": choices}],
        "mask": False,
    }
    base = {"minibatches": 2, "epochs": 2, "learning_rate": 2e-3, "entropy_coef": 0.0}
    program = build({"hidden": [32], "activation": "tanh"}, spec)
    return Update(config.Learner(**base | learner), program, seed=1, device=CPU, bf16=False)


def train(updater, slots, version=0):
    batch = Batch(slots, device=CPU)
    try:
        return updater.train(batch, version, 0)
    finally:
        batch.close()


class Segment(segments.Slot):
    """Stands for a lease of rows that a simulator made."""

    def __init__(self, rows, version):
        self.fields = rows | {"version": np.full((len(rows["reward"]), 1), version, np.int64)}


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_learns_cartpole_from_steps_one_version_old(name):
    updater = update(4, 2, correction=name, gamma=0.98, batch_slots=1)
    actors = Actors("cartpole", {"max_steps": 100}, 64, 1, updater.program)
    weights = deque([updater.flat_weights.numpy().copy()], maxlen=2)
    figures, steps_an_episode = [], []
    for version in range(30):
        actors.policy.load(weights[0])
        rows = actors.segment(32)
        figures.append(train(updater, [Segment(rows, max(0, version - 1))], version))
        weights.append(updater.flat_weights.numpy().copy())
        ends = rows["terminated"] | rows["truncated"]
        steps_an_episode.append(rows["valid"].sum() / max(1, ends.sum()))
    assert np.mean(steps_an_episode[:3]) < 30
    assert np.mean(steps_an_episode[-8:]) > 40
    assert all(f["skipped"] == 0 and f["grad_norm"] > 0 for f in figures)
    assert all(abs(f["ratio_mean"] - 1) < 0.2 for f in figures)
    assert max(f["ratio_p99"] for f in figures) > 1.03, "the policy never moved"
    if CORRECTIONS[name].weight is None:
        assert all(f["bounded_weight"] == 0 for f in figures)


def slots():
    """Of a behaviour policy that is not the learner's."""
    made = [segments.Slot(seed, p_end=0.2) for seed in range(2)]
    rng = np.random.default_rng(5)
    for slot in made:
        slot.fields["logprob"] += rng.normal(size=slot.fields["logprob"].shape).astype(np.float32) * 0.2
    return made


@pytest.mark.parametrize(("name", "key", "value"), BOUNDS, ids=[key for _, key, _ in BOUNDS])
def test_the_bound_of_an_arm_changes_what_is_learned(name, key, value):
    loose, tight = update(5, 3, correction=name), update(5, 3, correction=name, **{key: value})
    a, b = (train(u, slots()) for u in (loose, tight))
    assert b["bounded_weight"] > a["bounded_weight"]
    assert not torch.equal(loose.flat_weights, tight.flat_weights)


def test_every_setting_of_a_bound_is_tried():
    named = {key for key in config.Learner.model_fields if key.endswith(("_cap", "_veto", "_mean", "_bound"))}
    assert named | {"pg_rho_clip", "cispo_clip", "impact_rho"} == {key for _, key, _ in BOUNDS}


@pytest.mark.parametrize("name", ARMS)
def test_what_a_reset_step_holds_reaches_no_arm(name):
    plain, spoiled = (update(5, 3, correction=name, loss="torch", entropy_coef=0.01) for _ in range(2))
    train(plain, slots())
    other = slots()
    for slot in other:
        invalid = slot.fields["valid"] == 0
        assert invalid.any()
        slot.fields["logprob"][invalid] = np.nan
        slot.fields["reward"][invalid] = 1e9
        slot.fields["action"][invalid] = 2
    figures = train(spoiled, other)
    assert figures["skipped"] == 0
    assert torch.equal(plain.flat_weights, spoiled.flat_weights)


@pytest.mark.parametrize(("name", "key"), [("m2po", "m2po_bound"), ("mis", "mis_veto")])
def test_a_minibatch_of_which_nothing_is_left_still_teaches_the_value(name, key):
    """No step has a ratio within so tight a bound."""
    bound = {"m2po_bound": 1e-20, "mis_veto": 1.0}[key]
    updater = update(5, 3, correction=name, **{key: bound})
    before = updater.flat_weights.clone()
    with torch.no_grad():
        _, values = updater.model(torch.ones(4, 5))
    on = slots()
    for slot in on:
        slot.fields["logprob"] += np.float32(0.5)
    figures = train(updater, on)
    assert figures["bounded_weight"] == 1.0
    assert (figures["loss_policy"], figures["skipped"]) == (0.0, 0)
    assert not torch.equal(before, updater.flat_weights)
    with torch.no_grad():
        assert not torch.equal(values, updater.model(torch.ones(4, 5))[1])
