"""The learners of a run beside each other: what they tell each other, and how their gradients become one.

Several learners are copies of one training. Each has rings of its own and its part of every batch; what moves
the weights goes through `average`, so that the weights stay the same in all of them to the last bit. The
first leads: it publishes, keeps the books and saves. Whether they train or end, all judge by the same facts.

Every call here is a meeting: it returns when all learners have made it, and all make the same ones in the
same order. Who waits gives a heartbeat now and then, so that of two learners the one that hangs is found out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from consumers.snapshot import Packer, unpack

SLICE = timedelta(seconds=0.5)  # of a wait, after which the heartbeat is renewed
FOR_EVER = timedelta(days=365)  # only the supervisor judges who hangs
SHORT_BYTES = 1 << 14  # so much goes with the first message; what is longer takes a second
LENGTH_BYTES = 8
NO_LIMIT_BYTES = 1 << 62


class Lost(Exception):
    """Another learner is gone. The supervisor will see it too, and end this one."""


class Alone:
    """The one learner of a run, which has nobody to meet."""

    index, count = 0, 1
    leads = True

    def __init__(self) -> None:
        self.pulse: Callable[[], None] = lambda: None
        """Called now and then while waiting for others."""

    def gather(self, mine: Any) -> list[Any]:
        """What each learner says, in their order; anything that a snapshot can hold."""
        return [mine]

    def average(self, values: Tensor, weight: float) -> tuple[Tensor, float]:
        """The mean over the learners of values [n], weighted, and the sum of the weights. Values of weight 0
        do not count, whatever they are; without any weight the mean is 0."""
        return values, weight


class Group:
    """One of several learners; with the methods of Alone."""

    def __init__(self, meeting: int, index: int, count: int):
        """Returns when all have come. `meeting`: a descriptor of an empty file, the same for all, by which
        they find each other. Raises OSError where this machine has no loopback device, Lost."""
        import torch.distributed as dist  # a learner alone does without

        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname()).close()
        except OSError as error:
            raise OSError(f"several learners meet on the loopback device, which is down: {error}") from None
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # by default it asks what the machine's name stands for
        store = dist.FileStore(f"/proc/self/fd/{meeting}", count)
        try:
            dist.init_process_group("gloo", store=store, rank=index, world_size=count, timeout=FOR_EVER)
        except RuntimeError as error:
            raise Lost(f"learner {index} has lost another one before they had met: {error}") from error
        self.index, self.count, self.leads = index, count, index == 0
        self.pulse: Callable[[], None] = lambda: None
        self._dist = dist
        self._packer = Packer(NO_LIMIT_BYTES)

    def gather(self, mine: Any) -> list[Any]:
        packed = torch.frombuffer(self._packer.pack(mine), dtype=torch.uint8)
        first = torch.zeros(SHORT_BYTES, dtype=torch.uint8)
        first[:LENGTH_BYTES].view(torch.int64)[0] = len(packed)
        some = packed[: SHORT_BYTES - LENGTH_BYTES]
        first[LENGTH_BYTES : LENGTH_BYTES + len(some)] = some
        parts = self._all(first)
        lengths = [int(part[:LENGTH_BYTES].view(torch.int64)) for part in parts]
        parts = [part[LENGTH_BYTES:] for part in parts]
        if max(lengths) > SHORT_BYTES - LENGTH_BYTES:
            whole = torch.zeros(max(lengths), dtype=torch.uint8)
            whole[: len(packed)] = packed
            parts = self._all(whole)
        return [unpack(part[:n].numpy().data) for part, n in zip(parts, lengths, strict=True)]

    def average(self, values: Tensor, weight: float) -> tuple[Tensor, float]:
        summed = torch.zeros(len(values) + 1, dtype=values.dtype)
        if weight:
            torch.mul(values.cpu(), weight, out=summed[:-1])
        summed[-1] = weight
        self._wait(lambda: self._dist.all_reduce(summed, async_op=True))
        total = float(summed[-1])
        mean = summed[:-1].div_(total) if total else summed[:-1].zero_()
        return mean.to(values.device), total

    def _all(self, mine: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(mine) for _ in range(self.count)]
        self._wait(lambda: self._dist.all_gather(parts, mine, async_op=True))
        return parts

    def _wait(self, begin: Callable[[], Any]) -> None:
        try:
            work = begin()
            while not work.is_completed():
                try:
                    work.wait(SLICE)
                except RuntimeError:  # after the slice, or because a learner is gone: the last look tells
                    self.pulse()
            work.wait()
        except RuntimeError as error:
            raise Lost(f"learner {self.index} has lost another one: {error}") from error


Peers = Alone | Group


def join(meeting: int, index: int, count: int) -> Peers:
    """Meets the other learners, where there are any. Raises OSError, Lost."""
    return Group(meeting, index, count) if count > 1 else Alone()
