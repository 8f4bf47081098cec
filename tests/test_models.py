"""The learner's module: built from the program, float32 where it matters, its weights one vector."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from programs import perceptron, programs, random_mask, random_obs, random_weights

from consumers import distributions, onednn
from consumers.models import PolicyModel
from producers.program import ProgramError, build

SPEC = {"obs": {"dtype": "float32", "shape": [20]}, "heads": [{"choices": 3}, {"choices": 4}], "mask": True}
SETTINGS = {"hidden": [16, 8], "activation": "relu"}


def model_of(**settings_) -> PolicyModel:
    return PolicyModel(build(SETTINGS | settings_, SPEC), seed=3)


def test_the_module_is_the_network_that_the_names_say():
    model = model_of()
    weights = model.state_dict()
    obs = torch.randn(5, 20)
    x = obs
    for layer in ("trunk.0", "trunk.1"):
        x = F.relu(F.linear(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
    logits, value = model(obs)
    torch.testing.assert_close(logits, F.linear(x, weights["policy.weight"], weights["policy.bias"]))
    torch.testing.assert_close(value, F.linear(x, weights["value.weight"], weights["value.bias"]).squeeze(1))


def test_a_separate_value_network_shares_nothing_with_the_policy():
    model = model_of(separate_value=True)
    _, value = model(torch.randn(5, 20))
    value.sum().backward()
    touched = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert all(name.startswith(("value.", "value_trunk.")) for name in touched)
    assert "value_trunk.0.weight" in touched


def test_leading_dimensions_are_free():
    model = model_of()
    obs, mask = torch.randn(4, 6, 20), torch.ones(4, 6, 7, dtype=torch.uint8)
    logits, value = model(obs, mask)
    assert logits.shape == (4, 6, 7)
    assert value.shape == (4, 6)
    flat_logits, flat_value = model(obs.view(24, 20))
    torch.testing.assert_close(logits.reshape(24, 7), flat_logits)
    torch.testing.assert_close(value.reshape(24), flat_value)
    one_logits, one_value = model(obs[0, 0])
    assert one_logits.shape == (7,)
    assert one_value.shape == ()


def test_the_weights_are_one_vector_of_which_the_parameters_are_views():
    model = model_of(normalize_obs=True)
    flat = model.flat_weights()
    expected = torch.cat([model.state_dict()[w.name].flatten() for w in model.program.weights])
    assert torch.equal(flat, expected)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    logits, value = model(torch.randn(8, 20))
    (logits.sum() + value.sum()).backward()
    optimizer.step()
    assert not torch.equal(flat, expected), "a step does not show in the vector"
    model.load_flat(expected)
    torch.testing.assert_close(model.state_dict()["trunk.0.weight"].flatten(), expected[40:360])


@pytest.mark.parametrize("kind", [np.empty, torch.empty])
def test_publishing_is_a_copy_into_the_callers_buffer(kind):
    model = model_of()
    out = kind(model.program.count, dtype=np.float32 if kind is np.empty else torch.float32)
    assert model.flat_weights(out) is out
    assert np.array_equal(np.asarray(out), model.flat_weights().numpy())
    with pytest.raises(ValueError, match="weights for a program"):
        model.load_flat(out[:-1])


def test_frozen_weights_are_not_trained_but_kept_in_the_state():
    model = model_of(normalize_obs=True)
    assert {"normalize.mean", "normalize.inv_std"} <= model.state_dict().keys()
    assert all(not name.startswith("normalize") for name, _ in model.named_parameters())
    model.get_buffer("normalize.mean").fill_(7.0)
    assert (model.flat_weights()[:20] == 7).all()


def test_a_state_dict_restores_the_vector_and_a_copy_has_its_own():
    model, other = model_of(), PolicyModel(build(SETTINGS, SPEC), seed=4)
    assert not torch.equal(model.flat_weights(), other.flat_weights())
    other.load_state_dict(model.state_dict())
    assert torch.equal(model.flat_weights(), other.flat_weights())
    third = copy.deepcopy(model)
    with torch.no_grad():
        third.flat_weights().zero_()
    assert not third.state_dict()["trunk.0.weight"].any()
    assert torch.equal(model.flat_weights(), other.flat_weights())


def test_moving_keeps_the_vector_whole_and_lower_precision_is_refused():
    model = model_of()
    optimizer_sees = list(model.parameters())
    moved = model.to("cpu")
    assert moved is model
    with torch.no_grad():
        model.flat_weights().zero_()
    assert not any(p.any() for p in optimizer_sees)
    with pytest.raises(TypeError, match="float32"):
        model.bfloat16()


def test_initialisation_is_orthogonal_from_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = model_of()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(first.flat_weights(), model_of().flat_weights())
    weights = first.state_dict()
    for name, gain in (("trunk.0.weight", 2**0.5), ("trunk.1.weight", 2**0.5), ("policy.weight", 0.01)):
        w = weights[name] / gain
        torch.testing.assert_close(w @ w.t(), torch.eye(len(w)), atol=1e-5, rtol=0)
    assert not weights["trunk.0.bias"].any()


@settings(deadline=None, max_examples=40, derandomize=True)
@given(programs())
def test_any_program_trains_with_finite_gradients(program):
    generator = np.random.default_rng(0)
    model = PolicyModel(program)
    model.load_flat(random_weights(program, generator))
    mask = random_mask(program, 50, generator)
    mask = None if mask is None else torch.from_numpy(mask)
    logits, value = model(torch.from_numpy(random_obs(program, 50, generator)), mask)
    log_prob, entropy = model.log_prob_entropy(logits, model.sample(logits))
    (log_prob.sum() + entropy.sum() + value.square().sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert torch.isfinite(log_prob).all()


def test_under_autocast_logits_value_and_log_probabilities_are_float32():
    program = perceptron(118, [128, 128], [3])
    model = PolicyModel(program, seed=1)
    model.load_flat(random_weights(program, np.random.default_rng(0)))
    obs = torch.randn(256, 118)
    exact, exact_value = model(obs)
    with torch.autocast("cpu", torch.bfloat16):
        logits, value = model(obs)
        log_prob, entropy = model.log_prob_entropy(logits, torch.zeros(256, 1, dtype=torch.int64))
    assert {x.dtype for x in (logits, value, log_prob, entropy)} == {torch.float32}
    assert not torch.equal(logits, exact), "autocast did nothing"
    torch.testing.assert_close(logits, exact, atol=0.05, rtol=0)
    torch.testing.assert_close(value, exact_value, atol=0.05, rtol=0)
    (log_prob.sum() + value.sum()).backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def bf16_pass(model: PolicyModel, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits, value, and the gradient of a mixture of them by every parameter."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        logits, value = model(obs)
    (logits.sin().sum() + value.square().sum()).backward()
    return logits.detach(), value.detach(), *(p.grad for p in model.parameters() if p.grad is not None)


@pytest.mark.skipif(not onednn.is_available(), reason="this CPU does not multiply bfloat16")
@settings(deadline=None, max_examples=40, derandomize=True)
@given(programs())
def test_fused_layers_give_what_plain_ones_give_within_bfloat16(program):
    generator = np.random.default_rng(2)
    model = PolicyModel(program)
    model.load_flat(random_weights(program, generator, gain=0.3))
    obs = torch.from_numpy(random_obs(program, 40, generator)) / 100
    fused = bf16_pass(model, obs)
    model._fusible = False
    plain = bf16_pass(model, obs)
    assert len(fused) == len(plain)
    for a, b in zip(fused, plain):
        assert a.dtype == b.dtype == torch.float32
        assert (a - b).abs().max() <= 0.03 * b.abs().max() + 1e-6


@pytest.mark.parametrize("layer", ["trunk.0.weight", "trunk.1.bias", "policy.weight"])
def test_a_nan_among_the_weights_shows_in_the_logits(layer):
    model = model_of()
    model.state_dict()[layer].view(-1)[0] = torch.nan
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            assert model(torch.randn(4, 20))[0].isnan().any()


@settings(deadline=None, max_examples=40, derandomize=True)
@given(programs())
def test_observations_in_the_narrowest_dtype_give_the_same_results(program):
    generator = np.random.default_rng(1)
    model = PolicyModel(program)
    model.load_flat(random_weights(program, generator))
    obs = torch.from_numpy(random_obs(program, 20, generator))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = model(obs)
        narrow = model(obs.to(model.obs_dtype(torch.bfloat16)))
    torch.testing.assert_close(narrow, expected, rtol=0, atol=0, equal_nan=True)


def test_an_operation_without_a_torch_counterpart_is_named():
    program = perceptron(5, [4], [3])
    ops = list(program.ops)
    ops[2] = dataclasses.replace(ops[2], kind="attention", attrs={})
    with pytest.raises(ProgramError, match="attention"):
        PolicyModel(dataclasses.replace(program, ops=tuple(ops)))


LOGITS = torch.tensor([[1.0, 2.0, -1.0, 0.5, 0.0], [0.0, 0.0, 5.0, -3.0, 2.0]])
MASK = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]], dtype=torch.bool)


def test_entropy_and_log_probability_are_those_of_torch_distributions():
    heads = [torch.distributions.Categorical(logits=x) for x in LOGITS.split([3, 2], 1)]
    actions = torch.tensor([[2, 1], [0, 0]])
    expected = sum(head.log_prob(actions[:, i]) for i, head in enumerate(heads))
    log_prob, entropy = distributions.log_prob_entropy(LOGITS, actions, [3, 2])
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(entropy, heads[0].entropy() + heads[1].entropy())
    assert torch.equal(log_prob, distributions.log_prob(LOGITS, actions, [3, 2]))
    assert torch.equal(entropy, distributions.entropy(LOGITS, [3, 2]))


def test_a_mask_is_a_smaller_distribution_and_its_logits_get_no_gradient():
    logits = LOGITS.clone().requires_grad_()
    actions = torch.tensor([[2, 1], [0, 1]])
    log_prob, entropy = distributions.log_prob_entropy(logits, actions, [3, 2], MASK)
    first = torch.distributions.Categorical(logits=LOGITS[0, [0, 2]])
    second = torch.distributions.Categorical(logits=LOGITS[0, 3:])
    torch.testing.assert_close(
        log_prob[0], first.log_prob(torch.tensor(1)) + second.log_prob(torch.tensor(1))
    )
    torch.testing.assert_close(entropy[0], first.entropy() + second.entropy())
    (log_prob + entropy).sum().backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[~MASK].any()
    assert logits.grad[MASK].any()


def test_masked_logits_and_the_mask_beside_the_logits_mean_the_same():
    actions = torch.tensor([[2, 1], [0, 1]])
    masked = torch.where(MASK, LOGITS, -torch.inf)
    for a, b in zip(
        distributions.log_prob_entropy(masked, actions, [3, 2]),
        distributions.log_prob_entropy(LOGITS, actions, [3, 2], MASK),
    ):
        assert torch.equal(a, b)


def test_what_is_masked_may_be_nan_and_what_is_not_shows():
    wild = LOGITS.clone()
    wild[0, 1] = torch.nan
    assert distributions.entropy(wild, [3, 2], MASK).isfinite().all()
    wild[1, 2] = torch.nan
    entropy = distributions.entropy(wild, [3, 2], MASK)
    assert entropy.isnan().tolist() == [False, True]


def test_mode_and_samples_are_allowed_and_samples_follow_the_softmax():
    assert distributions.mode(LOGITS, [3, 2], MASK).tolist() == [[0, 0], [2, 1]]
    many = LOGITS[0].expand(20000, 5)
    mask = MASK[0].expand(20000, 5)
    actions = distributions.sample(many, [3, 2], mask, torch.Generator().manual_seed(0))
    assert actions.shape == (20000, 2)
    frequencies = torch.bincount(actions[:, 0], minlength=3) / 20000
    expected = torch.where(MASK[0, :3], LOGITS[0, :3], -torch.inf).softmax(0)
    assert frequencies[1] == 0
    torch.testing.assert_close(frequencies, expected, atol=0.02, rtol=0)
