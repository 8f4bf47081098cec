"""What a policy program is, and how it is encoded: the data classes and the structs of producers/program.h.

A program is a list of typed operations on buffers, each buffer written once. producers/program.py makes them.
Imports neither torch nor numpy.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

MAGIC = 0x50475248
VERSION = 2
NO_BUFFER = 0xFFFFFFFF
MAX_DIMS = 4
MAX_HEADS = 16
MAX_PLANES = 16
MAX_VALUES = 256  # categories of a plane of bytes

DTYPES = {"uint8": 1, "int8": 2, "int32": 3, "float32": 4}
KINDS = {
    "cast_affine": 1,
    "slice": 2,
    "reshape": 3,
    "linear": 4,
    "conv2d": 5,
    "multihot_conv2d": 6,
    "embedding": 7,
    "add": 8,
    "mul": 9,
    "activation": 10,
    "layer_norm": 11,
    "lstm": 12,
    "mingru": 13,
    "concat": 14,
    "mask": 15,
    "head": 16,
}
ACTIVATIONS = {"relu": 1, "gelu-tanh": 2, "gelu-erf": 3, "tanh": 4, "sigmoid": 5}
DISTRIBUTIONS = {"categorical": 1, "multi-discrete": 2, "gaussian": 3}
RECURRENT = {"lstm": 2, "mingru": 1}  # float32 values that one unit carries from step to step
READS_BYTES = ("multihot_conv2d", "embedding")  # kinds that look at bytes of the observation as categories

# Attributes by kind, in the order of hr_op.integer and hr_op.real. A dict names the values of a choice, a
# number says how many places a tuple has, zeros behind its end.
_INTEGERS: dict[str, tuple[tuple[str, dict[str, int] | int | None], ...]] = {
    "cast_affine": (("per_feature", None), ("start", None)),
    "slice": (("start", None),),
    "linear": (("bias", None),),
    "conv2d": (("stride", None),),
    "multihot_conv2d": (
        ("stride", None),
        ("start", None),
        ("rows", None),
        ("columns", None),
        ("values", MAX_PLANES),
    ),
    "embedding": (("start", None),),
    "activation": (("function", ACTIVATIONS),),
    "lstm": (("state", None),),
    "mingru": (("state", None),),
    "head": (("distribution", DISTRIBUTIONS),),
}
_REALS: dict[str, tuple[str, ...]] = {
    "cast_affine": ("scale", "offset", "clip"),
    "layer_norm": ("epsilon",),
}
_MAX_INTEGERS = 24
_MAX_REALS = 4

_HEADER = struct.Struct("<IIQQ" + "12I" + "16i" + "16f16f")
_BUFFER = struct.Struct("<II4I")
_OP = struct.Struct(f"<7I{_MAX_INTEGERS}i{_MAX_REALS}fI")
_WEIGHT = struct.Struct("<QQI4IIff64s")
_LEARNER_ONLY = 1
_FROZEN = 1


class ProgramError(ValueError):
    """The network cannot be described, or the bytes are no program; the message says what and what to do."""


@dataclass(frozen=True)
class Weight:
    """One tensor of the flat float32 vector, in torch's layout ([out, in] of a linear operation)."""

    name: str  # its key in the torch module's state_dict
    shape: tuple[int, ...]
    offset: int  # float32 values before it
    init_gain: float = 0.0  # > 0: orthogonal with this gain; 0: constant `init_value`
    init_value: float = 0.0
    trainable: bool = True  # False: shipped with every version, but not touched by the optimizer

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Buffer:
    """One agent's row of a value: float32 but for observation, mask and action."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Op:
    """One operation: `kind` of KINDS, buffer indices, attributes by name, weights in order."""

    kind: str
    inputs: tuple[int, ...]
    output: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[Weight, ...] = ()


@dataclass(frozen=True)
class Program:
    """A whole network. `obs`, `mask` (None without action masks), `action` (the head's output) and `value`
    (None without one) are buffer indices. `choices` [heads] is empty for continuous actions, which have
    bounds instead. `state_width` float32 values an agent are carried from step to step: each recurrent
    operation's at the offset `state` of its attributes, in their order."""

    buffers: tuple[Buffer, ...]
    ops: tuple[Op, ...]
    obs: int
    mask: int | None
    action: int
    value: int | None
    choices: tuple[int, ...]
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    state_width: int = 0

    @property
    def heads(self) -> int:
        """Number of action heads."""
        return len(self.choices) or len(self.action_low)

    @property
    def continuous(self) -> bool:
        return not self.choices

    @property
    def logits(self) -> int:
        """Sum of the heads' choices: the width of logits and mask. Continuous: the number of heads, whose
        means then stand where logits do."""
        return sum(self.choices) or self.heads

    @property
    def log_std(self) -> Weight | None:
        """Of a Gaussian head: the logarithm of its standard deviations [heads]; None of any other."""
        return next((op.weights[0] for op in self.ops if op.kind == "head" and op.weights), None)

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """All weights in the order of the flat vector."""
        return tuple(weight for op in self.ops for weight in op.weights)

    @property
    def count(self) -> int:
        """Float32 values of the flat vector."""
        return sum(weight.count for weight in self.weights)

    @cached_property
    def learner_only(self) -> frozenset[int]:
        """Indices of the operations that no action and no recurrent state depends on: the actor skips them.
        (It carries the state of a recurrent value function too, so that a slot begins with it.)"""
        needed = {self.action}
        skipped = set()
        for index in reversed(range(len(self.ops))):
            if self.ops[index].output in needed or self.ops[index].kind in RECURRENT:
                needed.update(self.ops[index].inputs)
            else:
                skipped.add(index)
        return frozenset(skipped)

    def unpacked_step_bytes(self, spec: Mapping[str, Any]) -> int:
        """Bytes of one agent's observation as the first layer sees it, in the simulator's dtype; a grid of
        categories counts one byte a category."""
        obs = spec["obs"]
        packed = math.prod(obs["shape"]) * (1 if obs["dtype"] in ("uint8", "int8") else 4)
        grid = obs.get("grid")
        if grid is None:
            return packed
        return packed + grid["rows"] * grid["columns"] * (sum(grid["values"]) - grid["planes"])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the encoding, in hex: two processes with the same fingerprint mean the same network."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """The structs of producers/program.h."""
        inputs: list[int] = []
        ops, weights, next_weight = [], [], 0
        for index, op in enumerate(self.ops):
            integers, reals = _encode_attrs(op)
            flags = _LEARNER_ONLY if index in self.learner_only else 0
            ops.append(
                _OP.pack(
                    KINDS[op.kind], flags, len(inputs), len(op.inputs), op.output,
                    next_weight, len(op.weights), *integers, *reals, 0,
                )
            )  # fmt: skip
            inputs.extend(op.inputs)
            next_weight += len(op.weights)
        for weight in self.weights:
            weights.append(
                _WEIGHT.pack(
                    weight.offset, weight.count, len(weight.shape), *_padded(weight.shape, MAX_DIMS, 0),
                    0 if weight.trainable else _FROZEN, weight.init_gain, weight.init_value,
                    weight.name.encode("ascii"),
                )
            )  # fmt: skip
        buffers = [
            _BUFFER.pack(DTYPES[b.dtype], len(b.shape), *_padded(b.shape, MAX_DIMS, 0)) for b in self.buffers
        ]
        body = b"".join(buffers + ops + weights) + struct.pack(f"<{len(inputs)}I", *inputs)
        header = _HEADER.pack(
            MAGIC, VERSION, _HEADER.size + len(body), self.count,
            len(buffers), len(ops), len(weights), len(inputs),
            self.obs, _or_none(self.mask), self.action, _or_none(self.value),
            self.heads, self.logits, self.state_width, int(self.continuous),
            *_padded(self.choices, MAX_HEADS, 0),
            *_padded(self.action_low, MAX_HEADS, 0.0), *_padded(self.action_high, MAX_HEADS, 0.0),
        )  # fmt: skip
        return header + body

    @staticmethod
    def decode(data: bytes) -> "Program":
        """The inverse of `encode`; bytes behind the program are ignored. ProgramError if it is damaged."""
        try:
            return _decode(bytes(data))
        except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
            raise ProgramError(f"damaged policy program: {error}") from error


def _padded(values: Sequence[Any], length: int, filler: Any) -> list[Any]:
    return list(values) + [filler] * (length - len(values))


def _or_none(buffer: int | None) -> int:
    return NO_BUFFER if buffer is None else buffer


def _encode_attrs(op: Op) -> tuple[list[int], list[float]]:
    integers: list[int] = []
    for name, form in _INTEGERS.get(op.kind, ()):
        value = op.attrs[name]
        if isinstance(form, int):
            integers.extend(_padded(value, form, 0))
        else:
            integers.append(form[value] if form else int(value))
    reals = [float(op.attrs[name]) for name in _REALS.get(op.kind, ())]
    return _padded(integers, _MAX_INTEGERS, 0), _padded(reals, _MAX_REALS, 0.0)


def _decode_attrs(kind: str, integers: Sequence[int], reals: Sequence[float]) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    at = 0
    for name, form in _INTEGERS.get(kind, ()):
        if isinstance(form, int):
            attrs[name] = tuple(value for value in integers[at : at + form] if value)
        else:
            attrs[name] = _name_of(form, integers[at]) if form else integers[at]
        at += form if isinstance(form, int) else 1
    attrs.update(zip(_REALS.get(kind, ()), reals))
    return attrs


def _name_of(table: Mapping[str, int], number: int) -> str:
    return {value: name for name, value in table.items()}[number]


def _decode(data: bytes) -> Program:
    magic, version, size, count, *rest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProgramError("not a policy program")
    if version != VERSION:
        raise ProgramError(f"policy program of format {version}, this code reads {VERSION}")
    if len(data) < size:
        raise ProgramError(f"damaged policy program: {len(data)} of {size} bytes")
    n_buffers, n_ops, n_weights, n_inputs, obs, mask, action, value = rest[:8]
    heads, _, state_width, continuous = rest[8:12]
    choices, low, high = rest[12:28], rest[28:44], rest[44:60]
    position = _HEADER.size
    buffers = []
    for _ in range(n_buffers):
        dtype, dims, *sizes = _BUFFER.unpack_from(data, position)
        buffers.append(Buffer(_name_of(DTYPES, dtype), tuple(sizes[:dims])))
        position += _BUFFER.size
    ops_position, weights_position = position, position + n_ops * _OP.size
    weights = []
    for index in range(n_weights):
        values = _WEIGHT.unpack_from(data, weights_position + index * _WEIGHT.size)
        offset, shape = values[0], values[3 : 3 + values[2]]
        flags, gain, constant, encoded = values[7:]
        name = encoded.rstrip(b"\0").decode("ascii")
        weights.append(Weight(name, shape, offset, gain, constant, not flags & _FROZEN))
    inputs = struct.unpack_from(f"<{n_inputs}I", data, weights_position + n_weights * _WEIGHT.size)
    ops = []
    for index in range(n_ops):
        values = _OP.unpack_from(data, ops_position + index * _OP.size)
        kind, first, n, output, first_weight, n_own = _name_of(KINDS, values[0]), *values[2:7]
        reals = 7 + _MAX_INTEGERS
        attrs = _decode_attrs(kind, values[7:reals], values[reals : reals + _MAX_REALS])
        own = tuple(weights[index] for index in range(first_weight, first_weight + n_own))
        ops.append(Op(kind, tuple(inputs[i] for i in range(first, first + n)), output, attrs, own))
    program = Program(
        tuple(buffers), tuple(ops), obs, None if mask == NO_BUFFER else mask, action,
        None if value == NO_BUFFER else value, () if continuous else tuple(choices[:heads]),
        tuple(low[:heads]) if continuous else (), tuple(high[:heads]) if continuous else (), state_width,
    )  # fmt: skip
    if not _is_whole(program, count):
        raise ProgramError("damaged policy program: its parts do not fit")
    return program


def _is_whole(program: Program, count: int) -> bool:
    """Whether all that refers to something refers to something that is there."""
    shapes = [buffer.shape for buffer in program.buffers] + [weight.shape for weight in program.weights]
    if max(map(len, shapes), default=0) > MAX_DIMS:
        return False
    named = {program.obs, program.action, program.mask or 0, program.value or 0}
    named.update(*((*op.inputs, op.output) for op in program.ops))
    return program.count == count and program.heads <= MAX_HEADS and max(named) < len(program.buffers)


def float32(x: float) -> float:
    """As it will be read back, so that encoding and decoding give an equal program."""
    return struct.unpack("<f", struct.pack("<f", x))[0]
