"""The losses and their gradients are the hand-derived ones."""

import numpy as np
import pytest
import torch

from consumers.corrections import clipped_surrogate, kept_mean, normalize, value_loss

CLIP = 0.2


def gradient(loss_of, x):
    leaf = torch.tensor(x, requires_grad=True)
    loss = loss_of(leaf)
    loss.sum().backward()
    return loss.detach().numpy(), leaf.grad.numpy()


def test_the_clipped_surrogate_and_its_gradient_are_the_hand_derived_ones():
    rng = np.random.default_rng(0)
    log_prob, advantages = rng.uniform(-3, 0, 4000), rng.normal(size=4000)
    behaviour = log_prob + rng.normal(size=4000) * 0.5
    loss, grad = gradient(
        lambda lp: clipped_surrogate(lp - torch.tensor(behaviour), torch.tensor(advantages), CLIP), log_prob
    )
    w = np.exp(log_prob - behaviour)
    expected = -np.minimum(w * advantages, np.clip(w, 1 - CLIP, 1 + CLIP) * advantages)
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    # The gradient stops where the ratio has gone as far as the clip allows in the advantage's direction.
    cut = ((advantages > 0) & (w > 1 + CLIP)) | ((advantages < 0) & (w < 1 - CLIP))
    np.testing.assert_allclose(grad, np.where(cut, 0.0, -w * advantages), rtol=1e-12)
    assert 0.2 < cut.mean() < 0.6


def test_the_value_loss_and_its_gradient_are_the_hand_derived_ones():
    rng = np.random.default_rng(1)
    values, targets, old = rng.normal(size=(3, 3000))
    loss, grad = gradient(lambda v: value_loss(v, torch.tensor(targets), None, None), values)
    np.testing.assert_allclose(loss, 0.5 * (values - targets) ** 2, rtol=1e-12)
    np.testing.assert_allclose(grad, values - targets, rtol=1e-12)

    clip = 0.3
    loss, grad = gradient(lambda v: value_loss(v, torch.tensor(targets), torch.tensor(old), clip), values)
    near = old + np.clip(values - old, -clip, clip)
    plain, clipped = 0.5 * (values - targets) ** 2, 0.5 * (near - targets) ** 2
    np.testing.assert_allclose(loss, np.maximum(plain, clipped), rtol=1e-12)
    inside = np.abs(values - old) < clip
    expected = np.where(inside | (plain > clipped), values - targets, 0.0)
    np.testing.assert_allclose(grad, expected, rtol=1e-9, atol=1e-12)
    assert 0.05 < (expected == 0).mean() < 0.95


def test_a_clipped_value_loss_without_old_values_is_refused():
    with pytest.raises(ValueError, match="start of the update"):
        value_loss(torch.zeros(2), torch.zeros(2), None, 0.1)


def test_means_are_over_kept_steps_whatever_the_others_hold():
    x = torch.tensor([1.0, float("nan"), 3.0, float("inf")], requires_grad=True)
    kept = torch.tensor([True, False, True, False])
    mean = kept_mean(x, kept, kept.sum())
    mean.backward()
    assert mean.item() == 2.0
    assert x.grad.tolist() == [0.5, 0.0, 0.5, 0.0]


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_kept_steps():
    rng = np.random.default_rng(3)
    a = torch.tensor(rng.normal(3.0, 5.0, size=(16, 8)), dtype=torch.float32)
    kept = torch.tensor(rng.random((16, 8)) < 0.7)
    a[~kept] = float("nan")
    normal = normalize(a, kept, kept.sum())
    assert abs(normal[kept].mean().item()) < 1e-6
    assert abs(normal[kept].std(unbiased=False).item() - 1.0) < 1e-5
    assert (normal[~kept] == 0).all()
    equal = normalize(torch.full((3, 2), 7.0), torch.ones(3, 2, dtype=torch.bool), torch.tensor(6))
    assert (equal == 0).all()
