"""The learner: lease a batch, train on it, publish the new weights, ack.

    python -m consumers.learner --role learner --index 0 --run NAME --dir DIR --control FD --weights FD
                                --rings FD,FD,... --process INDEX --parent PID
                                [--learners N --meeting FD]
                                [--resume CHECKPOINT] [--above VERSION] [--seconds-before S] [--began NS]

Started by the supervisor, which alone decides when a run stops: this process ignores SIGINT and SIGTERM,
asks for a stop when a `stop.*` condition is met, and ends when its producers are gone. Killed at any
instruction, its successor goes on from the newest version. Forward, correction, loss and step are in
consumers/update.py, which reads on from here; where training is taken up, and how it goes back, is in
consumers/lineage.py; how several learners are one, in consumers/peers.py."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import config as configuration
from config import exits
from consumers.allocator import keep_freed_memory
from consumers.batch import Batch
from consumers.books import Books
from consumers.checkpoint import CheckpointError
from consumers.entries import entry, together
from consumers.intake import Intake, SetAside
from consumers.journal import Journal
from consumers.lineage import GaveUp, Lineage, NoCheckpoint
from consumers.machine import Unavailable, choose_bf16, choose_device, choose_threads
from consumers.peers import Alone, Lost, Peers, join
from consumers.pinned import Pinned
from consumers.process import leave, settle_in
from consumers.saving import Saver
from consumers.score import ScoreWindow
from consumers.update import Update
from producers.footprint import kept_versions
from producers.opaque import decode
from ringbuf import Control, Lease, Ring, Weights
from ringbuf.admission import owned

SLICE_SECONDS = 0.5  # of a wait, after which the heartbeat is renewed
LOST_SECONDS = 60.0  # a learner that has lost another one waits so long for the supervisor to end it


class Said(NamedTuple):
    """What a learner tells the others when it has waited for its part of a batch."""

    has: bool
    lost: str | None  # why it cannot be had any more
    settings: dict[str, Any] | None  # the `learner` section, where it may have changed


class Learner:
    """One learner of a run, from the version that it takes up to the final checkpoint."""

    def __init__(
        self,
        config: configuration.Config,
        folder: Path,
        control: Control,
        weights: Weights,
        rings: Sequence[Ring],
        *,
        every: Sequence[Ring] | None = None,
        peers: Peers | None = None,
    ):
        """`rings`: those that are its own; `every`: all of the run; `peers`: its learners. None: there are no
        others. Raises Unavailable where the settings ask for what this machine does not have, OSError where
        a native part is missing."""
        self.peers = peers or Alone()
        self.peers.pulse = self._while_waiting
        self.config, self.folder, self.index = config, folder, self.peers.index
        self.control = control
        self.plan = rings[0].plan
        device = choose_device(config.learner.device, self.index)
        torch.set_num_threads(choose_threads(config, device))
        self.update = Update(
            config.learner,
            decode(weights.program),
            seed=config.run.seed,
            device=device,
            bf16=choose_bf16(config.learner.precision, device),
            versions=kept_versions(config),
            peers=self.peers,
        )
        self.update.pulse = self._pulse_train
        monitor = config.monitor
        journal = Journal(folder / "metrics.jsonl", monitor.log_bytes, monitor.log_files)
        self.books = Books(control, folder, self.index, ScoreWindow(self._window, config.stop.score), journal)
        self.intake = Intake(rings, control, config.staleness.limit, self.examine, every)
        self.lineage = Lineage(
            self.update, self.books, self.intake, weights, folder / "checkpoints", self.peers
        )
        self.saver = Saver(config, folder, self.update.program, self.books, control, self.intake, self.peers)
        self.pinned = Pinned(device)
        self.asked = False  # for a stop
        self._settings = -1  # generation of the configuration: it may have changed since it was read
        self._told = False  # the others of it
        self._may_grant = True
        self._train_until = float("inf")  # after a stop
        self._phase = "starting"
        self._done = 0  # minibatches, or parts of a batch of that size

    def run(
        self,
        resume: Path | None = None,
        above: int | None = None,
        seconds_before: float = 0.0,
        began_ns: int | None = None,
    ) -> None:
        """Trains until the run is to stop, and ends in order. The arguments are those of the command line.
        Raises GaveUp, Unavailable, NoCheckpoint, CheckpointError."""
        self.books.seconds_before, self.books.first_commit_ns = seconds_before, began_ns
        self.take_up(resume, above)
        while (leases := self.next_batch()) is not None:
            self.train(leases)
            self.ask_for_stop()
        self.shut_down()

    def take_up(self, resume: Path | None, above: int | None) -> None:
        """Goes on where training stood; there is a checkpoint before the first update."""
        how = self.lineage.take_up(resume, above)
        self._retarget()
        if how != "new" and self.peers.leads:
            self.books.count(resumes=1)
            self.books.event("resumed", how=how, version=self.lineage.version, steps=self.books.steps)
        self.go_back_if_lost({})
        if not self.saver.is_any():
            self.save()
            self.saver.wait(lambda: self.pulse("saving"))
        self.ask_for_stop()

    def next_batch(self) -> list[Lease] | None:
        """This learner's part of the next batch, once every learner has its own. None: one of them has none,
        and the run is to end."""
        while True:
            leases, lost = None, None
            if self.intake.exact:
                # All give credit for a batch or none: a stop is to find no part of one.
                self._may_grant = all(self.peers.gather(not (self.control.stop or self.asked)))
                if self._may_grant:
                    self.intake.grant(self.lineage.version)
            try:
                leases = self.lease()
            except SetAside as why:
                lost = str(why)
            said = self.agree(leases is not None, lost)
            lost = next((one.lost for one in said if one.lost is not None), None)
            if lost is None and all(one.has for one in said):
                return leases
            if lost is not None:
                self.saver.wait(lambda: self.pulse("saving"))
                self.lineage.roll_back(lost)
            while leases:
                leases.pop().drop("shutdown" if lost is None else "rollback")
            if lost is None:
                return None

    def agree(self, has: bool, lost: str | None) -> list[Said]:
        """What all learners say. By that alone each of them judges, and so all judge alike."""
        begin = time.monotonic_ns()
        self.pulse("stopping" if self.control.stop else "wait_data")
        settings = None if self._told else self.config.learner.model_dump(mode="json")
        said = [Said(*one) for one in self.peers.gather(Said(has, lost, settings))]
        self._told = True
        if said[0].settings is not None:
            self.update.settings = configuration.Learner.model_validate(said[0].settings)
        self.books.count(wait_no_data_ns=time.monotonic_ns() - begin)
        return said

    def lease(self) -> list[Lease] | None:
        """Waits for this learner's part of a batch. After a stop by a signal what is left over is trained on
        as far as half of the deadline reaches. None: there is nothing more. Raises SetAside."""
        while not self.control.stop:
            seen = self.control.bell_value(self.index)
            self.heed_settings()
            if self._may_grant and not self.asked:
                self.intake.grant(self.lineage.version)
                leases = self.intake.lease(self.lineage.version)
                if leases is not None:
                    return leases
            if not self.control.stop:
                self.wait("wait_data", seen)
            self.ask_for_stop()
        now, allowed = time.monotonic(), self.config.supervisor.deadline_seconds / 2
        self._train_until = min(self._train_until, now + allowed)
        while not self.control.producers_gone:
            seen = self.control.bell_value(self.index)
            if not self.control.producers_gone:
                self.wait("stopping", seen)
        if self.control.stop != "signal" or self.asked or time.monotonic() >= self._train_until:
            return None
        return self.intake.lease(self.lineage.version)

    def train(self, leases: list[Lease]) -> None:
        """One batch and one version: train, publish, ack. Empties `leases`."""
        leased_ns = time.monotonic_ns()
        self.pulse("train")
        self._start_clock()
        batch = self._batch(leases)
        outcome = self.update.train(batch, self.lineage.version, self.books.steps)
        batch.close()
        whole = together(self.lineage.gather(entry(leases, self.lineage.version, leased_ns, outcome)))
        figures = whole.figures | self.books.enter(whole, self.update.spent_ns)
        self.lineage.version += 1
        self.lineage.publish(whole.slots)
        while leases:
            leases.pop().ack()
        if self.peers.leads:
            self.books.tell(self.lineage.version, figures, self.update.spent_ns)
            self.books.alarm(self.lineage.version, whole.alarms)
        else:
            self.books.count(**{f"{phase}_ns": ns for phase, ns in self.update.spent_ns.items()})
        if whole.nonfinite is not None:
            if self.peers.leads:
                facts = {"version": self.lineage.version, "skipped": figures["skipped"]}
                self.books.seldom("nonfinite", **facts, **whole.nonfinite)
            self.go_back_if_lost(whole.nonfinite)
        elif self.saver.due() and self.update.is_good:
            self.save()

    def examine(self, lease: Lease) -> None:
        """Looks at every step of a slot that two learners died with, alone and without training on it."""
        self.pulse("train")
        batch = self._batch([lease])
        self.update.examine(batch)
        batch.close()
        self.books.count(examined_slots=1)

    def go_back_if_lost(self, seen: dict[str, Any]) -> None:
        """Returns to the newest checkpoint after too many steps in a row that were not finite."""
        if self.update.is_lost:
            self.saver.wait(lambda: self.pulse("saving"))
            self.lineage.give_up_or_roll_back(self.config.learner.nonfinite_rollbacks, seen)

    def wait(self, phase: str, seen: int) -> None:
        """Until the bell rings, or the heartbeat or `stop.seconds` is due."""
        self.pulse(phase)
        self._start_clock()
        begin = time.monotonic_ns()
        limit = self.config.stop.seconds
        left = SLICE_SECONDS
        if limit is not None and self.peers.leads and not self.asked:
            left = min(left, max(0.0, limit - self.books.seconds))
        self.control.bell_wait(self.index, seen, left)
        if phase == "wait_data":
            self.books.count(wait_no_data_ns=time.monotonic_ns() - begin)

    def ask_for_stop(self) -> None:
        """Asks the supervisor to stop the run, once, when a condition of `stop` is met. The first learner
        does."""
        stop, books, version = self.config.stop, self.books, self.lineage.version
        met = {
            "score": books.score.solved,
            "versions": stop.versions is not None and version >= stop.versions,
            "steps": stop.steps is not None and books.steps >= stop.steps,
            "seconds": stop.seconds is not None and books.seconds >= stop.seconds,
        }
        reason = next((reason for reason, is_met in met.items() if is_met), None)
        if reason is not None and self.peers.leads and not self.asked:
            self.asked = True
            self.control.request_stop(reason)

    def heed_settings(self) -> None:
        """Takes over what may change in a live run, when the supervisor says that it has."""
        generation = self.control.settings
        if generation == self._settings:
            return
        self._settings = generation
        new = configuration.load_resolved(self.folder / "config.resolved.yaml")
        self.config = self.saver.config = configuration.take_over(self.config, new)
        self._told = False  # all learners are to train by the same
        self._retarget()
        self.books.journal.limit_bytes = self.config.monitor.log_bytes
        self.books.journal.files = self.config.monitor.log_files

    def shut_down(self) -> None:
        """Gives back what nobody will train on, and saves. Raises Unavailable where the final checkpoint is
        refused."""
        dropped = sum(self.peers.gather(self.intake.drop("shutdown")))
        self.pulse("saving")
        self.saver.wait(lambda: self.pulse("saving"))
        worlds = self.saver.left_worlds(self.lineage.version)
        if not self.peers.leads:
            return
        if self.saver.lacks(self.lineage.version, worlds) and self.update.is_good:
            self.saver.save(self.lineage.copy(), worlds)
            self.saver.wait(lambda: self.pulse("saving"))
            if self.saver.saved_version is None:
                raise Unavailable(f"no final checkpoint of version {self.lineage.version}")
        self.books.event("ended", version=self.lineage.version, dropped_slots=dropped)
        self.books.journal.flush()

    def save(self) -> None:
        """Hands a copy of the version just published to the checkpoint thread."""
        worlds = self.saver.ask_for_worlds(self.lineage.version, lambda: self.pulse("saving"))
        if self.peers.leads:
            self.saver.save(self.lineage.copy(), worlds)

    def pulse(self, phase: str) -> None:
        """A heartbeat. Progress is the number of minibatches done."""
        self._phase = phase
        self.control.pulse(phase, self._done)

    def _while_waiting(self) -> None:
        """For other learners."""
        self.pulse(self._phase)
        self.ask_for_stop()

    def _pulse_train(self) -> None:
        self._done += 1
        self.pulse("train")

    def _batch(self, leases: Sequence[Lease]) -> Batch:
        for lease in leases:
            self.pinned.pin(lease)
        max_lag = self.config.learner.max_lag
        return Batch(
            leases,
            device=self.update.device,
            has_mask=self.plan.has_mask,
            discrete=not self.plan.continuous,
            recurrent=self.plan.state_width > 0,
            reward_scale=self.config.learner.reward.scale,
            reward_clip=self.config.learner.reward.clip,
            oldest_version=None if max_lag is None else self.lineage.version - max_lag,
            burn_in=self.config.learner.burn_in,
        )

    @property
    def _window(self) -> int:
        """Of many agents the first to finish are those with the shortest episodes: no smaller window is
        honest."""
        return max(self.config.stop.window, self.plan.producers * self.plan.agents)

    def _retarget(self) -> None:
        """Settings may have changed after the room for a snapshot was measured out."""
        self.books.retarget(min(self._window, self.lineage.most_episodes), self.config.stop.score)

    def _start_clock(self) -> None:
        """The run's seconds begin with its first slot, which may come long before the first batch."""
        if self.books.first_commit_ns is None:
            commits = filter(None, (ring.books()["first_commit_ns"] for ring in self.intake.every))
            self.books.first_commit_ns = min(commits, default=None)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="consumers.learner", description="Started by the supervisor.")
    for name in ("role", "run"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "weights", "process", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rings", type=lambda text: [int(fd) for fd in text.split(",")], required=True)
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--meeting", type=int, help="descriptor of a file by which several find each other")
    parser.add_argument("--resume", type=Path, help="the checkpoint to go on from, without a hot snapshot")
    parser.add_argument("--above", type=int, help="newest version known to have been published before")
    parser.add_argument("--seconds-before", type=float, default=0.0, help="of earlier attempts")
    parser.add_argument("--began", type=int, help="CLOCK_MONOTONIC where this attempt's seconds begin, in ns")
    return parser.parse_args(arguments)


def last_word(text: str) -> None:
    """To the log, where its disk has room: on a full one the exit code must do."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), text.encode())


def await_the_end(control: Control, error: Lost) -> int:
    """By the supervisor, which ends all learners when it sees one dead; else the exit code is returned."""
    last_word(f"learner: {error}\n")
    until = time.monotonic() + LOST_SECONDS
    while time.monotonic() < until:
        control.pulse("wait_data", 0)
        time.sleep(SLICE_SECONDS)
    return exits.INTERNAL


def main(arguments: Sequence[str]) -> int:
    args = parse(arguments)
    settle_in(args.parent, args.dir / "logs" / f"learner-{args.index}.log")
    keep_freed_memory()
    config = configuration.load_resolved(args.dir / "config.resolved.yaml")
    control = Control.attach(args.control, args.process)
    control.pulse("starting", 0)
    weights = Weights.attach(args.weights, "reader" if args.index else "writer")
    own = owned(args.index, len(args.rings), args.learners)
    every = [
        Ring.attach(fd, control, "learner" if ring in own else "monitor", args.index)
        for ring, fd in enumerate(args.rings)
    ]
    try:
        peers = join(args.meeting, args.index, args.learners)
        rings = [every[ring] for ring in own]
        learner = Learner(config, args.dir, control, weights, rings, every=every, peers=peers)
    except (Unavailable, OSError) as error:
        last_word(f"learner: {error}\n")
        return exits.MISSING
    except Lost as error:
        return await_the_end(control, error)
    try:
        learner.run(args.resume, args.above, args.seconds_before, args.began)
    except GaveUp as error:
        last_word(f"learner: {error}\n")
        return exits.GAVE_UP
    except (Unavailable, NoCheckpoint, CheckpointError) as error:
        last_word(f"learner: {error}\n")
        return exits.MISSING
    except Lost as error:
        return await_the_end(control, error)
    except Exception:  # noqa: BLE001 - a bug of ours; the supervisor reads the code, the log the rest
        last_word(traceback.format_exc())
        return exits.INTERNAL
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
