"""Each alarm of the live page stands as long as its condition does, and not without it."""

import dataclasses
import math
import re
from pathlib import Path

import pytest

import ringbuf
from consumers.causes import CAUSES
from monitor.alarms import CRITICAL, Context, Thresholds, Trail, Watchman
from monitor.readings import Process, Reading, Ring

ROOT = Path(__file__).resolve().parent.parent
LIMITS = Thresholds()
HOUR = 3600.0
RING = Ring(
    slots=4, committed=1000, consumed=998, dropped=0, redelivered=0, not_written=0, writing=1, ready=1,
    leased=1, bad=0, problems=(),
)  # fmt: skip


def process(role="producer", index=0, **facts):
    known = {"state": "running", "phase": "step", "pid": 7, "core": 0, "restarts": 0, "silent_seconds": 0.1}
    return Process(role, index, **{**known, **facts})


class Run:
    """A run of an hour at one update and two commits a second, all of it well, that a test spoils."""

    def __init__(self):
        self.now = 10 * HOUR
        self.unix = 1.7e9
        self.learner = dict.fromkeys(ringbuf.LEARNER_COUNTERS, 0) | {
            "ready": 1, "updates": 3600, "steps": 3_600_000, "slots": 7200, "checkpoints": 12, "lag_max": 1,
        }  # fmt: skip
        self.gauges = dict.fromkeys(ringbuf.LEARNER_GAUGES, math.nan) | {"entropy_ratio": 0.4}
        self.processes = [process(), process(index=1), process("learner"), process("exporter")]
        self.context = Context(lag_limit=1, checkpoint_interval_seconds=300.0)
        self.last_update = self.last_commit = self.saved = self.reported = 0.0  # seconds ago
        self.rest = {
            "dropped_steps": 0,
            "supervisor_silent_seconds": 0.1,
            "free_bytes": 500,
            "recorder": {},
            "size_bytes": 1000,
        }
        self.ring = RING
        self.watchman = Watchman()

    def reading(self):
        learner = self.learner | {
            "last_update_unix_ns": int((self.unix - self.last_update) * 1e9),
            "last_checkpoint_unix_ns": int((self.unix - self.saved) * 1e9),
        }
        return Reading(
            monotonic=self.now, unix=self.unix, began_unix=self.unix - HOUR, learner=learner,
            gauges=self.gauges, lag_bins=(0,) * ringbuf.LAG_BINS, producers={}, learners=learner,
            rings=(self.ring, RING),
            first_commit_seconds=self.now - HOUR, last_commit_seconds=self.now - self.last_commit,
            processes=tuple(self.processes), **self.rest,
        )  # fmt: skip

    def look(self, seconds=1.0):
        """The alarms a while later."""
        self.now, self.unix = self.now + seconds, self.unix + seconds
        context = dataclasses.replace(self.context, reported_unix=self.unix - self.reported)
        return self.watchman.look(self.reading(), context)

    def kinds(self, seconds=1.0):
        return [alarm.kind for alarm in self.look(seconds)]


@pytest.fixture
def run():
    made = Run()
    assert made.kinds() == []
    return made


def test_a_run_that_is_well_gives_no_alarm_however_long(run):
    for _ in range(100):
        run.learner["steps"] += 1000
        assert run.kinds(60.0) == []


def test_an_alarm_tells_since_when_it_stands_and_goes_with_its_condition(run):
    run.processes[1] = process(index=1, state="backoff")
    (alarm,) = run.look()
    assert (alarm.kind, alarm.key, alarm.since) == ("process down", "producer 1", run.unix)
    (later,) = run.look(30.0)
    assert later.since == alarm.since
    run.processes[1] = process(index=1)
    assert run.look() == []


def test_the_worst_alarms_come_first_and_among_equals_the_oldest(run):
    run.processes[1] = process(index=1, state="backoff")
    run.look()
    run.processes[0] = process(state="failed")
    run.learner["rollbacks"] = 1
    assert [alarm.severity for alarm in run.look()] == [CRITICAL, "warning", "warning"]
    assert [alarm.key for alarm in run.look()] == ["producer 0", "producer 1", ""]


