"""Slots registered with CUDA, so that copies to the GPU are DMA transfers that do not wait for the CPU."""

from __future__ import annotations

import sys

import numpy as np
import torch

from ringbuf import Lease

READ_ONLY = 8  # cudaHostRegisterReadOnly: a learner maps the payload so


class Pinned:
    """Registers each slot when it is leased for the first time; for the life of the process."""

    def __init__(self, device: torch.device):
        self._known: set[int] = set()
        self._works = device.type == "cuda"

    def pin(self, lease: Lease) -> None:
        """Nothing on a CPU. Where CUDA refuses, says so once; copies are then slower, not wrong."""
        if not self._works:
            return
        payload = np.frombuffer(memoryview(lease), np.uint8)
        address = payload.ctypes.data
        if address in self._known:
            return
        error = int(torch.cuda.cudart().cudaHostRegister(address, payload.nbytes, READ_ONLY))
        if error == 0:
            self._known.add(address)
            return
        self._works = False
        print(
            f"learner: cudaHostRegister failed ({error}): slots are copied from pageable memory",
            file=sys.stderr,
        )
        try:
            torch.zeros(1, device="cuda")  # takes the error that the refusal left pending
        except RuntimeError:
            pass
