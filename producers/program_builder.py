"""Makes a policy program operation by operation. Imports neither torch nor numpy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from producers.program_format import (
    ACTIVATIONS,
    DTYPES,
    MAX_DIMS,
    MAX_HEADS,
    MAX_PLANES,
    MAX_VALUES,
    RECURRENT,
    Buffer,
    Op,
    Program,
    ProgramError,
    Weight,
    float32,
)

LAYER_NORM_EPSILON = 1e-5


class Builder:
    """Makes a program operation by operation. Each method appends one operation and returns the buffer index
    of its output; shapes are inferred, and what does not fit raises ProgramError. `mask` is the buffer of the
    simulator's action mask or None, `logits` the width that the head needs."""

    def __init__(
        self,
        obs_dtype: str,
        obs_shape: Sequence[int],
        choices: Sequence[int] = (),
        *,
        low: Sequence[float] = (),
        high: Sequence[float] = (),
        mask: bool = False,
    ) -> None:
        """`obs_shape` is one agent's; `choices` [heads], or of continuous actions the bounds `low` and `high`
        [heads]; `mask`: the simulator gives masks [sum(choices)]."""
        if obs_dtype not in DTYPES:
            raise ProgramError(f"observations of dtype {obs_dtype!r}: one of {', '.join(DTYPES)} is needed")
        if (len(choices) > 0) == (len(low) > 0) or len(low) != len(high) or (mask and not choices):
            raise ProgramError("heads are either discrete, with or without a mask, or continuous with bounds")
        if len(choices or low) > MAX_HEADS or min(choices, default=1) < 1:
            raise ProgramError(f"heads {list(choices)}: 1 to {MAX_HEADS} of at least one choice are needed")
        self._buffers: list[Buffer] = []
        self._ops: list[Op] = []
        self._names: set[str] = set()
        self._count = 0
        self._state_width = 0
        self._choices = tuple(choices)
        self._bounds = tuple(float32(x) for x in low), tuple(float32(x) for x in high)
        self.logits = sum(choices) or len(low)
        self._action: int | None = None
        self._obs = self._buffer(obs_dtype, tuple(obs_shape))
        self.mask = self._buffer("uint8", (sum(choices),)) if mask else None

    def cast_affine(
        self,
        *,
        scale: float = 1.0,
        offset: float = 0.0,
        clip: float = 0.0,
        normalize: str | None = None,
        start: int | None = None,
    ) -> int:
        """The observation as float32: x · scale + offset, then bounded to ±clip if clip > 0. With a name in
        `normalize`: (x − mean) · inv_std by feature instead, by frozen weights `<name>.mean` and
        `<name>.inv_std` [width]. With `start` only the flattened elements from there on."""
        shape = self._buffers[self._obs].shape
        if start is not None:
            if not 0 <= start < math.prod(shape):
                raise ProgramError(f"elements from {start} on of {math.prod(shape)}")
            shape = (math.prod(shape) - start,)
        weights = []
        if normalize is not None:
            width = math.prod(shape)
            weights.append(self._weight(f"{normalize}.mean", (width,), value=0.0, trainable=False))
            weights.append(self._weight(f"{normalize}.inv_std", (width,), value=1.0, trainable=False))
        reals = {"scale": float32(scale), "offset": float32(offset), "clip": float32(clip)}
        attrs = {"per_feature": int(normalize is not None), "start": start or 0, **reals}
        return self._append("cast_affine", (self._obs,), shape, attrs, weights)

    def slice(self, x: int, start: int, stop: int) -> int:
        """Elements start..stop of the flattened row."""
        if not 0 <= start < stop <= self.width(x):
            raise ProgramError(f"slice {start}:{stop} of {self.width(x)} elements")
        return self._append("slice", (x,), (stop - start,), {"start": start})

    def reshape(self, x: int, shape: Sequence[int]) -> int:
        """The same elements in another shape."""
        if math.prod(shape) != self.width(x):
            raise ProgramError(f"reshape of {self.width(x)} elements to {tuple(shape)}")
        return self._append("reshape", (x,), tuple(shape))

    def linear(self, x: int, out: int, name: str, *, gain: float, bias: bool = True) -> int:
        """x Wᵀ + b over the flattened row: weights `<name>.weight` [out, in] (orthogonal with `gain`) and
        `<name>.bias` [out] (zero)."""
        if out < 1:
            raise ProgramError(f"{name} of {out} outputs: a positive number is needed")
        weights = [self._weight(f"{name}.weight", (out, self.width(x)), gain=gain)]
        if bias:
            weights.append(self._weight(f"{name}.bias", (out,)))
        return self._append("linear", (x,), (out,), {"bias": int(bias)}, weights)

    def conv2d(
        self, x: int, out: int, name: str, *, kernel: tuple[int, int], stride: int, gain: float
    ) -> int:
        """A convolution without padding over x [rows, columns, in], channels last: [rows', columns', out].
        Weights `<name>.weight` [out, in, *kernel] (orthogonal) and `<name>.bias` [out]."""
        shape = self._buffers[x].shape
        if len(shape) != 3:
            raise ProgramError(f"{name} over the shape {shape}: rows, columns, channels are needed")
        return self._convolution("conv2d", x, shape, out, name, kernel, stride, gain, {})

    def multihot_conv2d(
        self,
        rows: int,
        columns: int,
        values: Sequence[int],
        out: int,
        name: str,
        *,
        kernel: tuple[int, int],
        stride: int,
        gain: float,
        start: int = 0,
    ) -> int:
        """The same over a grid [rows, columns, planes] of bytes of the observation, from byte `start` on.
        Plane p stands for values[p] channels, of which the one that its byte names is 1 and the others are 0;
        a byte beyond them counts as the last. Weights as of `conv2d`, in = sum(values)."""
        obs = self._buffers[self._obs]
        if obs.dtype != "uint8" or start < 0 or start + rows * columns * len(values) > obs.width:
            raise ProgramError(
                f"{name}: no grid of {rows} x {columns} x {len(values)} bytes in the observation"
            )
        if not 1 <= len(values) <= MAX_PLANES or min(values) < 1 or max(values) > MAX_VALUES:
            raise ProgramError(
                f"{name}: {list(values)}: 1 to {MAX_PLANES} planes of 1 to {MAX_VALUES} categories can be"
            )
        shape = (rows, columns, sum(values))
        attrs = {"start": start, "rows": rows, "columns": columns, "values": tuple(values)}
        return self._convolution("multihot_conv2d", self._obs, shape, out, name, kernel, stride, gain, attrs)

    def embedding(self, start: int, count: int, codes: int, width: int, name: str, *, gain: float) -> int:
        """`count` bytes of the observation, from byte `start` on, each as the row of `<name>.weight`
        [codes, width] (orthogonal) that it names: [count, width]. A byte beyond the codes names the last."""
        obs = self._buffers[self._obs]
        if obs.dtype != "uint8" or start < 0 or count < 1 or start + count > obs.width:
            raise ProgramError(f"{name}: no bytes {start}:{start + count} in the observation")
        if codes < 1 or width < 1:
            raise ProgramError(f"{name} of {codes} x {width}: positive numbers are needed")
        weights = [self._weight(f"{name}.weight", (codes, width), gain=gain)]
        return self._append("embedding", (self._obs,), (count, width), {"start": start}, weights)

    def layer_norm(self, x: int, name: str) -> int:
        """Layer normalisation (Ba et al. 2016) of the whole row, epsilon 1e-5: weights `<name>.weight`
        [width] (one) and `<name>.bias` [width] (zero)."""
        width = self.width(x)
        weights = [
            self._weight(f"{name}.weight", (width,), value=1.0),
            self._weight(f"{name}.bias", (width,)),
        ]
        attrs = {"epsilon": float32(LAYER_NORM_EPSILON)}
        return self._append("layer_norm", (x,), self._buffers[x].shape, attrs, weights)

    def activation(self, x: int, function: str) -> int:
        """Elementwise; `function` of ACTIVATIONS."""
        if function not in ACTIVATIONS:
            raise ProgramError(f"activation {function!r}: one of {', '.join(ACTIVATIONS)} is needed")
        return self._append("activation", (x,), self._buffers[x].shape, {"function": function})

    def add(self, x: int, y: int) -> int:
        """Elementwise sum of two buffers of the same width."""
        return self._elementwise("add", x, y)

    def mul(self, x: int, y: int) -> int:
        """Elementwise product of two buffers of the same width."""
        return self._elementwise("mul", x, y)

    def concat(self, xs: Iterable[int]) -> int:
        """The flattened rows one behind the other."""
        inputs = tuple(xs)
        if not inputs:
            raise ProgramError("concat of nothing")
        return self._append("concat", inputs, (sum(self.width(x) for x in inputs),))

    def lstm(self, x: int, units: int, name: str) -> int:
        """One step of a long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of
        Gers et al. 2000) over the flattened row: its output [units]. Weights in torch's order of the gates
        i, f, g, o: `<name>.weight_ih` [4 units, in], `<name>.weight_hh` [4 units, units] (orthogonal) and
        `<name>.bias` [4 units] (zero)."""
        if units < 1:
            raise ProgramError(f"{name} of {units} units: a positive number is needed")
        weights = [
            self._weight(f"{name}.weight_ih", (4 * units, self.width(x)), gain=1.0),
            self._weight(f"{name}.weight_hh", (4 * units, units), gain=1.0),
            self._weight(f"{name}.bias", (4 * units,)),
        ]
        return self._recurrent("lstm", x, units, weights)

    def mingru(self, x: int, units: int, name: str) -> int:
        """One step of a minimal gated recurrent unit (Feng et al. 2024, "Were RNNs all we needed?") over the
        flattened row: its output [units]. Weights `<name>.gate` and `<name>.candidate`, each `.weight`
        [units, in] (orthogonal) and `.bias` [units]. The gate's bias begins at -1, so that memory outlives
        the first few steps before anything is learned."""
        if units < 1:
            raise ProgramError(f"{name} of {units} units: a positive number is needed")
        weights = [
            self._weight(f"{name}.gate.weight", (units, self.width(x)), gain=1.0),
            self._weight(f"{name}.gate.bias", (units,), value=-1.0),
            self._weight(f"{name}.candidate.weight", (units, self.width(x)), gain=1.0),
            self._weight(f"{name}.candidate.bias", (units,)),
        ]
        return self._recurrent("mingru", x, units, weights)

    def gaussian(self, mean: int, name: str, *, log_std: float) -> None:
        """Continuous actions, normally distributed around `mean` [heads]: weight `<name>` [heads] holds the
        logarithms of the standard deviations, which begin at `log_std`."""
        if self._choices:
            raise ProgramError("a gaussian head for discrete actions")
        weight = self._weight(name, (self.logits,), value=float32(log_std))
        self._head(mean, "gaussian", "float32", [weight])

    def head(self, logits: int) -> None:
        """Discrete actions from logits [sum(choices)]; the simulator's mask, if it has one, leaves the
        allowed."""
        if not self._choices:
            raise ProgramError("continuous actions need the gaussian head")
        distribution = "categorical" if len(self._choices) == 1 else "multi-discrete"
        self._head(logits, distribution, "int32", [])

    def _head(self, logits: int, distribution: str, dtype: str, weights: Sequence[Weight]) -> None:
        if self.width(logits) != self.logits:
            raise ProgramError(f"{self.width(logits)} logits where the heads need {self.logits}")
        if self._action is not None:
            raise ProgramError("a second head")
        if self.mask is not None:
            logits = self._append("mask", (logits, self.mask), self._buffers[logits].shape)
        heads = len(self._choices) or self.logits
        self._action = self._append(
            "head", (logits,), (heads,), {"distribution": distribution}, weights, dtype
        )

    def finish(self, value: int | None = None) -> Program:
        """The program; `value` is the buffer of the value estimate [1]."""
        if self._action is None:
            raise ProgramError("a program needs a head")
        if value is not None and self.width(value) != 1:
            raise ProgramError(f"a value of width {self.width(value)}: 1 is needed")
        return Program(
            tuple(self._buffers), tuple(self._ops), self._obs, self.mask, self._action, value,
            self._choices, *self._bounds, self._state_width,
        )  # fmt: skip

    def shape(self, x: int) -> tuple[int, ...]:
        """Of one row of buffer `x`."""
        return self._buffers[x].shape

    def width(self, x: int) -> int:
        """Elements of one row of buffer `x`."""
        return self._buffers[x].width

    @property
    def is_continuous(self) -> bool:
        return not self._choices

    def _recurrent(self, kind: str, x: int, units: int, weights: Sequence[Weight]) -> int:
        at = self._state_width
        self._state_width += RECURRENT[kind] * units
        return self._append(kind, (x,), (units,), {"state": at}, weights)

    def _convolution(
        self,
        kind: str,
        x: int,
        shape: tuple[int, ...],
        out: int,
        name: str,
        kernel: tuple[int, int],
        stride: int,
        gain: float,
        attrs: Mapping[str, Any],
    ) -> int:
        rows, columns, channels = shape
        if not (1 <= kernel[0] <= rows and 1 <= kernel[1] <= columns) or stride < 1 or out < 1:
            raise ProgramError(
                f"{name}: {out} channels by a kernel of {kernel[0]} x {kernel[1]} and stride {stride} over "
                f"{rows} x {columns}"
            )
        weights = [
            self._weight(f"{name}.weight", (out, channels, *kernel), gain=gain),
            self._weight(f"{name}.bias", (out,)),
        ]
        output = ((rows - kernel[0]) // stride + 1, (columns - kernel[1]) // stride + 1, out)
        return self._append(kind, (x,), output, {"stride": stride, **attrs}, weights)

    def _elementwise(self, kind: str, x: int, y: int) -> int:
        if self.width(x) != self.width(y):
            raise ProgramError(f"{kind} of {self.width(x)} and {self.width(y)} elements")
        return self._append(kind, (x, y), self._buffers[x].shape)

    def _buffer(self, dtype: str, shape: tuple[int, ...]) -> int:
        if len(shape) > MAX_DIMS or any(size < 1 for size in shape):
            raise ProgramError(f"shape {shape}: at most {MAX_DIMS} positive sizes are possible")
        self._buffers.append(Buffer(dtype, shape))
        return len(self._buffers) - 1

    def _weight(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        gain: float = 0.0,
        value: float = 0.0,
        trainable: bool = True,
    ) -> Weight:
        if name in self._names or not name.isascii() or len(name) > 63:
            raise ProgramError(f"weight name {name!r}: it must be new, ASCII and at most 63 characters")
        weight = Weight(name, shape, self._count, float32(gain), value, trainable)
        self._names.add(name)
        self._count += weight.count
        return weight

    def _append(
        self,
        kind: str,
        inputs: tuple[int, ...],
        shape: tuple[int, ...],
        attrs: Mapping[str, Any] | None = None,
        weights: Sequence[Weight] = (),
        dtype: str = "float32",
    ) -> int:
        output = self._buffer(dtype, shape)
        self._ops.append(Op(kind, inputs, output, dict(attrs or {}), tuple(weights)))
        return output