@pytest.mark.parametrize("what", ["last_update", "last_commit"])
def test_a_standstill_is_one_that_lasts_far_longer_than_usual(run, what):
    kind = {"last_update": "learner stalled", "last_commit": "no throughput"}[what]
    setattr(run, what, LIMITS.stalled_seconds - 1)
    assert run.kinds() == []
    setattr(run, what, LIMITS.stalled_seconds + 1)
    assert run.kinds() == [kind]
    run.learner["updates"], run.ring = 36, dataclasses.replace(RING, committed=36)
    run.learner["checkpoints"] = 13
    if what == "last_update":
        assert run.kinds() == [], "an update takes 100 seconds here"
        run.last_update = 100 * LIMITS.stalled_times + 1
        assert run.kinds() == [kind]
    run.context = dataclasses.replace(run.context, state="stopping")
    assert run.kinds() == [], "a run that ends need not make progress"


def test_before_the_first_update_nothing_stands_still(run):
    run.learner["updates"], run.last_update = 0, HOUR
    assert run.kinds() == []


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        ({"state": "failed"}, CRITICAL),
        ({"state": "hung"}, "warning"),
        ({"state": "backoff"}, "warning"),
        ({"silent_seconds": LIMITS.silent_seconds + 1}, "warning"),
    ],
)
def test_a_process_that_is_down_is_an_alarm_and_a_learner_a_grave_one(run, facts, severity):
    run.processes[1] = process(index=1, **facts)
    assert [(one.kind, one.severity) for one in run.look()] == [("process down", severity)]
    run.processes[1], run.processes[2] = process(index=1), process("learner", **facts)
    assert [(one.kind, one.severity) for one in run.look()] == [("process down", CRITICAL)]


def test_a_process_that_starts_is_not_down(run):
    run.processes[2] = process("learner", state="starting", silent_seconds=None)
    assert run.kinds() == []


def test_restarts_are_a_loop_where_there_are_many_in_a_short_time(run):
    for restarts in range(1, LIMITS.restarts + 1):
        run.processes[0] = process(restarts=restarts)
        assert run.kinds(LIMITS.restart_seconds / 10) == []
    run.processes[0] = process(restarts=LIMITS.restarts + 1)
    assert run.kinds() == ["crash loop"]
    for _ in range(20):
        run.look(LIMITS.restart_seconds / 15)
    assert run.kinds() == []


def test_one_restart_now_and_then_is_no_loop(run):
    for restarts in range(1, 50):
        run.processes[0] = process(restarts=restarts)
        assert run.kinds(LIMITS.restart_seconds / 2) == []


def test_a_lag_above_the_limit_is_told_for_good(run):
    run.learner["lag_max"] = 2
    assert run.kinds() == ["lag above limit"]
    run.context = dataclasses.replace(run.context, lag_limit=None)
    assert run.kinds() == []


@pytest.mark.parametrize(
    ("counter", "kind"),
    [("nonfinite_steps", "not finite"), ("nonfinite_batches", "not finite"), ("rollbacks", "rolled back")]
    + [(f"audit_{audit}_alarms", "audit") for audit in CAUSES],
)
def test_what_leaves_no_state_behind_is_shown_for_ten_minutes(run, counter, kind):
    run.learner[counter] += 1
    assert run.kinds() == [kind]
    assert run.kinds(LIMITS.recent_seconds / 2) == [kind]
    for _ in range(70):
        run.look(LIMITS.recent_seconds / 60)
    assert run.kinds() == []


def test_dropped_steps_are_an_alarm_where_they_are_many(run):
    run.learner["steps"] += 100_000
    run.rest["dropped_steps"] = 999
    assert run.kinds() == []
    run.rest["dropped_steps"] = 1001
    assert run.kinds() == ["samples dropped"]


def test_a_policy_without_entropy_is_an_alarm_and_one_that_has_no_such_figure_is_not(run):
    run.gauges["entropy_ratio"] = LIMITS.entropy_ratio / 2
    assert run.kinds() == ["entropy collapse"]
    run.gauges["entropy_ratio"] = math.nan
    assert run.kinds() == []


def test_a_checkpoint_that_fails_is_an_alarm_until_the_next_one_is_written(run):
    run.learner["checkpoint_failures"] = 2
    (alarm,) = run.look()
    assert (alarm.kind, alarm.severity) == ("checkpoint failing", "warning")
    assert "2 times" in alarm.text
    run.learner["checkpoints"] += 1
    assert run.kinds() == []
    run.learner["checkpoint_failures"] += 1
    assert run.kinds() == ["checkpoint failing"]


