"""The policy program: one description of a network, from which C policy and torch module are both built.

`build` makes it from the policy settings and the simulator's spec; `Builder` makes any other. Encoded
(`Program.encode`) it stands in the header of the weights channel, where every process that acts or learns
finds it. Imports neither torch nor numpy.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from producers.program_builder import Builder
from producers.program_format import (
    ACTIVATIONS,
    READS_BYTES,
    RECURRENT,
    Buffer,
    Op,
    Program,
    ProgramError,
    Weight,
)

__all__ = [
    "ACTIVATIONS", "READS_BYTES", "RECURRENT", "Buffer", "Builder", "Op", "Program", "ProgramError", "Weight",
    "build",
]  # fmt: skip

CODES = 128  # values of a coded byte: SIM_CODES of sim.h
NORMALIZED_CLIP = 10.0  # of normalised observations, in deviations
KERNEL, STRIDE = 5, 3  # of the convolution over a grid
SECOND_KERNEL = 3


def build(policy: Any, spec: Mapping[str, Any]) -> Program:
    """The program of encoder, hidden layers, a recurrent layer and a layer norm if they are wanted, policy
    head (orthogonal, gain 0.01) and value head (gain 1).

    `policy` has as attributes or keys `encoder` (auto, mlp or grid) with `channels` and `embedding` of the
    latter, `hidden` (widths), `activation`, `recurrent` (none, lstm or mingru) of `recurrent_width` units,
    `layer_norm`, `normalize_obs`, `separate_value` (layers of its own for the value, from the encoder on),
    `log_std` (of continuous actions), and optionally `obs_scale`, `obs_offset`: None means the spec's own
    `obs.scale` and `obs.offset`, else 1/255 for images of uint8 (two dimensions or more), 1/128 for the
    numbers beside a grid or codes, and 1 for the rest. `spec` is what `producer --describe` prints.
    ProgramError if it cannot be described.
    """
    recurrent = _setting(policy, "recurrent", "none")
    if recurrent not in ("none", *RECURRENT):
        raise ProgramError(f"policy.recurrent: {recurrent!r}; needs none, {' or '.join(RECURRENT)}")
    hidden = list(_setting(policy, "hidden", (128, 128)))
    activation = _setting(policy, "activation", "relu")
    obs, heads = spec["obs"], spec["heads"]
    builder = Builder(
        obs["dtype"],
        obs["shape"],
        [head["choices"] for head in heads if "choices" in head],
        low=[head["low"] for head in heads if "low" in head],
        high=[head["high"] for head in heads if "high" in head],
        mask=bool(spec.get("mask")),
    )
    encode = _grid(builder, policy, spec) if _encodes_bytes(policy, spec) else _numbers(builder, policy, obs)

    def trunk(name: str) -> int:
        y = encode(name)
        gain = 1.0 if activation == "sigmoid" else math.sqrt(2)
        for index, width in enumerate(hidden):
            y = builder.linear(y, width, f"{name}.{index}", gain=gain)
            y = builder.activation(y, activation)
        if recurrent != "none":
            units = _setting(policy, "recurrent_width", 128)
            y = getattr(builder, recurrent)(y, units, f"{name}.{recurrent}")
        return builder.layer_norm(y, f"{name}.norm") if _setting(policy, "layer_norm", False) else y

    features = trunk("trunk")
    logits = builder.linear(features, builder.logits, "policy", gain=0.01)
    if builder.is_continuous:
        builder.gaussian(logits, "log_std", log_std=_setting(policy, "log_std", 0.0))
    else:
        builder.head(logits)
    value_features = trunk("value_trunk") if _setting(policy, "separate_value", False) else features
    return builder.finish(builder.linear(value_features, 1, "value", gain=1.0))


def _encodes_bytes(policy: Any, spec: Mapping[str, Any]) -> bool:
    encoder = _setting(policy, "encoder", "auto")
    if encoder not in ("auto", "mlp", "grid"):
        raise ProgramError(f"policy.encoder: {encoder!r}; needs auto, mlp or grid")
    described = spec["obs"].get("grid") is not None or spec["obs"].get("coded", 0) > 0
    if encoder == "grid" and not described:
        raise ProgramError(
            f"policy.encoder: grid expands bytes, but {spec.get('name', 'the simulator')} does not say what "
            "those of its observation mean; needs auto or mlp"
        )
    return described and encoder != "mlp"


def _numbers(builder: Builder, policy: Any, obs: Mapping[str, Any]) -> Callable[[str], int]:
    """The whole observation as numbers, which all trunks share."""
    image = obs["dtype"] == "uint8" and len(obs["shape"]) > 1
    x = _cast(builder, policy, obs, 1 / 255 if image else 1.0)
    return lambda name: x


def _grid(builder: Builder, policy: Any, spec: Mapping[str, Any]) -> Callable[[str], int]:
    """Grid and codes expanded, codes and what is behind them as numbers too; by the name of the trunk.

    Two convolutions, kernels cut to what a small grid has: the first, 5 x 5 with stride 3, over the multi-hot
    grid, with a gain as if its inputs had variance 1, and a ReLU; the second 3 x 3. The rows of the embedding
    have length 1 at first, on average."""
    obs, grid = spec["obs"], spec["obs"].get("grid")
    coded, width = obs.get("coded", 0), math.prod(obs["shape"])
    start = 0 if grid is None else grid["rows"] * grid["columns"] * grid["planes"]
    channels, size = _setting(policy, "channels", 128), _setting(policy, "embedding", 32)
    numbers = [] if start == width else [_cast(builder, policy, obs, 1 / CODES, start)]

    def convolve(name: str) -> int:
        rows, columns, values = grid["rows"], grid["columns"], grid["values"]
        x = builder.multihot_conv2d(
            rows, columns, values, channels, f"{name}.grid.0",
            kernel=(min(KERNEL, rows), min(KERNEL, columns)), stride=STRIDE,
            gain=math.sqrt(2 * sum(values) / len(values)),
        )  # fmt: skip
        rows, columns, _ = builder.shape(x)
        kernel = min(SECOND_KERNEL, rows), min(SECOND_KERNEL, columns)
        x = builder.activation(x, "relu")
        return builder.conv2d(x, channels, f"{name}.grid.1", kernel=kernel, stride=1, gain=1.0)

    def encode(name: str) -> int:
        parts = [] if grid is None else [convolve(name)]
        if coded > 0:
            gain = math.sqrt(max(1, CODES / size))
            parts.append(builder.embedding(start, coded, CODES, size, f"{name}.embedding", gain=gain))
        return builder.concat(parts + numbers)

    return encode


def _cast(
    builder: Builder, policy: Any, obs: Mapping[str, Any], default_scale: float, start: int | None = None
) -> int:
    """The observation from `start` on as numbers."""
    if _setting(policy, "normalize_obs", False):
        return builder.cast_affine(normalize="normalize", clip=NORMALIZED_CLIP, start=start)
    scale = _first(_setting(policy, "obs_scale", None), obs.get("scale"), default_scale)
    offset = _first(_setting(policy, "obs_offset", None), obs.get("offset"), 0.0)
    return builder.cast_affine(scale=scale, offset=offset, start=start)


def _setting(policy: Any, name: str, default: Any) -> Any:
    return policy.get(name, default) if isinstance(policy, Mapping) else getattr(policy, name, default)


def _first(*candidates: float | None) -> float:
    return next(candidate for candidate in candidates if candidate is not None)
