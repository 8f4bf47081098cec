"""A disk that fills up under a run, for real: training goes on and the old checkpoint stays whole."""

import contextlib
import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from command import CARTPOLE, DEADLINE_SECONDS, command
from test_outcomes import in_namespace, needs_mount

from consumers import shelf
from monitor import rundir
from ringbuf import segments as shared

SETTINGS = (
    "evaluate.episodes=0", "monitor.interval_seconds=0.1", "checkpoint.interval_seconds=0.3",
    "checkpoint.retry_seconds=0.3", "monitor.log_bytes=64KiB", "monitor.log_files=1",
)


@pytest.fixture
def small(request, tmp_path):
    """A run whose directory is a tmpfs of 2 MiB, or as the test says: (process, the directory as seen from
    here, its output)."""
    options = getattr(request, "param", "size=2m")
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    (tmp_path / "runs").mkdir()
    prefix = in_namespace(f"mount -t tmpfs -o {options} tmpfs {tmp_path}/runs")
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen([*prefix, *command("run.yaml", "--plain", *SETTINGS)], cwd=tmp_path,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    inside = Path(f"/proc/{process.pid}/root{tmp_path}/runs/toy")
    yield process, inside, tmp_path / "out"
    named = rundir.last_attempt(inside).get("segments", ())  # before the mount goes with its process
    process.kill()
    process.wait()
    for name in named:
        shared.unlink(name)


def until(process, wanted):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := wanted()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def last_written(path):
    """Unix time; of the file or of the one that was set aside last, since it may be set aside at once."""
    times = [0.0]
    for one in (path, path.with_name(path.name + ".1")):
        with contextlib.suppress(OSError):
            times.append(one.stat().st_mtime)
    return max(times)


def fill(path):
    """To the last byte. The file that can be deleted."""
    filler = path.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


@needs_mount
def test_a_disk_that_is_full_for_a_while_costs_reports_and_nothing_else(small):
    process, path, out = small
    def status():
        return rundir.read_json(path / rundir.STATUS) or {}

    first = until(process, lambda: (status().get("checkpoint") or {}).get("count", 0) >= 2 and status())
    assert 0 < first["run_dir"]["bytes"] < 2 << 20
    assert first["run_dir"]["free_bytes"] < 2 << 20

    def metric(name):
        with urllib.request.urlopen(first["address"] + "/metrics", timeout=60) as answer:
            return float(re.search(rf"^headrace_{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.M)[1])

    filler = fill(path)
    failures, updates = metric("checkpoint_failures_total"), metric("learner_updates_total")
    until(process, lambda: metric("checkpoint_failures_total") >= failures + 2)
    until(process, lambda: metric("learner_updates_total") > updates + 20)
    assert metric("run_dir_free_bytes") < 1 << 16
    saved = os.readlink(path / "checkpoints/latest")
    shelf.verify(path / "checkpoints" / saved)
    filler.unlink()
    until(process, lambda: os.readlink(path / "checkpoints/latest") > saved)
    after = until(process, lambda: (status().get("checkpoint") or {}).get("failures", 0) >= 2 and status())
    assert after["updated_unix"] > first["updated_unix"]
    assert after["restarts"] == {"exporter": 0, "learner": 0, "producer": 0}
    told = (path / rundir.EVENTS).read_text()  # its last page had room for a line
    assert "checkpoint_failed" in told
    assert "no room for a checkpoint" in told
    process.send_signal(signal.SIGTERM)
    # Its mount goes with it, so what it says last has to do.
    assert process.wait(DEADLINE_SECONDS) == 0, out.read_text()
    assert "stopped: " in out.read_text()
    assert "warning: a checkpoint could not be written" in out.read_text()


@needs_mount
def test_a_stop_on_a_full_disk_misses_its_last_checkpoint_and_says_so(small):
    process, path, out = small
    until(process, lambda: (path / "checkpoints/latest").exists())
    until(process, lambda: (fill(path), "the disk is full" in out.read_text())[1])
    process.send_signal(signal.SIGTERM)
    # Not tried again and again: the next learner would find no more room.
    assert process.wait(DEADLINE_SECONDS) == 69, out.read_text()
    assert "learner 0" in out.read_text()
    assert "ended with exit code 69" in out.read_text()
    assert "starts again" not in out.read_text()


@needs_mount
@pytest.mark.soak
@pytest.mark.parametrize("small", ["size=64m,nr_inodes=200"], indirect=True)
def test_a_disk_that_holds_no_more_files_costs_lines_and_nothing_else(small):
    """Those that are set aside can then not be begun anew."""
    process, path, out = small

    def status():
        return rundir.read_json(path / rundir.STATUS) or {}

    first = until(process, lambda: (status().get("checkpoint") or {}).get("count", 0) >= 2 and status())
    fillers = [path.parent / f"filler-{number}" for number in range(1000)]

    def no_more_files():
        with contextlib.suppress(OSError):
            for filler in fillers:
                filler.touch()
        return not (path / rundir.METRICS).exists()

    until(process, no_more_files)
    (path / "logs/producer-0.log").rename(path / "logs/producer-0.log.1")
    no_more_files()
    producer = next(one["pid"] for one in first["processes"] if one["role"] == "producer")
    os.kill(producer, signal.SIGKILL)
    until(process, lambda: "producer 0" in out.read_text())
    for _ in range(20):
        no_more_files()
        time.sleep(0.05)
    freed = time.time()
    for filler in fillers:
        filler.unlink(missing_ok=True)
    after = until(process, lambda: status().get("updated_unix", 0) > first["updated_unix"] + 2 and status())
    assert after["restarts"] == {"exporter": 0, "learner": 0, "producer": 1}, out.read_text()
    assert "starts again at once" in out.read_text()
    assert "cannot be started" not in out.read_text()
    until(process, lambda: last_written(path / rundir.METRICS) > freed)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_SECONDS) == 0, out.read_text()
