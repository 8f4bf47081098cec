"""The learner: lease a batch, train on it, publish the new weights, ack.

    python -m consumers.learner --role learner --index 0 --run NAME --dir DIR --control FD --weights FD
                                --rings FD,FD,... --process INDEX --parent PID
                                [--resume CHECKPOINT] [--above VERSION] [--seconds-before S] [--began NS]

Started by the supervisor, which alone decides when a run stops: this process ignores SIGINT and SIGTERM,
asks for a stop when a `stop.*` condition is met, and ends when its producers are gone. Killed at any
instruction, its successor goes on from the newest version. Forward, correction, loss and step are in
consumers/update.py, which reads on from here; where training is taken up, and how it goes back, is in
consumers/lineage.py."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import config as configuration
from consumers.allocator import keep_freed_memory
from consumers.audits import KEPT_VERSIONS
from consumers.batch import Batch
from consumers.books import Books
from consumers.checkpoint import CheckpointError
from consumers.intake import Intake, SetAside
from consumers.journal import Journal
from consumers.lineage import GaveUp, Lineage, NoCheckpoint
from consumers.pinned import Pinned
from consumers.process import settle_in
from consumers.saving import Saver
from consumers.score import ScoreWindow
from consumers.update import Update
from producers.program import Program
from ringbuf import Control, Lease, Ring, Weights

EXIT_MISSING = 69
EXIT_INTERNAL = 70
EXIT_GAVE_UP = 75
SLICE_SECONDS = 0.5  # of a wait, after which the heartbeat is renewed


class Unavailable(Exception):
    """The settings ask for what this machine does not have. The message is one line."""


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
        index: int = 0,
    ):
        """Raises Unavailable where the settings ask for what this machine does not have, OSError where a
        native part is missing."""
        self.config, self.folder, self.index = config, folder, index
        self.control, self.rings = control, rings
        self.plan = rings[0].plan
        device = choose_device(config.learner.device)
        torch.set_num_threads(choose_threads(config, device))
        self.update = Update(
            config.learner,
            Program.decode(weights.program),
            seed=config.run.seed,
            device=device,
            bf16=choose_bf16(config.learner.precision, device),
            versions=kept_versions(config),
        )
        self.update.pulse = self._pulse_train
        monitor = config.monitor
        journal = Journal(folder / "metrics.jsonl", monitor.log_bytes, monitor.log_files)
        self.books = Books(control, folder, index, ScoreWindow(self._window, config.stop.score), journal)
        self.intake = Intake(rings, control, config.staleness.limit, self.examine)
        self.lineage = Lineage(self.update, self.books, self.intake, weights, folder / "checkpoints")
        self.saver = Saver(config, folder, self.update.program, self.books, control, self.intake)
        self.pinned = Pinned(device)
        self.asked = False  # for a stop
        self._settings = -1  # generation of the configuration: it may have changed since it was read
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
        while not self.control.stop:
            seen = self.control.bell_value(self.index)
            self.heed_settings()
            leases = None
            if not self.asked:
                self.intake.grant(self.lineage.version)
                leases = self.lease()
            if leases is not None:
                self.train(leases)
            elif not self.control.stop:
                self.wait("wait_data", seen)
            self.ask_for_stop()
        self.shut_down()

    def take_up(self, resume: Path | None, above: int | None) -> None:
        """Goes on where training stood; there is a checkpoint before the first update."""
        how = self.lineage.take_up(resume, above)
        self._retarget()
        if how != "new":
            self.books.count(resumes=1)
            self.books.event("resumed", how=how, version=self.lineage.version, steps=self.books.steps)
        self.go_back_if_lost({})
        if not self.saver.is_any:
            self.save()
            self.saver.wait(lambda: self.pulse("saving"))
        self.ask_for_stop()

    def lease(self) -> list[Lease] | None:
        """The next batch, or None: not yet."""
        try:
            return self.intake.lease(self.lineage.version)
        except SetAside as lost:
            self.saver.wait(lambda: self.pulse("saving"))
            self.lineage.roll_back(str(lost))
            self.control.bell_ring(self.index)  # there is credit to give now, for which nobody else rings
            return None

    def train(self, leases: list[Lease]) -> None:
        """One batch and one version: train, publish, ack. Empties `leases`."""
        leased_ns = time.monotonic_ns()
        self.pulse("train")
        self._start_clock()
        slots = [(lease.ring, lease.sequence) for lease in leases]
        batch = self._batch(leases)
        figures = self.update.train(batch, self.lineage.version, self.books.steps)
        batch.close()
        nonfinite, alarms = figures.pop("nonfinite"), figures.pop("alarms")
        figures |= self.books.enter(leases, self.lineage.version, leased_ns, figures, self.update.spent_ns)
        self.lineage.version += 1
        self.lineage.publish(leases)
        while leases:
            leases.pop().ack()
        self.books.tell(self.lineage.version, figures, self.update.spent_ns)
        self.books.alarm(self.lineage.version, alarms)
        if nonfinite is not None:
            nonfinite["slots"] = [slots[i] for i in nonfinite["slots"]]
            self.books.seldom(
                "nonfinite", version=self.lineage.version, skipped=figures["skipped"], **nonfinite
            )
            self.go_back_if_lost(nonfinite)
        elif self.saver.due and self.update.is_good:
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
        left = SLICE_SECONDS if limit is None else min(SLICE_SECONDS, max(0.0, limit - self.books.seconds))
        self.control.bell_wait(self.index, seen, SLICE_SECONDS if self.asked else left)
        if phase == "wait_data":
            self.books.count(wait_no_data_ns=time.monotonic_ns() - begin)

    def ask_for_stop(self) -> None:
        """Asks the supervisor to stop the run, once, when a condition of `stop` is met."""
        stop, books, version = self.config.stop, self.books, self.lineage.version
        met = {
            "score": books.score.solved,
            "versions": stop.versions is not None and version >= stop.versions,
            "steps": stop.steps is not None and books.steps >= stop.steps,
            "seconds": stop.seconds is not None and books.seconds >= stop.seconds,
        }
        reason = next((reason for reason, is_met in met.items() if is_met), None)
        if reason is not None and not self.asked:
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
        self.update.settings = self.config.learner
        self._retarget()
        self.books.journal.limit_bytes = self.config.monitor.log_bytes
        self.books.journal.files = self.config.monitor.log_files

    def shut_down(self) -> None:
        """After the stop flag: waits for the producers' end, trains what a signal left over as far as half
        of the deadline reaches, gives back the rest, saves. Raises Unavailable where the final checkpoint is
        refused."""
        until = time.monotonic() + self.config.supervisor.deadline_seconds / 2
        while not self.control.producers_gone:
            seen = self.control.bell_value(self.index)
            if not self.control.producers_gone:
                self.wait("stopping", seen)
        while self.control.stop == "signal" and not self.asked and time.monotonic() < until:
            leases = self.lease()
            if leases is None:
                break
            self.train(leases)
        dropped = self.intake.drop("shutdown")
        self.pulse("saving")
        self.saver.wait(lambda: self.pulse("saving"))
        worlds = self.saver.left_worlds(self.lineage.version)
        if self.saver.lacks(self.lineage.version, worlds) and self.update.is_good:
            self.saver.save(self.lineage.copy(), worlds)
            self.saver.wait(lambda: self.pulse("saving"))
            if self.saver.saved_version is None:
                raise Unavailable(f"no final checkpoint of version {self.lineage.version}")
        self.books.event("ended", version=self.lineage.version, dropped_slots=dropped)
        self.books.journal.flush()

    def save(self) -> None:
        """Hands a copy of the version just published to the checkpoint thread."""
        copy = self.lineage.copy()
        self.saver.save(copy, self.saver.ask_for_worlds(copy.version, lambda: self.pulse("saving")))

    def pulse(self, phase: str) -> None:
        """A heartbeat. Progress is the number of minibatches done."""
        self.control.pulse(phase, self._done)

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
            commits = filter(None, (ring.books()["first_commit_ns"] for ring in self.rings))
            self.books.first_commit_ns = min(commits, default=None)


def choose_device(setting: str) -> torch.device:
    """`learner.device`. Raises Unavailable where there is no such device."""
    if setting == "cuda" and not torch.cuda.is_available():
        raise Unavailable("learner.device: cuda, but torch sees no CUDA device here; needs cpu or auto")
    return torch.device("cuda" if setting != "cpu" and torch.cuda.is_available() else "cpu")


def choose_threads(config: configuration.Config, device: torch.device) -> int:
    """`learner.threads`; auto is 1 where producers run beside the learner, since torch's threads wait for
    each other and a producer would hold up all of them, and every core where producers sleep meanwhile."""
    if config.learner.threads != "auto":
        return int(config.learner.threads)
    return len(os.sched_getaffinity(0)) if config.exact and device.type == "cpu" else 1


def kept_versions(config: configuration.Config) -> int:
    """Of how many versions a learner keeps the weights for its audits: what the bound on the lag lets act,
    and one more, since a label may be off by one."""
    bound = config.staleness.exact if config.exact else config.staleness.limit
    return KEPT_VERSIONS if bound is None else bound + 2


def choose_bf16(setting: str, device: torch.device) -> bool:
    """`learner.precision`; auto is bf16 where the hardware multiplies it."""
    if setting != "auto" or device.type == "cuda":
        return setting != "float32"
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="consumers.learner", description="Started by the supervisor.")
    for name in ("role", "run"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "weights", "process", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rings", type=lambda text: [int(fd) for fd in text.split(",")], required=True)
    parser.add_argument("--resume", type=Path, help="the checkpoint to go on from, without a hot snapshot")
    parser.add_argument("--above", type=int, help="newest version known to have been published before")
    parser.add_argument("--seconds-before", type=float, default=0.0, help="of earlier attempts")
    parser.add_argument("--began", type=int, help="CLOCK_MONOTONIC where this attempt's seconds begin, in ns")
    return parser.parse_args(arguments)


def last_word(text: str) -> None:
    """To the log, where its disk has room: on a full one the exit code must do."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), text.encode())


