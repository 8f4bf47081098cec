"""Every way in which a start ends before it begins: its message, its exit code, and nothing left behind."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
from command import CARTPOLE, ROOT, left_since, segments, supervise

from monitor import rundir
from producers import native


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    return tmp_path


def refused(folder, code, message, *arguments, **options):
    """Starts run.yaml and expects that it is refused, in words and with nothing left behind."""
    before = segments(), {str(path) for path in folder.rglob("*")}
    done = supervise(folder, *(arguments or ("run.yaml",)), **options)
    assert done.returncode == code, done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) <= 4, done.stderr
    new = {str(path) for path in folder.rglob("*")} - before[1]
    assert {path.removeprefix(f"{folder}/") for path in new} <= {"runs", "runs/toy/lock"}
    assert left_since(before[0]) == set()
    return done


def in_namespace(script):
    """A prefix that runs its command with `script` done to the mounts, seen by that command alone."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script + ' && exec "$@"', "sh"]


def may_mount():
    probe = [*in_namespace("mount -t tmpfs tmpfs /mnt"), "true"]
    return shutil.which("unshare") and subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif(not may_mount(), reason="mounting is not permitted here")


# 2: usage


def test_a_missing_file(folder):
    refused(folder, 2, r"^headrace: absent.yaml: no such file or directory$", "absent.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "RUN.yaml is missing"),
        (("run.yaml", "--speed"), "unrecognized arguments: --speed"),
        (("run.yaml", "--fresh", "--resume"), "not allowed with argument"),
    ],
)
def test_wrong_usage(folder, arguments, message):
    done = supervise(folder, *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


# 64: the configuration


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "learner.lerning_rate=1",
            r"learner.lerning_rate: unknown key; did you mean learner.learning_rate\?",
        ),
        ("learner.epochs=none", r"learner.epochs: found none \(a text\); needs a whole number"),
        ("sim.name=pacman", r"sim.name: no simulator 'pacman'; there are: .*breakout, cartpole"),
        ("sim.name=./pacman.so", r"sim.name: no such file: .*/pacman.so; there are: .*breakout, cartpole"),
        ("sim.wind=3", r"sim.wind: cartpole has no such parameter"),
        ("producers.cores=[0, 4096]", r"producers.cores: found core 4096; this machine has 0"),
        (
            "rollout.horizon=1e12",
            r"rollout.horizon: a slot of 1000000000000 steps of 16 agents is impossible",
        ),
        ("ring.slots=5e9", r"ring.slots: found 5000000000.0; needs a whole number .*65536 or less"),
        ("run.seed=18446744073709551616", r"run.seed: found 18446744073709551616; needs a whole number"),
        ("producers.count=999", r"producers.count: found 999; needs 505 or fewer"),
        ("policy.recurrent=gru", r"policy.recurrent: found gru \(a text\); needs none, lstm or mingru"),
        ("policy.module=nowhere.to_be:Found", r"policy.module: .*No module named 'nowhere'"),
    ],
)
def test_a_wrong_configuration(folder, override, message):
    refused(folder, 64, message, "run.yaml", override)


def test_a_wrong_file_names_its_lines(folder):
    (folder / "run.yaml").write_text(CARTPOLE.replace("horizon: 16", "horizon: soon"))
    done = refused(
        folder, 64, r"^run.yaml:4:20: rollout.horizon: found soon \(a text\); needs a whole number"
    )
    assert done.stdout == ""


# 69: what is not there


def test_too_little_shared_memory_for_more_than_there_is(folder):
    message = r"shared memory: [0-9.]+ GiB needed, but /dev/shm has .* free .*--shm-size"
    refused(folder, 69, message, "run.yaml", "rollout.horizon=1e5", "producers.agents=16384", "ring.slots=64")


@needs_mount
def test_too_little_shared_memory_on_a_small_tmpfs(folder):
    prefix = in_namespace("mount -t tmpfs -o size=1m tmpfs /dev/shm")
    message = (
        r"shared memory: [0-9.]+ MiB needed, but /dev/shm has (1.0|0.\d) MiB free of 1.0 MiB.*--shm-size"
    )
    refused(folder, 69, message, prefix=prefix)


@needs_mount
def test_shared_memory_that_cannot_be_written(folder):
    prefix = in_namespace("mount -t tmpfs -o ro tmpfs /dev/shm")
    message = r"^headrace: shared memory: /dev/shm cannot be written: read-only file system$"
    refused(folder, 69, message, prefix=prefix)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_listed_core_outside_the_affinity(folder):
    allowed, barred = sorted(os.sched_getaffinity(0))[:2]
    narrow = f"import os, sys; os.sched_setaffinity(0, {{{allowed}}}); os.execv(sys.argv[1], sys.argv[1:])"
    message = rf"producers.cores: core {barred} is outside what this process may use, {allowed} "
    arguments = "run.yaml", f"producers.cores=[{barred}]"
    refused(folder, 69, message, *arguments, prefix=[sys.executable, "-c", narrow])


