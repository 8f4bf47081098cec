"""What the kernel knows of a process: CPU time, memory, threads, descriptors, its parent's death."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    cpu_seconds: float
    resident_bytes: int
    threads: int
    start_ticks: int
    """Start time, clock ticks since boot: with the pid it tells a process from a later one of that pid."""


def usage(pid: int) -> Usage | None:
    """Usage of a process; None once it is dead, whether somebody has waited for it or not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command stands in parentheses and may hold anything, parentheses included; behind it is field 3.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return Usage(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        resident_bytes=int(fields[21]) * PAGE_BYTES,
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def open_descriptors(pid: int) -> int | None:
    """Number of open file descriptors; None once the process is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def users_of(path: Path) -> list[int]:
    """Other processes that have a file open, as far as this one may look."""
    wanted, found = os.path.realpath(path), set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == wanted:
                found.add(int(link.parts[2]))
    return sorted(found - {os.getpid()})


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when `parent`, a pid, dies; exits if it is dead already."""
    pr_set_pdeathsig = 1
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit("the supervisor is gone")


def boot_id() -> str:
    """Changes with every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def memory_bytes() -> int:
    """RAM of the machine."""
    return PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")


def cpu_model() -> str:
    """Name of the first CPU, or the architecture where the kernel gives none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Processes that the kernel killed for memory: in this process' cgroup, or where that does not tell on
    the whole machine; 0 where neither does. Only its growth means anything."""
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for counted in _lines(cgroups / path.lstrip("/") / "memory.events"):
                name, _, value = counted.partition(" ")
                if name == "oom_kill":
                    return int(value)
    for line in _lines(proc / "vmstat"):
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
