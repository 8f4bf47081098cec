"""`learner.ess_learning_rate`: a batch with few effective samples is learned from in small steps."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from segments import Slot

import config
from consumers.batch import Batch
from consumers.corrections import effective_share, weight_moments
from consumers.update import Update
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SPEC = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": False}
RATE = 1e-2


def update(**learner):
    program = build({"hidden": [16], "activation": "tanh"}, SPEC)
    base = {"minibatches": 2, "epochs": 2, "learning_rate": RATE}
    return Update(config.Learner(**base | learner), program, seed=3, device=CPU, bf16=False)


def log_probs(updater, slot):
    with torch.no_grad():
        logits, _ = updater.model(torch.from_numpy(slot.fields["obs"][:-1]))
        return updater.model.log_prob(logits, torch.from_numpy(slot.fields["action"]).long()).numpy()


def slots(updater, spread):
    """Two, acted by a policy whose log-probabilities are so far from the updater's."""
    made = [Slot(seed, p_end=0.2) for seed in range(2)]
    rng = np.random.default_rng(7)
    for slot in made:
        noise = rng.normal(size=slot.fields["reward"].shape) * spread
        slot.fields["logprob"] = (log_probs(updater, slot) + noise).astype(np.float32)
    return made


def train(updater, on, **options):
    batch = Batch(on, device=CPU, **options)
    try:
        return updater.train(batch, 0, 0)
    finally:
        batch.close()


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 7), st.integers(1, 5)),
    spread=st.sampled_from([0.0, 0.3, 3.0]),
    dropped=st.sampled_from([0.0, 0.4]),
)
def test_the_share_of_effective_samples_is_the_sums_of_its_definition(seed, shape, spread, dropped):
    rng = np.random.default_rng(seed)
    log_ratio, kept = rng.normal(size=shape) * spread, rng.random(shape) >= dropped
    w = [math.exp(x) for x, counts in zip(log_ratio.flat, kept.flat, strict=True) if counts]
    expected = sum(w) ** 2 / (len(w) * sum(x * x for x in w)) if w else 1.0
    log_ratio[~kept] = np.nan
    got = effective_share(weight_moments(torch.tensor(log_ratio), torch.tensor(kept)))
    assert got == pytest.approx(expected, rel=1e-9)
    assert 0 < got <= 1 + 1e-12


@pytest.mark.parametrize("correction", ["tis", "vtrace", "decoupled"])
def test_the_rate_is_that_of_the_ratios_before_the_update_and_no_bound_is_in_them(correction):
    updater = update(ess_learning_rate=True, correction=correction, tis_cap=1.01, rho_clip=1.0)
    on = slots(updater, 0.6)
    w = np.concatenate(
        [np.exp(log_probs(updater, s) - s.fields["logprob"])[s.fields["valid"] > 0] for s in on]
    )
    figures = train(updater, on)
    share = w.sum() ** 2 / (len(w) * (w**2).sum())
    assert 0.3 < share < 0.9
    assert figures["learning_rate"] == pytest.approx(RATE * share**0.5, rel=1e-5)
    constant = update(
        correction=correction, tis_cap=1.01, rho_clip=1.0, learning_rate=figures["learning_rate"]
    )
    train(constant, on)
    assert torch.equal(updater.flat_weights, constant.flat_weights)


def test_on_policy_the_rate_is_the_one_that_was_asked_for():
    updater = update(ess_learning_rate=True)
    assert train(updater, slots(updater, 0.0))["learning_rate"] == pytest.approx(RATE, rel=1e-6)


def test_without_it_the_rate_is_the_one_that_was_asked_for():
    updater = update()
    assert train(updater, slots(updater, 1.0))["learning_rate"] == RATE


def test_a_step_of_which_nothing_is_known_does_not_spoil_the_rate_of_the_others():
    updater = update(ess_learning_rate=True, minibatches=6, epochs=1)
    on = slots(updater, 0.3)
    on[0].fields["logprob"][2, 0] = np.nan
    on[0].fields["valid"][2, 0] = 1
    figures = train(updater, on)
    assert 0 < figures["learning_rate"] < RATE
    assert figures["skipped"] == 1
    assert torch.isfinite(updater.flat_weights).all()


def test_steps_that_are_not_kept_do_not_count():
    updater = update(ess_learning_rate=True)
    on = slots(updater, 0.0)
    old = Slot(5, version=1)
    for slot in on:
        slot.fields["version"][:] = 9
    assert train(updater, [*on, old], oldest_version=5)["learning_rate"] == pytest.approx(RATE, rel=1e-6)
