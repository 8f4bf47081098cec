"""Recurrent layers over segments: state carried from step to step, and zeroed where an episode begins.

Pure functions of tensors [T, B, ...], time-major, in float32 but for matrix products. `reset_before` [T, B]
bool is true where the state is zeroed before the step, None where it never is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def mingru(gate: Tensor, candidate: Tensor, h: Tensor, reset_before: Tensor | None) -> Tensor:
    """Minimal gated recurrent unit (Feng et al. 2024, "Were RNNs all we needed?"): z = sigmoid(gate),
    h_t = (1 - z_t) h_tm1 + z_t candidate_t. `gate`, `candidate` [T, B, H] and `h` [B, H], the state before
    step 0, give the states [T, B, H]."""
    z = torch.sigmoid(gate)
    keep = 1.0 - z
    if reset_before is not None:
        keep = keep.masked_fill(reset_before.unsqueeze(-1), 0.0)
    return _Scan.apply(keep, z * candidate, h, reset_before)


def lstm(
    inputs: Tensor,
    weight_hh: Tensor,
    h: Tensor,
    c: Tensor,
    reset_before: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Long short-term memory: `inputs` [T, B, 4 H], the gates i, f, g, o without their recurrent part, which
    is `weight_hh` [4 H, H] times h in `dtype`; `h` and `c` [B, H] before step 0. Outputs [T, B, H], and the
    last c [B, H]."""
    weight_hh = weight_hh.to(dtype)
    outputs = []
    for t, x_t in enumerate(inputs.unbind(0)):
        if reset_before is not None:
            reset = reset_before[t].unsqueeze(-1)
            h, c = h.masked_fill(reset, 0.0), c.masked_fill(reset, 0.0)
        i, f, g, o = (x_t + F.linear(h.to(dtype), weight_hh)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), c


class _Scan(torch.autograd.Function):
    """h_t = keep_t h_tm1 + add_t over [T, B, H] from h [B, H]: one fused operation a step each way. Where
    keep_t is 0 because of a reset, h_tm1 is left out by selection too: it may be NaN."""

    @staticmethod
    def forward(ctx: Any, keep: Tensor, add: Tensor, h: Tensor, reset_before: Tensor | None) -> Tensor:
        states = torch.empty_like(add)
        before = h
        for t in range(len(add)):
            if reset_before is not None:
                before = before.masked_fill(reset_before[t].unsqueeze(-1), 0.0)
            before = torch.addcmul(add[t], keep[t], before, out=states[t])
        ctx.save_for_backward(keep, states, h)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        keep, states, h = ctx.saved_tensors
        d_states = grads[0].clone()  # of the loss, then with what reaches it through later states
        for t in range(len(keep) - 2, -1, -1):
            d_states[t].addcmul_(keep[t + 1], d_states[t + 1])
        d_keep = torch.empty_like(keep)
        torch.mul(d_states[1:], states[:-1], out=d_keep[1:])
        torch.mul(d_states[0], h, out=d_keep[0])
        return d_keep, d_states, keep[0] * d_states[0], None
