"""Off-policy corrections: advantage estimators, importance weights, policy losses, and the arms that combine
them by name.

Pure functions of tensors, time-major [T, B]. `values` has T+1 rows, the last one the bootstrap; row t+1 is
always the value of the true successor of step t, since a slot stores an episode's final observation there.
mu is the behaviour policy (what acted), prox the policy at the start of the update or, of some arms, an older
one, pi the one in training; w = pi/mu, r = pi/prox, m = prox/mu.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp() of it is finite in float32, and so is its product with an advantage


class Settings(Protocol):
    """What the arms read of run.yaml's `learner` section."""

    rho_clip: float
    c_clip: float
    pg_rho_clip: float
    clip: float
    decoupled_cap: float
    tis_cap: float
    mis_cap: float
    mis_veto: float | None
    mis_mean: float | None
    cispo_clip: float
    m2po_bound: float
    impact_rho: float


class Segments(NamedTuple):
    """Whole trajectory segments, in time order. B is any number of segments."""

    values: Tensor  # [T+1, B] float32, without gradient
    rewards: Tensor  # [T, B] float32, scaled as they are to be learned
    discounts: Tensor  # [T, B] float32 of the successor's value: gamma, 0 after a termination
    traces: Tensor  # [T, B] float32 of the successor's error: gamma * lambda, 0 at every end
    valid: Tensor | None = None  # [T, B] bool; False: a reset step, no experience. None: all are valid


def decays(
    terminated: Tensor, truncated: Tensor, valid: Tensor | None, *, gamma: float, lambda_: float
) -> tuple[Tensor, Tensor]:
    """Discounts and traces of Segments from flags [T, B], bool or uint8. Termination wins over truncation."""
    terminated = terminated.bool()
    goes_on = ~(terminated | truncated.bool())
    if valid is not None:
        goes_on &= valid.bool()
    return (~terminated).float().mul_(gamma), goes_on.float().mul_(gamma * lambda_)


class Estimates(NamedTuple):
    targets: Tensor  # [T, B] float32 what the value regresses to; the value itself where a step is not valid
    advantages: Tensor  # [T, B] float32, 0 where a step is not valid


class Steps(NamedTuple):
    """The steps of one minibatch as a policy loss sees them: [T, B], all alike."""

    log_prob: Tensor  # float32 log pi(a), carries the gradient
    behaviour: Tensor  # float32 log mu(a)
    proximal: Tensor | None  # float32 log prox(a); None unless the arm asks for it
    advantages: Tensor  # float32, constant
    kept: Tensor | None = None  # bool; False: not in the loss, may hold anything. None: all are


class Weight(NamedTuple):
    """An importance weight of each step, shaped as the log ratio it is made of."""

    value: Tensor  # float32, constant; 0: the step is left out
    bounded: Tensor  # bool: it is not the plain ratio


class PolicyLoss(NamedTuple):
    """The policy loss of each step."""

    loss: Tensor  # carries the gradient; anything where a step is not kept
    kept: Tensor | None  # bool: the steps that its mean is over; None: all
    bounded: Tensor | None  # bool, Weight.bounded; None: the arm has no weight


