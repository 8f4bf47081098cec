"""Runs the cells of a study: as many at once as there are cores, those that need the machine alone.

One process, one thread, no torch. `Runner.run` is the loop: start what there is room for, let every cell go
one step further, note what is finished, report, sleep.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import config
from config import exits
from monitor.display import Lasting
from producers import cores
from producers.prepare import Missing
from stress import collect
from stress.cells import Cell, Matrix, threshold
from stress.description import described
from stress.host import Failed, Host
from stress.pool import Pool, Worker
from stress.progress import Report
from stress.store import Store, code_fingerprint

TICK_SECONDS = 0.02  # between looks at cells whose processes wake nobody up
SHOW_SECONDS = 1.0
ONLY = {"lagged": False, "wall": True}
"""Choices of `--only`, and whether the cells meant need the machine to themselves."""


@dataclass
class Lane:
    """A cell under way."""

    cell: Cell
    host: Host
    steps: Generator[None, None, dict[str, Any]]
    workers: Sequence[Worker]


class Runner:
    """From the first cell that is not finished to the last."""

    def __init__(self, matrix: Matrix, store: Store, display: Lasting, *, workers: int, only: str | None):
        """`workers`: learners at once. `only`: one of ONLY; None: everything."""
        self.matrix, self.store, self.display = matrix, store, display
        self.workers = workers
        self.began = time.monotonic()
        self._only = only
        self._machine = cores.read_machine()
        self._pool = Pool(store.scratch.parent / "workers.log")
        self._lanes: list[Lane] = []
        self.code = code_fingerprint()
        self._took: dict[tuple[str, bool], list[float]] = {}
        """Seconds of cells finished since this start, by task and whether they were alone."""
        self._signal: int | None = None
        self._next_show = 0.0
        self.rates: dict[str, float] = {}
        self.planned: list[Cell] = []
        self.plan()

    def run(self) -> int:
        """Returns the exit code. Raises store.Unavailable or Missing, with everything given back, where
        going on is no use."""
        handlers = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for cells in self.matrix.stages:
                if self._signal is not None:
                    break
                self.plan()
                self.store.describe(described(self.matrix, self.planned, self.workers))
                self._stage(
                    [
                        cell
                        for cell in cells(self.rates)
                        if cell.learning_rate is not None and self.wanted(cell)
                    ]
                )
            self._next_show = 0.0
            self._show()
        finally:
            self._give_up()
            self._pool.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return exits.DONE if self._signal is None else exits.SIGNAL + self._signal

    # What is to be done

    def wanted(self, cell: Cell) -> bool:
        """Whether this start is to run it, once its learning rate is chosen."""
        return self._only is None or cell.kind.exclusive == ONLY[self._only]

    @property
    def left(self) -> list[Cell]:
        """Planned cells that are not finished, whether or not this start is to run them."""
        return [cell for cell in self.planned if cell.id not in self.store.cells]

    def plan(self) -> None:
        """Takes in which learning rates are chosen by now."""
        self.rates = self.matrix.choose(self.store.cells)
        self.planned = [*self.matrix.tuning, *self.matrix.main(self.rates)]

    # The loop

    def _stage(self, cells: Sequence[Cell]) -> None:
        waiting = [cell for cell in reversed(cells) if cell.id not in self.store.cells]
        while (waiting or self._lanes) and self._signal is None:
            while waiting and self._room(waiting[-1]):
                self._start(waiting.pop())
            for lane in list(self._lanes):
                self._step(lane)
            self._show()
            self._sleep()

    def _room(self, cell: Cell) -> bool:
        if not self._lanes:
            return True
        busy = sum(len(lane.workers) for lane in self._lanes)
        alone = cell.kind.exclusive or any(lane.cell.kind.exclusive for lane in self._lanes)
        return not alone and busy + cell.kind.learners <= self.workers

    def _start(self, cell: Cell) -> None:
        """Raises store.Unavailable, Missing."""
        self.store.require_room()
        try:
            prepared = cell.prepare(self.store.scratch, self._machine)
        except config.ConfigError as error:
            raise Missing(f"{cell}: {error.problems[0]}") from None
        try:
            workers = self._pool.lend(cell.kind.learners)
        except OSError as error:
            raise Missing(f"no worker could be started: {error.strerror}") from None
        task = self.matrix.file.study.tasks[cell.kind.task]
        hung = self.matrix.file.study.study.hung_seconds
        host = Host(cell, prepared, workers, threshold=threshold(task), hung_seconds=hung)
        self._lanes.append(Lane(cell, host, host.run(), workers))

    def _step(self, lane: Lane) -> None:
        try:
            next(lane.steps)
            return
        except StopIteration as ended:
            outcome = {"status": "done", "why": None, **ended.value}
        except (Failed, OSError) as error:
            self.store.require_room()  # on a full disk no cell can be blamed
            outcome = {"status": "failed", "why": str(error), **collect.NOTHING}
            self.display.say(f"failed: {lane.cell}: {error}")
        self._end(lane)
        finished = time.time()
        kind = lane.cell.kind
        self.store.finish(
            lane.cell.facts
            | outcome
            | {
                "exclusive": kind.exclusive,
                "started": lane.host.started,
                "finished": finished,
                "code": self.code,
            }
        )
        self._took.setdefault((kind.task, kind.exclusive), []).append(finished - lane.host.started)

    def _end(self, lane: Lane) -> None:
        self._lanes.remove(lane)
        lane.steps.close()
        lane.host.close()
        self._pool.give_back(lane.workers)

    def _give_up(self) -> None:
        """What is under way is not finished, and will be run anew."""
        for lane in list(self._lanes):
            self._end(lane)

    def _hear(self, number: int, _: Any) -> None:
        self._signal = number

    def _sleep(self) -> None:
        """A worker's answer or its end wakes us up; a stop that a learner asks for is looked for."""
        select.select([worker.fd for worker in self._pool if worker.busy], [], [], TICK_SECONDS)

    # Reporting

    def _show(self) -> None:
        now = time.monotonic()
        if now < self._next_show:
            return
        self._next_show = now + SHOW_SECONDS
        took = [seconds for some in self._took.values() for seconds in some]
        finished = [self.store.cells[cell.id] for cell in self.planned if cell.id in self.store.cells]
        self.display.show(
            Report(
                name=self.matrix.file.study.study.name,
                done=len(finished),
                failed=sum(record["status"] == "failed" for record in finished),
                planned=len(self.planned),
                seconds=now - self.began,
                cell_seconds=fmean(took) if took else None,
                left_seconds=self.estimate(self.left) if took else None,
                running=[(str(lane.cell), lane.host.share) for lane in self._lanes],
            )
        )

    def estimate(self, cells: Sequence[Cell]) -> float:
        """Seconds that these will take, from those that finished and from the file's word before any did."""
        total = 0.0
        for cell in cells:
            if self.wanted(cell):
                kind = cell.kind
                took = self._took.get((kind.task, kind.exclusive))
                seconds = fmean(took) if took else self.matrix.file.study.tasks[kind.task].cell_seconds
                total += seconds if kind.exclusive else seconds * kind.learners / self.workers
        return total
