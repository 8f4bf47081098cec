"""A network that no program describes: sizes and names of a user's torch module, and how they are encoded.

Where a policy program stands (header of the weights channel, checkpoints), such a description can stand in
its place; `decode` reads either. `consumers.probe` makes one, in a process of its own; `consumers.modules`
makes the module. Imports neither torch nor numpy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producers.program_format import Buffer, Program, ProgramError, Weight

MAGIC = b"HRMODULE"


@dataclass(frozen=True)
class Opaque(Program):
    """Has what a program has but for operations. `module`: `package.module:Class`; `spec` and `settings`:
    JSON of what it is made with; `tensors`: its parameters in their order."""

    module: str = ""
    spec: str = "{}"
    settings: str = "{}"
    tensors: tuple[Weight, ...] = ()

    @property
    def weights(self) -> tuple[Weight, ...]:
        return self.tensors

    @property
    def log_std(self) -> Weight | None:
        """The parameter of that name, which a module for continuous actions has."""
        return next((one for one in self.tensors if one.name == "log_std"), None) if self.continuous else None

    def encode(self) -> bytes:
        facts = {
            "module": self.module,
            "spec": json.loads(self.spec),
            "settings": json.loads(self.settings),
            "state_width": self.state_width,
            "tensors": [(one.name, one.shape) for one in self.tensors],
        }
        return MAGIC + json.dumps(facts, sort_keys=True).encode()


def opaque(
    module: str, spec: Mapping[str, Any], settings: Mapping[str, Any], state_width: int, tensors: Any
) -> Opaque:
    """`tensors`: (name, shape) of the parameters in their order; `spec`: what `producer --describe` prints.
    Raises ProgramError where a module for continuous actions lacks its log_std."""
    heads = spec["heads"]
    choices = tuple(head["choices"] for head in heads if "choices" in head)
    low = tuple(float(head["low"]) for head in heads if "low" in head)
    high = tuple(float(head["high"]) for head in heads if "high" in head)
    weights, at = [], 0
    for name, shape in tensors:
        weights.append(Weight(name, tuple(shape), at))
        at += math.prod(shape)
    buffers = [
        Buffer(spec["obs"]["dtype"], tuple(spec["obs"]["shape"])),
        Buffer("int32" if choices else "float32", (len(heads),)),
        Buffer("float32", (1,)),
    ]
    mask = None
    if spec.get("mask"):
        mask = len(buffers)
        buffers.append(Buffer("uint8", (sum(choices),)))
    made = Opaque(
        tuple(buffers), (), 0, mask, 1, 2, choices, low, high, state_width, module=module,
        spec=json.dumps(spec, sort_keys=True), settings=json.dumps(settings, sort_keys=True),
        tensors=tuple(weights),
    )  # fmt: skip
    if made.continuous and (made.log_std is None or made.log_std.shape != (len(heads),)):
        raise ProgramError(f"{module}: continuous actions need a parameter log_std of shape [{len(heads)}]")
    return made


def decode(data: bytes) -> Program:
    """A program or such a description. Raises ProgramError where it is neither, or damaged."""
    if not data.startswith(MAGIC):
        return Program.decode(data)
    try:
        facts = json.loads(bytes(data[len(MAGIC) :]).rstrip(b"\0"))
        return opaque(
            **{name: facts[name] for name in ("module", "spec", "settings", "state_width", "tensors")}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ProgramError(f"damaged description of a module: {error}") from error
