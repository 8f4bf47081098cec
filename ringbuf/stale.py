"""Whose a segment in shared memory is: a run's that lives, or one's that is gone and left it behind.

A run lives while somebody holds its lock or a process of its table lives: one with that pid and start time,
in this boot and this pid namespace. A pid alone tells nothing, since it is given out again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringbuf._ring import MAX_PROCESSES, Control
from ringbuf.errors import RingError

UNDER_CREATION_SECONDS = 60.0
LOCK = "lock"  # of a run directory
READY = (128, 0x52454144594F4B21)  # offset and value in hr_segment
NAME = re.compile(r"headrace-\d+-(?P<run>[0-9a-f]{32})-(?P<part>control|weights|ring-\d+)")

LIVE = "live"
GONE = "gone"
HALF_MADE = "half-made"  # its creator died before it was ready
FOREIGN = "foreign pid namespace"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Segment:
    name: str
    run_id: str
    part: str
    bytes: int


@dataclass(frozen=True)
class Run:
    """The segments of one run. `owner`: live, gone, half-made, foreign pid namespace or unknown; `why`: by
    what that is known. `removable`: they are of no use to anybody who lives."""

    segments: Sequence[Segment]
    directory: str | None
    owner: str
    why: str
    removable: bool


def runs(folder: Path, proc: Path = Path("/proc")) -> list[Run]:
    """All runs of this user that have segments in `folder`."""
    found: dict[str, list[Segment]] = {}
    for path in sorted(folder.glob(f"headrace-{os.getuid()}-*")):
        match = NAME.fullmatch(path.name)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if match:
                one = Segment(path.name, match["run"], match["part"], path.stat().st_size)
                found.setdefault(match["run"], []).append(one)
    users = _users(proc)
    return [_judge(folder, segments, users, proc) for segments in found.values()]


def remove(folder: Path, run: Run) -> bool:
    """Removes a run's segments, unless it turns out that somebody has begun to go on with it."""
    with _locked(run.directory) as holder:
        if holder is not None:
            return False
        for segment in run.segments:
            (folder / segment.name).unlink(missing_ok=True)
    return True


def _judge(folder: Path, segments: Sequence[Segment], users: Mapping[str, int], proc: Path) -> Run:
    def run(owner: str, why: str, removable: bool = False, directory: str | None = None) -> Run:
        return Run(segments, directory, owner, why, removable)

    in_use = next((users[one.name] for one in segments if one.name in users), None)
    control = next((folder / one.name for one in segments if one.part == "control"), None)
    if control is None or not _ready(control):
        if in_use is not None:
            return run(LIVE, f"process {in_use} has it open")
        with contextlib.suppress(FileNotFoundError):
            age = time.time() - max((folder / one.name).stat().st_mtime for one in segments)
            if age < UNDER_CREATION_SECONDS:
                return run(HALF_MADE, f"may be under creation, for {age:.0f} s so far")
        return run(HALF_MADE, "no process has it open", True)
    try:
        block = _attach(control)
    except (OSError, RingError) as error:
        # In memory that outlived its boot, nobody has.
        return run(GONE, str(error), True) if "reboot" in str(error) else run(UNKNOWN, str(error))
    directory = block.directory or None
    if block.pid_namespace != (proc / "self/ns/pid").stat().st_ino:
        return run(FOREIGN, "its processes cannot be seen from here", False, directory)
    for index in range(MAX_PROCESSES):
        one = block.process(index)
        if one.pid and _start_time(proc, one.pid) == one.start_time:
            return run(LIVE, f"process {one.pid} lives ({one.role} {one.role_index})", False, directory)
    if in_use is not None:
        return run(LIVE, f"process {in_use} has it open", False, directory)
    with _locked(directory) as holder:
        if holder is not None:
            return run(LIVE, holder, False, directory)
    return run(GONE, "no process of its lives", True, directory)


def _attach(path: Path) -> Control:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return Control.attach(fd, 0, path.name)  # the mapping does without the descriptor
    finally:
        os.close(fd)


def _ready(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(READY[0])
            return struct.unpack("=Q", file.read(8)) == READY[1:]
    except (OSError, struct.error):
        return False


@contextlib.contextmanager
def _locked(directory: str | None) -> Iterator[str | None]:
    """Holds the run's lock if it is free: nobody begins with the run meanwhile. Yields who has it otherwise;
    None also where there is no lock any more."""
    try:
        fd = os.open(Path(directory or "", LOCK), os.O_RDONLY | os.O_CLOEXEC) if directory else None
    except OSError:
        fd = None
    if fd is None:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield None
    except BlockingIOError:
        yield f"somebody holds {directory}/{LOCK}"
    finally:
        os.close(fd)


def _start_time(proc: Path, pid: int) -> int | None:
    """Of a process, in clock ticks since boot; None: there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _users(proc: Path) -> dict[str, int]:
    """Segments that a process other than this one has open or mapped, with its pid."""
    users: dict[str, int] = {}
    for process in proc.glob("[0-9]*"):
        pid = int(process.name)
        if pid == os.getpid():
            continue
        texts: list[Any] = []
        with contextlib.suppress(OSError):
            texts += [os.readlink(link) for link in (process / "fd").iterdir()]
        with contextlib.suppress(OSError):
            texts.append((process / "maps").read_text(errors="replace"))
        for text in texts:
            for match in NAME.finditer(text):
                users.setdefault(match[0], pid)
    return users
