"""What a checkpoint holds, and a thread that saves it; the folders are consumers/shelf.py's.

policy.pt is a plain state_dict, learner.pt what else a learner needs to go on (optimizer, generators,
statistics); both load with weights_only. worlds-NNN.bin are the producers' states, in modes that repeat.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from consumers import shelf
from consumers.shelf import CheckpointError


@dataclass(frozen=True)
class Checkpoint:
    version: int
    policy: dict[str, torch.Tensor]  # a state_dict of the policy's module
    learner: dict[str, Any]  # tensors, numbers, strings, lists and dicts
    state: dict[str, Any]  # JSON: counters, score, settings, fingerprints
    worlds: Sequence[bytes] = ()  # a producer's state a ring; none: producers begin from reset


def save(checkpoints: Path, checkpoint: Checkpoint, keep: int) -> int:
    """Shelves a checkpoint and returns its size in bytes. Raises OSError or, since torch reports a full disk
    so, RuntimeError; what was there before is then untouched."""

    def write(folder: Path) -> None:
        torch.save(checkpoint.policy, folder / shelf.POLICY)
        torch.save(checkpoint.learner, folder / shelf.LEARNER)
        (folder / shelf.STATE).write_text(json.dumps(checkpoint.state, indent=1, sort_keys=True) + "\n")
        for ring, blob in enumerate(checkpoint.worlds):
            (folder / shelf.worlds_name(ring)).write_bytes(blob)

    return shelf.put(checkpoints, checkpoint.version, write, keep=keep)


def load(folder: Path) -> Checkpoint:
    """Reads a checkpoint after checking its sums. Raises CheckpointError where it is missing or damaged."""
    shelf.verify(folder)
    try:
        policy, learner = (torch.load(folder / name, weights_only=True) for name in shelf.FILES[:2])
        state = shelf.state(folder)
        blobs = [path.read_bytes() for path in shelf.worlds(folder)]
        return Checkpoint(state["version"], policy, learner, state, blobs)
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({type(error).__name__}: {error})") from error


class Writer:
    """Saves checkpoints from a thread of its own, one at a time, and keeps count.

    `done` is called in that thread after each attempt with (size_bytes, seconds), or (None, seconds) after a
    failure, which is reported on stderr and in `failure` and never ends training.
    """

    def __init__(self, checkpoints: Path, keep: int, done: Callable[[int | None, float], None]):
        self.keep = keep
        self._checkpoints, self._done = checkpoints, done
        self._thread: threading.Thread | None = None
        self.failure: str | None = None
        """Why the last attempt failed, one line; None: it did not."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def submit(self, build: Callable[[], Checkpoint]) -> None:
        """Starts to save what `build` returns, which is called in the writer's thread: what it reads must
        not change afterwards. Waits for one under way."""
        self.wait()
        self._thread = threading.Thread(target=self._save, args=(build,), name="checkpoint")
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Returns when nothing is under way, or after so many seconds."""
        if self._thread is not None:
            self._thread.join(seconds)
            if not self._thread.is_alive():
                self._thread = None

    def _save(self, build: Callable[[], Checkpoint]) -> None:
        start, size = time.monotonic(), None
        self.failure = "not finished"
        try:
            size = save(self._checkpoints, build(), self.keep)
            self.failure = None
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            self.failure = str(error)
            shelf.complain(f"checkpoint failed: {error}")
        finally:  # whatever went wrong: a checkpoint that nobody reports failed would pass for a good one
            self._done(size, time.monotonic() - start)
