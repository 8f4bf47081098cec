"""Off-policy corrections: advantage estimators, policy losses, and the arms that combine them by name.

Pure functions of tensors, time-major [T, B]. `values` has T+1 rows, the last one the bootstrap; row t+1 is
always the value of the true successor of step t, since a slot stores an episode's final observation there.
mu is the behaviour policy (what acted), prox the policy at the start of the update, pi the one in training.
"""

from __future__ import annotations

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
    clip: float
    tis_cap: float


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
    """The steps of one minibatch as a policy loss sees them; any shape, all alike."""

    log_prob: Tensor  # float32 log pi(a), carries the gradient
    behaviour: Tensor  # float32 log mu(a)
    proximal: Tensor | None  # float32 log prox(a); None unless the arm asks for it
    advantages: Tensor  # float32, constant


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


@dataclass(frozen=True, slots=True)
class Correction:
    """One arm of `learner.correction`.

    estimate: log_ratio [T, B] is the log of the policy that gave the values over mu
    policy_loss: the loss of each step
    anchor: log-probability of the policy that the clipped ratio is taken against
    proximal: whether Steps.proximal, and so a pass at batch start, is needed
    native: its form in consumers/loss.c, if it has one
    """

    estimate: Callable[[Segments, Tensor, Settings], Estimates]
    policy_loss: Callable[[Steps, Settings], Tensor]
    anchor: Callable[[Steps], Tensor]
    proximal: bool
    native: Native | None = None


def _behaviour(steps: Steps) -> Tensor:
    return steps.behaviour


def _proximal(steps: Steps) -> Tensor:
    if steps.proximal is None:
        raise ValueError("this correction needs the log-probabilities of the policy at batch start")
    return steps.proximal


def _vtrace(segments: Segments, log_ratio: Tensor, s: Settings) -> Estimates:
    return vtrace(segments, log_ratio, rho_clip=s.rho_clip, c_clip=s.c_clip)


def _gae(segments: Segments, log_ratio: Tensor, s: Settings) -> Estimates:
    return gae(segments)


def _clip_behaviour(steps: Steps, s: Settings) -> Tensor:
    return clipped_surrogate(steps.log_prob - steps.behaviour, steps.advantages, s.clip)


def _clip_proximal(steps: Steps, s: Settings) -> Tensor:
    return clipped_surrogate(steps.log_prob - _proximal(steps), steps.advantages, s.clip)


def _truncated(steps: Steps, s: Settings) -> Tensor:
    """-min(prox/mu, cap) S(pi/prox): the clip holds the update near the policy it starts from, and the
    weight, constant over the update, corrects for the policy that acted."""
    weight = ratio(_proximal(steps) - steps.behaviour).clamp(max=s.tis_cap)
    return weight * _clip_proximal(steps, s)


CORRECTIONS: Mapping[str, Correction] = {
    # PPO's clip on pi/mu with V-trace advantages: the form of SEED RL (arXiv 1910.06591) with a clip.
    "vtrace": Correction(_vtrace, _clip_behaviour, _behaviour, False, Native(True, False)),
    # PPO's clip on pi/mu with uncorrected advantages.
    "ppo": Correction(_gae, _clip_behaviour, _behaviour, False, Native(False, False)),
    # The decoupled objective (Hilton, Cobbe, Schulman 2022, arXiv 2110.00641, eq. 3) with its weight
    # truncated # (Ionides 2008, J. Comput. Graph. Stat. 17:295).
    "tis": Correction(_gae, _truncated, _proximal, True, Native(False, True, weighted=True)),
    # The control: PPO's clip on pi/prox, as if the data were on-policy.
    "none": Correction(_gae, _clip_proximal, _proximal, True, Native(False, True)),
}
