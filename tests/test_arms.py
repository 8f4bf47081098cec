"""Every arm's policy loss, gradient and mean are those of its formula, written out step by step; and arms are
equal where theory says so."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import config
from config import rules
from consumers.corrections import CORRECTIONS, Steps, decoupled, kept_mean, masked, second_moment, truncated

ARMS = sorted(CORRECTIONS)
PROXIMAL = [name for name in ARMS if CORRECTIONS[name].proximal]
BEHAVIOUR = [name for name in ARMS if not CORRECTIONS[name].proximal]


def learner(**keys):
    base = {
        "clip": 0.2, "pg_rho_clip": 1.1, "decoupled_cap": 2.0, "tis_cap": 1.5, "mis_cap": 2.5,
        "mis_veto": 0.2, "mis_mean": 1.8, "cispo_clip": 0.75, "m2po_bound": 0.1, "impact_rho": 1.2,
    }  # fmt: skip
    return config.Learner(**base | keys)


class Case:
    """[T, B] steps in float64: log-probabilities under pi, mu and prox, advantages, and which are kept."""

    def __init__(self, seed, horizon=6, batch=5, *, spread=0.5, dropped=0.0):
        rng = np.random.default_rng(seed)
        t_b = (horizon, batch)
        self.pi = rng.uniform(-3, 0, t_b)
        self.mu = self.pi + rng.normal(size=t_b) * spread
        self.prox = self.pi + rng.normal(size=t_b) * spread / 2
        self.advantages = rng.normal(size=t_b)
        self.kept = rng.random(t_b) >= dropped

    def steps(self, pi=None, *, garbage=False):
        """As a policy loss sees them; with `garbage` in the steps that are not kept."""
        mu, prox, advantages = (
            np.where(self.kept | (not garbage), x, bad)
            for x, bad in ((self.mu, np.nan), (self.prox, np.inf), (self.advantages, 0.0))
        )
        kept = None if self.kept.all() else torch.tensor(self.kept)
        pi = torch.tensor(self.pi) if pi is None else pi
        return Steps(pi, *(torch.tensor(x) for x in (mu, prox, advantages)), kept)


def surrogate(ratio, a, clip):
    """S and its derivative by log pi."""
    s = min(ratio * a, min(max(ratio, 1 - clip), 1 + clip) * a)
    stuck = (a > 0 and ratio > 1 + clip) or (a < 0 and ratio < 1 - clip)
    return s, 0.0 if stuck else ratio * a


def left_out_by_second_moment(case, bound):
    """Leaves out the kept step with the largest squared log ratio until the mean of the others is small."""
    left = [(t, b) for t, b in np.ndindex(case.pi.shape) if case.kept[t, b]]
    square = {(t, b): (case.pi[t, b] - case.mu[t, b]) ** 2 for t, b in left}
    out = set()
    while left and sum(square[i] for i in left) / len(left) > bound:
        worst = max(left, key=lambda i: square[i])
        left.remove(worst)
        out.add(worst)
    return out


def left_out_by_mask(case, s):
    horizon, batch = case.pi.shape
    out = set()
    for b in range(batch):
        ours = [t for t in range(horizon) if case.kept[t, b]]
        m = {t: math.exp(case.prox[t, b] - case.mu[t, b]) for t in ours}
        mean = math.exp(sum(math.log(x) for x in m.values()) / max(len(m), 1))
        vetoed = s.mis_veto is not None and any(x < s.mis_veto for x in m.values())
        far = s.mis_mean is not None and not 1 / s.mis_mean <= mean <= s.mis_mean
        for t in ours:
            if vetoed or far or not 1 / s.mis_cap <= m[t] <= s.mis_cap:
                out.add((t, b))
    return out


def truth(name, case, s):
    """Mean loss, its gradient [T, B] by log pi, and how many kept steps have a bounded weight."""
    loss, gradient, bounded = {}, np.zeros(case.pi.shape), 0
    if name == "m2po":
        out = left_out_by_second_moment(case, s.m2po_bound)
    else:
        out = left_out_by_mask(case, s) if name == "mis" else set()
    for t, b in np.ndindex(case.pi.shape):
        if not case.kept[t, b]:
            continue
        pi, mu, prox, a = (x[t, b] for x in (case.pi, case.mu, case.prox, case.advantages))
        w, r, m = math.exp(pi - mu), math.exp(pi - prox), math.exp(prox - mu)
        if (t, b) in out:
            bounded += 1
            continue
        if name in ("vtrace", "ppo", "puff", "m2po"):
            value, slope = surrogate(w, a, s.clip)
        elif name == "none":
            value, slope = surrogate(r, a, s.clip)
        elif name == "impact":
            bounded += 1 / m > s.impact_rho
            value, slope = surrogate(min(1 / m, s.impact_rho) * w, a, s.clip)
        elif name == "decoupled":
            if w > s.decoupled_cap:  # then mu is what gives w its bound
                m, bounded = prox_over(prox, pi, s.decoupled_cap), bounded + 1
            value, slope = (m * x for x in surrogate(r, a, s.clip))
        elif name == "tis":
            bounded += m > s.tis_cap
            value, slope = (min(m, s.tis_cap) * x for x in surrogate(r, a, s.clip))
        elif name == "mis":
            value, slope = (m * x for x in surrogate(r, a, s.clip))
        else:
            cap = {"vtrace_pg": s.pg_rho_clip, "cispo": 1 + s.cispo_clip}[name]
            bounded += w > cap
            value, slope = min(w, cap) * a * pi, min(w, cap) * a
        loss[t, b] = -value
        gradient[t, b] = -slope
    n = max(len(loss), 1)
    return sum(loss.values()) / n, gradient / n, bounded


def prox_over(prox, pi, cap):
    return math.exp(prox) / (math.exp(pi) / cap)


def found(name, case, s, **options):
    pi = torch.tensor(case.pi, requires_grad=True)
    steps = case.steps(pi, **options)
    each = CORRECTIONS[name].policy_loss(steps, s)
    count = each.loss.numel() if each.kept is None else each.kept.sum().clamp(min=1)
    mean = kept_mean(each.loss, each.kept, count)
    mean.backward()
    bounded = 0 if each.bounded is None else int((each.bounded & torch.tensor(case.kept)).sum())
    return mean.item(), pi.grad.numpy(), bounded


@pytest.mark.parametrize("name", ARMS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    horizon=st.integers(1, 7),
    batch=st.integers(1, 5),
    spread=st.sampled_from([0.02, 0.3, 1.5]),
    dropped=st.sampled_from([0.0, 0.3, 1.0]),
    clip=st.sampled_from([0.1, 0.3]),
    wide=st.booleans(),
)
def test_loss_gradient_and_mean_are_those_of_the_formula(
    name, seed, horizon, batch, spread, dropped, clip, wide
):
    case = Case(seed, horizon, batch, spread=spread, dropped=dropped)
    s = learner(clip=clip)
    if wide:
        s = learner(
            clip=clip, pg_rho_clip=4.0, decoupled_cap=30.0, tis_cap=6.0, mis_cap=8.0, mis_veto=None,
            mis_mean=None, cispo_clip=5.0, m2po_bound=0.6, impact_rho=4.0,
        )  # fmt: skip
    loss, gradient, bounded = truth(name, case, s)
    got = found(name, case, s, garbage=True)
    np.testing.assert_allclose(got[0], loss, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got[1], gradient, rtol=1e-9, atol=1e-12)
    assert got[2] == bounded


@pytest.mark.parametrize("name", sorted(set(ARMS) - {"vtrace", "ppo", "puff", "none"}))
def test_the_bound_of_a_weight_is_met_by_some_steps_and_not_by_others(name):
    """So that the comparison above is one with both kinds."""
    case = Case(1, 12, 40, spread=0.4)
    assert 0.02 < truth(name, case, learner())[2] / case.pi.size < 0.98


def test_a_whole_segment_is_left_out_for_one_vetoed_step_or_for_its_mean():
    log_ratio = torch.zeros(4, 3)
    log_ratio[2, 0] = -5.0
    log_ratio[:, 1] = 0.3
    options = {"cap": 2.0, "kept": None}
    plain = masked(log_ratio, veto=None, mean=None, **options).bounded
    assert plain.sum() == 1
    vetoed = masked(log_ratio, veto=0.01, mean=None, **options).bounded
    assert vetoed.all(0).tolist() == [True, False, False]
    far = masked(log_ratio, veto=None, mean=1.2, **options).bounded
    assert far.all(0).tolist() == [True, True, False]
    kept = torch.ones(4, 3, dtype=torch.bool)
    kept[2, 0] = False  # what is not kept vetoes nothing
    assert not masked(log_ratio, kept, cap=2.0, veto=0.01, mean=1.2).bounded[[0, 1, 3], 0].any()


def test_the_second_moment_of_the_steps_left_is_within_its_bound_and_no_further_one_would_be():
    log_ratio = torch.tensor(np.random.default_rng(3).normal(size=(64, 50)) * 0.4)
    weight = second_moment(log_ratio, None, bound=0.04)
    squares = log_ratio.square()
    taken = weight.value > 0
    assert 0.1 < taken.double().mean() < 0.9
    assert squares[taken].mean() <= 0.04
    more = torch.cat([squares[taken], squares[~taken].min()[None]])
    assert more.mean() > 0.04
    assert squares[taken].max() <= squares[~taken].min()


def test_of_equal_ratios_only_as_many_are_left_out_as_have_to_be():
    weight = second_moment(torch.tensor([[0.0, 0.0], [0.5, 0.5], [-0.5, 0.5]]), None, bound=0.1)
    assert weight.value.sum() == 3  # 0, 0, 0.25: their mean is 0.083; with one more 0.125


@pytest.mark.parametrize("name", ARMS)
def test_on_policy_every_arm_gives_the_policy_gradient(name):
    case = Case(4)
    case.mu, case.prox = case.pi, case.pi
    _, gradient, bounded = found(name, case, learner(pg_rho_clip=1.0))
    np.testing.assert_allclose(gradient, -case.advantages / case.pi.size, rtol=1e-12)
    assert bounded == 0


FREE = {
    "pg_rho_clip": 1e30, "decoupled_cap": 1e30, "tis_cap": 1e30, "mis_cap": 1e30, "mis_veto": None,
    "mis_mean": None, "cispo_clip": 1e30, "m2po_bound": 1e30, "impact_rho": 1e30,
}  # fmt: skip


def equal_gradients(a, b, case, s):
    np.testing.assert_array_equal(found(a, case, s)[1], found(b, case, s)[1])


@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_without_bounds_the_arms_that_differ_by_a_bound_are_one(dropped):
    case, s = Case(5, dropped=dropped), learner(**FREE)
    equal_gradients("tis", "decoupled", case, s)
    equal_gradients("mis", "decoupled", case, s)
    equal_gradients("m2po", "ppo", case, s)
    equal_gradients("vtrace_pg", "cispo", case, s)
    equal_gradients("impact", "none", case, s)  # but for their advantages


@pytest.mark.parametrize("name", PROXIMAL)
def test_where_prox_is_mu_an_arm_with_a_proximal_policy_is_behaviour_ppo(name):
    case = Case(6)
    case.prox = case.mu
    equal_gradients(name, "ppo", case, learner(decoupled_cap=1e30))


def test_a_cap_on_the_weight_alone_and_one_on_the_whole_ratio_differ():
    """The decoupled arm bounds pi/mu, so a step whose weight is small may be bounded and the other way
    round."""
    case = Case(7, 20, 20)
    s = learner(decoupled_cap=1.5, tis_cap=1.5)
    assert not np.array_equal(found("tis", case, s)[1], found("decoupled", case, s)[1])
    pi, mu, prox = (torch.tensor(x) for x in (case.pi, case.mu, case.prox))
    weight = decoupled(pi, mu, prox, 1.5)
    assert ((pi - prox).exp() * weight.value).max() <= 1.5 + 1e-9
    assert (weight.value > 1.5).any()


@pytest.mark.parametrize("name", PROXIMAL)
def test_an_arm_with_a_proximal_policy_refuses_to_do_without(name):
    steps = Case(8).steps()._replace(proximal=None)
    with pytest.raises(ValueError, match="batch start"):
        CORRECTIONS[name].policy_loss(steps, learner())


@pytest.mark.parametrize("name", BEHAVIOUR)
def test_an_arm_without_a_proximal_policy_does_without(name):
    steps = Case(8).steps()
    with_it, without = (
        CORRECTIONS[name].policy_loss(x, learner()).loss for x in (steps, steps._replace(proximal=None))
    )
    assert torch.equal(with_it, without)


@pytest.mark.parametrize("name", [x for x in ARMS if CORRECTIONS[x].weight])
def test_a_weight_is_a_constant(name):
    """The gradient of the loss is the weight times that of the surrogate, and nothing goes through the
    weight."""
    pi = torch.tensor(Case(9).pi, requires_grad=True)
    weight = CORRECTIONS[name].weight(Case(9).steps(pi.detach()), learner())
    assert not weight.value.requires_grad
    loss = CORRECTIONS[name].policy_loss(Case(9).steps(pi), learner()).loss
    (gradient,) = torch.autograd.grad(loss.sum(), pi)
    assert torch.isfinite(gradient).all()
    assert (gradient[weight.value == 0] == 0).all()


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("broken", ["log_prob", "behaviour"])
def test_what_is_not_a_number_in_a_kept_step_shows_in_the_loss(name, broken):
    if (name, broken) == ("none", "behaviour"):
        return  # mu has no part in it
    steps = Case(10).steps()
    getattr(steps, broken)[2, 3] = math.nan
    each = CORRECTIONS[name].policy_loss(steps, learner(mis_mean=None))
    count = 1 if each.kept is None else each.kept.sum()
    assert math.isnan(kept_mean(each.loss, each.kept, count))


@pytest.mark.parametrize("name", ARMS)
def test_extreme_ratios_stay_finite(name):
    for far in (1e3, -1e3, 1e30, -1e30):
        case = Case(11)
        case.mu = case.mu + far
        for s in (learner(), learner(**FREE)):
            loss, gradient, _ = found(name, case, s)
            assert math.isfinite(loss)
            assert np.isfinite(gradient).all()


def test_the_config_knows_every_arm_and_what_it_needs():
    (known,) = (f.annotation for name, f in config.Learner.model_fields.items() if name == "correction")
    assert sorted(known.__args__) == ARMS
    assert sorted(rules.PROXIMAL) == PROXIMAL
    assert sorted(rules.AVERAGED) == [name for name in PROXIMAL if not CORRECTIONS[name].target]
    assert sorted(rules.NATIVE) == [name for name in ARMS if CORRECTIONS[name].native]


def test_a_truncated_weight_says_where_it_is_truncated():
    weight = truncated(torch.tensor([0.0, 0.6, 0.8, -9.0]), 2.0)
    assert weight.bounded.tolist() == [False, False, True, False]
    assert weight.value.tolist() == pytest.approx([1.0, math.exp(0.6), 2.0, math.exp(-9.0)], rel=1e-6)
