"""When a learner saves a checkpoint, and what: a copy of the version just published, built and written by
another thread, and the producers' worlds where a run repeats bit for bit.

Of several learners the first saves; the others give it the worlds of their producers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import config as configuration
from consumers import shelf
from consumers.books import Books
from consumers.checkpoint import Checkpoint, Writer
from consumers.intake import Intake
from consumers.lineage import Copy
from consumers.peers import Alone, Peers
from consumers.snapshot import unpack
from producers.program import Program
from ringbuf import Control, Ring, RingError

SLICE_SECONDS = 0.05  # between looks at what another thread or process is doing
WORLDS_SECONDS = 30.0  # after which a checkpoint is saved without the producers' worlds


class Saver:
    """Saves at most one checkpoint at a time. `config` may be exchanged while the run goes on."""

    def __init__(
        self,
        config: configuration.Config,
        folder: Path,
        program: Program,
        books: Books,
        control: Control,
        intake: Intake,
        peers: Peers | None = None,
    ):
        """`peers`: the learners of the run; None: there is one."""
        self.config = config
        self._peers = peers or Alone()
        self._folder, self._program, self._books = folder, program, books
        self._control, self._intake = control, intake
        self._rings: Sequence[Ring] = intake.rings
        self._writer = Writer(folder / "checkpoints", config.checkpoint.keep, self._done)
        self.saved_version: int | None = None
        """The last that was saved, or is being saved."""
        self._has_worlds = False  # that one
        # A learner that takes up a dead one's place must not begin to count anew: it may die again.
        last = control.counters(control.self_index)["last_checkpoint_unix_ns"] / 1e9
        self._tried = time.monotonic() - (max(0.0, time.time() - last) if last else 0.0)
        self._failed = False

    def due(self) -> bool:
        """Whether it is time for the next checkpoint, and none is under way. The same for all learners that
        have a part in it."""
        if not self._repeats:
            return self._is_time
        return bool(self._peers.gather(self._is_time)[0])

    @property
    def _is_time(self) -> bool:
        settings = self.config.checkpoint
        wait = settings.interval_seconds
        if self._failed:
            wait = min(wait, settings.retry_seconds)
        return self._peers.leads and not self._writer.busy and time.monotonic() - self._tried > wait

    def save(self, copy: Copy, worlds: Sequence[bytes] | None = None) -> None:
        """The first learner's. Hands over a copy of a version; `worlds`: what the producers need to go on
        from exactly there."""
        self._tried, self.saved_version = time.monotonic(), copy.version
        self._has_worlds = worlds is not None
        self._writer.keep = self.config.checkpoint.keep
        state = self._facts(copy.version, worlds)

        def build() -> Checkpoint:
            sizes = [weight.count for weight in self._program.weights]
            views = zip(self._program.weights, copy.flat.split(sizes), strict=True)
            policy = {weight.name: part.view(weight.shape).clone() for weight, part in views}
            return Checkpoint(copy.version, policy, unpack(copy.snapshot), state, worlds or ())

        self._writer.submit(build)

    def lacks(self, version: int, worlds: Sequence[bytes] | None) -> bool:
        """Whether that version is to be saved (again): a stop may come between the wish for worlds and the
        worlds, which are there when the producers have ended."""
        return self.saved_version != version or (worlds is not None and not self._has_worlds)

    def wait(self, pulse: Callable[[], None]) -> None:
        """Until nothing is being written."""
        while self._writer.busy:
            pulse()
            self._writer.wait(SLICE_SECONDS)
        self._writer.wait()

    def is_any(self) -> bool:
        """Whether the run has a checkpoint; the first learner has looked."""
        return bool(self._peers.gather(bool(shelf.versions(self._folder / "checkpoints")))[0])

    def ask_for_worlds(self, version: int, pulse: Callable[[], None]) -> list[bytes] | None:
        """All producers' worlds as they are where batch `version` begins, before any of it is granted. None
        where a run does not repeat anyway, or a producer or its simulator cannot tell. Every learner asks."""
        return self._of_all(self._ask(version, pulse)) if self._repeats else None

    def _ask(self, version: int, pulse: Callable[[], None]) -> list[bytes] | None:
        """Of the learner's own producers."""
        starts = self._intake.first_sequences(version)
        pairs = list(zip(self._rings, starts, strict=True))
        if any(ring.observe().granted > start for ring, start in pairs):
            return None  # by a learner that died: its producers have gone on
        for ring, start in pairs:
            ring.request_state(start)
        until, learner = time.monotonic() + WORLDS_SECONDS, self._rings[0].learner
        while True:
            seen = self._control.bell_value(learner)  # a producer that has saved rings it
            missing = [ring.index for ring, start in pairs if ring.state_sequence != start]
            hopeless = self._control.stop or time.monotonic() > until
            if not missing or hopeless or not all(map(self._intake.runs, missing)):
                return self._left(version)
            pulse()
            self._control.bell_wait(learner, seen, SLICE_SECONDS)

    def left_worlds(self, version: int) -> list[bytes] | None:
        """What all producers left in their rings, if it is where batch `version` begins. Every learner
        looks."""
        return self._of_all(self._left(version)) if self._repeats else None

    def _left(self, version: int) -> list[bytes] | None:
        """Of the learner's own producers."""
        starts = self._intake.first_sequences(version)
        pairs = list(zip(self._rings, starts, strict=True))
        if any(ring.state_sequence != start for ring, start in pairs):
            return None
        try:
            return [ring.state() for ring in self._rings]
        except RingError:  # a producer that has heard of the stop writes it once more
            return None

    def _of_all(self, worlds: list[bytes] | None) -> list[bytes] | None:
        """With those of the other learners, in the order of the rings; None: somebody has none."""
        found: list[bytes] = []
        for part in self._peers.gather(worlds):
            if part is None:
                return None
            found += part
        return found

    @property
    def _repeats(self) -> bool:
        plan = self._rings[0].plan
        return plan.mode == "exact" and plan.lagged_versions == 0 and plan.state_bytes > 0

    def _facts(self, version: int, worlds: Sequence[bytes] | None) -> dict[str, Any]:
        """state.json."""
        config, plan = self.config, self._rings[0].plan
        return {
            "version": version,
            **self._books.summary(),
            "mode": config.mode,
            "worlds": "absent" if worlds is None else "exact",
            "program": {"fingerprint": self._program.fingerprint, "encoded": self._program.encode().hex()},
            "simulator": {"name": config.sim.name, "parameters": dict(plan.params)},
            "policy": config.policy.model_dump(mode="json"),
            "producers": plan.producers,
            "agents": plan.agents,
            "horizon": plan.horizon,
            "batch_slots": plan.batch_slots,
            "ring_slots": self._rings[0].slots,
            "config_sha256": hashlib.sha256((self._folder / "config.resolved.yaml").read_bytes()).hexdigest(),
            "torch": torch.__version__,
            "time": time.time(),
        }

    def _done(self, size_bytes: int | None, seconds: float) -> None:
        """Called by the writer's thread."""
        self._failed = size_bytes is None
        if size_bytes is None:
            self.saved_version = None
            self._books.count(checkpoint_failures=1)
            self._books.event("checkpoint_failed", why=self._writer.failure)
        else:
            self._books.count(checkpoints=1)
            self._books.set(
                last_checkpoint_unix_ns=time.time_ns(),
                checkpoint_bytes=size_bytes,
                checkpoint_ns=int(seconds * 1e9),
            )
