"""The run directory: its lock, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor import procfs

LOCK = "lock"
STATUS = "status.json"
SUMMARY = "summary.json"
EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
MANIFEST = "manifest.json"
EVALUATION = "evaluation.json"
RESOLVED = "config.resolved.yaml"
ATTEMPTS = "attempts"
LOGS = "logs"

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk
DYING_SECONDS = 10.0  # a start waits so long for the children of a supervisor that was just killed

ABSENT: dict[str, Any] = {}


class Unavailable(Exception):
    """The directory cannot be used: unwritable, or locked by a live run."""


class Nothing(Exception):
    """There is no run to go on with."""


class Finished(Exception):
    """The directory holds a run that is done. `summary`: its summary.json."""

    def __init__(self, summary: dict[str, Any]):
        super().__init__("done")
        self.summary = summary


@dataclass(frozen=True)
class Earlier:
    """What the attempts before left in a run directory. Their processes are dead, since the lock was free."""

    attempts: tuple[dict[str, Any], ...]
    """Their files in attempts/, oldest first."""
    summary: dict[str, Any] | None
    """Of the last attempt, if it came to its end."""
    status: dict[str, Any]
    """The last status.json, whichever attempt's; {} where there is none."""
    manifest: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Earlier | None:
        """None where no run has begun."""
        attempts = tuple(read_json(one) or {} for one in _attempt_files(path))
        summary = read_json(path / SUMMARY)
        if not attempts and summary is None:
            return None
        return cls(attempts, summary, read_json(path / STATUS) or {}, read_json(path / MANIFEST) or {})

    @property
    def last(self) -> dict[str, Any]:
        """The last attempt; {} where it wrote nothing that can be read."""
        return self.attempts[-1] if self.attempts else ABSENT

    @property
    def number(self) -> int:
        """Of the last attempt."""
        return int(self.last.get("attempt") or len(self.attempts) or 1)

    @property
    def state(self) -> str:
        """How the last attempt ended, in the words of summary.json; `killed`: it did not."""
        return str((self.summary or {}).get("state") or self.last.get("state") or "killed")


    @property
    def alive(self) -> int | None:
        """The pid of the last attempt's supervisor, if it lives: then somebody has deleted the lock."""
        pid, started = self.last.get("pid"), self.last.get("start_ticks")
        if self.last.get("boot_id") != procfs.boot_id() or not isinstance(pid, int) or pid == os.getpid():
            return None
        used = procfs.usage(pid)
        return pid if used is not None and used.start_ticks == started else None


