"""V-trace, GAE and puff equal the sums they are defined by, and the vectors another implementation gave."""

import json
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import config
from consumers import corrections
from consumers.corrections import (
    CORRECTIONS,
    MAX_LOG_RATIO,
    Estimates,
    Segments,
    decays,
    ratio,
    truncated,
)

RLAX = json.loads((Path(__file__).parent / "data" / "rlax_vectors.json").read_text())["cases"]


def truth(case, gamma, lambda_, rho_clip, c_clip):
    """v_t and q_t - V_t in float64 from the defining sum, O(T^2), one segment and one step at a time."""
    values, rewards, log_ratio = case["values"], case["rewards"], case["log_ratio"]
    term, trunc, valid = case["terminated"], case["truncated"], case["valid"]
    horizon, batch = rewards.shape
    v = np.zeros((horizon, batch))
    advantage = np.zeros((horizon, batch))
    for b in range(batch):

        def successor(t, b=b):  # discounted value of what follows step t
            return 0.0 if term[t, b] else gamma * values[t + 1, b]

        for s in range(horizon):
            total = values[s, b]
            for t in range(s, horizon):
                weight = gamma ** (t - s)
                for i in range(s, t):
                    goes_on = valid[i, b] and not term[i, b] and not trunc[i, b]
                    weight *= lambda_ * min(c_clip, np.exp(log_ratio[i, b])) if goes_on else 0.0
                delta = rewards[t, b] + successor(t) - values[t, b] if valid[t, b] else 0.0
                total += weight * min(rho_clip, np.exp(log_ratio[t, b])) * delta
            v[s, b] = total
        for t in range(horizon):
            if not valid[t, b]:
                continue
            if term[t, b] or trunc[t, b] or t == horizon - 1:
                q = rewards[t, b] + successor(t)
            else:
                q = rewards[t, b] + gamma * (lambda_ * v[t + 1, b] + (1 - lambda_) * values[t + 1, b])
            advantage[t, b] = q - values[t, b]
    return v, advantage


def random_case(seed, horizon, batch, p_term=0.2, p_trunc=0.2, resets=True):
    """Random segments. `resets` keeps a slot's rule that a reset step follows a truncation, also across
    slots; without it steps are valid at random."""
    rng = np.random.default_rng(seed)
    case = {
        "values": rng.normal(size=(horizon + 1, batch)),
        "rewards": rng.normal(size=(horizon, batch)),
        "log_ratio": rng.uniform(-2.5, 2.5, size=(horizon, batch)),
        "terminated": rng.random((horizon, batch)) < p_term,
        "truncated": rng.random((horizon, batch)) < p_trunc,
        "valid": np.ones((horizon, batch), bool),
    }
    case["valid"][0] = rng.random(batch) >= p_trunc
    for t in range(horizon):
        if t:
            ended = case["truncated"][t - 1] & ~case["terminated"][t - 1]
            case["valid"][t] = ~ended if resets else rng.random(batch) < 0.8
        for name in ("terminated", "truncated"):
            case[name][t] &= case["valid"][t]
        case["rewards"][t, ~case["valid"][t]] = 0.0
    return case


class Flagged(NamedTuple):
    """Segments as a slot holds them: with the flags of their ends."""

    values: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    valid: torch.Tensor

    def segments(self, gamma, lambda_):
        discounts, traces = decays(*self[2:], gamma=gamma, lambda_=lambda_)
        dtype = self.values.dtype
        return Segments(self.values, self.rewards, discounts.to(dtype), traces.to(dtype), self.valid.bool())


def vtrace(flagged, log_ratio, *, gamma, lambda_, rho_clip, c_clip):
    segments = flagged.segments(gamma, lambda_)
    return corrections.vtrace(segments, log_ratio, rho_clip=rho_clip, c_clip=c_clip)


def puff(flagged, log_ratio, *, gamma, lambda_, rho_clip, c_clip):
    segments = flagged.segments(gamma, lambda_)
    return corrections.puff(segments, log_ratio, rho_clip=rho_clip, c_clip=c_clip)


def gae(flagged, *, gamma, lambda_):
    return corrections.gae(flagged.segments(gamma, lambda_))


