"""The line of versions that a learner makes: where it takes it up, how it goes on, and how it goes back.

A version is published with its hot snapshot: all that training is made of, as it stands after the batch that
made the version. Whoever takes up that snapshot, and the slots that the version does not list as consumed,
goes on as if nothing had happened. A checkpoint is a copy of such a snapshot on disk; going back to one
makes a new version, above all that were ever published, from which on nothing of the abandoned policy counts.

Of several learners the first decides and publishes; the others, which wait for it meanwhile, take up what it
has published, so that there is one way to begin, to resume and to go back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from consumers import checkpoint, shelf
from consumers.books import Books
from consumers.checkpoint import Checkpoint, CheckpointError
from consumers.entries import Entry
from consumers.intake import Intake
from consumers.peers import Alone, Peers
from consumers.snapshot import Packer, SnapshotError, unpack
from consumers.update import Update
from ringbuf import Weights

SCORE_BYTES = 8  # of one episode in a snapshot

Slot = tuple[int, int, int]  # ring, sequence, epoch


class NoCheckpoint(Exception):
    """There is nothing to go back to. The message is one line."""


class GaveUp(Exception):
    """Training fails however often it goes back. The message says what was seen."""


class Diverged(Exception):
    """Learners that should be the same are not. The message is one line."""


class Copy(NamedTuple):
    """One version, for whoever saves it."""

    version: int
    flat: torch.Tensor  # the weights, float32 [program.count]
    snapshot: bytes


class Lineage:
    """All that training is made of, as versions. `version` is the one in the learner's hands."""

    def __init__(
        self,
        update: Update,
        books: Books,
        intake: Intake,
        weights: Weights,
        checkpoints: Path,
        peers: Peers | None = None,
    ):
        """`peers`: the learners of the run; None: there is one."""
        self.version = 0
        self.update, self.books, self.intake, self.peers = update, books, intake, peers or Alone()
        self.generators: list[torch.Tensor] = []  # states of those of the other learners
        self._weights, self._checkpoints = weights, checkpoints
        self._packer = Packer(weights.snapshot_bytes)
        self._packed = memoryview(b"")
        self._fruitless = 0  # roll-backs to no later checkpoint than the one before
        self._returned_to = -1  # steps of the checkpoint that the last roll-back went to

    def take_up(self, resume: Path | None, above: int | None) -> str:
        """Where training stood: the hot snapshot, else the checkpoint `resume`, else nothing. `above`: the
        newest version known to have been published in earlier attempts. Returns which in a word: hot,
        checkpoint or new. Raises NoCheckpoint, CheckpointError."""
        how = self._begin(resume, above) if self.peers.leads else ""
        how, *_ = self.peers.gather(how)
        self._follow()
        self._let_go()
        self.intake.drop_leased("rollback")
        return how

    def gather(self, mine: Entry) -> list[Entry]:
        """Of the batch that was just trained on, every learner's part. Raises Diverged."""
        if self.peers.count == 1:
            return [mine]
        flat = self.update.flat_weights
        mark = int(flat.view(torch.int32).sum())
        said = self.peers.gather([mine, self.update.generator.get_state(), mark])
        if any(other != mark for _, _, other in said):
            raise Diverged(f"after version {self.version} the learners' weights are not the same any more")
        self.generators = [generator for _, generator, _ in said[1:]]
        return [Entry(*part) for part, _, _ in said]

    def publish(self, consumed: Sequence[Slot] = ()) -> None:
        """Makes the weights the newest version, notes the slots that they were made of, wakes the producers,
        and enters all of it in the shared books."""
        if self.peers.leads:
            self._show(consumed)
        self.peers.gather(None)  # from here on the others know that it is published
        self._let_go()

    def _show(self, consumed: Sequence[Slot] = ()) -> None:
        begin = time.monotonic_ns()
        flat = self.update.flat_weights.cpu().numpy()
        self._packed = self._packer.pack(self._state())
        self._weights.publish(
            self.version, flat, snapshot=self._packed, consumed=consumed, floor=self.intake.floor
        )
        self.books.set(last_publish_unix_ns=time.time_ns())
        self.books.count(publish_ns=time.monotonic_ns() - begin)

    def _let_go(self) -> None:
        """What waits for the version that was published."""
        self.intake.announce()
        self.intake.wake_producers()
        if self.peers.leads:
            self.books.post()
        self.books.set(version=self.version, ready=1)

    def _follow(self) -> None:
        """Those that do not lead take up what the first has published."""
        if not self.peers.leads:
            self._take_up_hot()

    def _begin(self, resume: Path | None, above: int | None) -> str:
        if self._weights.published is None and resume is None:
            self.intake.begin(0)
            self._show()
            return "new"
        if self._weights.published is not None:
            try:
                self._take_up_hot()
                return "hot"
            except SnapshotError as error:
                self.books.event("snapshot_unreadable", version=self._weights.published, why=str(error))
            self.books.rolled_back()
            self._return_to(resume or self._newest())
            return "checkpoint"
        assert resume is not None
        saved = checkpoint.load(resume)
        if self.intake.exact:  # nobody lives that has seen a later version
            self._restore(saved.learner)
            self._load(saved)
            self.version = saved.version
            self.intake.begin(self.version)
            self._show()
        else:
            self._return_to(resume, above=max(saved.version, -1 if above is None else above))
        return "checkpoint"

    def roll_back(self, why: str, folder: Path | None = None, **seen: Any) -> None:
        """Goes back to the checkpoint in `folder`, or the newest good one, while nobody writes one. Raises
        NoCheckpoint."""
        before = {"version": self.version, "steps": self.books.steps}
        if self.peers.leads:
            folder = folder or self._newest()
            self.books.rolled_back()
            self._return_to(folder)
        self.peers.gather(None)
        self._follow()
        self._let_go()
        self.intake.drop_leased("rollback")
        if folder is None:
            return
        facts: dict[str, Any] = {f"from_{name}": n for name, n in before.items()}
        facts |= {"version": self.version, "steps": self.books.steps, "checkpoint": folder.name}
        self.books.event("rolled_back", why=why, **facts, **seen)

    def give_up_or_roll_back(self, most: int, seen: dict[str, Any]) -> None:
        """After too many steps that were not finite. Raises GaveUp after `most` roll-backs with no later
        checkpoint in between, NoCheckpoint."""
        if not self.peers.leads:
            self.roll_back("nonfinite")
            return
        folder = self._newest()
        steps = int(shelf.state(folder)["steps"])
        fruitless = 1 if steps > self._returned_to else self._fruitless + 1
        if fruitless > most:
            self.books.event("gave_up", rollbacks=most, version=self.version, **seen)
            told = ", ".join(f"{name} {value}" for name, value in seen.items())
            raise GaveUp(
                f"{self.update.nonfinite_steps} optimizer steps in a row were not finite after {most} "
                f"roll-backs (learner.nonfinite_rollbacks) with no later checkpoint in between; seen last, "
                f"at version {self.version}: {told}"
            )
        self._fruitless, self._returned_to = fruitless, steps
        self.roll_back("nonfinite", folder, **seen)

    def copy(self) -> Copy:
        """The version just published."""
        return Copy(self.version, self.update.flat_weights.detach().cpu().clone(), bytes(self._packed))

    @property
    def most_episodes(self) -> int:
        """For how many episodes of the score window a snapshot has room."""
        spare = (self._packer.room_bytes - len(self._packed)) // SCORE_BYTES
        return min(self.books.score.episodes, self.books.score.window) + spare

    def _state(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "floor": self.intake.floor,
            "bases": self.intake.bases,
            "generators": self.generators,
            "fruitless": self._fruitless,
            "returned_to": self._returned_to,
            "program": self.update.program.fingerprint,
            "update": self.update.state_dict(),
            "books": self.books.state_dict(),
        }

    def _take_up_hot(self) -> None:
        state, (version, flat) = unpack(self._weights.snapshot()), self._weights.read()
        if state["version"] != version:
            raise SnapshotError(f"the snapshot of version {version} says it is that of {state['version']}")
        self._restore(state, life=True)
        self.update.load_weights(torch.from_numpy(flat))
        self.version = version
        self.intake.floor = state["floor"]
        self.intake.bases = [tuple(base) for base in state["bases"]]
        self._fruitless, self._returned_to = state["fruitless"], state["returned_to"]
        self._packed = self._packer.pack(self._state())

    def _return_to(self, folder: Path, above: int = -1) -> None:
        """Publishes a checkpoint anew, as a version above all others."""
        saved = checkpoint.load(folder)
        self._restore(saved.learner)
        self._load(saved)
        published = self._weights.published
        self.version = 1 + max(above, -1 if published is None else published)
        self.intake.abandon(self.version)
        self._show()

    def _restore(self, state: dict[str, Any], *, life: bool = False) -> None:
        if state["program"] != self.update.program.fingerprint:
            raise CheckpointError("the state is of another network: policy.* or the simulator has changed")
        self.generators = list(state.get("generators", ()))  # an older state has none
        own = self.update.generator.get_state()
        self.update.load_state_dict(state["update"])
        if self.peers.index:
            others = dict(enumerate(self.generators, 1))  # fewer, where there were fewer learners
            self.update.generator.set_state(others.get(self.peers.index, own))
        self.books.load_state_dict(state["books"], life=life)

    def _load(self, saved: Checkpoint) -> None:
        self.update.model.load_state_dict(saved.policy)

    def _newest(self) -> Path:
        folder = shelf.newest_good(self._checkpoints, lambda text: self.books.event("damaged", why=text))
        if folder is None:
            raise NoCheckpoint(f"{self._checkpoints}: no checkpoint to go back to")
        return folder
