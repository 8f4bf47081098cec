"""Creating and removing segments of shared memory; the supervisor's.

A segment is created empty, filled with real pages (`posix_fallocate`, then populated: a full tmpfs is an
error here and not a SIGBUS in the middle of a run), written, and marked ready last. """

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import TypeVar

import posix_ipc

from ringbuf import _ring
from ringbuf._ring import Control, Ring, Weights
from ringbuf.errors import ResourceMissing, RingError
from ringbuf.plan import Plan

SHM_DIRECTORY = "/dev/shm"
PIECE_BYTES = 1 << 30  # a signal restarts posix_fallocate on tmpfs from nothing: small pieces get through
MEMORY_SHARE = 0.75  # of the machine's memory or the container's limit that rings may take
SMALLER = "ring.slots, producers.agents or rollout.horizon"

T = TypeVar("T")

log = logging.getLogger(__name__)


def name(run_id: bytes, part: str) -> str:
    """`/headrace-<uid>-<run id>-<part>`; part is 'control', 'weights' or 'ring-<n>'."""
    return f"/headrace-{os.getuid()}-{run_id.hex()}-{part}"


def ring_bytes(plan: Plan, slots: int) -> int:
    """Length of a ring's segment. RingError if the plan is impossible."""
    return _ring.ring_bytes(plan.pack(), slots)


def weights_bytes(count: int, buffers: int, program_bytes: int, snapshot_bytes: int,
                  list_entries: int) -> int:
    """Length of the weights channel's segment. RingError if there are fewer than 3 buffers."""
    return _ring.weights_bytes(count, buffers, program_bytes, snapshot_bytes, list_entries)


def control_bytes() -> int:
    """Length of the control block."""
    return _ring.control_bytes()


def preflight(total_bytes: int, directory: str = SHM_DIRECTORY, proc: str = "/proc",
              cgroup: str = "/sys/fs/cgroup") -> None:
    """Raises ResourceMissing, naming the number needed and the number found, if segments of `total_bytes`
    together do not fit the free space of `directory` or a sound share of the memory there is."""
    needed = _size(total_bytes)
    try:
        facts = os.statvfs(directory)
    except OSError as error:
        raise ResourceMissing(f"shared memory: {directory}: {error.strerror}") from None
    free, size = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    if size > 0 and total_bytes > free:
        raise ResourceMissing(
            f"shared memory: {needed} needed, but {directory} has {_size(free)} free of {_size(size)}. "
            f"Give it more (docker run --shm-size={_gibibytes(total_bytes)}g; Kubernetes: an emptyDir with "
            f"medium: Memory at {directory}), or make {SMALLER} smaller.")
    limits = {"the machine has": _machine_bytes(proc), "the cgroup may use": _cgroup_bytes(proc, cgroup)}
    for what, limit in limits.items():
        if limit is not None and total_bytes > MEMORY_SHARE * limit:
            raise ResourceMissing(
                f"shared memory: {needed} needed, but {what} {_size(limit)} of memory, of which rings may "
                f"take {_size(int(MEMORY_SHARE * limit))}. Make {SMALLER} smaller, or give it more memory "
                f"(docker run --memory).")


def memory_bytes(proc: str = "/proc", cgroup: str = "/sys/fs/cgroup") -> int | None:
    """The machine's memory, or what this process' cgroup may use of it; None: not known."""
    limits = (_machine_bytes(proc), _cgroup_bytes(proc, cgroup))
    return min((limit for limit in limits if limit is not None), default=None)


def create_control(name: str, run_id: bytes, directory: str = "") -> Control:
    """The control block of a run, attached as process 0. `directory`: absolute path of the run directory, at
    most 1023 bytes; '' for a run without one."""
    fd = _allocate(name, control_bytes())
    try:
        _ring.format_control(fd, run_id, directory)
        return Control.attach(fd, 0, name, close_fd=True)
    except BaseException:
        _discard(name, fd)
        raise


def create_weights(name: str, *, count: int, buffers: int, program: bytes, snapshot_bytes: int,
                   list_entries: int, run_id: bytes) -> Weights:
    """The weights channel, attached as supervisor (lists only). `count`: float32 values of one version;
    `list_entries`: slots of a batch."""
    fd = _allocate(name, weights_bytes(count, buffers, len(program), snapshot_bytes, list_entries))
    try:
        huge = _ring.format_weights(fd, count, buffers, program, snapshot_bytes, list_entries, run_id)
        log.info("%s: huge pages: %s", name, huge)
        return Weights.attach(fd, "supervisor", name, close_fd=True)
    except BaseException:
        _discard(name, fd)
        raise


