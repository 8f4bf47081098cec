"""The process that plays the newest policy for whoever watches, in a world that training never sees.

    python -m consumers.player --role evaluator --index 0 --run NAME --dir DIR --control FD --weights FD
                               --watch FD --process INDEX --parent PID

Started by the supervisor. As long as nobody watches it sleeps in a read and holds neither worlds nor network;
what playing needs is imported only then. The exporter (monitor/watching.py), at the other end of the socket,
says again and again what its viewers want, as long as there are any. Each message on it is one packet, of
msgpack, so that whoever is killed leaves no half of one. docs/watching.md has both kinds.
"""

from __future__ import annotations

import argparse
import errno
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgpack

from consumers.process import settle_in
from ringbuf import Control, Weights

if TYPE_CHECKING:
    from consumers.stage import Stage

SLICE_SECONDS = 0.5  # of a sleep, after which the heartbeat is renewed
LEASE_SECONDS = 3.0  # without a word for so long nobody watches any more
RETRY_SECONDS = 5.0  # after a world could not be made
PACKET_BYTES = 4096  # more than any wish has
NICENESS = 10  # training goes first


@dataclass(frozen=True)
class Wish:
    """What viewers want to see."""

    watch: bool = False
    world: int = 0
    agent: int = 0
    speed: float = 15.0
    """Steps a second."""
    paused: bool = False
    greedy: bool = False
    """The likeliest action instead of one by chance."""
    steps: int = 0
    """How many single steps were asked for so far; they are made while paused."""


class Player:
    """`channel`: the socket; `make`: makes the stage of a world."""

    def __init__(
        self, control: Control, weights: Weights, channel: socket.socket, make: Callable[[int], Stage]
    ):
        self._control, self._weights, self._channel, self._make = control, weights, channel, make
        self._wish = Wish()
        self._heard = float("-inf")  # when, on the monotonic clock
        self._stage: Stage | None = None
        self._version: int | None = None  # of the weights on the stage
        self._owed = 0  # single steps
        self._due = 0.0  # when the next message is, on the monotonic clock
        self._frames = 0

    def run(self) -> NoReturn:
        """Until it is killed, which may be at any time."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Sleeps until something is to be done, at most a slice, and does it."""
        now = time.monotonic()
        self._listen(min(SLICE_SECONDS, max(0.0, self._due - now)) if self._wish.watch else SLICE_SECONDS)
        now = time.monotonic()
        if now - self._heard > LEASE_SECONDS:
            self._wish = Wish()
        if not self._wish.watch:
            self._clear()
        elif now >= self._due:
            try:
                self._play(now)
            except Exception as error:  # noqa: BLE001 - of a simulator or a module that is not ours
                traceback.print_exc()
                self._clear()
                self._due = now + RETRY_SECONDS
                self._send({"kind": "broken", "text": f"{type(error).__name__}: {error}"})

    def _listen(self, seconds: float) -> None:
        """Waits so long for a word from the exporter."""
        self._control.pulse("wait_data", self._frames)
        select.select([self._channel], [], [], seconds)
        while True:
            try:
                packet = self._channel.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self._take(Wish(**msgpack.unpackb(packet)))

    def _take(self, wish: Wish) -> None:
        before, self._wish, self._heard = self._wish, wish, time.monotonic()
        if before.watch:  # the first word may speak of steps that were made for others
            self._owed += max(0, wish.steps - before.steps)
        if not wish.paused:
            self._owed = 0
        if wish != before:
            self._due = self._heard

    def _clear(self) -> None:
        if self._stage is not None:
            self._stage.close()
        self._stage, self._version, self._owed = None, None, 0

    def _play(self, now: float) -> None:
        """Does the next step of the world that is wanted, unless it stands still, and shows it. One that
        stands still is shown again now and then, to those who have come meanwhile."""
        self._control.pulse("policy", self._frames)
        if self._weights.published is None:
            self._due = now + SLICE_SECONDS
            self._send({"kind": "waiting", "text": "no weights have been published yet"})
            return
        if self._stage is not None and self._stage.world != self._wish.world:
            self._clear()
        if self._stage is None:
            self._stage = self._make(self._wish.world)
            self._advance(self._stage)
        elif not self._wish.paused or self._owed:
            self._owed = max(0, self._owed - 1)
            self._stage.step()
            self._advance(self._stage)
        stands = self._wish.paused and not self._owed
        # From when the last one was due, so that the speed is kept; but not from long ago.
        self._due = now + SLICE_SECONDS if stands else max(self._due + 1 / self._wish.speed, now)
        self._show(self._stage)

    def _advance(self, stage: Stage) -> None:
        """Has the newest weights choose what is done next."""
        if self._weights.published != self._version:
            self._version, flat = self._weights.read()
            stage.load(flat)
        stage.act(greedy=self._wish.greedy)
        self._frames += 1

    def _show(self, stage: Stage) -> None:
        frame = {"kind": "frame", "version": self._version, **stage.frame(self._wish.agent)}
        try:
            self._send(frame)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            self._send({**frame, "png": None, "note": "the picture is too large to be sent"})

    def _send(self, message: dict[str, Any]) -> None:
        """Or not, where nobody has read the last ones: a frame that is late is worth nothing. With what is
        wanted, which an exporter that has just started learns from it."""
        try:
            self._channel.send(msgpack.packb({**message, "wish": asdict(self._wish)}), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return


def stages(directory: Path, weights: Weights) -> Callable[[int], Stage]:
    """Makes stages as the run in `directory` says."""

    def make(world: int) -> Stage:
        import config
        from consumers.stage import Stage
        from producers.opaque import decode
        from sims.loader import load

        settings = config.load_resolved(directory / "config.resolved.yaml")
        simulator = load(settings.sim.name)
        return Stage(simulator, settings.sim.parameters, decode(weights.program), settings.run.seed, world)

    return make


def main(arguments: Sequence[str]) -> NoReturn:
    parser = argparse.ArgumentParser(prog="consumers.player", description="Started by the supervisor.")
    for name in ("role", "run"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "weights", "watch", "process", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    options = parser.parse_args(arguments)
    settle_in(options.parent, options.dir / "logs" / f"{options.role}-{options.index}.log")
    os.nice(NICENESS)
    control = Control.attach(options.control, options.process)
    weights = Weights.attach(options.weights)
    Player(control, weights, socket.socket(fileno=options.watch), stages(options.dir, weights)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
