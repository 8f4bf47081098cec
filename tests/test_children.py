"""A process that cannot be started as it should be does not run, and what it would have used is in order."""

import errno
import os
import signal

import pytest
from rings import produce

from monitor import children, roster, rundir
from ringbuf.repair import Repair


@pytest.fixture
def nursery(tmp_path):
    directory = rundir.RunDirectory.take(tmp_path / "run")
    directory.begin()
    made = children.Children(directory, tmp_path)
    yield made
    signal.set_wakeup_fd(-1)
    for end in (made._signals, made._wakeup):
        end.close()
    directory.release()


def test_a_process_that_cannot_be_watched_does_not_run(nursery, monkeypatch):
    """Or the next one would write into the same ring beside it."""

    started = []

    def refused(pid):
        started.append(pid)
        raise OSError(errno.EMFILE, "no descriptor")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refused)
        with pytest.raises(OSError, match="no descriptor"):
            nursery.start("producer", 0, ["sleep", "600"])
    assert not os.path.exists(f"/proc/{started[0]}")
    assert list(nursery) == []
    child = nursery.start("producer", 0, ["true"])
    ended, _ = nursery.wait(60)
    assert ended == [child]
    assert nursery.reap(child) == 0


def test_a_process_that_cannot_be_prepared_is_one_that_cannot_be_started(nursery, monkeypatch):
    monkeypatch.setattr(children, "_prepare", lambda parent: 1 // 0)
    with pytest.raises(OSError, match="preexec_fn"):
        nursery.start("producer", 0, ["sleep", "600"])
    assert list(nursery) == []


def test_slots_left_for_a_learner_that_could_not_be_started_are_given_back(rig):
    run = rig(grant=2)
    produce(run.producer())
    repair = Repair(run.control, run.channel, run.rings)
    repair.hand_over(0)
    repair.drop_ready()
    assert run.ring.books()["dropped"]["shutdown"] == 1
    assert run.ring.books()["in_flight"] == 0


def test_a_producer_that_comes_or_goes_wakes_the_learner_that_is_to_give_it_credit(rig, nursery):
    """Also one that does not lead: it would see it only when its slice of a wait has passed."""
    control = rig(rings=2).control
    rows = roster.Roster(control, nursery, "run", "directory")
    members = [("learner", 0), ("learner", 1), ("producer", 0), ("producer", 1)]
    for slot, (role, index) in enumerate(members, 1):
        rows.add(children.Member(role, index, slot, []), ["sleep"], [])
    seen = [control.bell_value(learner) for learner in (0, 1)]
    rows.mark(rows.of_role("producer")[1], "running")
    assert all(control.bell_wait(learner, seen[learner], 0) for learner in (0, 1))
