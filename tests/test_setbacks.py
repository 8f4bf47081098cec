"""Whoever watches the terminal hears of a full disk, failed checkpoints, roll-backs, each of them once, and
of alarms of audits."""

from pathlib import Path

from consumers.causes import CAUSES
from monitor.setbacks import CALM_REPORTS, Setbacks

AUDITS = {f"audit_{audit}_alarms": 0 for audit in CAUSES}
NONE = {"rollbacks": 0, "checkpoint_failures": 0, "checkpoints": 1, **AUDITS}


def begun(counters=NONE):
    setbacks = Setbacks(Path("runs/toy"))
    assert setbacks.news(counters, written=True) == []
    return setbacks


def after(setbacks, *, written=True, **counters):
    return setbacks.news(NONE | counters, written=written)


def test_a_run_without_setbacks_has_no_news():
    assert after(begun(), checkpoints=7) == []


def test_what_earlier_learners_counted_is_no_news():
    counted = NONE | {"rollbacks": 2, "checkpoint_failures": 3}
    assert begun(counted).news(counted, written=True) == []


def test_a_full_disk_is_told_once_with_the_directory_and_so_is_its_room_once_that_lasts():
    setbacks = begun()
    (full,) = after(setbacks, written=False)
    assert full.startswith("runs/toy: the disk is full")
    assert after(setbacks, written=False) == []
    for _ in range(CALM_REPORTS - 1):
        assert after(setbacks) == []
    assert after(setbacks, written=False) == []  # it was nearly full all the time
    told = [line for _ in range(2 * CALM_REPORTS) for line in after(setbacks)]
    assert told == ["runs/toy: the disk has room again"]


def test_failing_checkpoints_are_told_at_the_first_and_at_the_next_that_is_written():
    setbacks = begun()
    (failed,) = after(setbacks, checkpoint_failures=1)
    assert "could not be written" in failed
    assert after(setbacks, checkpoint_failures=2) == []
    assert after(setbacks, checkpoint_failures=2) == []
    assert after(setbacks, checkpoint_failures=2, checkpoints=2) == ["a checkpoint was written again"]
    assert len(after(setbacks, checkpoint_failures=3, checkpoints=2)) == 1


def test_every_roll_back_is_told():
    setbacks = begun()
    for rollbacks in (1, 2):
        (told,) = after(setbacks, rollbacks=rollbacks)
        assert "went back to a checkpoint" in told
        assert after(setbacks, rollbacks=rollbacks) == []


def test_an_alarm_of_an_audit_is_told_with_its_usual_cause_ever_more_seldom():
    setbacks = begun()
    told = [after(setbacks, audit_label_alarms=times) for times in range(1, 10)]
    assert [times for times, lines in enumerate(told, 1) if lines] == [1, 2, 4, 8]
    (first,) = told[0]
    assert first.startswith("label audit, alarm 1: ")
    assert "version labels" in first
    (late,) = after(setbacks, audit_label_alarms=40)
    assert "alarm 40" in late


def test_each_audit_is_told_of_by_itself_and_what_earlier_learners_found_is_no_news():
    found = dict.fromkeys(AUDITS, 3)
    setbacks = begun(NONE | found)
    assert setbacks.news(NONE | found, written=True) == []
    for audit in CAUSES:
        (line,) = after(setbacks, **found | {f"audit_{audit}_alarms": 4})
        assert line.startswith(f"{audit} audit")
