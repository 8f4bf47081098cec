"""Warm workers as the runner has them: started when needed, lent to cells, replaced when they die."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from monitor import procfs
from monitor.children import ENVIRONMENT
from producers import native

MESSAGE_BYTES = 1 << 16


class Worker:
    """One process of stress/worker.py."""

    def __init__(self, log: Path):
        """Raises OSError."""
        self.log = log
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd, parent = theirs.fileno(), os.getpid()
        command = [sys.executable, "-m", "stress.worker", "--fd", str(fd), "--parent", str(parent)]
        with ours, theirs, log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=native.ROOT,
                start_new_session=True, pass_fds=[fd], env=ENVIRONMENT | os.environ,
                preexec_fn=functools.partial(procfs.die_with_parent, parent),
            )  # fmt: skip
            self._orders = ours.dup()
        self._orders.setblocking(False)
        self.answer: dict[str, Any] = {}
        """To its last order."""
        self.busy = True
        """Until the answer to its order, or to its start, has come."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fd(self) -> int:
        """Readable when an answer or the worker's end has come."""
        return self._orders.fileno()

    def order(self, what: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """To a worker that is not busy. Raises OSError where it has died."""
        self.busy, self.answer = True, {}
        socket.send_fds(self._orders, [json.dumps(what).encode()], list(fds))

    def listen(self) -> None:
        """Takes in its answer, if it has come."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if data := self._orders.recv(MESSAGE_BYTES):
                self.busy, self.answer = False, json.loads(data)

    @property
    def returncode(self) -> int | None:
        """None: it lives."""
        return self._process.poll()

    def kill(self) -> None:
        """For good, with all that it has forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._orders.close()


class Pool:
    """Idle workers. Of those that are lent, whoever has them takes care."""

    def __init__(self, log: Path):
        self._log = log
        self._idle: list[Worker] = []
        self._lent: list[Worker] = []

    def lend(self, count: int) -> list[Worker]:
        """So many, new ones where there are too few. Raises OSError."""
        for dead in [worker for worker in self._idle if worker.returncode is not None]:
            self._idle.remove(dead)
            dead.kill()
        while len(self._idle) < count:
            self._idle.append(Worker(self._log))
        lent = [self._idle.pop() for _ in range(count)]
        self._lent += lent
        return lent

    def give_back(self, workers: Sequence[Worker]) -> None:
        """One that has not finished its order, or is dead, goes: another takes its place."""
        for worker in workers:
            self._lent.remove(worker)
            if worker.busy or worker.returncode is not None:
                worker.kill()
            else:
                self._idle.append(worker)

    def __iter__(self) -> Iterator[Worker]:
        return iter([*self._idle, *self._lent])

    def close(self) -> None:
        for worker in self:
            worker.kill()
        self._idle.clear()
        self._lent.clear()
