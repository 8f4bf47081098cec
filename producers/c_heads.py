"""Actions and log-probabilities from logits (producers/policy_draw.h), through ctypes and numpy: what the
inference server draws with, so that it takes the same action as a producer would from the same logits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = Path(__file__).with_name("policy.so")
ROWS = 16  # of a group: SAMPLE_ROWS of producers/policy_sample.h

_pointer: Any = ctypes.c_void_p
_u32, _u64, _size = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t


class CHeads:
    """The action heads of one simulator: `choices` [heads], or as many continuous ones as `heads` says."""

    def __init__(self, choices: Sequence[int], heads: int, library: Path = LIBRARY):
        if not library.exists():
            raise FileNotFoundError(f"{library} is missing: run make build")
        loaded = ctypes.CDLL(str(library))
        self.heads, self.width = heads, sum(choices) or heads
        self._choices = np.array(choices, np.int32)
        if choices:
            self._draw = loaded.hr_policy_draw
            self._draw.argtypes = [_pointer, _pointer, _pointer, _u32, _size, _u64, _u64, _u64] + [
                _pointer
            ] * 3
            loaded.hr_policy_draw_floats.argtypes = [_pointer, _u32]
            loaded.hr_policy_draw_floats.restype = _size
            floats = loaded.hr_policy_draw_floats(self._choices.ctypes.data, heads)
        else:
            self._draw = loaded.hr_policy_draw_gaussian
            self._draw.argtypes = [_pointer, _pointer, _u32, _size, _u64, _u64, _u64] + [_pointer] * 3
            floats = ROWS * heads
        self._draw.restype = None
        self._scratch = np.empty(floats, np.float32)

    def draw(
        self,
        logits: NDArray[np.float32],
        mask: NDArray[np.uint8] | None,
        log_std: NDArray[np.float32] | None,
        key: int,
        first_agent: int,
        step: int,
        actions: NDArray,
        log_prob: NDArray[np.float32],
    ) -> None:
        """From contiguous logits [n, sum(choices)] (means [n, heads] with `log_std` [heads]) and mask of the
        same shape, into contiguous actions [n, heads] int32 or float32 and log_prob [n]. Row i is agent
        first_agent + i."""
        for array, width in ((logits, self.width), (actions, self.heads)):
            if array.shape != (len(log_prob), width) or not array.flags.c_contiguous:
                raise ValueError(f"{array.shape} where a contiguous {(len(log_prob), width)} is needed")
        where = (self._scratch.ctypes.data, actions.ctypes.data, log_prob.ctypes.data)
        noise = (self.heads, len(log_prob), key, first_agent, step)
        if len(self._choices):
            allowed = None if mask is None else mask.ctypes.data
            self._draw(logits.ctypes.data, allowed, self._choices.ctypes.data, *noise, *where)
        else:
            assert log_std is not None
            self._draw(logits.ctypes.data, log_std.ctypes.data, *noise, *where)
