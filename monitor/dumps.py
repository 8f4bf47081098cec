"""Slots that were set aside, kept as files: the payload as it lay in memory, and what is needed to read it.

`consumers/dumps.py` reads them.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from monitor.rundir import write_json

FOLDER = "bad"
PIECE_BYTES = 1 << 20


def dump(ring: Any, sequence: int, folder: Path, keep: int) -> Path | None:
    """Writes `ring-<r>-slot-<sequence>.bin` and the .json beside it that says what is in it, and deletes all
    but the newest `keep` of these; returns the path of the .bin.

    The slot must be set aside, so that nobody writes there. Read in pieces from the ring's descriptor: the
    payload is never mapped here, and may be larger than what this process is to use. None where there is no
    room for it, or none is to be kept.
    """
    if keep == 0:
        return None
    path = folder / f"ring-{ring.index}-slot-{sequence}.bin"
    try:
        folder.mkdir(exist_ok=True)
        _prune(folder, keep - 1)
        offset, size = ring.slot_range(sequence)
        _copy(ring.fd, offset, size, path)
        write_json(path.with_suffix(".json"), _description(ring, sequence, size))
    except OSError:
        for left in (path, path.with_suffix(".json")):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
        return None
    return path


def _copy(source: int, offset: int, size: int, path: Path) -> None:
    with open(path, "wb") as file:
        for done in range(0, size, PIECE_BYTES):
            file.write(os.pread(source, min(PIECE_BYTES, size - done), offset + done))


def _description(ring: Any, sequence: int, size: int) -> dict[str, Any]:
    plan = ring.plan
    return {
        "ring": ring.index,
        "sequence": sequence,
        "bytes": size,
        "header": ring.header(sequence),
        "simulator": plan.sim,
        "parameters": dict(plan.params),
        "horizon": plan.horizon,
        "agents": plan.agents,
        "first_world": plan.first_world,
        "run_seed": plan.run_seed,
        "fields": {
            name: {"dtype": field.dtype, "shape": list(field.shape), "offset": field.offset}
            for name, field in plan.fields.items()
        },
        "episode_bytes": plan.episode_bytes,
        "statistics": plan.statistics,
        "time": time.time(),
    }


def _prune(folder: Path, keep: int) -> None:
    """Leaves the newest `keep` dumps."""
    dumps = sorted(folder.glob("ring-*.bin"), key=lambda path: path.stat().st_mtime_ns)
    for path in dumps[: max(0, len(dumps) - keep)]:
        path.unlink()
        path.with_suffix(".json").unlink(missing_ok=True)