class RunDirectory:
    """A run directory that this process holds the lock of.

    Every child inherits `lock_fd`, so the lock is free only when nobody of the run is alive.
    """

    def __init__(self, path: Path, lock_fd: int):
        self.path = path
        self.lock_fd = lock_fd
        self.earlier: Earlier | None = None
        """What this run goes on from; None: it is a new one."""
        self.attempt = 1
        self._begun = False
        self._record: dict[str, Any] = {}

    @classmethod
    def take(cls, path: Path, *, fresh: bool = False, resume: bool = False) -> RunDirectory:
        """Locks the directory, which is created if need be, and looks what it holds.

        `fresh`: whatever that is, a new run begins. `resume`: even a run that is done goes on, and there must
        be one. By default an unfinished run goes on. Raises Unavailable, Finished or Nothing.
        """
        try:
            directory = cls(path, _lock(path))
        except OSError as error:
            raise unwritable(path, error) from None
        earlier = Earlier.read(path)
        if earlier is not None and earlier.alive is not None:
            directory.release()
            raise Unavailable(
                f"{path} is in use by a live run (supervisor {earlier.alive}), whose lock was deleted; stop "
                "that one, or give another run.name"
            )
        if fresh:
            return directory
        if earlier is None and resume:
            directory.release()
            raise Nothing(f"--resume: {path} holds no run; without it a new one begins there")
        if earlier is not None and earlier.state == "done" and not resume:
            directory.release()
            raise Finished(earlier.summary or {})
        if earlier is not None:
            directory.earlier, directory.attempt = earlier, earlier.number + 1
        return directory

    def stale_segments(self) -> list[str]:
        """Shared memory that earlier attempts named here."""
        earlier = self.earlier or Earlier.read(self.path)
        names = [name for one in (earlier.attempts if earlier else ()) for name in one.get("segments", ())]
        return list(dict.fromkeys(names))

    def begin(self) -> None:
        """Makes room for a new run, for which an earlier one becomes NAME.1 and so on, or for a further
        attempt. Raises Unavailable."""
        try:
            if self.earlier is None and Earlier.read(self.path) is not None:
                self.path.rename(_free_name(self.path))
                locked, self.lock_fd = self.lock_fd, _lock(self.path)
                os.close(locked)
            for folder in (ATTEMPTS, LOGS):
                (self.path / folder).mkdir(exist_ok=True)
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
            os.ftruncate(self.lock_fd, 0)
            os.pwrite(self.lock_fd, (json.dumps(holder) + "\n").encode(), 0)
        except OSError as error:
            raise unwritable(self.path, error) from None
        self._begun = True

    def release(self) -> None:
        """Empties and frees the lock: nobody of this run is alive. A directory that nothing began in goes."""
        os.ftruncate(self.lock_fd, 0)
        with contextlib.suppress(OSError):  # gone already, or somebody begins in it just now
            if not self._begun and _is_at(self.path, self.lock_fd) and os.listdir(self.path) == [LOCK]:
                (self.path / LOCK).unlink()
                self.path.rmdir()
        os.close(self.lock_fd)

    # Attempts

    def settle_earlier(self, totals: dict[str, Any], published: int | None) -> None:
        """Writes down what the attempts before come to, once and for all, and the newest version they
        published: what they left in memory may then go. Nothing if that was done. Raises Unavailable."""
        assert self.earlier is not None
        last = self.earlier.last
        if last and last.get("totals") is None:
            state = last.get("state") or self.earlier.state
            last |= {"totals": totals, "published": published, "state": state}
            self._write(self.earlier.number, last)

    def write_attempt(self, run_id: str, segments: list[str], **facts: Any) -> None:
        """Writes down, before any of it is created, by what names its shared memory can be found. `facts`:
        what the next attempt must know. Raises Unavailable."""
        own = procfs.usage(os.getpid())
        self._record = {
            "attempt": self.attempt,
            "run_id": run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot_id": procfs.boot_id(),
            "start_ticks": own.start_ticks if own else None,
            "segments": segments,
            "started_unix": time.time(),
            "ended_unix": None,
            "state": None,
            "totals": None,
            **facts,
        }
        self._write(self.attempt, self._record)

    def supersede(self) -> None:
        """Removes the result of the attempt before, once this one has what it needs. Raises OSError."""
        for name in (SUMMARY, EVALUATION):
            (self.path / name).unlink(missing_ok=True)

    def withdraw_attempt(self) -> None:
        """Takes back an attempt that could not start."""
        with contextlib.suppress(OSError):
            self._attempt_file(self.attempt).unlink(missing_ok=True)
            if self.earlier is None:
                for folder in (ATTEMPTS, LOGS):
                    (self.path / folder).rmdir()
                self._begun = False

    def close_attempt(self, state: str, totals: dict[str, Any]) -> None:
        """Raises OSError."""
        self._record |= {"ended_unix": time.time(), "state": state, "totals": totals}
        write_json(self._attempt_file(self.attempt), self._record, durable=True)

    def _write(self, number: int, record: dict[str, Any]) -> None:
        try:
            write_json(self._attempt_file(number), record, durable=True)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _attempt_file(self, number: int) -> Path:
        return self.path / ATTEMPTS / f"{number:04d}.json"

    # Events and logs

    def event(self, role: str, index: int, event: str, **facts: Any) -> None:
        """Appends one line to events.jsonl, which is opened for it: it may have been set aside."""
        line = {"time": time.time(), "role": role, "index": index, "event": event, **facts}
        with contextlib.suppress(OSError):  # whatever it is, status.json will meet it too, and answer for it
            fd = os.open(self.path / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, (json.dumps(line) + "\n").encode())
            finally:
                os.close(fd)

    def log(self, role: str, index: int) -> int:
        """Opens logs/<role>-<index>.log for appending, in a new folder if somebody has deleted it; the caller
        closes it. Where the disk has no room for a new one, what is written goes nowhere."""
        path = self.path / LOGS / f"{role}-{index}.log"
        try:
            path.parent.mkdir(exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def log_tail(self, role: str, index: int, lines: int = 5) -> list[str]:
        """The last lines of a log that say something."""
        with contextlib.suppress(OSError), open(self.path / LOGS / f"{role}-{index}.log", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
            text = file.read().decode(errors="replace")
            return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
        return []


@contextlib.contextmanager
def though_the_disk_is_full() -> Iterator[None]:
    """Lets a report be lost rather than the run."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Replaces a file at once; `durable`: it is on disk when this returns."""
    write_text(path, json.dumps(value, indent=1) + "\n", durable=durable)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Likewise."""
    new = path.with_name(f".{path.name}.new")
    with open(new, "w") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)


def last_attempt(path: Path) -> dict[str, Any]:
    """The file of the newest attempt in a run directory; {} where there is none."""
    files = _attempt_files(path)
    return (read_json(files[-1]) if files else None) or {}


def _attempt_files(path: Path) -> list[Path]:
    numbered = (path / ATTEMPTS).glob("[0-9]*.json")
    return sorted(numbered, key=lambda file: (len(file.name), file.name))  # the 10000th after the 9999th


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none that can be read."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _lock(path: Path) -> int:
    path.mkdir(parents=True, exist_ok=True)
    lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    until = time.monotonic() + DYING_SECONDS
    while not (taken := _try(lock_fd)) and _orphaned(lock_fd) and time.monotonic() < until:
        time.sleep(0.05)
    problem = _foreign(path, lock_fd) if taken else _in_use(path, lock_fd)
    if problem:
        os.close(lock_fd)
        raise Unavailable(problem)
    return lock_fd


def _try(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _orphaned(lock_fd: int) -> bool:
    """Whether the supervisor that holds a lock is dead: then its children are dying too."""
    holder = _holder(lock_fd)
    pid = holder.get("pid")
    return holder.get("host") == socket.gethostname() and isinstance(pid, int) and procfs.usage(pid) is None


def _in_use(path: Path, lock_fd: int) -> str:
    holder = _holder(lock_fd)
    if _orphaned(lock_fd):
        pids = ", ".join(map(str, procfs.users_of(path / LOCK))) or "some that cannot be seen from here"
        return (
            f"{path} is in use although its supervisor {holder['pid']} is dead: by what its run has forked, "
            f"processes {pids}; end them"
        )
    pid = f" (supervisor {holder['pid']} on {holder['host']})" if {"pid", "host"} <= holder.keys() else ""
    return f"{path} is in use by a live run{pid}; stop that one, or give another run.name"


def _foreign(path: Path, lock_fd: int) -> str | None:
    """Why a lock that was free is not ours to take, if so."""
    # Between open and flock the holder may have moved the directory aside and let go.
    if not _is_at(path, lock_fd):
        return f"{path} was just moved away; start again"
    host = _holder(lock_fd).get("host", socket.gethostname())
    if host != socket.gethostname():
        return (
            f"{path} was locked on another host, {host}, whose processes cannot be seen from here; if that "
            f"run is over, delete {path / LOCK}"
        )
    return None


def _is_at(path: Path, lock_fd: int) -> bool:
    """Whether that lock is the one in the directory."""
    lock = path / LOCK
    return lock.exists() and os.path.samestat(lock.stat(), os.fstat(lock_fd))


def _holder(lock_fd: int) -> dict[str, Any]:
    """What the lock says of its holder; {} after a clean end."""
    try:
        value = json.loads(os.pread(lock_fd, 4096, 0))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def unwritable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{path}: the run directory cannot be written: {(error.strerror or str(error)).lower()}"
    )


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside
