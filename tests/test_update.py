"""An update trains on the valid steps it was given, by the settings it was given, and on nothing else."""

import copy
import math

import numpy as np
import pytest
import torch
from segments import Slot

import config
from consumers.batch import Batch
from consumers.snapshot import Packer, unpack
from consumers.update import Update
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SPEC = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": False}


def update(*, policy=None, seed=3, bf16=False, **settings):
    """An Update of a small network with the settings of a run file's `learner` section."""
    base = {"minibatches": 2, "epochs": 1, "learning_rate": 1e-2, "batch_slots": 2}
    program = build({"hidden": [16], "activation": "tanh"} | (policy or {}), SPEC)
    learner = config.Learner(**base | settings)
    return Update(learner, program, seed=seed, device=CPU, bf16=bf16)


def slots(*, agents=6, count=2, **options):
    return [Slot(seed, agents=agents, **options) for seed in range(count)]


def train(updater, on, version=0, steps=0, **options):
    batch = Batch(on, device=CPU, **options)
    try:
        return updater.train(batch, version, steps)
    finally:
        batch.close()


def weights(updater):
    return updater.model.flat_weights().clone()


def acted_by(updater, on):
    """Makes the slots' log-probabilities those of the updater's weights, as at lag 0."""
    for slot in on:
        logits, _ = updater.model(torch.from_numpy(slot.fields["obs"][:-1]))
        action = torch.from_numpy(slot.fields["action"]).long()
        slot.fields["logprob"] = updater.model.log_prob(logits, action).detach().numpy()
    return on


@pytest.mark.parametrize("correction", ["vtrace", "ppo"])
def test_targets_of_the_batch_and_of_the_minibatch_agree_for_a_single_step(correction):
    by_batch, by_minibatch = (
        update(targets=targets, minibatches=1, correction=correction) for targets in ("batch", "minibatch")
    )
    a, b = (train(u, slots()) for u in (by_batch, by_minibatch))
    torch.testing.assert_close(weights(by_batch), weights(by_minibatch), rtol=1e-5, atol=1e-6)
    for name in ("loss_total", "approx_kl", "explained_variance", "ratio_p99", "grad_norm"):
        assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name