def main(arguments: Sequence[str]) -> int:
    args = parse(arguments)
    settle_in(args.parent, args.dir / "logs" / f"learner-{args.index}.log")
    keep_freed_memory()
    config = configuration.load_resolved(args.dir / "config.resolved.yaml")
    control = Control.attach(args.control, args.process)
    control.pulse("starting", 0)
    weights = Weights.attach(args.weights, "writer")
    rings = [Ring.attach(fd, control, "learner", args.index) for fd in args.rings]
    try:
        learner = Learner(config, args.dir, control, weights, rings, index=args.index)
    except (Unavailable, OSError) as error:
        last_word(f"learner: {error}\n")
        return EXIT_MISSING
    try:
        learner.run(args.resume, args.above, args.seconds_before, args.began)
    except GaveUp as error:
        last_word(f"learner: {error}\n")
        return EXIT_GAVE_UP
    except (Unavailable, NoCheckpoint, CheckpointError) as error:
        last_word(f"learner: {error}\n")
        return EXIT_MISSING
    except Exception:  # noqa: BLE001 - a bug of ours; the supervisor reads the code, the log the rest
        last_word(traceback.format_exc())
        return EXIT_INTERNAL
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Everything is written. torch takes most of a second to tear itself down; every stop would wait for it.
    os._exit(code)
