"""The optimizers move the weights as published, stay within the gradient bound and refuse what is not
finite."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from consumers.optimizer import Optimizer


def settings(**changes):
    base = {
        "optimizer": "adamw",
        "betas": (0.9, 0.99),
        "eps": 1e-8,
        "weight_decay": 0.1,
        "momentum": 0.9,
        "max_grad_norm": None,
    }
    return SimpleNamespace(**{**base, **changes})


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def backward(net, scale=1.0):
    x = torch.linspace(-1, 1, 15).reshape(3, 5)
    loss = net(x).square().sum() * scale
    loss.backward()
    return loss.detach()


def test_adamw_is_the_published_rule():
    net, lr, (b1, b2), decay, eps = module(), 1e-2, (0.9, 0.99), 0.1, 1e-8
    optimizer = Optimizer(net.parameters(), settings())
    weights = [p.detach().numpy().astype(np.float64) for p in net.parameters()]
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    for step in range(1, 4):
        loss = backward(net)
        gradients = [p.grad.numpy().astype(np.float64) for p in net.parameters()]
        optimizer.step(loss, lr)
        for i, g in enumerate(gradients):
            m, v = moments[i]
            moments[i] = m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            update = (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + eps)
            weights[i] = weights[i] * (1 - lr * decay) - lr * update
        for p, w in zip(net.parameters(), weights, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), w, rtol=2e-5, atol=1e-6)


def test_a_table_whose_rows_are_looked_up_is_no_matrix_to_muon():
    nets = [module() for _ in range(3)]
    (_, whole), (_, table), (_, adamw) = (
        (
            Optimizer(net.parameters(), settings(optimizer=kind), tables).step(backward(net), 1e-2),
            net[0].weight,
        )
        for net, kind, tables in zip(
            nets, ("muon", "muon", "adamw"), ([], [nets[1][0].weight], []), strict=True
        )
    )
    assert torch.equal(table, adamw)
    assert not torch.allclose(whole, adamw)
    assert not torch.allclose(nets[1][2].weight, nets[2][2].weight), "all other matrices are"


def test_muon_moves_matrices_along_an_orthogonal_direction_and_adamw_the_rest():
    net, lr = module(), 1e-2
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = Optimizer(net.parameters(), settings(optimizer="muon", weight_decay=0.0))
    x = torch.randn(64, 5)
    loss = (net(x) - torch.randn(64, 2)).square().sum()
    loss.backward()
    optimizer.step(loss.detach(), lr)
    for old, new in zip(before, net.parameters(), strict=True):
        moved = (old - new.detach()) / lr
        if old.ndim == 2:
            singular = torch.linalg.svdvals(moved / (0.2 * max(old.shape) ** 0.5))
            assert singular.min() > 0.5
            assert singular.max() < 1.5
        else:
            torch.testing.assert_close(moved.abs(), torch.ones_like(moved), rtol=1e-3, atol=1e-3)


def test_the_norm_is_that_before_clipping_and_the_step_that_after():
    net = module()
    optimizer = Optimizer(net.parameters(), settings(max_grad_norm=0.01, weight_decay=0.0))
    loss = backward(net)
    gradients = [p.grad.clone() for p in net.parameters()]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    got = optimizer.step(loss, 1e-3)
    assert float(got) == pytest.approx(float(norm), rel=1e-5)
    first_moments = [s["exp_avg"] for s in optimizer.state_dict()[0]["state"].values()]
    for moment, g in zip(first_moments, gradients, strict=True):
        torch.testing.assert_close(moment.flatten(), 0.1 * g.flatten() * 0.01 / norm, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_what_is_not_finite_moves_nothing(kind, broken):
    net = module()
    optimizer = Optimizer(net.parameters(), settings(optimizer=kind))
    optimizer.step(backward(net), 1e-2)
    before = [p.detach().clone() for p in net.parameters()]
    state = repr(optimizer.state_dict())
    loss = backward(net)
    if broken == "loss":
        loss = loss * float("nan")
    else:
        next(net.parameters()).grad[0, 0] = float("inf")
    assert optimizer.step(loss, 1e-2) is None
    for old, new in zip(before, net.parameters(), strict=True):
        assert torch.equal(old, new)
    assert repr(optimizer.state_dict()) == state
    assert all((p.grad == 0).all() for p in net.parameters())
    assert optimizer.step(backward(net), 1e-2) is not None


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_restored_optimizer_goes_on_bit_for_bit(kind):
    a, b = module(), module()
    first, second = (Optimizer(net.parameters(), settings(optimizer=kind)) for net in (a, b))
    for _ in range(3):
        first.step(backward(a), 1e-2)
    b.load_state_dict(a.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for net, optimizer in ((a, first), (b, second)):
        optimizer.step(backward(net), 1e-2)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_parameters_side_by_side_move_as_those_apart_do(kind):
    apart, together = module(), module()
    flat = torch.cat([p.detach().flatten() for p in together.parameters()])
    at = 0
    for p in together.parameters():
        p.data = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    for net in (apart, together):
        optimizer = Optimizer(net.parameters(), settings(optimizer=kind, max_grad_norm=0.5))
        for _ in range(3):
            optimizer.step(backward(net), 1e-2)
    for p, q in zip(apart.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
    assert flat[0] == next(together.parameters())[0, 0], "they still lie side by side"


def test_frozen_parameters_are_left_alone():
    net = module()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.detach().clone()
    Optimizer(net.parameters(), settings()).step(backward(net), 1e-2)
    assert torch.equal(net[0].weight, before)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("adamw", {"betas": (0.5, 0.6), "eps": 1e-3, "weight_decay": 0.5}),
        ("muon", {"betas": (0.5, 0.6), "momentum": 0.1, "weight_decay": 0.5}),
    ],
)
def test_settings_that_have_changed_since_apply_to_a_restored_optimizer(kind, changes):
    """Moments are restored, and settings are those of today."""
    a, b = module(), module()
    first = Optimizer(a.parameters(), settings(optimizer=kind))
    first.step(backward(a), 1e-2)
    b.load_state_dict(a.state_dict())
    wanted = settings(optimizer=kind, **changes)
    second = Optimizer(b.parameters(), wanted)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    now = {key: value for one in second.state_dict() for key, value in one["param_groups"][0].items()}
    assert {key: now[key] for key in changes} == changes
    for part, saved in zip(second.state_dict(), first.state_dict(), strict=True):
        assert part["state"].keys() == saved["state"].keys()


@pytest.mark.parametrize(("before", "now"), [("adamw", "muon"), ("muon", "adamw")])
def test_moments_of_another_optimizer_are_left_behind(before, now):
    a, b = module(), module()
    old = Optimizer(a.parameters(), settings(optimizer=before))
    old.step(backward(a), 1e-2)
    fresh, used = (Optimizer(net.parameters(), settings(optimizer=now)) for net in (a, b))
    used.step(backward(b), 1e-2)
    used.load_state_dict(copy.deepcopy(old.state_dict()))
    b.load_state_dict(a.state_dict())
    for net, optimizer in ((a, fresh), (b, used)):
        optimizer.step(backward(net), 1e-2)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_parameter_without_elements_and_one_that_is_not_trained_are_borne(optimizer):
    net = module()
    net.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    net.register_parameter("frozen", nn.Parameter(torch.ones(3, 2), requires_grad=False))
    made = Optimizer(net.parameters(), settings(optimizer=optimizer))
    made.step(backward(net), 1e-2)
    assert np.isfinite(made.second_moment_max)
    assert (net.frozen == 1).all()
