"""`python -m ringbuf ls|clean`: what is gone is removed, and nothing of what lives."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from command import CARTPOLE, DEADLINE_SECONDS, ROOT, SHM, command, segments
from rings import small_plan

from monitor import rundir
from ringbuf import segments as shared
from ringbuf import stale


def ringbuf(*arguments, prefix=()):
    return subprocess.run([*prefix, sys.executable, "-m", "ringbuf", *arguments], cwd=ROOT, text=True,
                          capture_output=True, timeout=DEADLINE_SECONDS, check=False)


def holding(fd):
    """A process that has the descriptor."""
    return subprocess.Popen(["sleep", "1000"], pass_fds=[fd])


@pytest.fixture
def left():
    """Makes the segments of a run as its supervisor does, which are left when it is gone: their names."""
    made = []

    def make(directory="", hold=False, processes=()):
        """`processes`: (pid, start time) of the table. `hold`: by a process that lives; returns it too."""
        run_id = uuid.uuid4().bytes
        names = [shared.name(run_id, part) for part in ("control", "weights", "ring-0")]
        made.extend(names)
        control = shared.create_control(names[0], run_id, str(directory))
        for index, (pid, start) in enumerate(processes, 1):
            control.set_process(index, role="producer", pid=pid, start_time=start)
        shared.create_weights(names[1], count=8, buffers=3, program=b"p", snapshot_bytes=100, list_entries=16,
                              run_id=run_id).close()
        ring = shared.create_ring(names[2], small_plan(), 4, run_id, control)
        holder = holding(control.fd) if hold else None
        ring.close()
        control.close()
        files = {name.removeprefix("/") for name in names}
        return (files, holder) if hold else files

    yield make
    for name in made:
        shared.unlink(name)


def mine(names):
    """How the runs with these segments are judged."""
    return [run for run in stale.runs(SHM) if {one.name for one in run.segments} & names]


def clean(names):
    """Cleans these alone, since other runs may be on this machine; whether they were removed."""
    (run,) = mine(names)
    return run.removable and stale.remove(SHM, run)


def test_what_a_run_left_is_listed_with_its_directory(left, tmp_path):
    names = left(tmp_path)
    rows = [row for row in json.loads(ringbuf("ls", "--json").stdout) if row["name"] in names]
    assert {row["part"] for row in rows} == {"control", "weights", "ring-0"}
    for row in rows:
        assert (row["directory"], row["owner"]) == (str(tmp_path), "gone")
        assert row["bytes"] == (SHM / row["name"]).stat().st_size
        assert row["run_id"] in row["name"]
    text = ringbuf("ls").stdout
    assert all(name in text for name in names)
    assert f"gone: no process of its lives; {tmp_path}" in text
    assert names <= segments(), "looking changes nothing"


def test_clean_removes_what_is_gone(left, tmp_path):
    names = left(tmp_path)
    assert clean(names)
    assert not names & segments()


def test_a_process_that_has_it_open_keeps_it(left, tmp_path):
    names, holder = left(tmp_path, hold=True)
    (run,) = mine(names)
    assert (run.owner, run.why) == ("live", f"process {holder.pid} has it open")
    assert not clean(names)
    holder.kill()
    holder.wait()
    assert clean(names)


def test_a_process_of_the_table_keeps_it_and_a_later_one_of_that_pid_does_not(left):
    start = stale._start_time(Path("/proc"), os.getpid())
    names = left(processes=[(os.getpid(), start)])
    (run,) = mine(names)
    assert (run.owner, run.why) == ("live", f"process {os.getpid()} lives (producer 0)")
    assert not clean(names)
    names = left(processes=[(os.getpid(), start - 1), (1, 1), (2**22 + 1, 5)])
    (run,) = mine(names)
    assert run.owner == "gone"
    assert clean(names)


def test_the_lock_of_a_run_keeps_it_and_is_held_while_it_is_removed(left, tmp_path, monkeypatch):
    directory = rundir.RunDirectory.take(tmp_path / "run")
    directory.begin()
    names = left(directory.path)
    (run,) = mine(names)
    assert (run.owner, run.why) == ("live", f"somebody holds {directory.path}/lock")
    directory.release()
    (run,) = mine(names)
    assert run.owner == "gone"
    again = rundir.RunDirectory.take(tmp_path / "run")  # begins between the look and the removal
    assert not stale.remove(SHM, run)
    assert names <= segments()
    again.release()

    def unlink(path, missing_ok):
        with pytest.raises(rundir.Unavailable):
            rundir.RunDirectory.take(tmp_path / "run")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        assert stale.remove(SHM, run)
    assert clean(names)


def age(names, seconds):
    for name in names:
        then = time.time() - seconds
        os.utime(SHM / name, (then, then))


def test_half_made_segments_stay_for_a_minute(left):
    names = left()
    control = next(name for name in names if name.endswith("control"))
    with (SHM / control).open("r+b") as file:
        file.seek(128)
        file.write(bytes(8))  # not ready
    age(names, 30)
    (run,) = mine(names)
    assert (run.owner, run.removable) == ("half-made", False)
    assert "may be under creation" in run.why
    age(names, 90)
    assert clean(names)


def test_half_made_segments_of_a_creator_that_lives_stay(left):
    names = left()
    control = next(name for name in names if name.endswith("control"))
    os.truncate(SHM / control, 0)
    age(names, 90)
    with (SHM / control).open("rb") as file:
        holder = holding(file.fileno())
    assert not clean(names)
    holder.kill()
    holder.wait()
    assert clean(names)


def test_rings_without_a_control_block_go_when_nobody_has_them(left):
    names = left()
    (SHM / next(name for name in names if name.endswith("control"))).unlink()
    assert not clean(names)
    age(names & segments(), 90)
    assert clean(names)


def test_another_builds_segments_stay_and_are_named(left):
    names = left()
    control = next(name for name in names if name.endswith("control"))
    with (SHM / control).open("r+b") as file:
        file.seek(12)
        file.write((999).to_bytes(4, "little"))
    (run,) = mine(names)
    assert (run.owner, run.removable) == ("unknown", False)
    assert "ABI 999" in run.why


def test_segments_of_another_boot_are_gone(left):
    names = left()
    with (SHM / next(name for name in names if name.endswith("control"))).open("r+b") as file:
        file.seek(72)
        file.write(bytes(16))
    assert clean(names)


def may_unshare():
    probe = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return shutil.which("unshare") and subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="a pid namespace is not permitted here")
def test_segments_of_another_pid_namespace_stay_unless_asked_for(left, tmp_path):
    names = left(tmp_path)
    elsewhere = ["unshare", "--pid", "--fork", "--mount-proc"]
    rows = json.loads(ringbuf("ls", "--json", prefix=elsewhere).stdout)
    assert {row["owner"] for row in rows if row["name"] in names} == {"foreign pid namespace"}
    code = "import sys, pathlib\nfrom ringbuf import stale\n"
    code += "runs = [r for r in stale.runs(pathlib.Path('/dev/shm')) if r.segments[0].name in sys.argv]\n"
    code += "assert len(runs) == 1 and not runs[0].removable, runs\nprint(runs[0].why)"
    done = subprocess.run([*elsewhere, sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.stdout == "its processes cannot be seen from here\n", done.stderr


def test_clean_leaves_a_live_run_alone_and_takes_a_killed_one(tmp_path):
    """Real runs side by side."""
    quick = ("evaluate.episodes=0", "monitor.interval_seconds=0.1")
    runs = {}
    for name in ("killed", "alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.yaml").write_text(CARTPOLE)
        runs[name] = subprocess.Popen(command("run.yaml", *quick), cwd=tmp_path / name,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = {}
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        for name in runs:
            path = tmp_path / name / "runs/toy"
            while (rundir.read_json(path / rundir.STATUS) or {}).get("state") != "running":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            record = rundir.read_json(path / "attempts/0001.json")
            names[name] = {one.removeprefix("/") for one in record["segments"]}
        assert [mine(one)[0].owner for one in names.values()] == ["live", "live"]
        runs["killed"].kill()
        runs["killed"].wait()
        while mine(names["killed"])[0].owner != "gone":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert clean(names["killed"])
        assert not clean(names["alive"])
        assert not names["killed"] & segments()
        assert names["alive"] <= segments()
        runs["alive"].terminate()
        assert runs["alive"].wait(DEADLINE_SECONDS) == 0
    finally:
        for name, process in runs.items():
            process.kill()
            process.wait()
            for one in names.get(name, set()) & segments():
                (SHM / one).unlink(missing_ok=True)


def test_the_exit_code_says_whether_something_had_to_stay(monkeypatch, capsys, tmp_path):
    from ringbuf import __main__ as tool

    def run(owner, removable):
        segment = stale.Segment("headrace-0-ab-control", "ab", "control", 5)
        return stale.Run([segment], "/runs/toy", owner, "for a reason", removable)

    monkeypatch.setattr(stale, "remove", lambda folder, run: True)
    for found, arguments, code, told in [
        ([], (), 0, "no segments\n"),
        ([run("live", False)], (), 0, "stays: ab  live: for a reason; /runs/toy\n"),
        ([run("gone", True)], (), 0, "removed: ab  gone: for a reason; /runs/toy\n"),
        ([run("unknown", False)], (), 1, "stays: ab  unknown: for a reason; /runs/toy\n"),
        ([run("foreign pid namespace", False)], (), 1, "stays: ab  foreign pid namespace: for a reason"),
        ([run("foreign pid namespace", False)], ("--foreign",), 0, "removed: ab  foreign pid namespace"),
    ]:
        monkeypatch.setattr(stale, "runs", lambda folder, found=found: found)
        assert tool.main(["clean", *arguments]) == code
        assert capsys.readouterr().out.startswith(told)
        assert tool.main(["clean", "--json", *arguments]) == code
        assert set(json.loads(capsys.readouterr().out)) == {"removed", "stays"}
