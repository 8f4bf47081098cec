"""What an update tells of itself is what a plain computation over its steps gives."""

from pathlib import Path

import numpy as np
import pytest
import torch
from segments import Slot

import config
from consumers.batch import Batch
from consumers.diagnostics import COMPARED_EVERY
from consumers.update import Update
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
HEADS = [{"choices": 3}]


def update(*, mask=False, bf16=False, policy=None, **learner):
    spec = {"obs": {"dtype": "float32", "shape": [5]}, "heads": HEADS, "mask": mask}
    base = {"minibatches": 2, "epochs": 1, "learning_rate": 3e-2, "batch_slots": 2}
    program = build({"hidden": [16], "activation": "tanh"} | (policy or {}), spec)
    return Update(config.Learner(**base | learner), program, seed=3, device=CPU, bf16=bf16)


def slots():
    """Acted by a policy that is not the learner's."""
    made = [Slot(seed, p_end=0.15) for seed in range(2)]
    rng = np.random.default_rng(4)
    for slot in made:
        slot.fields["logprob"] += rng.normal(size=slot.fields["logprob"].shape).astype(np.float32) * 0.3
    return made


def joined(on, name):
    return np.concatenate([slot.fields[name] for slot in on], 1)


def train(updater, on, version=COMPARED_EVERY, **options):
    batch = Batch(on, device=CPU, **options)
    try:
        return updater.train(batch, version, 0)
    finally:
        batch.close()


@torch.no_grad()
def outputs(updater, on):
    return updater.model(torch.from_numpy(joined(on, "obs")))


def test_the_size_of_an_update_is_that_of_the_way_between_its_ends():
    updater, on = update(), slots()
    before = updater.flat_weights.clone()
    figures = train(updater, on)
    way = (updater.flat_weights - before).norm() / before.norm()
    assert figures["update_ratio"] == pytest.approx(float(way))
    assert figures["update_ratio"] > 0.01


@pytest.mark.parametrize("masked", [False, True])
def test_churn_is_counted_over_the_valid_steps(masked):
    updater, on = update(mask=masked, epochs=6), slots()
    if masked:
        for slot in on:
            slot.fields["mask"][..., 1] = 0
            slot.fields["action"][slot.fields["action"] == 1] = 0
    choices = [np.where(joined(on, "mask"), outputs(updater, on)[0][:-1], -np.inf).argmax(-1)]
    figures = train(updater, on, has_mask=masked)
    choices += [np.where(joined(on, "mask"), outputs(updater, on)[0][:-1], -np.inf).argmax(-1)]
    valid = joined(on, "valid") > 0
    assert not valid.all()
    assert figures["policy_churn"] == pytest.approx((choices[0] != choices[1])[valid].mean())
    assert figures["policy_churn"] > 0


def test_choices_of_a_recurrent_policy_are_watched_with_its_state():
    updater, on = update(policy={"recurrent": "mingru"}, epochs=6), slots()
    rng = np.random.default_rng(6)
    for slot in on:
        shape = (slot.fields["reward"].shape[1], updater.program.state_width)
        slot.fields["state0"] = rng.normal(size=shape).astype(np.float32)
    ended = joined(on, "terminated").astype(bool) | (joined(on, "valid") == 0)
    reset_before = torch.from_numpy(np.concatenate([np.zeros_like(ended[:1]), ended[:-1]]))
    state0 = torch.from_numpy(np.concatenate([slot.fields["state0"] for slot in on]))

    @torch.no_grad()
    def choices():
        obs = torch.from_numpy(joined(on, "obs"))[:-1]
        return updater.model.unroll(obs, state0, reset_before)[0].argmax(-1).numpy()

    before = choices()
    figures = train(updater, on, recurrent=True)
    valid = joined(on, "valid") > 0
    assert figures["policy_churn"] == pytest.approx((before != choices())[valid].mean())
    assert figures["policy_churn"] > 0


def test_a_batch_that_moves_no_weight_changes_no_choice():
    updater = update(learning_rate=0.0)
    figures = train(updater, slots())
    assert figures["update_ratio"] == figures["policy_churn"] == 0.0


def test_churn_is_told_of_some_updates_only():
    updater = update()
    told = [not np.isnan(train(updater, slots(), version)["policy_churn"]) for version in range(17)]
    assert [version for version in range(17) if told[version]] == [0, COMPARED_EVERY, 2 * COMPARED_EVERY]


