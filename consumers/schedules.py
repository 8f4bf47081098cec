"""Settings that may change over training: a constant, or a line or half cosine over the steps trained."""

from __future__ import annotations

import math
from typing import Protocol


class Ramp(Protocol):
    """`{start, end, kind: linear | cosine, steps}` of run.yaml; `steps` counts valid agent-steps trained."""

    start: float
    end: float
    kind: str
    steps: int


def value_at(setting: float | Ramp, trained_steps: int) -> float:
    """The setting after `trained_steps` valid agent-steps, each counted once however often it was reused.
    A ramp goes from `start` to `end` over its `steps` and stays there. Raises ValueError on an unknown
    kind."""
    if isinstance(setting, int | float):
        return float(setting)
    progress = min(max(trained_steps / setting.steps, 0.0), 1.0)
    if setting.kind == "cosine":
        progress = 0.5 - 0.5 * math.cos(math.pi * progress)
    elif setting.kind != "linear":
        raise ValueError(f"unknown kind of schedule {setting.kind!r}: linear or cosine")
    return setting.start + (setting.end - setting.start) * progress
