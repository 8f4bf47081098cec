"""The processes of a run: started in sessions of their own, known to be dead from the kernel, signalled."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monitor import procfs
from monitor.restarts import Restarts
from monitor.rundir import RunDirectory
from monitor.watch import Watch

# torch's threads wait for each other at every operation. By default they spin: measured at 2 threads on 2
# cores, with now and then another process on them, that is six times slower than to sleep.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}


@dataclass(eq=False)
class Member:
    """A place in the process table, whoever fills it. One process after the other does."""

    role: str
    index: int
    slot: int
    fds: Sequence[int]
    """Descriptors that keep their numbers in its processes."""
    core: int | None = None
    command: Sequence[str] = ()
    """Program and arguments of every one of them."""
    restarts: Restarts = field(default_factory=Restarts)
    lives: int = 0
    """Processes started so far."""
    due: float | None = 0.0
    """When the next one is due, on the monotonic clock; None: it runs, or none is to come."""
    worth: int = 0
    """What its work had come to, in whatever it is counted, when this process began."""
    began: float = 0.0
    """When that process began, on the monotonic clock."""
    watch: Watch = field(default_factory=lambda: Watch(0))
    child: Child | None = None
    """That process, until it is reaped."""
    failed: bool = False
    """It died too often without progress, and is not started again."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@dataclass(frozen=True, eq=False)
class Child:
    """A process. `member`: whose place it fills; None: it has none in the table."""

    role: str
    index: int
    member: Member | None
    popen: subprocess.Popen[bytes]
    pidfd: int

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def pid(self) -> int:
        return self.popen.pid

    def send(self, number: signal.Signals) -> None:
        """To this process alone."""
        # Not by number: until it is reaped, nobody else can have its pid.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def send_all(self, number: signal.Signals) -> None:
        """To it and whatever it has forked: its session is its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Children:
    """All children that were not reaped yet, and what wakes the loop: their ends and our signals."""

    def __init__(self, directory: RunDirectory, root: Path):
        """`root`: where they run. Signals only write their number into a socket, which ends `wait`."""
        self._directory = directory
        self._root = root
        self._by_pidfd: dict[int, Child] = {}
        self.killed: set[Child] = set()
        """By `kill`, so that nobody is to wonder at their death."""
        self._poll = select.poll()
        self._signals, self._wakeup = socket.socketpair()
        for end in (self._signals, self._wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._poll.register(self._signals, select.POLLIN)

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._by_pidfd.values()))

    def alive(self, role: str) -> list[Child]:
        """Those of a role, none of which was reaped."""
        return [child for child in self if child.role == role]

    def start(
        self,
        role: str,
        index: int,
        command: Sequence[str],
        fds: Iterable[int] = (),
        member: Member | None = None,
    ) -> Child:
        """Starts a process with the run's lock and its own log. Raises OSError where there is no room for
        one."""
        log = self._directory.log(role, index)
        try:
            popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._root,
                start_new_session=True, pass_fds=(*fds, self._directory.lock_fd),
                env=ENVIRONMENT | os.environ,
                # Between fork and exec, which is safe with one thread: no child is ever without it.
                preexec_fn=functools.partial(_prepare, os.getpid()),
            )
        except subprocess.SubprocessError as error:  # between fork and exec
            raise OSError(errno.EAGAIN, str(error)) from None
        finally:
            os.close(log)
        try:
            child = Child(role, index, member, popen, os.pidfd_open(popen.pid))
        except OSError:  # one that nobody watches must not run beside the next in its place
            popen.kill()
            popen.wait()
            raise
        if member is not None:
            member.child = child
        self._by_pidfd[child.pidfd] = child
        self._poll.register(child.pidfd, select.POLLIN)
        self._directory.event(role, index, "started", pid=popen.pid)
        return child

    def kill(self, children: Iterable[Child]) -> None:
        """For good, with all that they have forked."""
        for child in children:
            self.killed.add(child)
            child.send_all(signal.SIGKILL)

    def wait(self, seconds: float) -> tuple[list[Child], list[signal.Signals]]:
        """Sleeps until something happens, at most so long: (children that ended, signals that came)."""
        ended: list[Child] = []
        numbers = b""
        for fd, _ in self._poll.poll(seconds * 1000):
            if fd in self._by_pidfd:
                ended.append(self._by_pidfd[fd])
            else:
                numbers += self._signals.recv(256)
        return ended, [signal.Signals(number) for number in numbers]

    def reap(self, child: Child) -> int:
        """Waits for a child that is dead or dying; returns its exit code, or minus the signal that killed
        it. From then on no store of its is to come, which no time-out could tell. What it has forked goes
        with it: that holds the run's lock and memory, and nobody else would ever end it."""
        if child.popen.returncode is None:  # the number of its session is still nobody else's
            child.send_all(signal.SIGKILL)
        returncode = child.popen.wait()
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._by_pidfd[child.pidfd]
        if child.member is not None:
            child.member.child = None
        self._directory.event(child.role, child.index, "ended", pid=child.pid, returncode=returncode)
        return returncode


def _prepare(parent: int) -> None:
    """In the child. SIGUSR1 asks for the log to be opened anew; until a process says how, which takes those
    that import torch seconds, it must not kill."""
    procfs.die_with_parent(parent)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