@pytest.mark.parametrize("normalize", [False, True])
def test_the_change_of_values_is_that_of_the_valid_steps_in_units_of_the_rewards(normalize):
    updater, on = update(epochs=3, normalize_value=normalize), slots()
    if normalize:
        updater.values.weight, updater.values.first, updater.values.second = 1.0, 0.5, 4.25
    deviation, before = updater.values.deviation, outputs(updater, on)[1]
    seen, settle = [], updater._settle
    updater._settle = lambda *given: (seen.append(outputs(updater, on)[1]), settle(*given))
    figures = train(updater, on)
    change = (seen[0] - before)[:-1].numpy()[joined(on, "valid") > 0]
    wanted = np.sqrt((change.astype(float) ** 2).mean()) * (deviation if normalize else 1.0)
    assert figures["value_change"] == pytest.approx(wanted, rel=1e-4)
    assert figures["value_change"] > 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_largest_second_moment_is_adams(optimizer):
    updater = update(optimizer=optimizer, betas=(0.9, 0.99), max_grad_norm=None, minibatches=1)
    gradients, step = [], updater.optimizer.step

    def spied(*given):
        gradients.extend(gradient.clone() for gradient in updater.optimizer.gradients)
        return step(*given)

    updater.optimizer.step = spied
    figures = train(updater, slots())
    squares = torch.cat(gradients).square()
    if optimizer == "adamw":
        assert figures["second_moment_max"] == pytest.approx(0.01 * float(squares.max()), rel=1e-4)
    else:
        assert 0 < figures["second_moment_max"] <= 0.01 * float(squares.max())


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("targets", ["batch", "minibatch"])
def test_values_are_held_to_what_they_learn_and_to_the_plain_returns(targets, normalize):
    gamma, on = 0.9, slots()
    # A rate of 0: the values of all minibatches are those of one network.
    updater = update(
        targets=targets, minibatches=3, learning_rate=0.0, normalize_value=normalize, gamma=gamma
    )
    if normalize:
        updater.values.weight, updater.values.first, updater.values.second = 1.0, 0.5, 4.25
    values = updater.values.denormalize(outputs(updater, on)[1]).numpy().astype(float)
    figures = train(updater, on)
    reward, valid = joined(on, "reward"), joined(on, "valid") > 0
    terminated, truncated = joined(on, "terminated") > 0, joined(on, "truncated") > 0
    returns = np.zeros(reward.shape)
    for t, b in np.ndindex(reward.shape):
        discount, at = 1.0, t
        while True:
            returns[t, b] += discount * reward[at, b]
            discount *= gamma
            if terminated[at, b]:
                break
            if truncated[at, b] or at + 1 == len(reward):
                returns[t, b] += discount * values[at + 1, b]
                break
            at += 1
    expected = 1 - (returns - values[:-1])[valid].var() / returns[valid].var()
    assert figures["explained_variance_plain"] == pytest.approx(expected, abs=1e-4)
    assert figures["explained_variance"] != pytest.approx(expected, abs=1e-4)


def test_shares_of_ratios_that_vtrace_cuts_are_told():
    updater, on = update(rho_clip=1.2, c_clip=0.9), slots()
    action = torch.from_numpy(joined(on, "action")).long()
    log_prob = updater.model.log_prob(outputs(updater, on)[0][:-1], action)
    w = np.exp(log_prob.numpy() - joined(on, "logprob"))[joined(on, "valid") > 0]
    figures = train(updater, on)
    assert figures["rho_clipped"] == pytest.approx((w > 1.2).mean())
    assert figures["c_clipped"] == pytest.approx((w > 0.9).mean())
    assert 0 < figures["rho_clipped"] < figures["c_clipped"] < 1
    assert figures["ratio_ess"] == pytest.approx(w.sum() ** 2 / (len(w) * (w**2).sum()), rel=1e-4)


def test_the_figures_are_told_in_bf16_too():
    figures = train(update(bf16=True), slots())
    for name in ("update_ratio", "policy_churn", "explained_variance_plain", "ratio_k3"):
        assert np.isfinite(figures[name]), name


def test_every_figure_is_documented():
    page = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text()
    figures = train(update(), slots()).keys() - {"nonfinite", "alarms"}  # which become events
    assert [name for name in figures if f"`{name}`" not in page] == []
