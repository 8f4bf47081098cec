"""What every test leaves behind: nothing. No segment in shared memory, no process."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rings import Rig

SHM = Path("/dev/shm")


@pytest.fixture
def rig() -> Iterator[type[Rig]]:
    """The class Rig; all that the test makes of it is closed and unlinked afterwards, also when it fails."""
    yield Rig
    for made in Rig.made:
        made.close()
    Rig.made.clear()


def _segments() -> set[str]:
    return {path.name for path in SHM.glob(f"headrace-{os.getuid()}-*")}


def _open_somewhere(names: set[str]) -> set[str]:
    """Those that a process of this machine has open or mapped: another run beside ours."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "maps").read_text()
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:
            continue  # gone in between, or not ours to look at
        found |= {name for name in names if f"{SHM}/{name}" in text or f"{SHM}/{name}" in links}
    return found


def _children() -> list[str]:
    """Command lines of our child processes; multiprocessing's tracker ends with the interpreter."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            line = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if parent == os.getpid() and "resource_tracker" not in line:
            lines.append(f"{process.name} {line}")
    return lines


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """At the end of the session none of its segments is in shared memory and no child process is left."""
    before = _segments()
    yield
    deadline = time.monotonic() + 10
    while True:
        new = _segments() - before
        left, children = new - _open_somewhere(new), _children()
        if (not left and not children) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert not left, f"segments left in {SHM}"
    assert not children, "processes left"