def tensors(case, dtype=torch.float32):
    segments = Flagged(
        torch.tensor(case["values"], dtype=dtype),
        torch.tensor(case["rewards"], dtype=dtype),
        *(torch.tensor(case[k].astype(np.uint8)) for k in ("terminated", "truncated", "valid")),
    )
    return segments, torch.tensor(case["log_ratio"], dtype=dtype)


def agree(case, gamma=0.97, lambda_=0.9, rho_clip=1.0, c_clip=1.0, dtype=torch.float32):
    close = {"rtol": 1e-6, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5}
    segments, log_ratio = tensors(case, dtype)
    knobs = {"gamma": gamma, "lambda_": lambda_, "rho_clip": rho_clip, "c_clip": c_clip}
    v, advantage = truth(case, gamma, lambda_, rho_clip, c_clip)
    for estimates, expected in (
        (vtrace(segments, log_ratio, **knobs), advantage),
        (puff(segments, log_ratio, **knobs), v - case["values"][:-1]),
    ):
        np.testing.assert_allclose(estimates.targets.numpy(), v, **close)
        np.testing.assert_allclose(estimates.advantages.numpy(), expected, **close)
    on_policy = {**case, "log_ratio": np.zeros_like(case["log_ratio"])}
    v, _ = truth(on_policy, gamma, lambda_, 1.0, 1.0)
    estimates = gae(segments, gamma=gamma, lambda_=lambda_)
    np.testing.assert_allclose(estimates.targets.numpy(), v, **close)
    np.testing.assert_allclose(estimates.advantages.numpy(), v - case["values"][:-1], **close)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    horizon=st.integers(1, 12),
    batch=st.integers(1, 4),
    # Exact in float32, as their product is, which is what the learner holds them in.
    gamma=st.sampled_from([0.0, 0.5, 0.96875, 1.0]),
    lambda_=st.sampled_from([0.0, 0.25, 0.9375, 1.0]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    clips=st.sampled_from([(1.0, 1.0), (3.7, 2.2), (2.0, 1.0), (0.5, 0.1)]),
    ends=st.sampled_from([(0.0, 0.0), (0.2, 0.2), (0.9, 0.0), (0.0, 0.9), (1.0, 0.0)]),
    resets=st.booleans(),
)
def test_any_segments_agree_with_the_sum(seed, horizon, batch, gamma, lambda_, dtype, clips, ends, resets):
    agree(random_case(seed, horizon, batch, *ends, resets), gamma, lambda_, *clips, dtype)


@pytest.mark.parametrize("batch", [1, 5])
def test_the_inputs_of_the_published_vtrace_test_agree_with_the_sum(batch):
    horizon = 5
    ramp = np.arange(horizon * batch, dtype=float).reshape(horizon, batch)
    case = {
        "values": np.vstack([ramp / batch, np.arange(batch)[None] + 1.0]),
        "rewards": ramp,
        "log_ratio": np.linspace(-2.5, 2.5, horizon * batch).reshape(horizon, batch),
        "terminated": np.zeros((horizon, batch), bool),
        "truncated": np.zeros((horizon, batch), bool),
        "valid": np.ones((horizon, batch), bool),
    }
    for b in range(batch):
        one = {k: x[:, b : b + 1] for k, x in case.items()}
        agree(one, gamma=0.9 / (b + 1), lambda_=1.0, rho_clip=3.7, c_clip=1.0)


@pytest.mark.parametrize("at", [0, 3, 6], ids=["left border", "middle", "right border"])
def test_a_truncation_bootstraps_from_the_final_observation_and_stops_the_trace(at):
    case = random_case(11, 7, 3, 0.0, 0.0)
    case["valid"][:] = True
    case["truncated"][at] = True
    if at + 1 < 7:
        case["valid"][at + 1] = False
        case["rewards"][at + 1] = 0.0
    agree(case)
    segments, log_ratio = tensors(case)
    before = vtrace(segments, log_ratio, gamma=0.97, lambda_=0.9, rho_clip=1.0, c_clip=1.0)
    changed = segments.values.clone()
    changed[at + 2 :] += 100.0  # later values belong to another episode
    segments = segments._replace(values=changed)
    after = vtrace(segments, log_ratio, gamma=0.97, lambda_=0.9, rho_clip=1.0, c_clip=1.0)
    assert torch.equal(before.targets[: at + 1], after.targets[: at + 1])
    changed[at + 1] += 1.0  # the final observation's value is the bootstrap
    final = vtrace(segments, log_ratio, gamma=0.97, lambda_=0.9, rho_clip=1.0, c_clip=1.0)
    assert not torch.equal(before.targets[at], final.targets[at])