def test_the_first_checkpoint_that_fails_is_grave(run):
    run.learner |= {"checkpoints": 0, "checkpoint_failures": 1}
    run.watchman = Watchman()
    assert [(one.kind, one.severity) for one in run.look()] == [("checkpoint failing", CRITICAL)]


def test_failures_of_long_ago_are_none_for_who_has_just_begun_to_look(run):
    run.learner["checkpoint_failures"] = 3
    run.watchman = Watchman()
    assert run.kinds() == []


def test_a_checkpoint_is_stale_after_three_intervals_and_a_while_to_write_it(run):
    run.saved = 3 * 300.0
    assert run.kinds() == []
    run.saved += LIMITS.stalled_seconds + 1
    assert run.kinds() == ["checkpoint stale"]


def test_a_full_disk_is_an_alarm_and_so_is_one_that_will_be(run):
    run.rest["free_bytes"] = 49
    assert run.kinds() == ["disk full"]
    run.rest["free_bytes"] = 199
    run.watchman = Watchman()
    for _ in range(15):
        run.rest["free_bytes"] -= 1
        found = run.kinds(60.0)
        run.saved = 0.0
    assert found == ["disk filling"]
    for _ in range(100):
        found = run.kinds(60.0)
    assert found == [], "it is no longer filling"


def test_a_disk_with_room_may_fill(run):
    for _ in range(30):
        run.rest["free_bytes"] -= 1
        assert run.kinds(60.0) == []


def test_an_archive_that_loses_something_is_an_alarm(run):
    run.rest["recorder"] = {"dropped_blocks": 0, "halted": 0}
    assert run.kinds() == []
    run.rest["recorder"] = {"dropped_blocks": 2, "halted": 1}
    assert run.kinds() == ["archive halted", "archive dropping"]
    run.rest["recorder"] = {"dropped_blocks": 2, "halted": 0}
    assert run.kinds() == ["archive dropping"]


def test_the_supervisor_is_missed_and_so_is_its_report(run):
    run.rest["supervisor_silent_seconds"] = LIMITS.supervisor_seconds + 1
    assert run.kinds() == ["supervisor silent"]
    run.rest["supervisor_silent_seconds"] = 0.1
    run.reported = LIMITS.report_seconds + 1
    assert run.kinds() == ["status stale"]
    run.context = dataclasses.replace(run.context, state="done")
    assert run.kinds() == []


def test_books_that_do_not_balance_name_their_ring(run):
    run.ring = dataclasses.replace(RING, problems=("offered 3 is not between done 4 and 8",))
    (alarm,) = run.look()
    assert (alarm.kind, alarm.key, alarm.severity) == ("books", "0", CRITICAL)
    assert "offered 3" in alarm.text


def test_a_run_that_has_failed_says_why(run):
    run.context = Context(state="failed", message="gave up")
    (alarm,) = run.look()
    assert (alarm.kind, alarm.text) == ("run failed", "gave up")


def test_a_trail_knows_the_growth_within_its_span_in_bounded_memory():
    trail = Trail(600.0)
    for second in range(100_000):
        trail.add(float(second), second * 2)
        assert len(trail._points) <= 2 * Trail.POINTS
        if second > 1000:
            assert 600 * 2 <= trail.growth <= 620 * 2
    trail = Trail(600.0)
    trail.add(0.0, 5)
    assert (trail.growth, trail.span) == (0, 0)
    trail.add(0.5, 6)
    trail.add(0.6, 7)
    assert trail.growth == 2


def test_every_alarm_is_documented_with_its_severity():
    text = (ROOT / "docs/observing.md").read_text().partition("### Its alarms")[2].partition("\n## ")[0]
    table = dict(re.findall(r"^\| ([a-z ]+) \| ([a-z, ]+) \|", text, re.MULTILINE))
    source = (ROOT / "monitor/alarms.py").read_text()
    kinds = set(re.findall(r"Alarm\(\s*\"([a-z ]+)\"", source))
    assert table.keys() - {"alarm"} == kinds
    assert set(table.values()) == {"severity", "critical", "warning", "critical, warning"}
