"""The supervisor's part for one cell: memory, producers, learners in warm workers, stop, sweep, evaluation.

Small, because a cell may fail: nothing is restarted. What dies or hangs makes the cell a failed one.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import config
from config import exits
from monitor import deaths, rundir
from monitor.status import Table
from producers import native, takeover
from producers.prepare import Layout, Missing, Prepared, Segments
from stress import collect, store
from stress.cells import Cell
from stress.pool import Worker

if TYPE_CHECKING:
    from ringbuf.repair import Repair

MOST_ELAPSED_SECONDS = 1.0  # of one look: a machine that stood still is no cell that hangs
START_SECONDS = 120.0  # importing torch from a slow disk
Steps = Generator[None, None, None]


class Failed(Exception):
    """The cell has failed. The message is one line."""


class Host:
    """One cell from its first segment to its last unlink. `close` leaves nothing, whenever it comes."""

    def __init__(
        self,
        cell: Cell,
        prepared: Prepared,
        workers: Sequence[Worker],
        *,
        threshold: float,
        hung_seconds: float,
    ):
        """`prepared`: the cell's run. `workers`: one a learner. `threshold`: the score whose time counts."""
        self.cell, self.prepared, self.workers = cell, prepared, workers
        self.folder = prepared.config.run_dir
        self.started = time.time()
        self._threshold = threshold
        self._hung_seconds = self._patience = hung_seconds
        self._looked = time.monotonic()
        self._seen: list[int] = []
        self._producers: list[subprocess.Popen[bytes]] = []
        self._segments: Segments | None = None
        self._stopping = False
        self._meeting = -1
        """Where learners find each other; -1: there is one, or none yet."""
        count = int(prepared.config.producers.count)
        self._table = Table.of(count, prepared.config.learner.count)

    @property
    def share(self) -> float:
        """How much of the budget is trained."""
        if self._segments is None or not self.prepared.config.stop.steps:
            return 0.0
        return min(1.0, self._learner()["run_steps"] / self.prepared.config.stop.steps)

    def run(self) -> Generator[None, None, dict[str, Any]]:
        """The cell's life, which goes on with every `next`. Returns what came of it, for the cell's file.
        Raises Failed, producers.prepare.Missing, OSError."""
        yield from self._until(self._are_idle, START_SECONDS)
        segments = self._segments = self._open()
        repair = self._start(segments)
        yield from self._until(lambda: self._learner()["stop_request"] != 0)
        stopped_ns, self._stopping = time.monotonic_ns(), True
        segments.control.set_stop(segments.stop_reasons[self._learner()["stop_request"]])
        yield from self._until(lambda: all(one.poll() == 0 for one in self._producers))
        for index in range(len(self._producers)):
            repair.of_producer(index)
        segments.control.set_producers_gone()
        yield from self._until(self._are_idle)
        self._close_books(segments, repair)
        settings = self.prepared.config
        window = max(settings.stop.window, int(settings.producers.count) * settings.producers.agents)
        lines = collect.read_lines(self.folder / rundir.METRICS)
        outcome = collect.measured(segments, self._table, lines, stopped_ns)
        outcome |= collect.solved_at(lines, self._threshold, window)
        if settings.evaluate.episodes:
            playing = settings.evaluate.model_dump()
            self.workers[0].order({"do": "evaluate", "run": str(self.folder), **playing})
            yield from self._until(self._are_idle, settings.evaluate.seconds + START_SECONDS)
            outcome["evaluated"] = self.workers[0].answer["evaluated"]
        return outcome

    def close(self) -> None:
        """Ends what is left. A worker that is still at it is its pool's."""
        for producer in self._producers:
            producer.kill()
            producer.wait()
        if self._segments is not None:
            for ring in self._segments.rings:
                ring.close()
            self._segments.weights.close()
            self._segments.close()
            self._segments.control.close()
            self._segments = None
        if self._meeting >= 0:
            os.close(self._meeting)
        store.remove(self.folder)

    # Starting

    def _open(self) -> Segments:
        """Directory and memory. Their names are written down before they exist."""
        run_id = uuid.uuid4()
        (self.folder / "logs").mkdir(parents=True)
        names = Layout(self.prepared).names(run_id)
        (self.folder / store.SEGMENTS).write_text("\n".join(names) + "\n")
        (self.folder / rundir.RESOLVED).write_text(config.dump_resolved(self.prepared.config))
        segments = Segments(self.prepared, run_id, directory=str(self.folder))
        takeover.enter_supervisor(segments.control, 1)
        return segments

    def _start(self, segments: Segments) -> Repair:
        """Gives the learners their orders, and starts the producers. Returns who sweeps up after them."""
        from ringbuf.repair import Repair  # not before it is known to be built

        control, count = segments.control, len(self.workers)
        repair = Repair(control, segments.weights, segments.rings, count)
        fds = [control.fd, segments.weights.fd, *(ring.fd for ring in segments.rings)]
        rings = ",".join(f"@{i}" for i in range(2, len(fds)))
        every = ["--control", "@0", "--weights", "@1", "--rings", rings]
        if count > 1:
            self._meeting = os.memfd_create("headrace-meeting")
            every += ["--learners", str(count), "--meeting", f"@{len(fds)}"]
            fds.append(self._meeting)
        for index, (slot, worker) in enumerate(zip(self._table.learners, self.workers, strict=True)):
            repair.hand_over(index)
            control.set_process(slot, role="learner", role_index=index, state="running", epoch=1)
            control.set_process(slot, pid=worker.pid)
            worker.order({"do": "learn", "arguments": [*self._identity("learner", index, slot), *every]}, fds)
        for index, core in enumerate(self.prepared.placement.cores):
            self._start_producer(segments, index, core)
        return repair

    def _start_producer(self, segments: Segments, index: int, core: int) -> None:
        slot, ring = self._table.producers[index], segments.rings[index]
        segments.control.set_process(slot, role="producer", role_index=index, state="running", epoch=1)
        fds = (segments.control.fd, segments.weights.fd, ring.fd)
        control, weights, own = map(str, fds)
        command = [str(native.PRODUCER), *self._identity("producer", index, slot)]
        command += [
            "--control",
            control,
            "--weights",
            weights,
            "--ring",
            own,
            "--sim",
            str(self.prepared.library),
        ]
        if self.cell.kind.exclusive:  # beside others it would share that core while another is idle
            command += ["--core", str(core)]
        with self._log("producer", index).open("ab") as log:
            producer = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
            )
        self._producers.append(producer)
        segments.control.set_process(slot, pid=producer.pid)

    def _identity(self, role: str, index: int, slot: int) -> list[str]:
        """Arguments of every process of a run. It dies with the runner."""
        identity = {
            "role": role,
            "index": index,
            "run": self.cell.id,
            "dir": self.folder,
            "process": slot,
            "parent": os.getpid(),
        }
        return [part for name, value in identity.items() for part in (f"--{name}", str(value))]

    def _log(self, role: str, index: int) -> Path:
        return self.folder / rundir.LOGS / f"{role}-{index}.log"

    # Watching

    def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> Steps:
        """Gives control back until it holds. Raises Failed where somebody has died, where nothing moves, or
        after `seconds`."""
        self._patience = self._hung_seconds if seconds is None else seconds
        self._looked = time.monotonic()
        while not condition():
            self._look(moving_counts=seconds is None)
            yield

    def _look(self, *, moving_counts: bool) -> None:
        for index, worker in enumerate(self.workers):
            self._judge_worker(index, worker)
        for index, producer in enumerate(self._producers):
            if producer.poll() or (producer.returncode == 0 and not self._stopping):
                self._judge_producer(index, producer.returncode)
        now = time.monotonic()
        self._patience -= min(now - self._looked, MOST_ELAPSED_SECONDS)
        self._looked = now
        control = None if self._segments is None else self._segments.control
        slots = (*self._table.learners, *self._table.producers)
        processes = [] if control is None else [control.process(slot) for slot in slots]
        moved = [one.progress for one in processes]
        if moving_counts and moved != self._seen:
            self._seen, self._patience = moved, self._hung_seconds
        if self._patience < 0:
            doing = ", ".join(f"{one.role} {one.role_index} in phase {one.phase}" for one in processes)
            limit = f"{self._hung_seconds:g} s (study.hung_seconds)"
            moved_not = f"nothing moved for {limit}: {doing}"
            raise Failed(moved_not if moving_counts else "a worker gave no answer")

    def _judge_worker(self, index: int, worker: Worker) -> None:
        if worker.busy:
            worker.listen()
        code = worker.returncode
        if code is not None and self._segments is None:  # before it had anything of the cell
            raise Missing(f"a worker {deaths.how(code)} at its start{last_words(worker.log)}")
        if code is None and "error" in worker.answer:
            raise Failed(f"worker {index}: {worker.answer['error']}")
        if code is None:
            code = worker.answer.get("code")
        if code:
            self._blame(f"learner {index}", code, last_words(self._log("learner", index)))

    def _judge_producer(self, index: int, returncode: int) -> None:
        assert self._segments is not None
        counters = self._segments.control.counters(self._table.producers[index])
        crash = deaths.Crash.of(counters)
        where = f" {crash}" if crash is not None else last_words(self._log("producer", index))
        self._blame(f"producer {index}", returncode, where)

    def _blame(self, who: str, code: int, where: str) -> NoReturn:
        """The cell, unless the process says that this machine lacks something."""
        text = f"{who} {deaths.how(code)}{where}"
        raise Missing(f"{self.cell}: {text}") if code == exits.MISSING else Failed(text)

    def _learner(self) -> dict[str, int]:
        assert self._segments is not None
        return self._segments.control.counters(self._table.learner)

    # Ending

    def _are_idle(self) -> bool:
        """Whether every worker has done what it was told."""
        return not any(worker.busy for worker in self.workers)

    def _close_books(self, segments: Segments, repair: Repair) -> None:
        """Frees and counts what is left in the rings. Afterwards nothing may be in flight."""
        for index, slot in enumerate(self._table.learners):
            repair.of_learner(slot, index)
        repair.free_bad(lambda ring, sequence: None)
        repair.drop_ready()
        wrong = [f"ring {ring.index}: {text}" for ring in segments.rings for text in segments.audit(ring)]
        if wrong:
            raise Failed(f"the books do not balance: {'; '.join(wrong)}")


def last_words(log: Path) -> str:
    """What somebody wrote last into a log, as the end of a line."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return f": {said[-1]}" if said else ""