def create_ring(name: str, plan: Plan, slots: int, run_id: bytes, control: Control) -> Ring:
    """A ring without an owner, attached as supervisor (headers only; its payload is not mapped)."""
    fd = _allocate(name, ring_bytes(plan, slots))
    try:
        huge = _ring.format_ring(fd, plan.pack(), slots, run_id)
        log.info("%s: huge pages: %s", name, huge)
        return Ring.attach(fd, control, "supervisor", 0, name, close_fd=True)
    except BaseException:
        _discard(name, fd)
        raise


def attach_control(name: str) -> Control:
    """An existing control block, as process 0. Raises RingError where there is none that is sound."""
    return _attach(name, lambda fd: Control.attach(fd, 0, name, close_fd=True))


def attach_weights(name: str) -> Weights:
    """An existing weights channel, as supervisor. Raises RingError where there is none that is sound."""
    return _attach(name, lambda fd: Weights.attach(fd, "supervisor", name, close_fd=True))


def attach_ring(name: str, control: Control) -> Ring:
    """An existing ring, as supervisor. Raises RingError where there is none that is sound."""
    return _attach(name, lambda fd: Ring.attach(fd, control, "supervisor", 0, name, close_fd=True))


def _attach(name: str, attach: Callable[[int], T]) -> T:
    try:
        fd = posix_ipc.SharedMemory(name).fd
    except posix_ipc.ExistentialError:
        raise RingError(f"shared memory: {name} does not exist") from None
    except (OSError, posix_ipc.PermissionsError) as error:
        raise RingError(f"shared memory: {name} cannot be opened: {error}") from None
    os.set_inheritable(fd, False)
    try:
        return attach(fd)
    except BaseException:
        _close(fd)
        raise


def unlink(name: str) -> None:
    """Removes the name; the memory goes with the last process that has it mapped. Nothing if it is gone
    already."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        pass
    except OSError as error:
        if error.errno != errno.EROFS:  # where nothing can have been created
            raise


def _allocate(name: str, size: int) -> int:
    """A new segment of `size` zeroed bytes; its descriptor, closed on exec."""
    try:
        # size=0: posix_ipc's own size is a sparse ftruncate, which succeeds on a full tmpfs.
        fd = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0).fd
    except posix_ipc.ExistentialError:
        raise RingError(f"shared memory: {name} exists already") from None
    except (OSError, posix_ipc.PermissionsError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ResourceMissing(f"shared memory: {SHM_DIRECTORY} cannot be written: {why.lower()}") from None
    try:
        os.set_inheritable(fd, False)
        os.fchmod(fd, 0o600)  # whatever the umask
        for start in range(0, size, PIECE_BYTES):
            os.posix_fallocate(fd, start, min(PIECE_BYTES, size - start))  # tries again after a signal
    except OSError as error:
        _discard(name, fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        facts = os.statvfs(SHM_DIRECTORY)
        raise ResourceMissing(f"shared memory: {_size(size)} needed for {name}, but {SHM_DIRECTORY} has "
                              f"{_size(facts.f_bavail * facts.f_frsize)} free") from None
    except BaseException:
        _discard(name, fd)
        raise
    return fd


def _discard(name: str, fd: int) -> None:
    unlink(name)
    _close(fd)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # closed by the object that had taken it over already


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.1f} GiB"


def _gibibytes(count: int) -> int:
    return -(-count // (1 << 30)) + 1


def memory_limit_bytes(proc: str = "/proc", cgroup: str = "/sys/fs/cgroup") -> int:
    """Memory that this process' cgroup may use, or that the machine has where that is less; 0 where neither
    is told."""
    known = (_cgroup_bytes(proc, cgroup), _machine_bytes(proc))
    return min((limit for limit in known if limit is not None), default=0)


def _machine_bytes(proc: str) -> int | None:
    try:
        with open(f"{proc}/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemTotal:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # no /proc: nothing to compare with
    return None


def _cgroup_bytes(proc: str, cgroup: str) -> int | None:
    """The smallest memory limit of this process' cgroup and those above it, both versions; None: no limit."""
    limits = []
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return None
    for _, controllers, path in groups:
        if controllers == "":
            root, file = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = f"{cgroup}/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            try:
                with open("/".join([root, *parts[:depth], file]), encoding="ascii") as text:
                    value = text.read().strip()
            except OSError:
                continue  # seen from inside a container, the upper groups are not there
            if value.isdigit() and int(value) < 1 << 60:  # "max", or version 1's huge number: no limit
                limits.append(int(value))
    return min(limits, default=None)
