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
    return _Lstm.apply(inputs, weight_hh, h, c, reset_before, dtype)


class _Lstm(torch.autograd.Function):
    """Step by step both ways; but the gradient of the weights is one product over all steps, whose sum stays
    in float32, where autograd would round it to `dtype` after each step."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight_hh: Tensor,
        h: Tensor,
        c: Tensor,
        reset_before: Tensor | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        units = h.shape[1]
        weight = weight_hh.to(dtype)
        gates = torch.empty_like(inputs)  # after their functions
        cells, outputs = inputs.new_empty(2, *inputs.shape[:2], units)
        h_tm1, c_tm1 = h, c
        for t, x_t in enumerate(inputs.unbind(0)):
            h_tm1, c_tm1 = (_begun(x, reset_before, t) for x in (h_tm1, c_tm1))
            torch.add(x_t, F.linear(h_tm1.to(dtype), weight), out=gates[t])
            i, f, g, o = gates[t].chunk(4, -1)
            gates[t, :, : 2 * units].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.addcmul(f * c_tm1, i, g, out=cells[t])
            torch.mul(torch.tanh(cells[t]), o, out=outputs[t])
            h_tm1, c_tm1 = outputs[t], cells[t]
        ctx.save_for_backward(gates, cells, outputs, h, c, reset_before, weight)
        return outputs, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gates, cells, outputs, h, c, reset_before, weight = ctx.saved_tensors
        d_outputs, d_c = grads
        d_h = torch.zeros_like(d_c)
        d_gates = torch.empty_like(gates)
        for t in range(len(gates) - 1, -1, -1):
            i, f, g, o = gates[t].chunk(4, -1)
            d_i, d_f, d_g, d_o = d_gates[t].chunk(4, -1)
            tanh_c = torch.tanh(cells[t])
            d_h = d_h + d_outputs[t]
            d_c = torch.addcmul(d_c, d_h * o, 1.0 - tanh_c.square())
            c_tm1 = _begun(c if t == 0 else cells[t - 1], reset_before, t)
            torch.ops.aten.sigmoid_backward.grad_input(d_h * tanh_c, o, grad_input=d_o)
            torch.ops.aten.sigmoid_backward.grad_input(d_c * g, i, grad_input=d_i)
            torch.ops.aten.sigmoid_backward.grad_input(d_c * c_tm1, f, grad_input=d_f)
            torch.ops.aten.tanh_backward.grad_input(d_c * i, g, grad_input=d_g)
            d_h = _begun((d_gates[t].to(weight.dtype) @ weight).to(d_c.dtype), reset_before, t)
            d_c = _begun(d_c * f, reset_before, t)
        before = torch.cat([h.unsqueeze(0), outputs[:-1]])
        if reset_before is not None:
            before = before.masked_fill(reset_before.unsqueeze(-1), 0.0)
        before = before.flatten(0, 1).to(weight.dtype)
        d_weight = (d_gates.flatten(0, 1).to(weight.dtype).t() @ before).to(h.dtype)
        return d_gates, d_weight, d_h, d_c, None, None


def _begun(x: Tensor, reset_before: Tensor | None, t: int) -> Tensor:
    """State before step t, or its gradient: zero where an episode begins, even if it was NaN."""
    return x if reset_before is None else x.masked_fill(reset_before[t].unsqueeze(-1), 0.0)


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