def test_a_busy_port(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = rf"monitor.port: 127.0.0.1 port {port}: address already in use; stop what holds it, or give"
        refused(folder, 69, message, "run.yaml", f"monitor.port={port}")


@pytest.mark.parametrize(
    ("host", "message"),
    [("192.0.2.1", "cannot assign"), ("300.1.1.1", "(name or service|temporary failure)")],
)
def test_an_address_that_is_not_ours(folder, host, message):
    refused(folder, 69, f"^headrace: monitor.host: {host}: {message}", "run.yaml", f"monitor.host={host}")


def test_a_file_in_place_of_the_run_directory(folder):
    (folder / "runs").mkdir()
    (folder / "runs" / "toy").write_text("mine")
    refused(folder, 69, r"runs/toy: the run directory cannot be written: file exists")
    assert (folder / "runs" / "toy").read_text() == "mine"


@needs_mount
def test_a_read_only_run_directory(folder):
    (folder / "runs").mkdir()
    prefix = in_namespace(f"mount -t tmpfs -o ro tmpfs {folder}/runs")
    refused(
        folder, 69, r"runs/toy: the run directory cannot be written: read-only file system", prefix=prefix
    )


@needs_mount
def test_a_run_directory_that_cannot_be_moved_aside(folder):
    path = folder / "runs" / "toy"
    path.mkdir(parents=True)
    summary = json.dumps({"state": "done"})
    prefix = in_namespace(f"mount -t tmpfs tmpfs {path} && echo '{summary}' > {path}/summary.json")
    message = r"runs/toy: the run directory cannot be written: device or resource busy"
    refused(folder, 69, message, "run.yaml", "--fresh", prefix=prefix)


@needs_mount
def test_a_disk_that_is_full_from_the_start(folder):
    (folder / "runs").mkdir()
    prefix = in_namespace(f"mount -t tmpfs -o size=8k tmpfs {folder}/runs")
    message = r"runs/toy: the run directory cannot be written: no space left on device"
    refused(folder, 69, message, prefix=prefix)


def test_a_second_supervisor_on_the_same_run_directory(folder):
    held = rundir.RunDirectory.take(folder / "runs" / "toy")
    held.begin()
    message = rf"runs/toy is in use by a live run \(supervisor {os.getpid()} on "
    refused(folder, 69, message)
    refused(folder, 69, message, "run.yaml", "--fresh")
    held.release()


def test_a_run_that_is_done_but_for_its_summary_which_was_deleted(folder):
    attempts = folder / "runs" / "toy" / "attempts"
    attempts.mkdir(parents=True)
    (attempts / "0001.json").write_text('{"attempt": 1, "state": "done", "segments": [], "totals": {}}')
    done = supervise(folder, "run.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("headrace: this run is done; --resume goes on with it")


def test_an_attempt_s_file_that_makes_no_sense(folder):
    attempts = folder / "runs" / "toy" / "attempts"
    attempts.mkdir(parents=True)
    (attempts / "0001.json").write_text('{"attempt": 1, "segments": 5}')
    done = supervise(folder, "run.yaml")
    assert done.returncode == 70
    assert re.search(r"^headrace: internal error, TypeError: ", done.stderr, re.M)
    assert (folder / "runs/toy/lock").read_text() == ""


def test_nothing_to_resume(folder):
    message = r"^headrace: --resume: .*/runs/toy holds no run; without it a new one begins there$"
    refused(folder, 2, message, "run.yaml", "--resume")


def test_a_library_that_is_no_simulator(folder):
    (folder / "fake.so").write_text("no library")
    refused(folder, 69, r"fake.so", "run.yaml", "sim.name=./fake.so")


@pytest.fixture
def checkout(tmp_path):
    """A copy of the sources without any native part."""
    copy = tmp_path / "checkout"
    for name in ("supervisor.py", "pyproject.toml"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for name in ("config", "consumers", "monitor", "producers", "ringbuf", "sims"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "producer", "__pycache__")
        )
    return copy


def adopt(checkout, *names):
    for name in names:
        shutil.copy(ROOT / name, checkout / name)


MODULE = "ringbuf/_ring.abi3.so"


def test_a_checkout_that_was_never_built(folder, checkout):
    refused(folder, 69, r"^headrace: ringbuf/_ring.abi3.so is missing; run: make build$", root=checkout)
    adopt(checkout, MODULE)
    refused(folder, 69, r"^headrace: .*producers/producer is missing; run: make build$", root=checkout)
    adopt(checkout, "producers/producer")
    refused(folder, 69, r"^headrace: sims/cartpole/cartpole.so is missing; run: make build$", root=checkout)


def test_a_producer_of_another_abi(folder, checkout):
    adopt(checkout, MODULE)
    (checkout / "producers" / "producer").write_text("#!/bin/sh\necho 0\n")
    (checkout / "producers" / "producer").chmod(0o755)
    refused(
        folder, 69, r"producers/producer has ABI 0, this version needs \d+; run: make build$", root=checkout
    )


def test_an_extension_of_another_abi(folder, checkout):
    adopt(checkout, MODULE, "producers/producer", "sims/cartpole/cartpole.so")
    header = (checkout / "ringbuf/plan.h").read_text()
    (checkout / "ringbuf/plan.h").write_text(header.replace("#define HR_ABI ", "#define HR_ABI 9"))
    refused(
        folder,
        69,
        r"ringbuf/_ring.abi3.so has ABI \d, this version needs 9\d; run: make build$",
        root=checkout,
    )


def test_an_extension_that_does_not_load(folder, checkout):
    (checkout / MODULE).write_text("no library")
    refused(folder, 69, r"ringbuf/_ring.abi3.so does not load \(.*; run: make build$", root=checkout)


def test_a_simulator_that_crashes_when_asked_hurts_nobody(tmp_path):
    fake = tmp_path / "producers"
    fake.mkdir()
    (fake / "producer").write_text("#!/bin/sh\nkill -SEGV $$\n")
    (fake / "producer").chmod(0o755)
    with pytest.raises(native.NativeError, match=r"simulator .*x.so: died of signal 11"):
        native.describe(tmp_path / "x.so", root=tmp_path)


def test_parameters_that_do_not_go_together_are_refused_where_they_stand(folder):
    message = (
        r"run.yaml:2:13: sim.name: realm refuses .* in this combination: width: 32, height: 32, agents: 256; "
        r"what it says of them: producers/producer --describe realm"
    )
    text = "sim: {name: realm, width: 32, height: 32, agents: 256}"
    written = (folder / "run.yaml").read_text().replace("sim: {name: cartpole}", text)
    (folder / "run.yaml").write_text(written)
    refused(folder, 64, message, "run.yaml", "--check")


def test_a_check_tells_of_what_this_machine_lacks(folder):
    """It may be meant for another one."""
    settings = "learner.device=cuda", "policy.placement=server", "server.device=cuda", "learner.memory=1GiB"
    large = "ring.slots=65536", "rollout.horizon=4096"
    done = supervise(folder, "run.yaml", "--check", *settings, *large)
    assert done.returncode == 0, done.stderr
    for lacks in ("learner.device: cuda, but", "server.device: cuda, but", "shared memory: "):
        assert f"warning: {lacks}" in done.stdout


# 0: nothing to do


def test_a_finished_run_prints_its_result(folder):
    path = folder / "runs" / "toy"
    path.mkdir(parents=True)
    summary = {
        "state": "done",
        "steps": 5000,
        "seconds": 2.0,
        "steps_per_second": 2500.0,
        "version": 9,
        "score": {"mean": 480.5, "best": 490.0, "episodes": 9, "evaluated": None},
        "solved_at_seconds": 1.5,
        "lag": {"mean": 0.25, "max": 1, "limit": 1},
    }
    rundir.write_json(path / rundir.SUMMARY, summary)
    done = supervise(folder, "run.yaml")
    assert done.returncode == 0, done.stderr
    assert "done: 5,000 steps in 2.0 s" in done.stdout
    assert "480.5" in done.stdout
    assert "--fresh" in done.stdout
    assert rundir.read_json(path / rundir.SUMMARY) == summary


def test_check_starts_nothing(folder):
    done = supervise(folder, "run.yaml", "--check", "staleness.limit=9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("warning: staleness.limit 9 cannot be reached")
    assert done.stdout.endswith("run.yaml: good\n")
    assert os.listdir(folder) == ["run.yaml"]
    refused(folder, 64, "sim.wind", "run.yaml", "--check", "sim.wind=3")
    hundred = [f"{key}=100" for key in ("learner.count", "producers.count", "learner.batch_slots")]
    refused(folder, 64, "learner.count: found 100; needs 64 or fewer", "run.yaml", "--check", *hundred)


def test_print_config_shows_where_each_value_comes_from(folder):
    done = supervise(folder, "run.yaml", "--print-config", "learner.clip=0.3")
    assert done.returncode == 0, done.stderr
    lines = {line.split("#")[0].strip(): line.rpartition("# ")[2] for line in done.stdout.splitlines()}
    assert lines["agents: 16"] == "run.yaml:3"
    assert lines["clip: 0.3"] == "override 'learner.clip=0.3'"
    assert lines["gamma: 0.99"] == "default"
    (folder / "again.yaml").write_text(done.stdout)
    assert supervise(folder, "again.yaml", "--check").returncode == 0


def test_print_schema_is_the_committed_one(folder):
    done = supervise(folder, "--print-schema")
    assert json.loads(done.stdout) == json.loads((ROOT / "docs/run.schema.json").read_text())


def test_a_start_that_fails_by_a_bug_of_ours_leaves_no_memory(folder):
    before = segments()
    script = "import supervisor; supervisor.display.make = lambda **how: 1 / 0; supervisor.main(['run.yaml'])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "ZeroDivisionError" in done.stderr
    assert left_since(before) == set()
