"""Reading a slot that was set aside: the files that a run keeps under `bad/` in its directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Dump:
    """One slot. `fields`: each as the producer wrote it, shaped as the plan says (docs/simulators.md), e.g.
    obs [horizon + 1, agents, ...]; `facts`: the .json beside it, with the slot's header under `header`."""

    fields: dict[str, np.ndarray]
    facts: dict[str, Any]


def read(path: str | Path) -> Dump:
    """`path`: the .bin of a dump. The episode records keep their bytes: [records, bytes of one], uint8.

    Raises OSError where a file is missing, ValueError where the two do not fit each other.
    """
    path = Path(path)
    facts = json.loads(path.with_suffix(".json").read_text())
    payload = path.read_bytes()
    if len(payload) != facts["bytes"]:
        raise ValueError(f"{path}: {len(payload)} bytes; {path.with_suffix('.json')} says {facts['bytes']}")
    fields = {}
    for name, field in facts["fields"].items():
        dtype, shape = np.dtype(field["dtype"]), field["shape"]
        count = int(np.prod(shape))
        fields[name] = np.frombuffer(payload, dtype, count, field["offset"]).reshape(shape)
    return Dump(fields, facts)
