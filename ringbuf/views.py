"""Numpy views of slots and copies of weights: the only place here that imports numpy, and only on call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringbuf.errors import RingError
from ringbuf.plan import FIELDS

if TYPE_CHECKING:
    import numpy as np

    from ringbuf._ring import Claim, Lease, Weights


def field(slot: Lease | Claim, name: str) -> np.ndarray | None:
    """The field in place, shaped as the plan says; None if the plan lacks it. The view keeps the slot from
    being given away (as does a `torch.from_numpy` of it)."""
    import numpy as np

    if name not in FIELDS:
        raise KeyError(f"{name!r} is none of {', '.join(FIELDS)}")
    f = slot.plan.fields.get(name)
    if f is None:
        return None
    dtype = np.dtype(f.dtype)
    return np.frombuffer(memoryview(slot), dtype, f.bytes // dtype.itemsize, f.offset).reshape(f.shape)


def episodes(lease: Lease) -> np.ndarray:
    """A copy of the records of episodes that ended in the slot: version, agent, length, ret, statistics."""
    import numpy as np

    plan = lease.plan
    dtype = np.dtype({
        "names": ["version", "agent", "length", "ret", "statistics"],
        "formats": ["i8", "i4", "i4", "f4", ("f4", (plan.statistics,))],
        "offsets": [0, 8, 12, 16, 20], "itemsize": plan.episode_bytes})
    return np.frombuffer(memoryview(lease), dtype, lease.episode_count, plan.fields["episodes"].offset).copy()


def weights(channel: Weights, version: int | None = None) -> tuple[int, np.ndarray]:
    """The newest version, or `version`, as a copy. RingError if it is not published yet, or overtaken."""
    import numpy as np

    out = np.empty(channel.count, np.float32)
    while True:
        newest = channel.published
        if newest is None:
            raise RingError("no version has been published yet")
        wanted = newest if version is None else version
        if wanted > newest:
            raise RingError(f"version {wanted} is not there yet: the newest is {newest}")
        if channel.copy_into(wanted, out):
            return wanted, out
        if version is not None:
            raise RingError(f"version {version} has been overwritten: the newest is {channel.published}")
