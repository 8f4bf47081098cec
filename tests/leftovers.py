"""What this session of tests has left behind: segments in shared memory, processes.

Others may run on the machine meanwhile, another session of tests among them. What is theirs they have open,
or its control block names a directory of theirs.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from command import SHM, segments

SEGMENT = re.compile(rf"headrace-{os.getuid()}-([0-9a-f]{{32}})-")


def segments_of(folder: Path, before: set[str]) -> set[str]:
    """New segments of this session, whose runs have their directories in `folder`, or none."""
    new = segments() - before
    ours = {run for run in set(map(_run_of, new)) if _is_ours(run, folder)}
    return {name for name in new if _run_of(name) in ours}


def children() -> list[str]:
    """Command lines of our children; multiprocessing's tracker ends with the interpreter."""
    found = []
    for pid, parent in _processes():
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
            if parent == os.getpid() and "resource_tracker" not in line:
                found.append(line)
    return found


def _run_of(name: str) -> str:
    match = SEGMENT.search(name)
    return match[1] if match else name


def _is_ours(run: str, folder: Path) -> bool:
    directory = _directory_of(run)
    return Path(directory).is_relative_to(folder) if directory else run not in _runs_of_others()


def _directory_of(run: str) -> str:
    """As the run's control block names it; empty where that is none, half-made or of another build."""
    from ringbuf import Control, RingError

    try:
        with (SHM / f"headrace-{os.getuid()}-{run}-control").open("rb+") as file:
            return Control.attach(file.fileno(), 0).directory
    except (OSError, RingError):
        return ""


def _runs_of_others() -> set[str]:
    """Of which a process that does not descend from this one has a segment open."""
    family, found = _family(), set()
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) not in family:
            with contextlib.suppress(OSError):
                texts = [os.readlink(link) for link in (process / "fd").iterdir()]
                texts.append((process / "maps").read_text(errors="replace"))
                found |= {match[1] for text in texts for match in SEGMENT.finditer(text)}
    return found


def _family() -> set[int]:
    """This process and all that descend from it."""
    born: dict[int, list[int]] = {}
    for pid, parent in _processes():
        born.setdefault(parent, []).append(pid)
    found, new = set[int](), [os.getpid()]
    while new:
        found.add(pid := new.pop())
        new += born.get(pid, [])
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """(pid, parent) of every process."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone in between
            yield int(process.name), int((process / "stat").read_text().rpartition(")")[2].split()[1])
