"""The process of a sink: passes figures of metrics.jsonl on to TensorBoard or to Weights & Biases.

One process a sink. It reads a file that is written anyway, so training neither waits for it nor knows of it:
when it fails, the supervisor starts the next one, which goes on behind the last line that was passed on.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import config
import ringbuf
from config import exits
from config.rotate import reopen_when_told
from monitor import procfs, rundir
from monitor.lines import Follower, number

FOLDERS = {"tensorboard": "tb", "wandb": "wandb"}
POSITION = "position.json"
POLL_SECONDS = 0.5
MOST_STEPS = 2**63 - 1  # TensorBoard counts them in 64 bits
INIT_SECONDS = 40.0  # less than makes a process count as hung
CLOSE_SECONDS = 10.0  # a server that does not answer must not hold up the end of a run


class Sink(Protocol):
    """Where figures go."""

    def log(self, number: int, line: Mapping[str, Any]) -> None:
        """Passes one line of metrics.jsonl on, the `number`th of the run."""

    def close(self) -> None:
        """Once everything is passed on."""


@dataclass
class Position:
    """How far a sink of a run has come, kept from one process to the next."""

    sent: int = 0
    """Lines that were passed on."""
    steps: int = 0
    """Of the last of them, as its time."""
    time: float = 0.0
    id: str = ""
    """What the run is called where it is sent."""

    @classmethod
    def load(cls, path: Path) -> Position:
        found = rundir.read_json(path) or {}
        try:
            known = cls(int(found["sent"]), int(found["steps"]), float(found["time"]), str(found["id"]))
            if not math.isfinite(known.time):
                raise ValueError(known.time)
            return known
        except (KeyError, TypeError, ValueError, OverflowError):
            return cls(id=uuid.uuid4().hex[:12])

    def save(self, path: Path) -> None:
        rundir.write_json(path, asdict(self))


class TensorBoard:
    """Event files by the run's steps, with the names of the figures as tags."""

    def __init__(self, folder: Path, steps: int):
        """`steps`: of the last line that was passed on."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._session, self._summary = Event, SessionLog, Summary
        self._writer = EventFileWriter(str(folder))
        self._steps = steps

    def log(self, number: int, line: Mapping[str, Any]) -> None:
        steps, when = int(line["steps"]), float(line["time"])
        if steps <= self._steps:  # the run went back: TensorBoard forgets what lies beyond
            start = self._session(status=self._session.START)
            self._writer.add_event(self._event(step=steps, wall_time=when, session_log=start))
        self._steps = steps
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in figures(line).items()]
        self._writer.add_event(self._event(step=steps, wall_time=when, summary=self._summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, whose own steps count lines: steps and versions of a run can go back."""

    def __init__(self, directory: Path, settings: config.Config, run_id: str):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = wandb.init(
            project=settings.sinks.project,
            name=settings.run.name,
            id=run_id,
            resume="allow",
            mode="online" if settings.sinks.wandb == "online" else "offline",
            dir=str(directory),
            config=settings.model_dump(mode="json"),
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True,
                x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
                init_timeout=INIT_SECONDS,
            ),
        )  # fmt: skip
        self._run.define_metric("*", step_metric="run/steps")

    def log(self, number: int, line: Mapping[str, Any]) -> None:
        self._run.log(figures(line), step=number)

    def close(self) -> None:
        self._run.finish()


def figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line, under the first word of their names, by which both sinks group them:
    `loss/loss_policy`; what has one word only under `run`."""
    found = {}
    for name, value in line.items():
        if (known := number(value)) is not None:
            first, _, rest = name.partition("_")
            found[f"{first if rest else 'run'}/{name}"] = known
    return found


def pass_on(
    follower: Follower,
    sink: Sink,
    position: Position,
    *,
    interval_seconds: float,
    kept: Callable[[], None],
    over: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    """Until it is `over` and everything read: lines at least `interval_seconds` apart, by their own clock,
    and the last one. `kept`: called when `position` has moved; `beat`: again and again."""
    last: dict[str, Any] | None = None

    def send(line: Mapping[str, Any]) -> None:
        sink.log(position.sent, line)
        position.sent, position.steps, position.time = position.sent + 1, line["steps"], line["time"]
        kept()

    passed_on = position.time  # by an earlier process: of what is there already, and by no other clock
    while True:
        ends = over()  # asked before the lines are read, which are complete then
        for line in follower.lines():
            beat()
            if not _usable(line) or line["time"] <= passed_on:
                continue
            last = line
            if abs(line["time"] - position.time) >= interval_seconds:
                send(line)
                last = None
        if ends:
            break
        passed_on = -math.inf
        beat()
        time.sleep(POLL_SECONDS)
    if last is not None:
        send(last)
    sink.close()


def _usable(line: Mapping[str, Any]) -> bool:
    """Whether it has a place in time. A step that no sink can hold would end every process that met it."""
    steps = line.get("steps")
    return isinstance(steps, int) and 0 <= steps <= MOST_STEPS and number(line.get("time")) is not None


def make(kind: str, directory: Path, settings: config.Config, position: Position) -> Sink:
    """The sink of that name, for the run in `directory`."""
    if kind == "tensorboard":
        return TensorBoard(directory / FOLDERS[kind], position.steps)
    return WeightsAndBiases(directory, settings, position.id)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="monitor.sinks", description="Started by the supervisor.")
    for name in ("role", "run"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "process", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--kind", choices=tuple(FOLDERS), required=True)
    options = parser.parse_args(arguments)
    procfs.die_with_parent(options.parent)
    over = False

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal over
        over = True
        signal.setitimer(signal.ITIMER_REAL, CLOSE_SECONDS)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, _late)
    faulthandler.enable(all_threads=True)
    reopen_when_told(options.dir / rundir.LOGS / f"{options.role}-{options.index}.log")
    settings = config.load_resolved(options.dir / rundir.RESOLVED)
    control = ringbuf.Control.attach(options.control, options.process)
    folder = options.dir / FOLDERS[options.kind]
    folder.mkdir(exist_ok=True)
    position = Position.load(folder / POSITION)
    position.save(folder / POSITION)  # its name, before anything is sent under it
    turns = 0

    def beat() -> None:
        nonlocal turns
        turns += 1
        control.pulse("step", turns)

    beat()  # from now on it is told to end, and not killed
    pass_on(
        Follower(options.dir / rundir.METRICS),
        make(options.kind, options.dir, settings, position),
        position,
        interval_seconds=settings.sinks.interval_seconds,
        kept=lambda: position.save(folder / POSITION),
        over=lambda: over,
        beat=beat,
    )
    return exits.DONE


def _late(signum: int, frame: FrameType | None) -> None:
    print(f"sink: not done {CLOSE_SECONDS:g} s after it was told to end; gives up", file=sys.stderr)
    os._exit(exits.DONE)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
