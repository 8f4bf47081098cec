"""Checkpoints on disk: folders that appear whole or not at all, and a link to the newest.

    checkpoints/version-000000123/{policy.pt, learner.pt, state.json, SHA256SUMS}
    checkpoints/latest -> version-000000123

policy.pt is a plain state_dict, learner.pt what else a learner needs to go on (optimizer, generators,
statistics); both load with weights_only. A folder is written under a name of its own, flushed, renamed,
and only then linked, so `latest` leads to a complete checkpoint after a kill at any instruction.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FILES = ("policy.pt", "learner.pt", "state.json")
SUMS = "SHA256SUMS"
PARTIAL = ".partial-"  # what is under way or half deleted; never matches version-*


class CheckpointError(Exception):
    """A checkpoint is missing or damaged. The message is one line that names it."""


@dataclass(frozen=True)
class Checkpoint:
    version: int
    policy: dict[str, torch.Tensor]  # a state_dict of the policy's module
    learner: dict[str, Any]  # tensors, numbers, strings, lists and dicts
    state: dict[str, Any]  # JSON: counters, score, settings, fingerprints


def folder_name(version: int) -> str:
    return f"version-{version:09d}"


def save(checkpoints: Path, checkpoint: Checkpoint, keep: int) -> int:
    """Writes the checkpoint, links it as `latest` and deletes the oldest so that `keep` remain. Returns
    its size in bytes. Raises OSError where the disk refuses; what was there before is then untouched."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    for left in checkpoints.glob(PARTIAL + "*"):  # of a writer that died; there is one writer at a time
        _delete(left)
    partial = checkpoints / f"{PARTIAL}{folder_name(checkpoint.version)}"
    partial.mkdir()
    try:
        torch.save(checkpoint.policy, partial / FILES[0])
        torch.save(checkpoint.learner, partial / FILES[1])
        (partial / FILES[2]).write_text(json.dumps(checkpoint.state, indent=1, sort_keys=True) + "\n")
        sums = "".join(f"{_sha256(partial / name)}  {name}\n" for name in FILES)
        (partial / SUMS).write_text(sums)
        size = 0
        for name in (*FILES, SUMS):
            size += (partial / name).stat().st_size
            _flush(partial / name)
        _flush(partial)
        # The same version comes once more after a roll-back: then beside the one in use, which goes
        # afterwards.
        final, other = (checkpoints / (folder_name(checkpoint.version) + end) for end in ("", "-again"))
        if (checkpoints / "latest").resolve().name == final.name:
            final, other = other, final
        _delete(final)
        partial.rename(final)
    except OSError:
        _delete(partial)
        raise
    _flush(checkpoints)
    _link(checkpoints, final.name)
    _delete(other)
    for old in versions(checkpoints)[:-keep]:
        if old != final:
            _delete(old)
    return size


def versions(checkpoints: Path) -> list[Path]:
    """The complete checkpoints there are, oldest version first."""
    return sorted(p for p in checkpoints.glob("version-*") if p.is_dir())


def latest(checkpoints: Path) -> Path:
    """Where `latest` leads; the newest version where the link is missing or leads nowhere. Raises
    CheckpointError where there is none."""
    link = checkpoints / "latest"
    if link.is_dir():
        return link.resolve()
    found = versions(checkpoints)
    if not found:
        raise CheckpointError(f"{checkpoints}: no checkpoint")
    return found[-1]


def load(folder: Path) -> Checkpoint:
    """Reads a checkpoint after checking its sums. Raises CheckpointError where it is missing or damaged."""
    try:
        for line in (folder / SUMS).read_text().splitlines():
            digest, name = line.split(maxsplit=1)
            if _sha256(folder / name) != digest:
                raise CheckpointError(f"{folder / name}: damaged, its SHA-256 is not the one noted beside it")
        policy, learner = (torch.load(folder / name, weights_only=True) for name in FILES[:2])
        state = json.loads((folder / FILES[2]).read_text())
        return Checkpoint(state["version"], policy, learner, state)
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename}: missing") from error
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({type(error).__name__}: {error})") from error


class Writer:
    """Saves checkpoints from a thread of its own, one at a time, and keeps count.

    `done` is called in that thread after each attempt with (size_bytes, seconds), or (None, seconds) after a
    failure, which is reported on stderr and never ends training.
    """

    def __init__(self, checkpoints: Path, keep: int, done: Callable[[int | None, float], None]):
        self._checkpoints, self._keep, self._done = checkpoints, keep, done
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def submit(self, checkpoint: Checkpoint) -> None:
        """Starts to save; the checkpoint's tensors must not change afterwards. Waits for one under way."""
        self.wait()
        self._thread = threading.Thread(target=self._save, args=(checkpoint,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _save(self, checkpoint: Checkpoint) -> None:
        start, size = time.monotonic(), None
        try:
            size = save(self._checkpoints, checkpoint, self._keep)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            _complain(f"checkpoint of version {checkpoint.version} failed: {error}")
        finally:  # whatever went wrong: a checkpoint that nobody reports failed would pass for a good one
            self._done(size, time.monotonic() - start)


def _complain(text: str) -> None:
    """On stderr, a log that may lie on the same full disk."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _link(checkpoints: Path, target: str) -> None:
    new = checkpoints / f"{PARTIAL}latest"
    new.symlink_to(target)
    new.replace(checkpoints / "latest")
    _flush(checkpoints)


def _delete(path: Path) -> None:
    """Deletes what no longer counts. What cannot be deleted stays: it must not cost the run its
    checkpoints."""
    try:
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            hidden = path.parent / f"{PARTIAL}old-{path.name}"
            if not path.name.startswith(PARTIAL):  # first out of sight, so that no half of it is ever seen
                path.rename(hidden)
                path = hidden
            shutil.rmtree(path)
    except OSError as error:
        _complain(f"{path}: not deleted: {error}")