def test_with_several_minibatches_only_targets_of_the_minibatch_follow_the_weights():
    by_batch, by_minibatch = (update(targets=targets, minibatches=6) for targets in ("batch", "minibatch"))
    for u in (by_batch, by_minibatch):
        train(u, slots())
    assert not torch.allclose(weights(by_batch), weights(by_minibatch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
def test_equal_seeds_and_batches_give_equal_weights_bit_for_bit_and_others_do_not(targets):
    runs = []
    for seed in (3, 3, 4):
        updater = update(targets=targets, seed=seed)
        for _ in range(3):
            train(updater, slots())
        runs.append(weights(updater))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
def test_what_a_reset_step_holds_does_not_matter_but_its_observation_bootstraps(targets):
    plain, changed, elsewhere = (update(targets=targets) for _ in range(3))
    train(plain, slots(p_end=0.3))
    other = slots(p_end=0.3)
    for slot in other:
        invalid = slot.fields["valid"] == 0
        assert invalid.any()
        slot.fields["action"][invalid] = 2
        slot.fields["logprob"][invalid] = np.nan
        slot.fields["reward"][invalid] = 1e9
    train(changed, other)
    assert torch.equal(weights(plain), weights(changed))
    for slot in other:
        slot.fields["obs"][:-1][slot.fields["valid"] == 0] += 1.0
    train(elsewhere, other)
    assert not torch.equal(weights(plain), weights(elsewhere))


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
def test_what_is_not_finite_moves_no_weight_and_is_counted(targets):
    updater = update(targets=targets)
    before = weights(updater)
    broken = slots()
    for slot in broken:
        slot.fields["reward"][0, :] = np.inf
    figures = train(updater, broken)
    assert torch.equal(weights(updater), before)
    assert (figures["skipped"], figures["sgd_steps"]) == (2, 0)
    assert math.isnan(figures["loss_total"])
    figures = train(updater, slots())
    assert (figures["skipped"], figures["sgd_steps"]) == (0, 2)
    assert torch.isfinite(weights(updater)).all()


def test_steps_of_too_old_weights_are_not_trained_on():
    old, young = Slot(0, version=1), Slot(1, version=9)
    spoiled = copy.deepcopy(old)
    spoiled.fields["action"][:] = 0
    a, b = update(targets="batch", value_coef=0.0), update(targets="batch", value_coef=0.0)
    figures = train(a, [old, young], version=10, oldest_version=5)
    train(b, [spoiled, young], version=10, oldest_version=5)
    assert figures["masked"] == old.fields["valid"].sum()
    assert figures["samples"] == young.fields["valid"].sum()
    assert torch.equal(weights(a), weights(b))


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
def test_a_batch_of_nothing_but_too_old_steps_moves_no_weight_and_tells_no_loss(targets):
    updater = update(targets=targets, correction="vtrace", normalize_value=True)
    train(updater, slots())  # the optimizer has momentum from now on
    before, mean = weights(updater), updater.values.mean
    figures = train(updater, [Slot(0, version=1), Slot(1, version=2)], version=10, oldest_version=5)
    assert torch.equal(weights(updater), before)
    assert updater.values.mean == mean
    assert (figures["samples"], figures["sgd_steps"], figures["skipped"]) == (0, 0, 0)
    assert math.isnan(figures["loss_total"])


def test_samples_count_every_pass_over_a_valid_step():
    on = slots()
    valid = sum(int(slot.fields["valid"].sum()) for slot in on)
    figures = train(update(epochs=3), on)
    assert figures["samples"] == 3 * valid
    assert figures["sgd_steps"] == 6


def test_a_kl_above_the_target_ends_the_epochs():
    free, bound = update(epochs=8), update(epochs=8, target_kl=1e-6)
    assert train(free, slots())["sgd_steps"] == 16
    stopped = train(bound, slots())
    assert stopped["sgd_steps"] == 2
    assert stopped["update_kl"] > 1e-6


def test_schedules_follow_the_steps_trained():
    ramp = config.Schedule(start=1e-2, end=0.0, kind="linear", steps=1000)
    updater = update(learning_rate=ramp, entropy_coef=ramp)
    assert train(updater, slots(), steps=0)["learning_rate"] == 1e-2
    assert train(updater, slots(), steps=250)["entropy_coef"] == 7.5e-3
    before = weights(updater)
    assert train(updater, slots(), steps=1000)["learning_rate"] == 0.0
    assert torch.equal(weights(updater), before)


def test_at_lag_0_the_first_ratio_is_one():
    updater = update(targets="batch")
    figures = train(updater, acted_by(updater, slots()))
    for name in ("ratio_mean", "ratio_max"):
        assert figures[name] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
def test_bf16_trains_about_as_float32_does(targets):
    exact, rounded = update(targets=targets), update(targets=targets, bf16=True)
    a, b = (train(u, slots(agents=32)) for u in (exact, rounded))
    assert b["loss_value"] == pytest.approx(a["loss_value"], rel=0.05)
    assert b["loss_entropy"] == pytest.approx(a["loss_entropy"], rel=0.01)
    assert not torch.equal(weights(exact), weights(rounded))


def test_normalised_observations_ship_with_the_version_made_after_the_batch():
    updater = update(policy={"normalize_obs": True})
    first = slots()
    mean = updater.program.weights[0]
    assert not mean.trainable
    assert (weights(updater)[: mean.count] == 0).all()
    train(updater, first)
    rows = np.concatenate([slot.fields["obs"][:-1] for slot in first], 1).reshape(-1, 5)
    shipped = weights(updater)[: 2 * mean.count].numpy().reshape(2, 5)
    np.testing.assert_allclose(shipped[0], rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(shipped[1], 1 / rows.std(0), rtol=1e-4)
    assert not torch.equal(weights(updater), weights(update(policy={"normalize_obs": True})))


def test_normalised_values_learn_targets_of_any_scale():
    big = slots(agents=32)
    for slot in big:
        slot.fields["reward"] = slot.fields["reward"] * 1000 + slot.fields["valid"] * np.float32(500)
    found = {}
    for normalize in (False, True):
        updater = update(normalize_value=normalize, epochs=4, gamma=0.0)
        for _ in range(20):
            train(updater, big)
        with torch.no_grad():
            _, outputs = updater.model(torch.from_numpy(big[0].fields["obs"]))
        found[normalize] = float(updater.values.denormalize(outputs).mean())
    assert found[True] == pytest.approx(500, abs=100)
    assert found[False] < 100


def test_a_masked_choice_gets_no_probability():
    program = build({"hidden": [16], "activation": "tanh"}, SPEC | {"mask": True})
    settings = config.Learner(minibatches=2, epochs=2, learning_rate=1e-2, batch_slots=2, entropy_coef=0.1)
    updater = Update(settings, program, seed=0, device=CPU, bf16=False)
    on = slots()
    for slot in on:
        slot.fields["mask"][..., 1] = 0
        slot.fields["action"][slot.fields["action"] == 1] = 0
        slot.fields["logprob"][:] = -np.log(2)
    figures = train(updater, on, has_mask=True)
    assert figures["loss_entropy"] <= np.log(2) + 1e-6
    assert figures["sgd_steps"] == 4


@pytest.mark.soak  # compiling takes a minute on a busy core
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_and_eager_updates_agree():
    compiled, eager = update(compile=True), update()
    for u in (compiled, eager):
        train(u, slots())
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=1e-4, atol=1e-5)


def test_an_update_learns_which_action_pays():
    """A bandit: action 2 pays 1, the others nothing."""
    updater = update(learning_rate=1e-2, entropy_coef=0.0, epochs=2)
    for step in range(60):
        on = [Slot(100 + 2 * step + i, agents=16, p_end=0.0) for i in range(2)]
        for slot in on:
            slot.fields["terminated"][:] = 1
            logits, _ = updater.model(torch.from_numpy(slot.fields["obs"][:-1]))
            generator = torch.Generator().manual_seed(step)
            slot.fields["action"] = updater.model.sample(logits, None, generator).int().numpy()
            slot.fields["reward"] = (slot.fields["action"][..., 0] == 2).astype(np.float32)
        figures = train(updater, acted_by(updater, on))
    assert figures["entropy_ratio"] < 0.2
    logits, values = updater.model(torch.randn(100, 5))
    assert (logits.argmax(-1) == 2).all()
    assert (values - 1.0).abs().mean() < 0.15


def poison(on, slot=0, segment=None):
    """Makes rewards of a slot NaN: everything that is made of them is."""
    agents = slice(None) if segment is None else segment
    on[slot].fields["reward"][:, agents] = np.nan
    return on


def test_skipped_steps_are_counted_in_a_row_over_updates_and_a_good_one_ends_the_row():
    updater = update(minibatches=2, epochs=2, nonfinite_steps=6)
    before = weights(updater)
    figures = train(updater, poison(poison(slots()), 1))
    assert figures["skipped"] == updater.nonfinite_steps == 4
    assert not updater.is_good
    assert not updater.is_lost
    assert torch.equal(weights(updater), before)
    train(updater, slots())
    assert updater.nonfinite_steps == 0
    assert updater.is_good


def test_once_the_row_is_too_long_no_good_step_hides_it():
    updater = update(minibatches=2, epochs=2, nonfinite_steps=4)
    train(updater, poison(poison(slots()), 1))
    assert updater.is_lost
    train(updater, slots())
    assert updater.is_lost


def test_a_skipped_step_says_what_was_seen_and_in_which_slots():
    updater = update(minibatches=12, normalize_advantage=False, learning_rate=0.5)
    seen = train(updater, poison(slots(), 1, segment=2))["nonfinite"]
    assert seen["slots"] == [1]
    assert math.isnan(seen["loss_policy"])
    assert math.isnan(seen["grad_norm"])
    assert math.isfinite(seen["loss_entropy"])
    assert seen["learning_rate"] == 0.5
    assert train(updater, slots())["nonfinite"] is None


def test_weights_that_are_no_numbers_are_not_good_whatever_the_steps_said():
    updater = update()
    assert updater.is_good
    updater.flat_weights[3] = torch.inf
    assert not updater.is_good


@pytest.mark.parametrize(
    "options",
    [{}, {"targets": "minibatch"}, {"loss": "torch"}, {"bf16": True}, {"optimizer": "muon", "epochs": 2},
     {"normalize_value": True, "policy": {"normalize_obs": True}}],
    ids=str,
)  # fmt: skip
def test_an_examination_changes_nothing_that_training_sees(options):
    with_it, without = update(**options), update(**options)
    for seed in range(3):
        on = [Slot(10 * seed + i) for i in range(2)]
        examined = Batch(on[:1], device=CPU)
        with_it.examine(examined)
        examined.close()
        for u in (with_it, without):
            train(u, on, version=seed)
    assert torch.equal(weights(with_it), weights(without))
    pack = Packer(1 << 20).pack
    assert bytes(pack(with_it.state_dict())) == bytes(pack(without.state_dict()))


def test_an_examination_looks_at_every_step_forward_and_backward():
    """A slot that makes trouble in training must make it here."""
    updater = update(minibatches=4)
    looked = []
    run = updater.gradient.objective

    def spy(logits, output, steps, prior, entropy_coef):
        outcome = run(logits, output, steps, prior, entropy_coef)
        looked.append(steps.rewards)

        def backward():
            outcome.backward()
            assert updater.optimizer.gradients[0].any()

        return outcome._replace(backward=backward)

    updater.gradient.objective = spy
    on = Slot(3, agents=6)
    updater.examine(Batch([on], device=CPU))
    rewards = torch.cat(looked, 1)
    assert torch.equal(rewards, torch.from_numpy(on.fields["reward"]))
    assert not updater.optimizer.gradients[0].any()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("policy", [{}, {"normalize_obs": True}])
def test_a_state_goes_through_a_snapshot_and_training_goes_on_bit_for_bit(optimizer, policy):
    options = {"optimizer": optimizer, "normalize_value": True, "policy": policy}
    a, b = update(**options), update(seed=9, **options)
    for _ in range(2):
        train(a, slots())
    b.load_weights(weights(a))
    b.load_state_dict(unpack(Packer(1 << 20).pack(a.state_dict())))
    for u in (a, b):
        train(u, slots())
    assert torch.equal(weights(a), weights(b))


def test_the_pulse_comes_with_every_minibatch():
    updater = update(minibatches=4, epochs=3)
    pulses = []
    updater.pulse = lambda: pulses.append(1)
    train(updater, slots(agents=8))
    assert len(pulses) == 4 + 3 * 4
