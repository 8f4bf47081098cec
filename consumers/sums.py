"""Targets and advantages of one segment by the sums that define them, in float64 and O(T^2): for the audits.

No code in common with the estimators of consumers/corrections.py, not even what an arm is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Form(NamedTuple):
    """What an arm makes of the values."""

    corrected: bool  # V-trace; if not, GAE
    bears_rho: bool = False  # the advantage is v - V; if not, q - V
    of_target: bool = False  # V-trace for the target network's policy


FORMS = {
    "none": Form(False),
    "ppo": Form(False),
    "decoupled": Form(False),
    "tis": Form(False),
    "mis": Form(False),
    "cispo": Form(False),
    "m2po": Form(False),
    "vtrace": Form(True),
    "vtrace_pg": Form(True),
    "puff": Form(True, bears_rho=True),
    "impact": Form(True, bears_rho=True, of_target=True),
}


class Segment(NamedTuple):
    """One agent's steps of a slot, [T] each."""

    values: Array  # [T+1]; row t+1 is the true successor of step t, also at an end
    rewards: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    log_ratio: Array  # log pi/mu of the policy that the targets are for


class Sums(NamedTuple):
    targets: Array  # [T]
    advantages: Array  # [T]
    size: float  # of the largest sum of magnitudes: what rounding errors are to be held against


def summed(segment: Segment, form: Form, settings: Any) -> Sums:
    """V-trace (Espeholt et al. 2018, arXiv 1802.01561, eq. 1), GAE with rho = c = 1:

        v_s = V_s + sum_{t>=s} gamma^(t-s) (prod_{i=s}^{t-1} c_i k_i) rho_t e_t
        e_t = R_t + gamma (1-term_t) V_{t+1} - V_t

    with c = lambda min(c_clip, w), and k = 0 at an end or a step that is not valid, whose e is 0; and the
    advantage v - V, or q - V with q_t = R_t + gamma (lambda v_{t+1} + (1-lambda) V_{t+1}), but at an end and
    at the last step R_t + gamma (1-term_t) V_{t+1}. `settings`: gamma, gae_lambda, rho_clip and c_clip."""
    values, rewards, terminated, truncated, valid, log_ratio = segment
    gamma, lambda_, horizon = settings.gamma, settings.gae_lambda, len(rewards)
    w = np.exp(np.minimum(np.where(valid, log_ratio, 0.0), 50.0))
    rho = np.minimum(w, settings.rho_clip) if form.corrected else np.ones(horizon)
    c = lambda_ * (np.minimum(w, settings.c_clip) if form.corrected else np.ones(horizon))
    goes_on = valid & ~terminated & ~truncated
    errors = np.where(valid, rewards + gamma * ~terminated * values[1:] - values[:-1], 0.0)
    corrections, size = np.zeros(horizon), np.abs(values).max()
    for s in range(horizon):
        carried = np.cumprod(gamma * c[s:-1] * goes_on[s:-1])
        terms = np.concatenate([[1.0], carried]) * rho[s:] * errors[s:]
        corrections[s] = terms.sum()
        size = max(size, np.abs(terms).sum())
    targets = values[:-1] + corrections
    if form.bears_rho:
        return Sums(targets, corrections, size)
    following = np.append(lambda_ * targets[1:] + (1 - lambda_) * values[1:-1], values[-1])
    following = np.where(goes_on, following, values[1:])
    q = np.where(valid, rewards + gamma * ~terminated * following, values[:-1])
    return Sums(targets, q - values[:-1], max(size, np.abs(q).max()))
