"""What this session of tests has left behind: segments in shared memory, processes.

Others may run on the machine meanwhile, another session of tests among them, and may leave what they like.
Ours are the segments that this process has made, and those of runs whose directories are the session's.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from command import SHM, segments

from ringbuf import Control, RingError
from ringbuf import segments as makers

SEGMENT = re.compile(rf"headrace-{os.getuid()}-([0-9a-f]{{32}})-")

_made: set[str] = set()


def note_what_is_made() -> None:
    """Notes the names of all segments that this process makes from now on."""
    allocate = makers._allocate

    def noting(name: str, *rest: Any) -> int:
        _made.add(name.removeprefix("/"))
        return allocate(name, *rest)

    makers._allocate = noting


def segments_of(folder: Path, before: set[str]) -> set[str]:
    """New segments of this session; `folder` holds the directories of its runs."""
    return {name for name in segments() - before if name in _made or _is_of(folder, name)}


def children() -> list[str]:
    """Command lines of our children; multiprocessing's tracker ends with the interpreter."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone in between
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            line = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
            if parent == os.getpid() and "resource_tracker" not in line:
                found.append(line)
    return found


def _is_of(folder: Path, name: str) -> bool:
    """Whether the control block of the segment's run names a directory in `folder`."""
    run = SEGMENT.match(name)
    if run is None:
        return False
    try:
        with (SHM / f"{run[0]}control").open("rb+") as file:
            directory = Control.attach(file.fileno(), 0).directory
    except (OSError, RingError):  # none, half-made, or of another build
        return False
    return bool(directory) and Path(directory).is_relative_to(folder)