def ratio(log_ratio: Tensor) -> Tensor:
    """exp of a log importance ratio, clamped so that neither it nor its gradient overflows."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def vtrace(segments: Segments, log_ratio: Tensor, *, rho_clip: float, c_clip: float) -> Estimates:
    """V-trace targets v_t and advantages q_t - V_t (Espeholt et al. 2018, arXiv 1802.01561).

    `log_ratio` [T, B] is log pi/mu of the policy whose values are estimated. With rho = min(rho_clip, w) and
    c = lambda * min(c_clip, w):

        td_t = R_t + gamma (1-term_t) V_{t+1} - V_t
        v_s = V_s + sum_{t>=s} gamma^(t-s) (prod_{i=s}^{t-1} c_i k_i) rho_t td_t
        q_t = R_t + gamma (lambda v_{t+1} + (1-lambda) V_{t+1})      (rlax's convention; v = V at an end)

    where k is 0 at every end. The advantage bears no rho: the ratio of the policy loss supplies it. Raises
    ValueError on shapes that do not fit.
    """
    _check(segments, log_ratio)
    if segments.valid is not None:
        log_ratio = torch.where(segments.valid, log_ratio, 0.0)
    w = ratio(log_ratio)
    return _estimate(segments, w.clamp(max=rho_clip), w.clamp(max=c_clip))


def gae(segments: Segments) -> Estimates:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438): V-trace with rho = c = 1."""
    _check(segments, None)
    return _estimate(segments, None, None)


def puff(segments: Segments, log_ratio: Tensor, *, rho_clip: float, c_clip: float) -> Estimates:
    """V-trace targets v_t, and v_t - V_t as the advantage (J. Suarez 2025, PufferLib 3.0, its code).

    Rho is part of the advantage, and the ratio of the policy loss multiplies it again. As `vtrace` else."""
    targets, _ = vtrace(segments, log_ratio, rho_clip=rho_clip, c_clip=c_clip)
    return Estimates(targets, targets - segments.values[:-1])


def truncated(log_ratio: Tensor, cap: float) -> Weight:
    """min(ratio, cap) (Ionides 2008, Truncated importance sampling, J. Comput. Graph. Stat. 17:295)."""
    return Weight(ratio(log_ratio).clamp(max=cap), log_ratio > math.log(cap))


def decoupled(log_prob: Tensor, behaviour: Tensor, proximal: Tensor, cap: float) -> Weight:
    """prox/mu of the decoupled objective (Hilton, Cobbe, Schulman 2022, arXiv 2110.00641, eq. 3), where mu is
    raised so that pi/mu, and not the weight alone, stays below `cap` (as in the paper's code)."""
    bounded = log_prob - behaviour > math.log(cap)
    raised = torch.where(bounded, log_prob - math.log(cap), behaviour)
    return Weight(ratio(proximal - raised), bounded)


def masked(
    log_ratio: Tensor, kept: Tensor | None, *, cap: float, veto: float | None, mean: float | None
) -> Weight:
    """The ratio [T, B] where 1/cap <= ratio <= cap, 0 elsewhere (masked importance sampling; Liu et al. 2025,
    When Speed Kills Stability).

    With `veto`, segments with a kept step whose ratio is below it are left out whole; with `mean`, those
    whose geometric mean over the kept steps lies outside [1/mean, mean]."""
    out = log_ratio.abs() > math.log(cap)
    ours = log_ratio if kept is None else torch.where(kept, log_ratio, 0.0)
    if veto is not None:
        out = out | (ours < math.log(veto)).any(0)
    if mean is not None:
        steps = len(ours) if kept is None else kept.sum(0).clamp(min=1)
        out = out | ((ours.sum(0) / steps).abs() > math.log(mean))
    return Weight(torch.where(out, 0.0, ratio(log_ratio)), out)


def second_moment(log_ratio: Tensor, kept: Tensor | None, *, bound: float) -> Weight:
    """1 for the most `kept` steps of smallest |log ratio| whose mean (log ratio)^2 is at most `bound`, 0 for
    the others (M2PO; Zheng et al. 2025, arXiv 2510.01161). What is not a number is not left out."""
    squares = log_ratio.double().square().nan_to_num(nan=0.0, posinf=math.inf)
    if kept is not None:
        squares = torch.where(kept, squares, math.inf)
    ordered, order = squares.flatten().sort(stable=True)
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    value = torch.empty_like(log_ratio).flatten()
    value[order] = (means <= bound).to(value.dtype)  # the means ascend as the squares do
    value = value.view_as(log_ratio)
    return Weight(value, value == 0.0)


def weight_moments(log_ratio: Tensor, kept: Tensor | None) -> Tensor:
    """Means of w and w^2 over the kept steps (None: all), float64 [2]; what is not a number is left out, and
    without any step both are 1."""
    w = ratio(log_ratio.double())
    counted = w.isfinite() if kept is None else w.isfinite() & kept
    w = w[counted]
    return torch.stack([w.mean(), w.square().mean()]) if w.numel() else w.new_ones(2)


def effective_share(moments: Tensor) -> float:
    """The effective sample size as a share of the sample, (sum w)^2 / (N sum w^2), from weight_moments: 1
    where the data are on-policy."""
    return float(moments[0].square() / moments[1])


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """-min(w A, clip(w, 1-eps, 1+eps) A) of each step (Schulman et al. 2017, arXiv 1707.06347, eq. 7)."""
    w = ratio(log_ratio)
    return -torch.minimum(w * advantages, w.clamp(1.0 - clip, 1.0 + clip) * advantages)


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor | None, clip: float | None) -> Tensor:
    """(V - v)^2 / 2 of each step; with `clip` the larger of it and the same with V kept within `clip` of the
    value at the start of the update (OpenAI baselines' ppo2; not in the paper)."""
    loss = 0.5 * (values - targets).square()
    if clip is None:
        return loss
    if old_values is None:
        raise ValueError("a clipped value loss needs the values of the start of the update")
    near = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(loss, 0.5 * (near - targets).square())


