"""The run directory: one live run at a time, nothing written over."""

import dataclasses
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from monitor import procfs, rundir
from monitor.rundir import Finished, Nothing, RunDirectory, Unavailable

SEGMENTS = ["/headrace-0-0f-control"]


def started(path, state=None, **how):
    """A directory in which an attempt began; `state`: its summary's."""
    directory = RunDirectory.take(path, **how)
    directory.begin()
    directory.write_attempt("0f", SEGMENTS)
    directory.supersede()
    if state:
        rundir.write_json(path / rundir.SUMMARY, {"state": state})
        directory.close_attempt(state, {"committed": 7})
    return directory


def test_a_second_run_in_a_live_directory_is_told_who_holds_it(tmp_path):
    held = started(tmp_path / "run")
    for fresh in (False, True):
        with pytest.raises(Unavailable, match=rf"in use by a live run \(supervisor {os.getpid()} on "):
            RunDirectory.take(tmp_path / "run", fresh=fresh)
    held.release()


def test_the_lock_lives_as_long_as_any_process_that_inherited_it(tmp_path):
    held = started(tmp_path / "run")
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held.lock_fd,)
    )
    os.close(held.lock_fd)  # as a supervisor that was killed
    with pytest.raises(Unavailable, match="in use by a live run"):
        RunDirectory.take(tmp_path / "run", fresh=True)
    child.communicate(b"\n")
    RunDirectory.take(tmp_path / "run", fresh=True).release()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_live_run_whose_lock_was_deleted_is_left_alone(tmp_path, monkeypatch, fresh):
    path = tmp_path / "run"
    held = started(path)
    (path / rundir.LOCK).unlink()
    own, own_pid = procfs.usage(os.getpid()), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own_pid + 1)  # seen from another process
    monkeypatch.setattr(procfs, "usage", lambda pid: own if pid == own_pid else None)
    with pytest.raises(Unavailable, match=rf"live run \(supervisor {own_pid}\), whose lock was deleted"):
        RunDirectory.take(path, fresh=fresh)
    later = dataclasses.replace(own, start_ticks=own.start_ticks + 1)  # its pid was given out again
    monkeypatch.setattr(procfs, "usage", lambda pid: later)
    RunDirectory.take(path, fresh=fresh).release()
    held.release()


@pytest.fixture
def orphan(tmp_path):
    """A process that has inherited the lock of a run whose supervisor is dead."""
    held = started(tmp_path / "run")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    holder = {"pid": dead.pid, "host": socket.gethostname()}
    os.truncate(held.path / rundir.LOCK, 0)
    (held.path / rundir.LOCK).write_text(json.dumps(holder))
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held.lock_fd,)
    )
    os.close(held.lock_fd)
    yield child
    dead.wait()
    child.kill()
    child.communicate()


def test_a_start_waits_for_the_children_of_a_supervisor_that_was_just_killed(tmp_path, orphan):
    late = threading.Timer(0.3, orphan.kill)
    late.start()
    RunDirectory.take(tmp_path / "run").release()
    late.join()


def test_what_a_dead_run_has_forked_and_still_holds_its_lock_is_named(tmp_path, orphan, monkeypatch):
    monkeypatch.setattr(rundir, "DYING_SECONDS", 0.1)
    with pytest.raises(Unavailable, match=rf"its supervisor \d+ is dead: .* {orphan.pid}; end them"):
        RunDirectory.take(tmp_path / "run")


def test_a_run_that_is_done_is_finished_unless_it_is_told_to_go_on(tmp_path):
    started(tmp_path / "run", "done").release()
    with pytest.raises(Finished) as caught:
        RunDirectory.take(tmp_path / "run")
    assert caught.value.summary == {"state": "done"}
    again = RunDirectory.take(tmp_path / "run", resume=True)
    assert (again.attempt, again.earlier.state) == (2, "done")
    again.release()


