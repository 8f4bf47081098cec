"""What is set aside by size: in order, bounded in number, and without losing a line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from command import CARTPOLE, ROOT, command

import config
from config.rotate import rotate, set_aside
from monitor import rundir
from monitor.rotate import Growth, Rotation
from ringbuf import segments


def test_the_newest_is_1_and_the_oldest_goes(tmp_path):
    path = tmp_path / "a.log"
    for number in range(6):
        path.write_text(str(number))
        rotate(path, 3)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {
        "a.log.1": "5",
        "a.log.2": "4",
        "a.log.3": "3",
    }


def test_a_missing_file_moves_nothing(tmp_path):
    (tmp_path / "a.log.1").write_text("kept where it is")
    rotate(tmp_path / "a.log", 3)
    assert os.listdir(tmp_path) == ["a.log.1"]


def test_a_writer_that_has_the_file_open_loses_nothing(tmp_path):
    path = tmp_path / "a.log"
    with path.open("a", buffering=1) as writer:
        writer.write("before\n")
        rotate(path, 1)
        writer.write("after\n")
    assert (tmp_path / "a.log.1").read_text() == "before\nafter\n"


WRITER = """
import itertools, pathlib, sys, time
from config.rotate import reopen_when_told
reopen_when_told(pathlib.Path(sys.argv[1]))
for number in itertools.count():
    print(f"line {number:06d}", flush=True)
    if number % 50 == 0:
        time.sleep(0.001)
        if pathlib.Path(sys.argv[2]).exists():
            break
"""


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def everything(log):
    """Lines of a log and all that was set aside of it, oldest first."""
    aside = sorted(log.parent.glob(f"{log.name}.*"), key=lambda path: -int(path.suffix[1:]))
    files = [*aside, log] if log.exists() else aside
    # Joined first: a line may begin in one file and end in the next.
    return "".join(file.read_text() for file in files).splitlines()


def test_no_line_is_lost_however_often_a_log_is_set_aside(tmp_path):
    (tmp_path / rundir.LOGS).mkdir()
    log, enough = tmp_path / rundir.LOGS / "producer-0.log", tmp_path / "enough"
    rotation = Rotation(tmp_path, limit_bytes=2000, files=100)
    with log.open("w") as out:
        command = [sys.executable, "-c", WRITER, str(log), str(enough)]
        writer = subprocess.Popen(command, cwd=ROOT, stdout=out)
    wait_for(lambda: log.stat().st_size > 0)
    while writer.poll() is None:
        if rotation.rotate() == ["producer-0"]:
            writer.send_signal(signal.SIGUSR1)
        if len(list(log.parent.iterdir())) > 50:
            enough.touch()
        time.sleep(0.001)
    assert writer.returncode == 0
    lines = everything(log)
    assert lines == [f"line {number:06d}" for number in range(len(lines))]
    assert len(lines) > 50 * 100


def test_a_writer_is_asked_again_until_it_obeys(tmp_path):
    (tmp_path / rundir.LOGS).mkdir()
    log = tmp_path / rundir.LOGS / "learner-0.log"
    log.write_text("x" * 101)
    rotation = Rotation(tmp_path, limit_bytes=100, files=2)
    assert rotation.rotate() == ["learner-0"]
    assert rotation.rotate() == ["learner-0"]
    log.write_text("anew")
    assert rotation.rotate() == []


def test_a_writer_that_never_obeys_cannot_fill_the_disk(tmp_path, monkeypatch):
    (tmp_path / rundir.LOGS).mkdir()
    log = tmp_path / rundir.LOGS / "producer-0.log"
    rotation = Rotation(tmp_path, limit_bytes=100, files=2)
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with log.open("ab", buffering=0) as deaf:
        most = 0
        for _ in range(100):
            deaf.write(b"y" * 60)
            rotation.rotate()
            now += 1.0
            most = max(most, sum(path.stat().st_size for path in log.parent.iterdir()))
        deaf.write(b"the end")
    assert most <= 10 * 60 + 2 * 100 + 2 * 60, "what comes in ten seconds, and twice the limit"
    assert (log.parent / "producer-0.log.1").read_bytes().endswith(b"the end")


def test_events_are_set_aside_too_and_go_on(tmp_path):
    directory = rundir.RunDirectory.take(tmp_path / "run")
    directory.begin()
    rotation = Rotation(directory.path, limit_bytes=300, files=20)
    for number in range(40):
        directory.event("learner", 0, "something", number=number)
        assert rotation.rotate() == []
    lines = everything(directory.path / rundir.EVENTS)
    assert [json.loads(line)["number"] for line in lines] == list(range(40))
    assert len(list(directory.path.glob("events.jsonl.*"))) > 5
    directory.release()


def test_the_growth_of_a_run_directory_has_a_bound_that_its_files_keep(tmp_path):
    settings = config.Config.model_validate({
        "sim": {"name": "cartpole"}, "producers": {"count": 1}, "checkpoint": {"keep": 2},
        "monitor": {"log_bytes": 1 << 20, "log_files": 2}, "supervisor": {"keep_bad_slots": 3}})
    (tmp_path / rundir.LOGS).mkdir()
    (tmp_path / rundir.LOGS / "a.log").write_bytes(bytes(500))
    (tmp_path / "latest").symlink_to(tmp_path / rundir.LOGS / "a.log")  # counts once
    growth = Growth(tmp_path, settings, slot_bytes=1000)
    free = pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert growth.report(0) == {"bytes": 500, "bound_bytes": None, "free_bytes": free}
    # Eight logs of three files, two checkpoints and five on the way in or out, three slots, the rest.
    bound = 8 * 3 * (1 << 20) + 7 * 100 + 3 * 1000 + (16 << 20)
    assert growth.report(100)["bound_bytes"] == bound
    three = settings.model_copy(update={"learner": settings.learner.model_copy(update={"count": 3})})
    assert Growth(tmp_path, three, slot_bytes=1000).bound_bytes(100) == bound + 2 * 3 * (1 << 20)


def test_every_child_of_a_run_opens_its_log_anew(tmp_path):
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    quick = ("evaluate.episodes=0", "monitor.log_bytes=16KiB", "monitor.interval_seconds=0.1")
    run = subprocess.Popen(command("run.yaml", *quick), cwd=tmp_path, stdout=subprocess.DEVNULL)
    path = tmp_path / "runs/toy"
    logs = {name: path / rundir.LOGS / f"{name}.log" for name in ("producer-1", "learner-0", "exporter-0")}
    try:
        wait_for(lambda: (rundir.read_json(path / rundir.STATUS) or {}).get("state") == "running")
        status = rundir.read_json(path / rundir.STATUS)
        pids = {f"{one['role']}-{one['index']}": one["pid"] for one in status["processes"]}
        for log in logs.values():
            with log.open("a") as file:
                file.write("said too much\n" * 2000)
        for name, log in logs.items():
            wait_for(lambda log=log: set_aside(log, 1).exists() and log.exists())
            wait_for(lambda name=name, log=log: os.readlink(f"/proc/{pids[name]}/fd/2") == str(log))
        wait_for(lambda: len(list(path.glob("metrics.jsonl.*"))) == 3)  # the learner's own
        run.terminate()
        assert run.wait(300) == 0
        assert not any(rundir.read_json(path / rundir.SUMMARY)["restarts"].values())
        versions = [json.loads(line)["version"] for line in everything(path / rundir.METRICS)]
        assert versions == list(range(versions[0], versions[0] + len(versions)))
    finally:
        run.kill()
        run.wait()
        for name in rundir.last_attempt(path).get("segments", ()):
            segments.unlink(name)
