"""The one order in which a run ends, whoever takes his time."""

import signal
from types import SimpleNamespace

import pytest

import config
from monitor import ending
from monitor.children import Member
from monitor.ending import Ending, Phase


class Child:
    def __init__(self, member):
        self.member, self.role, self.name, self.sent = member, member.role, member.name, []

    def send(self, number):
        self.sent.append(number)


class Children:
    def __init__(self):
        self.running, self.killed = [], set()

    def alive(self, role):
        return [child for child in self.running if child.role == role]

    def kill(self, children):
        self.killed |= set(children)


class Roster:
    def __init__(self, members, phases):
        self.members, self.phases = members, phases

    def __iter__(self):
        return iter(self.members)

    def of_role(self, role):
        return [member for member in self.members if member.role == role]

    def process(self, member):
        return SimpleNamespace(phase=self.phases[member.role])

    def mark(self, member, state):
        pass


class Run:
    """A run of a producer, a learner and all who only look, without processes."""

    def __init__(self, monkeypatch, **supervisor):
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, monotonic_ns=lambda: int(self.now * 1e9))
        monkeypatch.setattr(ending, "time", clock)
        settings = config.Config.model_validate({
            "sim": {"name": "toy"}, "supervisor": {"deadline_seconds": 10.0, **supervisor},
            "evaluate": {"episodes": 8},
        })
        self.children, self.said, self.events, self.gone = Children(), [], [], False
        self.members = [
            Member(role, 0, slot, ())
            for slot, role in enumerate(("producer", "learner", "exporter", "recorder", "sink", "evaluator"))
        ]
        self.phases = {member.role: "step" for member in self.members}
        for member in self.members:
            member.child, member.due = Child(member), None
            self.children.running.append(member.child)
        self.keeper = SimpleNamespace(
            producers_end=False, learner_ends=False, observers_end=False, last_words=lambda *_: ""
        )
        self.evaluation = SimpleNamespace(
            wanted=False, begun=0, deadline=float("inf"), overdue=False, read=lambda: True
        )
        self.evaluation.begin = self._evaluate
        control = SimpleNamespace(
            counters=lambda _: {"updates": 1, "ready": 1}, set_stop=lambda _: None,
            set_process=lambda *_, **__: None, set_producers_gone=lambda: setattr(self, "gone", True),
        )  # fmt: skip
        directory = SimpleNamespace(event=lambda *_, **__: None)
        roster = Roster(self.members, self.phases)
        self.ending = Ending(
            settings, roster, self.children, self.keeper, self.evaluation, directory,
            control=control, learner=1, tell=self.said.append, warn=self.said.append,
        )  # fmt: skip

    def _evaluate(self):
        self.evaluation.begun += 1

    def child(self, role):
        return next(child for child in self.children.running if child.role == role)

    def ends(self, *roles):
        for role in roles:
            child = self.child(role)
            self.children.running.remove(child)
            child.member.child = None

    def advance(self, seconds=0.1):
        self.now += seconds
        self.ending.advance()
        return self.ending.phase


@pytest.fixture
def run(monkeypatch):
    return Run(monkeypatch)


def test_recorder_and_sinks_put_away_what_they_hold_after_the_last_checkpoint(run):
    run.ending.begin("steps")
    assert run.advance() is Phase.STOP_PRODUCERS
    run.ends("producer")
    assert run.advance() is Phase.STOP_LEARNER
    assert run.gone
    recorder, sink, evaluator = (run.child(role) for role in ("recorder", "sink", "evaluator"))
    assert (recorder.sent, sink.sent) == ([], []), "the learner may still write"
    run.ends("learner")
    assert run.advance() is Phase.STOP_OBSERVERS
    assert run.keeper.observers_end
    assert recorder.sent == sink.sent == [signal.SIGTERM]
    assert run.children.killed == {evaluator}, "it holds nothing"
    run.ends("evaluator", "recorder")
    assert run.advance() is Phase.STOP_OBSERVERS
    assert run.evaluation.begun == 0
    run.ends("sink")
    assert run.advance() is Phase.OVER
    assert run.evaluation.begun == 1
    assert recorder.sent == [signal.SIGTERM], "once"
    assert (run.ending.code, run.ending.state) == (0, "done")
    assert run.child("exporter") not in run.children.killed, "it shows the end"


def test_a_recorder_that_takes_too_long_costs_a_warning_and_not_the_result(run):
    run.ending.begin("steps")
    run.ends("producer", "learner", "sink", "evaluator")
    assert run.advance() is Phase.STOP_OBSERVERS
    for _ in range(98):
        run.advance()
    assert run.said == []
    for _ in range(5):
        run.advance()
    (warning,) = run.said
    assert warning == "recorder 0 took more than 10 s (supervisor.deadline_seconds) to end: killed"
    run.ends("recorder")
    assert run.advance() is Phase.OVER
    assert (run.ending.code, run.ending.message, run.ending.state) == (0, None, "done")


def test_a_recorder_that_has_only_just_begun_is_not_waited_for(run):
    run.phases["recorder"] = "starting"  # it does not hear the signal yet
    run.ending.begin("signal")
    run.ends("producer", "learner", "sink", "evaluator")
    run.advance()
    assert run.child("recorder") in run.children.killed


def test_who_only_looks_is_not_started_again_once_the_learner_is_gone(run):
    run.ending.begin("signal")
    for member in run.members[2:]:
        member.due = 2000.0
    run.ends("producer", "learner", "recorder", "evaluator", "sink")
    run.advance()
    assert [member.due for member in run.members[3:]] == [None] * 3
    assert run.ending.phase is Phase.OVER


def test_a_machine_that_stood_still_is_not_held_against_a_recorder(run):
    run.ending.begin("steps")
    run.ends("producer", "learner", "sink", "evaluator")
    run.advance()
    run.advance(seconds=3600)
    run.advance(seconds=5)
    assert run.said == []


def test_the_learner_that_overstays_fails_the_run(run):
    run.ending.begin("steps")
    run.ends("producer")
    run.advance()
    for _ in range(120):
        run.advance()
    assert run.ending.failed
    assert run.child("learner") in run.children.killed
    assert "deadline of 10 s" in run.ending.message