def test_resuming_nothing_is_refused(tmp_path):
    with pytest.raises(Nothing, match="run holds no run; without it a new one begins there"):
        RunDirectory.take(tmp_path / "run", resume=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("state", [None, "stopped", "failed"])
def test_an_unfinished_run_goes_on_as_the_next_attempt(tmp_path, state):
    started(tmp_path / "run", state).release()
    directory = started(tmp_path / "run", None)
    assert directory.attempt == 2
    assert directory.earlier.state == (state or "killed")
    assert directory.earlier.last["totals"] == ({"committed": 7} if state else None)
    assert directory.stale_segments() == SEGMENTS
    assert sorted(os.listdir(tmp_path / "run" / rundir.ATTEMPTS)) == ["0001.json", "0002.json"]
    assert not (tmp_path / "run" / rundir.SUMMARY).exists(), "the result of an attempt that goes on"
    directory.release()


def test_attempts_are_counted_beyond_four_digits(tmp_path):
    started(tmp_path / "run").release()
    for number in (9999, 10000):
        rundir.write_json(tmp_path / "run" / rundir.ATTEMPTS / f"{number}.json", {"attempt": number})
    directory = RunDirectory.take(tmp_path / "run")
    assert directory.attempt == 10001
    directory.release()


def test_a_result_written_before_the_attempt_was_closed_counts(tmp_path):
    started(tmp_path / "run").release()
    rundir.write_json(tmp_path / "run" / rundir.SUMMARY, {"state": "done"})
    with pytest.raises(Finished):
        RunDirectory.take(tmp_path / "run")


def test_what_a_killed_attempt_comes_to_is_written_down_once(tmp_path):
    path = tmp_path / "run"
    started(path).release()
    for totals in ({"committed": 1}, {"committed": 2}):
        directory = RunDirectory.take(path)
        directory.settle_earlier(totals, 4)
        assert directory.earlier.last["totals"] == {"committed": 1}
        directory.release()
    assert rundir.read_json(path / rundir.ATTEMPTS / "0001.json")["totals"] == {"committed": 1}


def test_an_attempt_that_cannot_start_leaves_the_earlier_result(tmp_path):
    started(tmp_path / "run", "done").release()
    directory = RunDirectory.take(tmp_path / "run", resume=True)
    directory.begin()
    directory.write_attempt("10", ["/headrace-0-10-control"])
    directory.withdraw_attempt()
    directory.release()
    with pytest.raises(Finished):
        RunDirectory.take(tmp_path / "run")
    new = RunDirectory.take(tmp_path / "new")
    new.begin()
    new.write_attempt("10", [])
    new.withdraw_attempt()
    new.release()
    assert os.listdir(tmp_path) == ["run"]


def test_fresh_moves_earlier_runs_aside_and_keeps_every_one(tmp_path):
    path = tmp_path / "run"
    for number in range(3):
        directory = RunDirectory.take(path, fresh=True)
        assert directory.stale_segments() == (SEGMENTS if number else [])
        assert (directory.attempt, directory.earlier) == (1, None)
        directory.begin()
        directory.write_attempt("0f", SEGMENTS)
        (path / "mark").write_text(str(number))
        directory.release()
    marks = {folder.name: (folder / "mark").read_text() for folder in tmp_path.iterdir()}
    assert marks == {"run": "2", "run.1": "0", "run.2": "1"}


def test_a_fresh_start_that_loses_its_place_to_another_leaves_that_one_alone(tmp_path, monkeypatch):
    path, lock, winner = tmp_path / "run", rundir._lock, []
    started(path).release()
    loser = RunDirectory.take(path, fresh=True)

    def late(where):
        monkeypatch.setattr(rundir, "_lock", lock)
        winner.append(RunDirectory.take(path))
        return lock(where)

    monkeypatch.setattr(rundir, "_lock", late)
    with pytest.raises(Unavailable, match="in use by a live run"):
        loser.begin()
    loser.release()
    winner[0].begin()
    with pytest.raises(Unavailable, match="in use by a live run"):
        RunDirectory.take(path)
    winner[0].release()


def test_a_start_that_fails_leaves_no_directory_behind(tmp_path):
    RunDirectory.take(tmp_path / "run").release()
    assert os.listdir(tmp_path) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    RunDirectory.take(tmp_path / "mine").release()
    assert (tmp_path / "mine" / "notes").exists()


def test_a_lock_of_another_host_is_refused_until_its_owner_is_known_to_be_gone(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / rundir.LOCK).write_text(json.dumps({"pid": 1, "host": "elsewhere", "started": 0.0}))
    with pytest.raises(Unavailable, match="locked on another host, elsewhere"):
        RunDirectory.take(path, fresh=True)
    (path / rundir.LOCK).unlink()
    RunDirectory.take(path, fresh=True).release()


def test_a_clean_end_empties_the_lock(tmp_path):
    directory = started(tmp_path / "run", "done")
    assert json.loads((tmp_path / "run" / rundir.LOCK).read_text())["host"] == socket.gethostname()
    directory.release()
    assert (tmp_path / "run" / rundir.LOCK).read_text() == ""
    with open(tmp_path / "run" / rundir.LOCK) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("part", ["run", "."])
def test_a_file_in_place_of_a_directory_is_unwritable(tmp_path, part):
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unavailable, match="the run directory cannot be written: "):
        RunDirectory.take(tmp_path / "file" / part)


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "status.json"
    rundir.write_json(path, {"n": 0})
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import json, sys
seen = 0
while seen < 400:
    seen = json.load(open({str(path)!r}))["n"]
""",
        ],
        stderr=subprocess.PIPE,
    )
    number = 0
    deadline = time.monotonic() + 60
    while reader.poll() is None and time.monotonic() < deadline:
        number += 1
        rundir.write_json(path, {"n": number, "filler": "x" * 5000})
    _, errors = reader.communicate(timeout=60)
    assert (reader.returncode, errors) == (0, b"")
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_folder_of_logs_that_was_deleted_comes_back_with_the_next_log(tmp_path):
    directory = started(tmp_path / "run")
    (directory.path / rundir.LOGS).rmdir()
    log = directory.log("learner", 0)
    os.write(log, b"here\n")
    os.close(log)
    assert directory.log_tail("learner", 0) == ["here"]
    directory.release()


def test_the_end_of_a_log_is_what_it_said_last(tmp_path):
    directory = started(tmp_path / "run")
    log = directory.log("producer", 3)
    os.write(log, b"a" * 20000 + b"\n\nthe end\n")
    os.close(log)
    assert directory.log_tail("producer", 3)[-1] == "the end"
    assert directory.log_tail("producer", 4) == []
    directory.release()


def test_events_are_lines_of_json(tmp_path):
    directory = started(tmp_path / "run")
    directory.event("learner", 0, "ended", returncode=-9)
    directory.release()
    (line,) = (tmp_path / "run" / rundir.EVENTS).read_text().splitlines()
    event = json.loads(line)
    assert abs(event.pop("time") - time.time()) < 600
    assert event == {"role": "learner", "index": 0, "event": "ended", "returncode": -9}


def test_a_full_disk_costs_an_event_and_not_the_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / rundir.EVENTS).symlink_to("/dev/full")
    directory = started(tmp_path / "run")
    directory.event("learner", 0, "lost")
    directory.release()
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"this disk is full indeed")
