"""Which core each producer is pinned to: affinity, cgroup cpuset and quota honoured, SMT siblings last."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


class NoSuchCore(Exception):
    """A core was asked for that the machine does not have."""


class CoreNotAllowed(Exception):
    """A core was asked for that this process may not run on."""


@dataclass(frozen=True)
class Machine:
    """Cores by their Linux numbers."""

    present: frozenset[int]
    """All cores of the machine, also those that are off or not ours."""
    usable: tuple[int, ...]
    """Cores this process may run on: one of each physical core first, then their SMT siblings."""
    quota_cores: float | None = None
    """CPU time that the cgroup grants, in cores; None: no quota."""

    @property
    def capacity(self) -> int:
        """How many processes can run at full speed at once."""
        if self.quota_cores is None:
            return len(self.usable)
        return max(1, min(len(self.usable), int(self.quota_cores)))


@dataclass(frozen=True)
class Placement:
    """The core of each producer, and what the user should know about it."""

    cores: tuple[int, ...]
    warnings: tuple[str, ...]


def place(machine: Machine, request: str | Sequence[int], producers: int) -> Placement:
    """The core of each of `producers` producers.

    `request`: `auto`, or the cores to use, in turn. Raises NoSuchCore or CoreNotAllowed for a listed core
    that cannot be had. `auto` never fails: with more producers than cores they share, and a warning says so.
    """
    warnings = []
    if isinstance(request, str):
        cores = machine.usable
        if producers > machine.capacity:
            granted = machine.quota_cores
            quota = f", of which the cgroup's quota grants {granted:g}" if granted is not None else ""
            usable = f"{len(cores)} usable cores ({_ranges(cores)})"
            warnings.append(f"{producers} producers share {usable}{quota}")
    else:
        cores = tuple(request)
        if absent := [core for core in cores if core not in machine.present]:
            raise NoSuchCore(f"found core {_ranges(absent)}; this machine has {_ranges(machine.present)}")
        if barred := [core for core in cores if core not in machine.usable]:
            raise CoreNotAllowed(
                f"core {_ranges(barred)} is outside what this process may use, {_ranges(machine.usable)} "
                f"(CPU affinity and the cgroup's cpuset); list others, widen the affinity, or use auto"
            )
        distinct = len(set(cores))
        if producers > distinct:
            warnings.append(f"{producers} producers share the {distinct} listed cores ({_ranges(cores)})")
    return Placement(tuple(cores[index % len(cores)] for index in range(producers)), tuple(warnings))


def read_machine(
    affinity: Iterable[int] | None = None, sys: Path = Path("/sys"), proc: Path = Path("/proc")
) -> Machine:
    """Reads this machine; `affinity` is by default the calling thread's."""
    allowed = set(os.sched_getaffinity(0) if affinity is None else affinity)
    present = _read_list(sys / "devices/system/cpu/present") or frozenset(allowed)
    quota = None
    for folder, version in _cgroups(sys, proc):
        cpuset = _read_list(folder / ("cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"))
        if cpuset and allowed & cpuset:
            allowed &= cpuset
        granted = _quota(folder, version)
        if granted is not None:
            quota = granted if quota is None else min(quota, granted)

    def rank(core: int) -> tuple[int, int]:
        siblings = _read_list(sys / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return sorted(siblings & allowed | {core}).index(core), core

    return Machine(frozenset(present), tuple(sorted(allowed, key=rank)), quota)


def _cgroups(sys: Path, proc: Path) -> list[tuple[Path, int]]:
    """Folders of this process' control groups and of all groups around them, with the cgroup version."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers:
            root, version = sys / "fs/cgroup", 2
        elif "cpuset" in names or "cpu" in names:
            root, version = sys / "fs/cgroup" / controllers, 1
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        folders += [(root.joinpath(*parts[:depth]), version) for depth in range(len(parts) + 1)]
    return folders


def _quota(folder: Path, version: int) -> float | None:
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _read_list(path: Path) -> frozenset[int]:
    """A kernel list such as `0-3,8`; empty where there is none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return frozenset()
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def _ranges(cores: Iterable[int]) -> str:
    """`0-3, 8` from cores."""
    spans: list[list[int]] = []
    for core in sorted(set(cores)):
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