def kept_mean(x: Tensor, kept: Tensor | None, count: Tensor | int) -> Tensor:
    """Mean of `x` over the `count` steps `kept` (None: all); by selection, so that what is left out may be
    anything."""
    return (x if kept is None else torch.where(kept, x, 0.0)).sum() / count


def normalize(advantages: Tensor, kept: Tensor | None, count: Tensor | int) -> Tensor:
    """Advantages to mean 0 and standard deviation 1 over the kept steps, 0 elsewhere."""
    centred = advantages - kept_mean(advantages, kept, count)
    if kept is not None:
        centred = torch.where(kept, centred, 0.0)
    return centred / ((centred.square().sum() / count).sqrt() + 1e-8)


def _check(segments: Segments, log_ratio: Tensor | None) -> None:
    horizon, batch = segments.rewards.shape
    if segments.values.shape != (horizon + 1, batch):
        raise ValueError(f"values {tuple(segments.values.shape)}: expected {(horizon + 1, batch)}")
    for name, x in (*zip(segments._fields[2:], segments[2:], strict=True), ("log_ratio", log_ratio)):
        if x is not None and x.shape != (horizon, batch):
            raise ValueError(f"{name} {tuple(x.shape)}: expected {(horizon, batch)}")


def _estimate(segments: Segments, rho: Tensor | None, c: Tensor | None) -> Estimates:
    """e_t = v_t - V_t = rho_t td_t + gamma lambda c_t k_t e_{t+1}, backwards from e_T = 0, and the advantage
    td_t + gamma lambda k_t e_{t+1}. One fused operation a step; all else for the whole array at once."""
    v_tm1, v_t = segments.values[:-1], segments.values[1:]
    td = torch.addcmul(segments.rewards, segments.discounts, v_t).sub_(v_tm1)
    if segments.valid is not None:
        td = torch.where(segments.valid, td, 0.0)
    delta = td if rho is None else rho * td
    decay = segments.traces if c is None else c * segments.traces
    errors = torch.empty_like(td)
    errors[-1] = delta[-1]
    rows, deltas, decays_ = errors.unbind(), delta.unbind(), decay.unbind()
    for t in range(len(rows) - 2, -1, -1):
        torch.addcmul(deltas[t], decays_[t], rows[t + 1], out=rows[t])
    targets = v_tm1 + errors
    if rho is None and c is None:
        return Estimates(targets, errors)
    td[:-1].addcmul_(segments.traces[:-1], errors[1:])
    return Estimates(targets, td)


