"""The store of a study: one file a finished cell, which appears whole or not at all.

study.resolved.json    the study as it was asked for, and on what it ran
cells/<id>.json        a finished cell; its id follows from all that defines it
scratch/<id>/          a run under way; what a killed runner leaves there goes at the next start
lock                   held while somebody runs the study
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monitor import procfs
from monitor.rundir import FULL, read_json, write_json
from producers import native

RESOLVED = "study.resolved.json"
CELLS = "cells"
SCRATCH = "scratch"
LOCK = "lock"
SEGMENTS = "segments"  # of a run in scratch: names of its shared memory, a line each
LEAST_FREE_BYTES = 64 << 20
SOURCES = ("config", "consumers", "producers", "ringbuf", "sims")  # what a cell's results come from


class Unavailable(Exception):
    """The study's directory cannot be used. The message is one line."""


class Store:
    """The directory of a study. Finished cells are read once."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.cells: dict[str, dict[str, Any]] = {}
        """By id."""
        for path in sorted((folder / CELLS).glob("*.json")):
            record = read_json(path)
            if record is not None and record.get("id") == path.stem:
                self.cells[path.stem] = record

    @property
    def scratch(self) -> Path:
        return self.folder / SCRATCH

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs the study meanwhile; what a killed runner left is gone. Raises Unavailable."""
        with self._reported():
            for name in (CELLS, SCRATCH):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "?"
                text = f"{self.folder} is in use: process {holder} runs this study"
                raise Unavailable(f"{text}; wait for it, or give another study.name") from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            self.clear()
            yield
        finally:
            os.close(lock)

    def clear(self) -> None:
        """Removes runs that nobody is at any more, and their shared memory."""
        from ringbuf import segments

        for run in self.scratch.iterdir():
            with contextlib.suppress(OSError):
                for name in (run / SEGMENTS).read_text().split():
                    segments.unlink(name)
            remove(run)

    def describe(self, facts: dict[str, Any]) -> None:
        """Writes down what the study is. Raises Unavailable."""
        with self._reported():
            write_json(self.folder / RESOLVED, facts, durable=True)

    def finish(self, record: dict[str, Any]) -> None:
        """Keeps a finished cell. Raises Unavailable."""
        with self._reported():
            path = self.folder / CELLS / f"{record['id']}.json"
            new = path.with_suffix(".new")
            new.write_text(json.dumps(record) + "\n")
            new.replace(path)
        self.cells[record["id"]] = record

    def require_room(self) -> None:
        """Raises Unavailable where the disk is about to be full: a cell would fail through no fault of its
        own."""
        facts = os.statvfs(self.folder)
        free = facts.f_bavail * facts.f_frsize
        if free < LEAST_FREE_BYTES:
            raise Unavailable(f"{self.folder}: {free} bytes of disk are free, needs {LEAST_FREE_BYTES}")

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = "the disk is full" if error.errno in FULL else (error.strerror or str(error)).lower()
            raise Unavailable(f"{self.folder} cannot be written: {why}") from None


def remove(folder: Path) -> None:
    """A run's directory, however much of it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def code_fingerprint() -> str:
    """Of all sources that results come from: cells of one number were made by the same code."""
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in sorted((native.ROOT / name).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                digest.update(f"{path.relative_to(native.ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def machine() -> dict[str, Any]:
    """On what cells run."""
    return {
        "cpu": procfs.cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": procfs.memory_bytes(),
        "kernel": os.uname().release,
        "torch": importlib.metadata.version("torch"),
        "numpy": importlib.metadata.version("numpy"),
    }
