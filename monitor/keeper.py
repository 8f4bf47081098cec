"""Keeps the rows of the process table filled: who died, who stands still, who is started again, who is not.

The rules are in monitor/restarts.py and monitor/watch.py, which know nothing of processes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import config
from config import exits
from monitor import deaths, procfs, restarts
from monitor.children import Child, Children, Member
from monitor.roster import Roster
from monitor.rundir import RunDirectory
from monitor.watch import Patience, Pulse

TICK_SECONDS = 0.1
OBSERVERS = ("exporter", "recorder", "evaluator", "sink")  # roles that only look: training does without them
PASSED_ON = (exits.CONFIG, exits.MISSING)  # no restart would change these, so they become the run's own


class Keeper:
    """Buries, judges and starts the processes of one run. It does not end the run: it says why it must."""

    def __init__(
        self,
        settings: config.Config,
        roster: Roster,
        children: Children,
        directory: RunDirectory,
        *,
        control: Any,
        repair: Any,
        simulator: str,
        before_learners: Callable[[], None],
        resumption: Callable[[], list[str]],
        warn: Callable[[str], None],
        fail: Callable[[int, str], None],
    ):
        """`control`: the control block; `repair`: a ringbuf.repair.Repair; `before_learners`: called before
        the first of them is started, when none lives; `resumption`: arguments for a learner that starts;
        `fail`: takes an exit code and a reason."""
        self.config = settings
        self.roster = roster
        self.children = children
        self.directory = directory
        self.control = control
        self.repair = repair
        self.simulator = simulator
        self.before_learners = before_learners
        self.resumption = resumption
        self.warn = warn
        self.fail = fail
        self.restarts: dict[str, int] = {}
        """Processes started in place of a dead one, by role."""
        self.ticks = 0
        self.producers_end = False
        """Whether they are told to."""
        self.learner_ends = self.observers_end = False
        self._oom_kills = procfs.oom_kills()

    def start(self) -> None:
        """Starts every process that is due."""
        now = time.monotonic()
        for member in self.roster:
            if member.due is not None and now >= member.due:
                self._spawn(member)

    def _spawn(self, member: Member) -> None:
        """Starts a process of the table: the first, or the next on the same ring with the same arguments."""
        extra: list[str] = []
        if member.role == "producer":
            self.repair.take_back_credit(member.index)
        elif member.role == "learner":
            if not self.children.alive("learner"):
                self.before_learners()
            extra = self.resumption()
            self.repair.hand_over(member.index)
        self.restarts[member.role] += member.lives > 0
        try:
            self.roster.spawn(member, extra, worth=self._worth(member), tick=self.ticks)
        except OSError as error:  # no memory or no pid to be had: as if it had died at once
            why = (error.strerror or str(error)).lower()
            self._bereave(member, f"{member.name} cannot be started: {why}")

    def bury(self, child: Child) -> int | None:
        """Waits for a child that is dead or dying, then repairs what it left half done in shared memory.
        Returns its exit code, or minus the signal that killed it; None: it was buried with another one.

        Never the other way round: only waitid tells that no store of the dead one is to come.
        """
        if child not in self.children:
            return None
        returncode = self.children.reap(child)
        if child.member is not None:
            self.roster.mark(child.member, "exited")
        if child.role == "producer":
            self.repair.of_producer(child.index)
        elif child.role == "learner":
            assert child.member is not None
            if not self._expected(child.member, returncode):
                self._end_learners()
            self.repair.of_learner(child.member.slot, child.index)
        elif child.role == "server":
            self.repair.of_server(child.index)
        return returncode

    def _end_learners(self) -> None:
        """One died, and the others would wait for it: they die and begin together. None may live when the
        slots of one are swept, since it might yet publish a version that is made of them."""
        others = self.children.alive("learner")
        self.children.kill(others)
        for other in others:
            self.children.reap(other)
        for other in others:
            assert other.member is not None
            self.roster.mark(other.member, "exited")
            self.repair.of_learner(other.member.slot, other.index, blameless=True)

    def _expected(self, member: Member, returncode: int) -> bool:
        """Whether a process ended because the run does."""
        return returncode == 0 and self._is_over(member)

    def _is_over(self, member: Member) -> bool:
        """Whether the run has told processes of that role to end."""
        ends = {
            "producer": self.producers_end,
            "learner": self.learner_ends,
            "server": self.learner_ends,
            "recorder": self.observers_end,
            "evaluator": self.observers_end,
            "sink": self.observers_end,
        }
        return ends.get(member.role, False)

    def inquire(self, child: Child, member: Member, returncode: int) -> None:
        """A process ended that nobody killed: says how, and decides whether the next would fare better."""
        if self._expected(member, returncode):
            return
        text = self._report_death(child, member, returncode)
        never_ran = member.lives == 1 and self.roster.process(member).phase == "starting"
        fatal = (*PASSED_ON, exits.GAVE_UP) if member.role == "learner" else PASSED_ON
        can_fail = member.role not in OBSERVERS
        if can_fail and (returncode in fatal or (never_ran and returncode >= 0)):
            member.failed = True
            self.roster.mark(member, "failed")
            text += self.last_words(member.role, member.index)
            self.fail(returncode if returncode in fatal else exits.INTERNAL, text)
        elif member.role != "learner" and self._is_over(member):
            self.warn(text)  # what it left is in order, and nobody needs the next one
        else:
            self._bereave(member, text)

    def _bereave(self, member: Member, text: str) -> None:
        """The place of a dead process: filled again at once, after a delay, or no more."""
        limits, now = self.config.supervisor, time.monotonic()
        progressed = self._worth(member) != member.worth
        if member.role in OBSERVERS:
            progressed = now - member.began > limits.backoff_max_seconds
        delay = member.restarts.died(now, progressed=progressed, limits=limits)
        if delay is None:
            self._give_up(member, text)
            return
        together = [member]
        if member.role == "learner":
            self._end_learners()  # where one was there already when this one could not be started
            together = self.roster.of_role("learner")
        for one in together:
            one.due = now + delay
            if delay:
                self.roster.mark(one, "backoff")
        who = "starts" if len(together) == 1 else "all learners start"
        self.warn(f"{text}; {who} again {f'in {delay:.1f} s' if delay else 'at once'}")

    def _give_up(self, member: Member, text: str) -> None:
        """A process failed for good; the run goes on without a producer that it can spare."""
        member.failed = True
        self.roster.mark(member, "failed")
        limits = self.config.supervisor
        text += (
            f", for the {member.restarts.failures}th time within {limits.failure_seconds:g} s without "
            f"progress (supervisor.max_failures: {limits.max_failures})"
        )
        self.directory.event(member.role, member.index, "gave up", message=text)
        if member.role == "producer" and not self.producers_end:
            producers = self.roster.of_role("producer")
            lives = [not one.failed for one in producers]
            learners = self.config.learner.count
            why = restarts.enough(
                [sum(lives[ring] for ring in self.repair.rings_of(i)) for i in range(learners)],
                slots=self.config.ring.slots,
                least=int(limits.min_producers),
                batch_slots=self.config.learner.batch_slots,
                exact=self.config.exact,
                producers=len(producers),
            )
            if why is None:
                self.warn(f"{text}; the run goes on with {sum(lives)} of {len(producers)} producers")
                return
            text = f"{why}: {text}"
        self.fail(exits.GAVE_UP, text + self.last_words(member.role, member.index))

    def _worth(self, member: Member) -> int:
        """What the work of all its processes has come to: segments of a producer, answers of a server,
        updates of the learners, which are the first one's."""
        if member.role == "producer":
            return self.repair.written(member.index)
        if member.role == "server":
            return self.control.counters(member.slot)["requests"]
        if member.role != "learner":
            return 0
        first, *_ = self.roster.of_role("learner")
        return self.control.counters(first.slot)["updates"]

    def _report_death(self, child: Child, member: Member, returncode: int) -> str:
        """One line, and one event with what the author of a simulator needs to see it happen again."""
        before, self._oom_kills = self._oom_kills, procfs.oom_kills()
        producer: dict[str, Any] = {}
        if member.role == "producer":
            producer = {
                "crash": deaths.Crash.of(self.control.counters(member.slot)),
                "simulator": self.simulator,
                "header": self.repair.last_header(member.index),
            }
        inquest = deaths.Inquest.of(
            returncode, hung=member.watch.found, out_of_memory=self._oom_kills > before, **producer
        )
        facts = {"pid": child.pid, "life": member.lives, **inquest.facts}
        self.directory.event(member.role, member.index, "crashed", **facts)
        return f"{member.name} (pid {child.pid}) {inquest.text}"

    def last_words(self, role: str, index: int) -> str:
        lines = self.directory.log_tail(role, index)
        return f"; the end of logs/{role}-{index}.log:\n    " + "\n    ".join(lines) if lines else ""

    def judge(self) -> None:
        """Processes that have come up, or do not, or stand still."""
        for member in self.roster:
            if member.child is not None and member.child not in self.children.killed:
                self._judge_member(member, member.child)

    def _judge_member(self, member: Member, child: Child) -> None:
        info, limits = self.roster.process(member), self.config.supervisor
        if info.state == "starting" and info.phase != "starting":
            ends = self.producers_end and member.role not in OBSERVERS
            self.roster.mark(member, "stopping" if ends else "running")
        patience = Patience.of(
            TICK_SECONDS,
            start=limits.start_seconds,
            hung=float(limits.hung_seconds),
            stalled=limits.stalled_seconds,
            abort=limits.abort_seconds,
        )
        if member.watch.found:
            if member.watch.kill_due(self.ticks, patience):
                child.send_all(signal.SIGKILL)
            return
        pulse = Pulse(info.heartbeat_ns, info.progress, info.phase)
        found = member.watch.look(self.ticks, pulse, patience)
        if found is not None:
            self._abort(member, child, found, pulse)

    def _abort(self, member: Member, child: Child, found: str, pulse: Pulse) -> None:
        """Asks a process that stands still for its stack, which it writes to its log and does not survive."""
        first = member.role == "learner" and not self.control.counters(member.slot)["ready"]
        if first and not self.producers_end:
            self.children.kill(self.children.alive("learner"))  # the next would not come up either
            limit = f"{self.config.supervisor.start_seconds:g} s (supervisor.start_seconds)"
            text = f"{member.name} published nothing within {limit}"
            self.fail(exits.INTERNAL, text + self.last_words(member.role, member.index))
            return
        silent = member.watch.silent_ticks(self.ticks) * TICK_SECONDS
        self.directory.event(
            member.role, member.index, found, pid=child.pid, phase=pulse.phase, progress=pulse.progress,
            heartbeat_seconds=round(silent, 1),
        )
        self.warn(
            f"{member.name} (pid {child.pid}): {found} in phase {pulse.phase}, last heartbeat "
            f"{silent:.1f} s ago; its stack is in logs/{member.role}-{member.index}.log"
        )
        self.roster.mark(member, "hung")
        child.send(signal.SIGABRT)
        child.send_all(signal.SIGCONT)  # a stopped process gets no signal but this one and SIGKILL
