"""The run directory: its lock, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
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


class Unavailable(Exception):
    """The directory cannot be used: unwritable, locked by a live run, or holding an unfinished one."""


class Finished(Exception):
    """The directory holds a run that is done. `summary`: its summary.json."""

    def __init__(self, summary: dict[str, Any]):
        super().__init__("done")
        self.summary = summary


class RunDirectory:
    """A run directory that this process holds the lock of.

    Every child inherits `lock_fd`, so the lock is free only when nobody of the run is alive.
    """

    def __init__(self, path: Path, lock_fd: int):
        self.path = path
        self.lock_fd = lock_fd
        self._events: int | None = None
        self._attempt: dict[str, Any] = {}

    @classmethod
    def take(cls, path: Path, *, fresh: bool) -> RunDirectory:
        """Locks the directory, which is created if need be, and looks whether a run may start in it.

        `fresh`: whatever it holds is no obstacle. Raises Unavailable or Finished.
        """
        try:
            directory = cls(path, _lock(path))
        except OSError as error:
            raise unwritable(path, error) from None
        summary = read_json(path / SUMMARY)
        if fresh or (summary is None and not directory._attempts()):
            return directory
        directory.release()
        if summary is not None and summary.get("state") == "done":
            raise Finished(summary)
        state = (summary or {}).get("state", "unfinished")
        raise Unavailable(
            f"{path} holds a run that is {state}, and this version cannot resume: start with --fresh, which "
            f"moves it aside, or give another run.name"
        )

    def stale_segments(self) -> list[str]:
        """Shared memory that earlier attempts named here. Its processes are dead, since the lock was free."""
        return [
            name for attempt in self._attempts() for name in (read_json(attempt) or {}).get("segments", ())
        ]

    def begin(self) -> None:
        """Makes room for a new run: an earlier one becomes NAME.1 and so on. Raises Unavailable."""
        try:
            if self._attempts() or (self.path / SUMMARY).exists():
                self.path.rename(_free_name(self.path))
                earlier, self.lock_fd = self.lock_fd, _lock(self.path)
                os.close(earlier)
            for folder in (ATTEMPTS, LOGS):
                (self.path / folder).mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._events = os.open(self.path / EVENTS, flags, 0o644)
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
            os.ftruncate(self.lock_fd, 0)
            os.pwrite(self.lock_fd, (json.dumps(holder) + "\n").encode(), 0)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def release(self) -> None:
        """Empties and frees the lock: nobody of this run is alive. A directory that nothing began in goes."""
        os.ftruncate(self.lock_fd, 0)
        if self._events is not None:
            os.close(self._events)
        elif self.path.exists() and os.listdir(self.path) == [LOCK]:
            (self.path / LOCK).unlink()
            self.path.rmdir()
        os.close(self.lock_fd)

    def _attempts(self) -> list[Path]:
        return sorted((self.path / ATTEMPTS).glob("*.json"))

    def write_attempt(self, run_id: str, segments: list[str]) -> None:
        """Writes down, before any process starts, by what names its shared memory can be found."""
        self._attempt = {
            "attempt": 1,
            "run_id": run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot_id": procfs.boot_id(),
            "segments": segments,
            "started_unix": time.time(),
            "ended_unix": None,
            "state": None,
        }
        write_json(self.path / ATTEMPTS / "0001.json", self._attempt, durable=True)

    def close_attempt(self, state: str) -> None:
        self._attempt |= {"ended_unix": time.time(), "state": state}
        write_json(self.path / ATTEMPTS / "0001.json", self._attempt, durable=True)

    def event(self, role: str, index: int, event: str, **facts: Any) -> None:
        """Appends one line to events.jsonl."""
        assert self._events is not None
        line = {"time": time.time(), "role": role, "index": index, "event": event, **facts}
        with though_the_disk_is_full():
            os.write(self._events, (json.dumps(line) + "\n").encode())

    def log(self, role: str, index: int) -> int:
        """Opens logs/<role>-<index>.log for appending; the caller closes it."""
        path = self.path / LOGS / f"{role}-{index}.log"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def log_tail(self, role: str, index: int, lines: int = 5) -> list[str]:
        """The last lines of a log that say something."""
        with contextlib.suppress(OSError), open(self.path / LOGS / f"{role}-{index}.log", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
            text = file.read().decode(errors="replace")
            return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
        return []

    def limit_logs(self, limit_bytes: int) -> None:
        """Sets aside, as NAME.1, every log that has outgrown `limit_bytes`.

        Writers have the file open for appending, so it is copied and emptied in place: they go on at its end.
        Lines written between copy and emptying are lost.
        """
        for path in (self.path / METRICS, self.path / EVENTS, *(self.path / LOGS).glob("*.log")):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > limit_bytes:
                    shutil.copyfile(path, path.with_name(path.name + ".1"))
                    os.truncate(path, 0)


@contextlib.contextmanager
def though_the_disk_is_full() -> Iterator[None]:
    """Lets a report be lost rather than the run."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Replaces a file at once; `durable`: it is on disk when this returns."""
    new = path.with_name(f".{path.name}.new")
    with open(new, "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none that can be read."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _lock(path: Path) -> int:
    path.mkdir(parents=True, exist_ok=True)
    lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        problem = _foreign(path, lock_fd)
    except BlockingIOError:
        holder = _holder(lock_fd)
        pid = f" (supervisor {holder['pid']} on {holder['host']})" if {"pid", "host"} <= holder.keys() else ""
        problem = f"{path} is in use by a live run{pid}; stop that one, or give another run.name"
    if problem:
        os.close(lock_fd)
        raise Unavailable(problem)
    return lock_fd


def _foreign(path: Path, lock_fd: int) -> str | None:
    """Why a lock that was free is not ours to take, if so."""
    # Between open and flock the holder may have moved the directory aside and let go.
    if not (path / LOCK).exists() or (path / LOCK).stat().st_ino != os.fstat(lock_fd).st_ino:
        return f"{path} was just moved away; start again"
    host = _holder(lock_fd).get("host", socket.gethostname())
    if host != socket.gethostname():
        return (
            f"{path} was locked on another host, {host}, whose processes cannot be seen from here; if that "
            f"run is over, delete {path / LOCK}"
        )
    return None


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