def test_a_slot_that_begins_with_a_reset_step_agrees_with_the_sum():
    case = random_case(5, 6, 4, 0.1, 0.0)
    case["valid"][0] = False
    for name in ("rewards", "terminated", "truncated"):
        case[name][0] = 0
    agree(case)


def test_one_step_is_the_temporal_difference():
    case = random_case(3, 1, 50, 0.3, 0.3)
    agree(case)
    segments, _ = tensors(case)
    advantages = gae(segments, gamma=0.9, lambda_=0.5).advantages
    expected = segments.rewards + 0.9 * segments.values[1:] * (1 - segments.terminated) - segments.values[:-1]
    assert torch.allclose(advantages, expected * segments.valid, atol=1e-6)


def test_where_everything_terminates_the_target_is_the_reward():
    case = random_case(4, 8, 3, 1.0, 0.0)
    case["valid"][:] = True
    case["terminated"][:] = True
    agree(case)
    segments, _ = tensors(case)
    assert torch.allclose(gae(segments, gamma=0.9, lambda_=0.9).targets, segments.rewards, atol=1e-6)


def test_without_discount_the_target_is_the_corrected_reward():
    case = random_case(6, 8, 3)
    agree(case, gamma=0.0)
    segments, _ = tensors(case)
    targets = gae(segments, gamma=0.0, lambda_=0.9).targets
    expected = torch.where(segments.valid.bool(), segments.rewards, segments.values[:-1])
    assert torch.allclose(targets, expected, atol=1e-6)


def test_on_policy_vtrace_is_gae_and_with_lambda_one_the_n_step_return():
    case = random_case(7, 9, 4)
    segments, log_ratio = tensors(case)
    zero = torch.zeros_like(log_ratio)
    for lambda_ in (0.0, 0.9, 1.0):
        corrected = vtrace(segments, zero, gamma=0.9, lambda_=lambda_, rho_clip=1.0, c_clip=1.0)
        plain = gae(segments, gamma=0.9, lambda_=lambda_)
        assert torch.equal(corrected.targets, plain.targets)
        assert torch.allclose(corrected.advantages, plain.advantages, atol=1e-6)
    free = random_case(8, 6, 1, 0.0, 0.0)
    free["valid"][:] = True
    segments, _ = tensors(free)
    returns = segments.values[-1]
    for t in reversed(range(6)):
        returns = segments.rewards[t] + 0.9 * returns
    assert torch.allclose(gae(segments, gamma=0.9, lambda_=1.0).targets[0], returns, atol=1e-5)


def test_puff_is_the_recursion_of_pufferlib():
    """Its layout: reward and done come with the next observation, so T steps have T - 1 transitions, and the
    last step has no advantage."""
    rng = np.random.default_rng(17)
    steps, gamma, lambda_, rho_clip, c_clip = 9, 0.96875, 0.9375, 1.4, 0.9
    values, rewards, w = rng.normal(size=steps), rng.normal(size=steps), rng.lognormal(size=steps)
    done = rng.random(steps) < 0.3
    assert done.any()
    expected, later = np.zeros(steps), 0.0
    for t in range(steps - 2, -1, -1):
        goes_on = 1.0 - done[t + 1]
        delta = min(w[t], rho_clip) * (rewards[t + 1] + gamma * values[t + 1] * goes_on - values[t])
        expected[t] = later = delta + gamma * lambda_ * min(w[t], c_clip) * later * goes_on
    case = {
        "values": values, "rewards": rewards[1:], "log_ratio": np.log(w[:-1]), "terminated": done[1:],
        "truncated": np.zeros(steps - 1), "valid": np.ones(steps - 1),
    }  # fmt: skip
    flagged, log_ratio = tensors({name: x[:, None] for name, x in case.items()}, torch.float64)
    e = puff(flagged, log_ratio, gamma=gamma, lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip)
    np.testing.assert_allclose(e.advantages[:, 0], expected[:-1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(e.targets[:, 0], (expected + values)[:-1], rtol=1e-9, atol=1e-12)


def test_with_both_clips_at_zero_the_target_is_the_value():
    segments, log_ratio = tensors(random_case(9, 6, 3))
    estimates = vtrace(segments, log_ratio, gamma=0.9, lambda_=1.0, rho_clip=0.0, c_clip=0.0)
    assert torch.equal(estimates.targets, segments.values[:-1])


@pytest.mark.parametrize("case", RLAX, ids=[f"{i}" for i in range(len(RLAX))])
def test_rlax_gives_the_same(case):
    column = {k: np.array(case[k], float)[:, None] for k in ("values", "rewards", "log_rho", "terminated")}
    horizon = case["T"]
    flagged, log_ratio = tensors(
        {
            **column,
            "log_ratio": column["log_rho"],
            "truncated": np.zeros((horizon, 1)),
            "valid": np.ones((horizon, 1)),
        },
        torch.float64,
    )
    goes_on = 1.0 - torch.tensor(column["terminated"])
    segments = flagged.segments(0.0, 0.0)._replace(
        discounts=case["gamma"] * goes_on, traces=case["gamma"] * case["lambda_"] * goes_on
    )
    clips = {"rho_clip": case["clip_rho"], "c_clip": 1.0}
    e = corrections.vtrace(segments, log_ratio, **clips)
    q = (e.advantages + segments.values[:-1])[:, 0]
    np.testing.assert_allclose(q, case["q_estimate"], rtol=1e-6, atol=1e-6)
    weight = truncated(log_ratio, case["clip_pg_rho"]).value
    np.testing.assert_allclose((weight * e.advantages)[:, 0], case["pg_advantage"], rtol=1e-6, atol=1e-6)
    errors = corrections.puff(segments, log_ratio, **clips).advantages
    np.testing.assert_allclose(errors[:, 0], case["vtrace_errors"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(corrections.gae(segments).advantages[:, 0], case["gae"], rtol=1e-6, atol=1e-6)


def test_there_are_forty_rlax_vectors_and_they_vary():
    assert len(RLAX) == 40
    for key in ("T", "lambda_", "clip_rho", "clip_pg_rho", "gamma"):
        assert len({case[key] for case in RLAX}) > 1, key
    assert any(any(case["terminated"]) for case in RLAX)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_the_values_of_the_clipped_policy_are_the_fixed_point_of_vtrace(lambda_):
    """V of the policy ~ min(rho_clip mu, pi) in a random 4-state process, solved in closed form, is what the
    two-step targets average to. No sampling: each trajectory of two steps is a column with its weight."""
    rng = np.random.default_rng(0)
    states, actions, gamma, rho_clip = 4, 3, 0.875, 1.2  # exact in float32
    mu, pi = (rng.dirichlet(np.ones(actions), size=states) for _ in range(2))
    p = rng.dirichlet(np.ones(states), size=(states, actions))
    r = rng.normal(size=(states, actions, states))
    target = np.minimum(rho_clip * mu, pi)
    target /= target.sum(1, keepdims=True)
    transition = np.einsum("sa,sax->sx", target, p)
    reward = np.einsum("sa,sax,sax->s", target, p, r)
    v = np.linalg.solve(np.eye(states) - gamma * transition, reward)
    s, a, x, b, y = (i.ravel() for i in np.indices((states, actions, states, actions, states)))
    segments = Flagged(
        torch.tensor(np.stack([v[s], v[x], v[y]])),
        torch.tensor(np.stack([r[s, a, x], r[x, b, y]])),
        *(torch.tensor(np.full((2, len(s)), flag)) for flag in (False, False, True)),
    )
    log_ratio = torch.tensor(np.log(np.stack([(pi / mu)[s, a], (pi / mu)[x, b]])))
    e = vtrace(segments, log_ratio, gamma=gamma, lambda_=lambda_, rho_clip=rho_clip, c_clip=1.0)
    errors = (e.targets[0].numpy() - v[s]) * mu[s, a] * p[s, a, x] * mu[x, b] * p[x, b, y]
    for state in range(states):
        assert abs(errors[s == state].sum()) < 1e-13


def test_extreme_ratios_stay_finite():
    segments, log_ratio = tensors(random_case(10, 5, 3))
    for extreme in (1e30, -1e30, float("inf"), float("-inf")):
        extremes = torch.full_like(log_ratio, extreme)
        e = vtrace(segments, extremes, gamma=0.9, lambda_=1.0, rho_clip=1e6, c_clip=1e6)
        assert torch.isfinite(e.targets).all()
    assert torch.isfinite(ratio(torch.tensor(1e30)))
    assert ratio(torch.tensor(MAX_LOG_RATIO - 1.0)) == torch.tensor(MAX_LOG_RATIO - 1.0).exp()


def test_what_a_reset_step_holds_does_not_matter():
    case = random_case(12, 6, 4, 0.0, 0.5)
    segments, log_ratio = tensors(case)
    invalid = segments.valid == 0
    assert invalid.any()
    before = vtrace(segments, log_ratio, gamma=0.9, lambda_=0.9, rho_clip=1.0, c_clip=1.0)
    segments.rewards[invalid] = float("nan")
    log_ratio[invalid] = float("nan")
    after = vtrace(segments, log_ratio, gamma=0.9, lambda_=0.9, rho_clip=1.0, c_clip=1.0)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)


def test_where_all_steps_are_valid_the_mask_may_be_left_out():
    flagged, log_ratio = tensors(random_case(16, 6, 4, 0.3, 0.0))
    flagged.valid[:] = 1
    masked = flagged.segments(0.9, 0.9)
    clips = {"rho_clip": 1.0, "c_clip": 1.0}
    for a, b in zip(
        corrections.vtrace(masked, log_ratio, **clips),
        corrections.vtrace(masked._replace(valid=None), log_ratio, **clips),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_shapes_that_do_not_fit_are_refused():
    flagged, log_ratio = tensors(random_case(13, 4, 2))
    segments = flagged.segments(0.9, 0.9)
    with pytest.raises(ValueError, match=r"values \(4, 2\): expected \(5, 2\)"):
        corrections.gae(segments._replace(values=segments.values[1:]))
    with pytest.raises(ValueError, match="log_ratio"):
        corrections.vtrace(segments, log_ratio[1:], rho_clip=1.0, c_clip=1.0)
    with pytest.raises(ValueError, match="traces"):
        corrections.gae(segments._replace(traces=segments.traces[1:]))


def test_every_arm_estimates_by_its_settings():
    settings = config.Learner(rho_clip=1.3, c_clip=0.8)
    flagged, log_ratio = tensors(random_case(14, 6, 3))
    knobs = {"gamma": 0.97, "lambda_": 0.9, "rho_clip": 1.3, "c_clip": 0.8}
    expected = dict.fromkeys(("vtrace", "vtrace_pg"), vtrace(flagged, log_ratio, **knobs))
    expected |= dict.fromkeys(("puff", "impact"), puff(flagged, log_ratio, **knobs))
    plain = ("ppo", "decoupled", "tis", "mis", "cispo", "m2po", "none")
    expected |= dict.fromkeys(plain, gae(flagged, gamma=0.97, lambda_=0.9))
    assert set(expected) == set(CORRECTIONS)
    for name, arm in CORRECTIONS.items():
        got: Estimates = arm.estimate(flagged.segments(0.97, 0.9), log_ratio, settings)
        for a, b in zip(got, expected[name], strict=True):
            assert torch.equal(a, b), name
    assert not torch.equal(expected["vtrace"].targets, expected["ppo"].targets)


def test_no_step_sees_what_lies_before_it():
    segments, log_ratio = tensors(random_case(15, 8, 2, 0.1, 0.1))
    whole = vtrace(segments, log_ratio, gamma=0.9, lambda_=0.9, rho_clip=1.0, c_clip=1.0)
    for cut, _ in pairwise(range(8)):
        part = vtrace(
            Flagged(segments.values[cut:], *(x[cut:] for x in segments[1:])),
            log_ratio[cut:],
            gamma=0.9,
            lambda_=0.9,
            rho_clip=1.0,
            c_clip=1.0,
        )
        for a, b in zip(whole, part, strict=True):
            assert torch.equal(a[cut:], b)
