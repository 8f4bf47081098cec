"""The second set of weights beside those in training follows its rule, is the policy that the correction
compares with, and outlives its learner."""

import numpy as np
import pytest
import torch
from segments import Slot

import config
from config import rules
from consumers import corrections
from consumers.batch import Batch
from consumers.corrections import Segments, decays
from consumers.snapshot import Packer, unpack
from consumers.update import Update
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
HEADS = {"discrete": [{"choices": 3}], "continuous": [{"low": -1.0, "high": 1.0}]}
TARGET = {"correction": "impact", "impact_versions": 3}
AVERAGE = {"correction": "decoupled", "proximal": "ewma", "proximal_decay": 0.8}


def update(*, policy=None, heads="discrete", seed=3, **learner):
    spec = {"obs": {"dtype": "float32", "shape": [5]}, "heads": HEADS[heads], "mask": False}
    base = {"minibatches": 2, "epochs": 2, "learning_rate": 1e-2, "entropy_coef": 0.0}
    program = build({"hidden": [16], "activation": "tanh"} | (policy or {}), spec)
    return Update(config.Learner(**base | learner), program, seed=seed, device=CPU, bf16=False)


def slots(updater, seed=0):
    """Two, for the updater's network."""
    made = []
    for i in range(2):
        slot, rng = Slot(10 * seed + i, p_end=0.2), np.random.default_rng(100 * seed + i)
        if not updater.program.choices:
            slot.fields["action"] = rng.normal(size=slot.fields["action"].shape).astype(np.float32)
        shape = (slot.fields["reward"].shape[1], updater.program.state_width)
        slot.fields["state0"] = rng.normal(size=shape).astype(np.float32)
        made.append(slot)
    return made


def batch_of(updater, on):
    discrete, recurrent = bool(updater.program.choices), updater.program.state_width > 0
    return Batch(on, device=CPU, discrete=discrete, recurrent=recurrent)


def train(updater, on, version=0):
    batch = batch_of(updater, on)
    try:
        return updater.train(batch, version, 0)
    finally:
        batch.close()


def weights(updater):
    return updater.flat_weights.clone()


def after(updater, versions):
    """The weights before the first and after each of so many updates."""
    found = [weights(updater)]
    for version in range(versions):
        train(updater, slots(updater, version), version)
        found.append(weights(updater))
    return found


@pytest.mark.parametrize("every", [1, 3])
def test_a_target_network_is_the_newest_version_that_the_period_divides(every):
    updater = update(correction="impact", impact_versions=every)
    seen = [weights(updater)]
    for version in range(7):
        train(updater, slots(updater, version), version)
        seen.append(weights(updater))
        assert torch.equal(updater.anchor.flat, seen[(version + 1) // every * every])
    assert not torch.equal(seen[0], seen[1])


def test_a_target_network_sees_observations_through_the_statistics_of_its_version():
    updater = update(policy={"normalize_obs": True}, **TARGET)
    seen = after(updater, 5)
    assert torch.equal(updater.anchor.flat, seen[3])


def by_hand(updater, flat, on):
    """Log-probabilities [T, m] and values [T+1, m] of the slots under other weights."""
    other = update(policy={}, correction="ppo")
    other.load_weights(flat)
    with torch.no_grad():
        obs = torch.from_numpy(np.concatenate([slot.fields["obs"] for slot in on], 1))
        logits, values = other.model(obs)
        action = torch.from_numpy(np.concatenate([slot.fields["action"] for slot in on], 1)).long()
        return other.model.log_prob(logits[:-1], action), values


def test_impact_is_its_formula_with_targets_towards_the_target_network_and_values_of_the_newest():
    """The whole of an update, at a rate of 0 so that every figure is of one policy."""
    learner = {"minibatches": 1, "epochs": 1, "normalize_advantage": False, "impact_rho": 1.1, "gamma": 0.9}
    updater = update(**TARGET, **learner)
    seen = after(updater, 4)  # the target is one version old
    updater.settings = config.Learner(**TARGET, **learner, learning_rate=0.0)
    on = slots(updater, 9)
    figures = train(updater, on, 4)
    (target, _), (pi, values) = (by_hand(updater, flat, on) for flat in (seen[3], seen[4]))
    batch = batch_of(updater, on)
    flags = batch.terminated, batch.truncated, batch.valid
    discounts, traces = decays(*flags, gamma=0.9, lambda_=updater.settings.gae_lambda)
    segments = Segments(values, batch.rewards, discounts, traces, batch.valid)
    estimates = corrections.puff(segments, target - batch.behaviour, rho_clip=1.0, c_clip=1.0)
    valid = batch.valid.numpy()
    tgt, pi, mu, a = (x.double().numpy() for x in (target, pi, batch.behaviour, estimates.advantages))
    r = np.minimum(np.exp(mu - tgt), 1.1) * np.exp(pi - mu)
    loss = -np.minimum(r * a, np.clip(r, 0.8, 1.2) * a)
    assert figures["loss_policy"] == pytest.approx(loss[valid].mean(), rel=1e-4)
    error = ((values[:-1] - estimates.targets) ** 2 / 2).numpy()
    assert figures["loss_value"] == pytest.approx(error[valid].mean(), rel=1e-4)
    bounded = (np.exp(mu - tgt) > 1.1)[valid].mean()
    assert figures["bounded_weight"] == pytest.approx(bounded)
    assert 0 < bounded < 1
    assert np.abs(tgt - pi)[valid].max() > 1e-2
    assert figures["update_kl"] == pytest.approx(0.0, abs=1e-9), "against the policy at batch start"


@pytest.mark.parametrize("decay", [0.0, 0.8, 1.0])
def test_an_average_is_the_mean_of_all_weights_there_were_weighed_by_their_age_in_steps(decay):
    updater = update(**AVERAGE | {"proximal_decay": decay})
    seen = [weights(updater)]
    step = updater.optimizer.step

    def counted(*args, **options):
        moved = step(*args, **options)
        seen.append(weights(updater))
        return moved

    updater.optimizer.step = counted
    after(updater, 3)
    assert len(seen) == 13
    factors = decay ** np.arange(12, -1, -1.0)
    expected = (factors[:, None] * np.stack(seen).astype(float)).sum(0) / factors.sum()
    np.testing.assert_allclose(updater.anchor.flat.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_a_step_that_was_skipped_is_in_no_average():
    updater = update(**AVERAGE)
    after(updater, 1)
    before = updater.anchor.flat.clone()
    broken = slots(updater)
    for slot in broken:
        slot.fields["reward"][:] = np.inf
    assert train(updater, broken)["sgd_steps"] == 0
    assert torch.equal(updater.anchor.flat, before)


def test_an_average_sees_observations_through_the_newest_statistics():
    updater = update(policy={"normalize_obs": True}, **AVERAGE)
    after(updater, 3)
    for weight in updater.program.weights:
        part = slice(weight.offset, weight.offset + weight.count)
        assert torch.equal(updater.anchor.flat[part], updater.flat_weights[part]) != weight.trainable


def test_each_minibatch_is_compared_with_the_average_of_that_moment():
    updater, given = update(**AVERAGE), []
    objective = updater.gradient.objective

    def spy(logits, output, steps, prior, *options):
        given.append((updater.anchor.flat.clone(), prior))
        return objective(logits, output, steps, prior, *options)

    updater.gradient.objective = spy
    after(updater, 1)
    on, whole = slots(updater, 0), []
    for flat, _ in given:
        whole.append(by_hand(updater, flat, on)[0])
    for (_, prior), log_prob in zip(given, whole, strict=True):
        columns = {tuple(column) for column in np.round(log_prob.numpy().T, 4).tolist()}
        assert {tuple(column) for column in np.round(prior.proximal.numpy().T, 4).tolist()} <= columns
        assert torch.equal(given[0][1].proximal, given[0][1].log_prob), "the first average is the policy"
    assert not torch.equal(given[-1][1].proximal, given[-1][1].log_prob)


@pytest.mark.parametrize("correction", rules.AVERAGED)
def test_before_the_first_step_the_average_is_the_policy_at_batch_start(correction):
    options = {"correction": correction, "epochs": 1, "minibatches": 1, "loss": "torch"}
    plain, averaged = update(**options), update(**options, proximal="ewma")
    for updater in (plain, averaged):
        train(updater, slots(updater))
    assert torch.equal(weights(plain), weights(averaged))
    for updater in (plain, averaged):
        train(updater, slots(updater))
    assert not torch.equal(weights(plain), weights(averaged))


@pytest.mark.parametrize("correction", rules.AVERAGED)
def test_without_any_memory_no_ratio_to_the_average_is_ever_clipped(correction):
    """The average is then the policy in training itself."""
    rate = {"correction": correction, "learning_rate": 0.1}
    forgetful, plain = update(**rate, proximal="ewma", proximal_decay=0.0), update(**rate)
    assert train(forgetful, slots(forgetful))["clipped_ratio"] == 0.0
    assert train(plain, slots(plain))["clipped_ratio"] > 0.0


@pytest.mark.parametrize("heads", sorted(HEADS))
@pytest.mark.parametrize("recurrent", ["none", "lstm", "mingru"])
def test_an_anchor_is_evaluated_as_the_policy_itself_is(heads, recurrent):
    updater = update(policy={"recurrent": recurrent, "recurrent_width": 8}, heads=heads, **TARGET)
    after(updater, 2)
    updater.anchor.model.load_flat(weights(updater))
    seen = []
    evaluate, estimate = updater._anchored, updater._estimator.estimate

    def anchored(*args):
        seen.append(evaluate(*args))
        return seen[-1]

    def estimated(log_prob, output, steps, proximal):
        assert torch.equal(torch.cat(seen, 1), proximal)
        assert torch.equal(log_prob, proximal)
        return estimate(log_prob, output, steps, proximal)

    updater._anchored, updater._estimator.estimate = anchored, estimated
    train(updater, slots(updater, 5))
    assert len(seen) == 2


@pytest.mark.parametrize("learner", [TARGET, AVERAGE], ids=["target", "average"])
def test_a_state_goes_through_a_snapshot_and_training_goes_on_bit_for_bit(learner):
    a, b = update(**learner), update(seed=9, **learner)
    after(a, 4)
    b.load_state_dict(unpack(Packer(1 << 20).pack(a.state_dict())))
    b.load_weights(weights(a))
    for updater in (a, b):
        for version in range(4, 8):
            train(updater, slots(updater, version), version)
    assert torch.equal(weights(a), weights(b))


@pytest.mark.parametrize("learner", [{"correction": "vtrace"}, AVERAGE], ids=["none", "other"])
def test_without_a_state_of_its_own_an_anchor_begins_as_the_weights_taken_up(learner):
    before, anchored = update(**learner), update(seed=9, **TARGET)
    after(before, 2)
    anchored.load_state_dict(before.state_dict())
    anchored.load_weights(weights(before))
    train(anchored, slots(anchored))
    assert torch.equal(anchored.anchor.flat, weights(before))


def test_a_learner_keeps_no_second_weights_unless_its_correction_has_use_for_them():
    for correction in corrections.CORRECTIONS:
        for proximal in ("batch", "ewma"):
            learner = {"correction": correction, "proximal": proximal}
            assert (update(**learner).anchor is not None) == config.Learner(**learner).anchored
