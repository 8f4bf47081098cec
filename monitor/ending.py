"""How a run ends: why, with which exit code, and in the one order of shutdown.

Producers first; then the learner, which trains what is complete and writes a last checkpoint; then those who
only look, whose last lines are on their way to the disk; then the evaluation. The exporter shows all of it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import config
from config import exits
from monitor import deaths
from monitor.children import Child, Children
from monitor.evaluation import Evaluation
from monitor.keeper import OBSERVERS, TICK_SECONDS, Keeper
from monitor.roster import Roster
from monitor.rundir import RunDirectory

DONE_REASONS = ("steps", "seconds", "versions", "score")  # asked for by the run file: the run is done

HOLDERS = ("recorder", "sink")  # they have something to put away
STOPPED_LAST = (*HOLDERS, "evaluator")
PAUSE_SECONDS = 2.0  # so late no loop comes by where the machine runs
STARTING_STOP_SECONDS = 1.0  # a stop waits so long for a producer that is still making its worlds


class Phase(Enum):
    """Where the run is in the one order of its life."""

    RUN = auto()
    STOP_PRODUCERS = auto()
    STOP_LEARNER = auto()
    STOP_OBSERVERS = auto()
    EVALUATE = auto()
    OVER = auto()


class Ending:
    """`advance` brings it forward, a step at each call. `code`: the exit code; `message`: what went wrong
    first, or None; `failed`: whether that is why the run ends; `reason`: in the control block's words."""

    def __init__(
        self,
        settings: config.Config,
        roster: Roster,
        children: Children,
        keeper: Keeper,
        evaluation: Evaluation,
        directory: RunDirectory,
        *,
        control: Any,
        learner: int,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
    ):
        """`control`: the control block; `learner`: the first one's place in it."""
        self.config = settings
        self._roster, self._children, self._keeper = roster, children, keeper
        self._evaluation, self._directory = evaluation, directory
        self._control, self._learner = control, learner
        self._tell, self._warn = tell, warn
        self.phase = Phase.RUN
        self.reason = ""
        self.code = exits.DONE
        self.message: str | None = None
        self.failed = False
        self.stop_ns: int | None = None
        """CLOCK_MONOTONIC of the stop flag."""
        self._stopping = self._deadline = self._half_deadline = self._observers_deadline = float("inf")
        self._advanced = time.monotonic()  # when the loop came by last

    @property
    def state(self) -> str:
        """The run's state, in the words of status.json."""
        if self.phase is Phase.RUN:
            return "running" if self._counters["updates"] else "starting"
        if self.phase is not Phase.OVER:
            return "stopping"
        if self.failed:
            return "failed"
        return "done" if self.reason in DONE_REASONS else "stopped"

    @property
    def _counters(self) -> dict[str, int]:
        """The learner's."""
        counters: dict[str, int] = self._control.counters(self._learner)
        return counters

    def begin(self, reason: str) -> None:
        """The first step, once."""
        self.reason = reason
        self.phase = Phase.STOP_PRODUCERS
        self._keeper.producers_end = True
        self._evaluation.wanted = reason in DONE_REASONS and self.config.evaluate.episodes > 0
        now, allowed = time.monotonic(), self.config.supervisor.deadline_seconds
        self._stopping, self._half_deadline, self._deadline = now, now + allowed / 2, now + allowed
        self.stop_ns = time.monotonic_ns()
        self._control.set_stop(reason)
        for member in self._roster:
            if member.role == "producer":
                member.due = None  # nobody would train on what the next one writes
            elif member.due is not None:
                member.due = now  # there is no time for a long delay
            if member.child is not None and member.role not in OBSERVERS:
                self._roster.mark(member, "stopping")
        self._control.set_process(0, state="stopping")
        self._directory.event("supervisor", 0, "stopping", reason=reason)

    def fail(self, code: int, message: str) -> None:
        """Notes what went wrong, the first thing only, and stops the run."""
        if self.message is None:
            self.code, self.message = code, message
            self._directory.event("supervisor", 0, "failed", message=message)
        self.failed, self._evaluation.wanted = True, False
        if self.phase is Phase.RUN:
            self.begin("failure")

    def force(self, code: int, message: str) -> None:
        """At once: whoever is left is killed."""
        self.code, self.message, self.failed, self.phase = code, message, True, Phase.OVER

    def advance(self) -> None:
        """Looks whether whom the ending waits for is gone."""
        now = time.monotonic()
        self._allow_for_a_pause(now)
        if self.phase is Phase.STOP_PRODUCERS:
            self._await_producers(now)
        if self.phase is Phase.STOP_LEARNER:
            self._await_learner(now)
        if self.phase is Phase.STOP_OBSERVERS:
            self._await_observers(now)
        if self.phase is Phase.EVALUATE:
            self._await_evaluation()

    def _allow_for_a_pause(self, now: float) -> None:
        """Of a machine that stood still, and with it those who are to end."""
        lost, self._advanced = now - self._advanced - TICK_SECONDS, now
        if lost > PAUSE_SECONDS:
            self._stopping, self._half_deadline = self._stopping + lost, self._half_deadline + lost
            self._deadline += lost
            self._observers_deadline += lost
            self._evaluation.deadline += lost

    def _await_producers(self, now: float) -> None:
        if not self._children.alive("producer"):
            self._control.set_producers_gone()
            self.phase = Phase.STOP_LEARNER
            self._keeper.learner_ends = True
            for member in self._roster.of_role("server"):
                member.due = None  # nobody would ask the next one
        elif now > self._half_deadline:
            self._overdue("producer")
        elif now > self._stopping + STARTING_STOP_SECONDS:
            self._children.kill(self._starting("producer"))

    def _await_learner(self, now: float) -> None:
        ending = [*self._roster.of_role("learner"), *self._roster.of_role("server")]
        if all(member.child is None and member.due is None for member in ending):
            self._end_observers(now)
        elif now > self._deadline:
            self._overdue("learner", "server")
        elif self.failed and not self._counters["ready"]:
            self._children.kill(self._children.alive("learner"))  # it has nothing to save

    def _end_observers(self, now: float) -> None:
        """Recorder and sinks put away what they hold, unless they have only just begun; a player holds
        nothing."""
        self.phase = Phase.STOP_OBSERVERS
        self._keeper.observers_end = True
        self._observers_deadline = now + self.config.supervisor.deadline_seconds
        for role in STOPPED_LAST:
            for member in self._roster.of_role(role):
                member.due = None
        self._children.kill(self._children.alive("evaluator"))
        for role in HOLDERS:
            self._children.kill(self._starting(role))
            for holder in self._children.alive(role):
                holder.send(signal.SIGTERM)

    def _await_observers(self, now: float) -> None:
        left = [child for role in STOPPED_LAST for child in self._children.alive(role)]
        if not left:
            self.phase = Phase.EVALUATE
            if self._evaluation.wanted:
                self._evaluate()
        elif now > self._observers_deadline and not self._children.killed.issuperset(left):
            limit = f"{self.config.supervisor.deadline_seconds:g} s (supervisor.deadline_seconds)"
            self._warn(f"{left[0].name} took more than {limit} to end: killed")
            self._children.kill(left)

    def _await_evaluation(self) -> None:
        running = self._children.alive("evaluator")
        if running and self._evaluation.overdue:
            self._children.kill(running)
        elif not running:
            if not self._evaluation.read():  # the run is done nevertheless, and its checkpoint is there
                self.code = exits.INTERNAL
                said = self._keeper.last_words("evaluator", 0)
                self.message = f"the evaluation gave no result{said}"
            self.phase = Phase.OVER

    def _starting(self, role: str) -> list[Child]:
        """Processes that have not come to their work: they see no stop, and have nothing to lose."""
        return [
            member.child
            for member in self._roster.of_role(role)
            if member.child is not None and self._roster.process(member).phase == "starting"
        ]

    def _overdue(self, *roles: str) -> None:
        """The deadline of a shutdown passed, for processes and for restarts that were to come."""
        late = [one for one in self._roster if one.role in roles and (one.child or one.due is not None)]
        killed = self._children.killed
        left = [member.child for member in late if member.child and member.child not in killed]
        waiting = [member for member in late if member.due is not None]
        if left or waiting:
            names = ", ".join(member.name for member in late)
            limit = f"{self.config.supervisor.deadline_seconds:g} s (supervisor.deadline_seconds)"
            self.fail(exits.INTERNAL, f"the shutdown deadline of {limit} passed: killed {names}")
            self._children.kill(left)
            for member in waiting:
                member.due = None

    def _evaluate(self) -> None:
        episodes = self.config.evaluate.episodes
        self._tell(f"evaluating {episodes} episodes of the sampled and of the argmax policy")
        self._evaluation.begin()

    def judge_evaluation(self, returncode: int) -> None:
        """Its process ended by itself: the second chance, if it was the first."""
        if self._evaluation.again(returncode):
            self._warn(f"the evaluator {deaths.how(returncode)}; it is started once more")
            self._evaluate()
