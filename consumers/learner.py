"""The learner: lease a batch, train on it, publish the new weights, ack.

    python -m consumers.learner --role learner --index 0 --run NAME --dir DIR --control FD --weights FD
                                --rings FD,FD,... --process INDEX --parent PID

Started by the supervisor, which alone decides when a run stops: this process ignores SIGINT and SIGTERM,
asks for a stop when a `stop.*` condition is met, and ends when its producers are gone. Forward, correction,
loss and step are in consumers/update.py, which reads on from here."""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import config as configuration
from consumers.allocator import keep_freed_memory
from consumers.batch import Batch
from consumers.books import Books
from consumers.checkpoint import Checkpoint, Writer
from consumers.intake import Intake
from consumers.pinned import Pinned
from consumers.score import ScoreWindow
from consumers.update import Update
from producers.program import Program
from ringbuf import Control, Lease, Ring, Weights

EXIT_MISSING = 69
SLICE_SECONDS = 0.5  # of a wait, after which the heartbeat is renewed
PR_SET_PDEATHSIG = 1


class Unavailable(Exception):
    """The settings ask for what this machine does not have. The message is one line."""


class Learner:
    """One learner of a run, from version 0 to the final checkpoint."""

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
        self.control, self.weights, self.rings = control, weights, rings
        self.plan = rings[0].plan
        device = choose_device(config.learner.device)
        torch.set_num_threads(choose_threads(config, device))
        self.update = Update(
            config.learner,
            Program.decode(weights.program),
            seed=config.run.seed,
            device=device,
            bf16=choose_bf16(config.learner.precision, device),
        )
        # Of many agents the first to finish are those with the shortest episodes: no smaller window is
        # honest.
        window = max(config.stop.window, self.plan.producers * self.plan.agents)
        self.books = Books(control, folder, index, ScoreWindow(window, config.stop.score))
        self.intake = Intake(rings, control, config.staleness.limit)
        self.pinned = Pinned(device)
        self.checkpoints = Writer(folder / "checkpoints", config.checkpoint.keep, self._checkpoint_done)
        self.version = 0
        self.asked = False  # for a stop
        self._saved_at = time.monotonic()
        self._saved_version: int | None = None

    def run(self) -> None:
        """Trains until the run is to stop, and ends in order."""
        self.publish([])
        self.save()
        self.checkpoints.wait()  # there is a checkpoint before the first update
        self.intake.begin(self.version)
        while not self.control.stop:
            seen = self.control.bell_value(self.index)
            leases = None
            if not self.asked:
                self.intake.grant(self.version)
                leases = self.intake.lease(self.version)
            if leases is not None:
                self.train(leases)
            elif not self.control.stop:
                self.wait("wait_data", seen)
            self.ask_for_stop()
        self.shut_down()

    def train(self, leases: list[Lease]) -> None:
        """One batch and one version: train, publish, ack. Empties `leases`."""
        leased_ns = time.monotonic_ns()
        self.control.pulse("train", self.books.updates)
        self._start_clock()
        for lease in leases:
            self.pinned.pin(lease)
        batch = Batch(
            leases,
            device=self.update.device,
            has_mask=self.plan.has_mask,
            discrete=not self.plan.continuous,
            reward_scale=self.config.learner.reward.scale,
            reward_clip=self.config.learner.reward.clip,
            oldest_version=self._oldest_version(),
        )
        figures = self.update.train(batch, self.version, self.books.steps)
        batch.close()
        self.version += 1
        self.publish(leases)
        figures |= self.books.consumed(leases, self.version - 1, leased_ns)
        while leases:
            leases.pop().ack()
        self.books.trained(self.version, figures, self.update.spent_ns)
        due = time.monotonic() - self._saved_at > self.config.checkpoint.interval_seconds
        if due and not self.checkpoints.busy:
            self.save()

    def publish(self, leases: Sequence[Lease]) -> None:
        """Makes the weights the newest version, notes the slots they were made of, wakes the producers."""
        begin = time.monotonic_ns()
        flat = self.update.flat_weights.cpu().numpy()
        consumed = [(lease.ring, lease.sequence, lease.epoch) for lease in leases]
        self.weights.publish(self.version, flat, consumed=consumed)
        self.intake.wake_producers()
        self.books.set(version=self.version, ready=1, last_publish_unix_ns=time.time_ns())
        self.books.count(publish_ns=time.monotonic_ns() - begin)

    def wait(self, phase: str, seen: int) -> None:
        """Until the bell rings, or the heartbeat or `stop.seconds` is due."""
        self.control.pulse(phase, self.books.updates)
        self._start_clock()
        begin = time.monotonic_ns()
        limit = self.config.stop.seconds
        left = SLICE_SECONDS if limit is None else min(SLICE_SECONDS, max(0.0, limit - self.books.seconds))
        self.control.bell_wait(self.index, seen, SLICE_SECONDS if self.asked else left)
        if phase == "wait_data":
            self.books.count(wait_no_data_ns=time.monotonic_ns() - begin)

    def ask_for_stop(self) -> None:
        """Asks the supervisor to stop the run, once, when a condition of `stop` is met."""
        stop, books = self.config.stop, self.books
        met = {
            "score": books.score.solved,
            "versions": stop.versions is not None and self.version >= stop.versions,
            "steps": stop.steps is not None and books.steps >= stop.steps,
            "seconds": stop.seconds is not None and books.seconds >= stop.seconds,
        }
        reason = next((reason for reason, is_met in met.items() if is_met), None)
        if reason is not None and not self.asked:
            self.asked = True
            self.control.request_stop(reason)

    def shut_down(self) -> None:
        """After the stop flag: waits for the producers' end, trains what a signal left over as far as half
        of the deadline reaches, gives back the rest, saves. Raises OSError where the final checkpoint is
        refused."""
        until = time.monotonic() + self.config.supervisor.deadline_seconds / 2
        while not self.control.producers_gone:
            seen = self.control.bell_value(self.index)
            if not self.control.producers_gone:
                self.wait("stopping", seen)
        leases = None
        while self.control.stop == "signal" and not self.asked and time.monotonic() < until:
            leases = self.intake.lease(self.version)
            if leases is None:
                break
            self.train(leases)
        self.control.pulse("saving", self.books.updates)
        dropped = self.intake.drop("shutdown")
        self.checkpoints.wait()
        if self._saved_version != self.version:
            self.save()
            self.checkpoints.wait()
        self.books.event("ended", version=self.version, dropped_slots=dropped)
        self.books.close()
        if self._saved_version != self.version:
            raise OSError(f"no final checkpoint of version {self.version}")

    def save(self) -> None:
        """Hands a copy of everything to the checkpoint thread."""
        config, update = self.config, self.update
        self._saved_at, self._saved_version = time.monotonic(), self.version
        policy = {name: tensor.detach().cpu().clone() for name, tensor in update.model.state_dict().items()}
        learner = {"update": update.state_dict(), "score": self.books.score.state_dict()}
        state = {
            "version": self.version,
            **self.books.summary(),
            "program": {"fingerprint": update.program.fingerprint, "encoded": update.program.encode().hex()},
            "simulator": {"name": config.sim.name, "parameters": dict(self.plan.params)},
            "policy": config.policy.model_dump(mode="json"),
            "config_sha256": hashlib.sha256((self.folder / "config.resolved.yaml").read_bytes()).hexdigest(),
            "torch": torch.__version__,
            "time": time.time(),
        }
        checkpoint = Checkpoint(self.version, policy, learner, state)
        self.checkpoints.submit(lambda: checkpoint)

    def _checkpoint_done(self, size_bytes: int | None, seconds: float) -> None:
        """Called by the checkpoint thread."""
        if size_bytes is None:
            self._saved_version = None
            self.books.count(checkpoint_failures=1)
        else:
            self.books.count(checkpoints=1)
            self.books.set(
                last_checkpoint_unix_ns=time.time_ns(),
                checkpoint_bytes=size_bytes,
                checkpoint_ns=int(seconds * 1e9),
            )

    def _start_clock(self) -> None:
        """The run's seconds begin with its first slot, which may come long before the first batch."""
        if self.books.first_commit_ns is None:
            commits = filter(None, (ring.books()["first_commit_ns"] for ring in self.rings))
            self.books.first_commit_ns = min(commits, default=None)

    def _oldest_version(self) -> int | None:
        max_lag = self.config.learner.max_lag
        return None if max_lag is None else self.version - max_lag


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


def choose_bf16(setting: str, device: torch.device) -> bool:
    """`learner.precision`; auto is bf16 where the hardware multiplies it."""
    if setting != "auto" or device.type == "cuda":
        return setting != "float32"
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="consumers.learner", description="Started by the supervisor.")
    for name in ("role", "run"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "weights", "process", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rings", type=lambda text: [int(fd) for fd in text.split(",")], required=True)
    args = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != args.parent:
        raise SystemExit("the supervisor is gone")

    keep_freed_memory()
    config = configuration.load_resolved(args.dir / "config.resolved.yaml")
    control = Control.attach(args.control, args.process)
    control.pulse("starting", 0)
    weights = Weights.attach(args.weights, "writer")
    rings = [Ring.attach(fd, control, "learner", args.index) for fd in args.rings]
    try:
        Learner(config, args.dir, control, weights, rings, index=args.index).run()
    except (Unavailable, OSError) as error:
        print(f"learner: {error}", file=sys.stderr)
        return EXIT_MISSING
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written. torch takes most of a second to tear itself down; every stop would wait for it.
    os._exit(code)