class Native(NamedTuple):
    """What makes an arm one of those that consumers/loss.c knows."""

    corrected: bool  # targets and advantages by V-trace, not by GAE
    proximal: bool  # the clipped ratio is against the policy at batch start, not against behaviour
    weighted: bool = False  # by the truncated ratio of the policy at batch start over behaviour


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One arm of `learner.correction`.

    estimate: log_ratio [T, B] is the log of the policy that gave the values over mu; with `target`, of prox
    anchor: log-probability of the policy that the policy's ratio is taken against
    clips: the policy loss is PPO's, of that ratio; if not, it is -A log pi
    weight: the factor on that; None: 1
    proximal: whether Steps.proximal, and so a pass at batch start, is needed
    target: whether prox is a target network (consumers/anchor.py)
    selects: whether the weight leaves some of the kept steps out, for what it makes of all of a minibatch
    native: its form in consumers/loss.c, if it has one
    """

    estimate: Callable[[Segments, Tensor, Settings], Estimates]
    anchor: Callable[[Steps, Settings], Tensor]
    clips: bool = True
    weight: Callable[[Steps, Settings], Weight] | None = None
    proximal: bool = False
    target: bool = False
    selects: bool = False
    native: Native | None = None

    def policy_loss(self, steps: Steps, settings: Settings) -> PolicyLoss:
        """Raises ValueError where `steps` lack the proximal policy that the arm needs."""
        if self.clips:
            log_ratio = steps.log_prob - self.anchor(steps, settings)
            loss = clipped_surrogate(log_ratio, steps.advantages, settings.clip)
        else:
            loss = -steps.advantages * steps.log_prob
        if self.weight is None:
            return PolicyLoss(loss, steps.kept, None)
        value, bounded = self.weight(steps._replace(log_prob=steps.log_prob.detach()), settings)
        if steps.kept is not None:  # by selection: 0 times what is not a number would reach the gradient
            value = torch.where(steps.kept, value, 0.0)
        return PolicyLoss(value * loss, value != 0.0, bounded)


def _behaviour(steps: Steps, s: Settings) -> Tensor:
    return steps.behaviour


def _prox(steps: Steps) -> Tensor:
    if steps.proximal is None:
        raise ValueError("this correction needs the log-probabilities of the policy at batch start")
    return steps.proximal


def _proximal(steps: Steps, s: Settings) -> Tensor:
    return _prox(steps)


def _impact(steps: Steps, s: Settings) -> Tensor:
    """min(mu/prox, rho) w is pi over the larger of prox and mu/rho."""
    return torch.maximum(_prox(steps), steps.behaviour - math.log(s.impact_rho))


def _vtrace(segments: Segments, log_ratio: Tensor, s: Settings) -> Estimates:
    return vtrace(segments, log_ratio, rho_clip=s.rho_clip, c_clip=s.c_clip)


def _gae(segments: Segments, log_ratio: Tensor, s: Settings) -> Estimates:
    return gae(segments)


def _puff(segments: Segments, log_ratio: Tensor, s: Settings) -> Estimates:
    return puff(segments, log_ratio, rho_clip=s.rho_clip, c_clip=s.c_clip)


def _decoupled(steps: Steps, s: Settings) -> Weight:
    return decoupled(steps.log_prob, steps.behaviour, _prox(steps), s.decoupled_cap)


def _mis(steps: Steps, s: Settings) -> Weight:
    log_ratio = _prox(steps) - steps.behaviour
    return masked(log_ratio, steps.kept, cap=s.mis_cap, veto=s.mis_veto, mean=s.mis_mean)


def _impact_bound(steps: Steps, s: Settings) -> Weight:
    """1: the bound is in the ratio."""
    bounded = steps.behaviour - _prox(steps) > math.log(s.impact_rho)
    return Weight(torch.ones_like(steps.behaviour), bounded)


CORRECTIONS: Mapping[str, Correction] = {
    # PPO's clip on w with V-trace advantages: the form of SEED RL (arXiv 1910.06591) with a clip.
    "vtrace": Correction(estimate=_vtrace, anchor=_behaviour, native=Native(True, False)),
    # V-trace actor-critic, without a clip (IMPALA, Espeholt et al. 2018, arXiv 1802.01561, section 4.2).
    "vtrace_pg": Correction(
        estimate=_vtrace,
        anchor=_behaviour,
        clips=False,
        weight=lambda steps, s: truncated(steps.log_prob - steps.behaviour, s.pg_rho_clip),
    ),
    # PPO's clip on w with the advantages of PufferLib 3.0.
    "puff": Correction(estimate=_puff, anchor=_behaviour),
    # PPO's clip on w with uncorrected advantages.
    "ppo": Correction(estimate=_gae, anchor=_behaviour, native=Native(False, False)),
    # The decoupled objective: the clip holds the update near the policy it starts from, and the weight
    # corrects for the policy that acted.
    "decoupled": Correction(estimate=_gae, anchor=_proximal, weight=_decoupled, proximal=True),
    # The same with its weight truncated, which is constant over the update.
    "tis": Correction(
        estimate=_gae,
        anchor=_proximal,
        weight=lambda steps, s: truncated(_prox(steps) - steps.behaviour, s.tis_cap),
        proximal=True,
        native=Native(False, True, weighted=True),
    ),
    # The same with steps left out where the weight is far from 1.
    "mis": Correction(estimate=_gae, anchor=_proximal, weight=_mis, proximal=True, selects=True),
    # Every step keeps its gradient, whose weight is truncated (MiniMax-M1, arXiv 2506.13585).
    "cispo": Correction(
        estimate=_gae,
        anchor=_behaviour,
        clips=False,
        weight=lambda steps, s: truncated(steps.log_prob - steps.behaviour, 1.0 + s.cispo_clip),
    ),
    # PPO's clip on w without the steps whose ratios are farthest from 1.
    "m2po": Correction(
        estimate=_gae,
        anchor=_behaviour,
        weight=lambda steps, s: second_moment(
            steps.log_prob - steps.behaviour, steps.kept, bound=s.m2po_bound
        ),
        selects=True,
    ),
    # PPO's clip on pi over a target network, towards which V-trace corrects. Rho is in the advantage, which
    # makes up for mu: the clipped ratio does not (Luo et al. 2020, arXiv 1912.00167, section 3).
    "impact": Correction(estimate=_puff, anchor=_impact, weight=_impact_bound, proximal=True, target=True),
    # The control: PPO's clip on r, as if the data were on-policy.
    "none": Correction(estimate=_gae, anchor=_proximal, proximal=True, native=Native(False, True)),
}
