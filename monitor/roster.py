"""The rows of the process table, and the processes that fill them one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from monitor import procfs
from monitor.children import Children, Member
from monitor.watch import Watch


class Roster:
    """Every row has a writer for its identity, here, and one for its pulse and counters, its process."""

    def __init__(self, control: Any, children: Children, run: str, directory: str):
        """`run` and `directory` stand in the arguments of every process, for whoever reads its list."""
        self._control = control
        self._children = children
        self._run = run
        self._directory = directory
        self._members: list[Member] = []

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def add(self, member: Member, program: Sequence[str], arguments: Sequence[str]) -> None:
        """A row whose first process is due at once. Any process may look for it as soon as that runs."""
        identity = {"role": member.role, "index": member.index, "run": self._run, "dir": self._directory,
                    "process": member.slot, "parent": os.getpid()}
        names = [part for name, value in identity.items() for part in (f"--{name}", str(value))]
        member.command = [*program, *names, *arguments]
        self._members.append(member)
        self._enter(member, 0, core=member.core, state="starting")

    def of_role(self, role: str) -> list[Member]:
        return [member for member in self._members if member.role == role]

    def process(self, member: Member) -> Any:
        """What the process says of itself."""
        return self._control.process(member.slot)

    def mark(self, member: Member, state: str) -> None:
        """By it its learner knows whom to grant credit, and everybody else what to show."""
        self._set(member, state=state)

    def spawn(self, member: Member, extra: Sequence[str], *, worth: int, tick: int) -> None:
        """Starts the next process of a row, with the arguments of the last one and `extra`. `worth`: what its
        predecessors' work has come to; `tick`: the watcher's. Raises OSError where there is no room for
        one."""
        member.due, member.worth, member.began, member.watch = None, worth, time.monotonic(), Watch(tick)
        member.lives += 1
        self._control.reset_pulse(member.slot)
        self._enter(member, 0, state="starting", epoch=member.lives)
        try:
            command = [*member.command, *extra]
            child = self._children.start(member.role, member.index, command, member.fds, member)
        except OSError:
            self.mark(member, "exited")
            raise
        self._enter(member, child.pid)

    def _enter(self, member: Member, pid: int, **rest: Any) -> None:
        used = procfs.usage(pid) if pid else None
        start_time = used.start_ticks if used else 0
        self._set(member, role=member.role, role_index=member.index, pid=pid, start_time=start_time, **rest)

    def _set(self, member: Member, **identity: Any) -> None:
        """Changes a row, and has every learner look again."""
        self._control.set_process(member.slot, **identity)
        for learner in self.of_role("learner"):
            self._control.bell_ring(learner.index)
