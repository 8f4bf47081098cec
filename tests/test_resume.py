"""Whole runs that are killed and started again: in real processes, by real signals."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import CARTPOLE, DEADLINE_SECONDS, SHM, command, segments

from monitor import rundir

QUICK = ("evaluate.episodes=0", "monitor.interval_seconds=0.1", "checkpoint.interval_seconds=0.3")
STARTS_KILLED = int(os.environ.get("HEADRACE_STARTS_KILLED", "20"))
SYNC_KILLS = int(os.environ.get("HEADRACE_SYNC_KILLS", "20"))

SYNC = """\
run: {{name: toy, seed: 3}}
sim: {{name: {sim}, max_steps: 37}}
mode: sync
producers: {{count: 2, agents: 8}}
rollout: {{horizon: 16}}
policy: {{hidden: [16], normalize_obs: true}}
learner: {{batch_slots: 2, minibatches: 4, epochs: 2, normalize_value: true, threads: 1}}
stop: {{versions: 120}}
monitor: {{port: 0}}
"""


class Run:
    """A run directory in which one attempt follows the other."""

    def __init__(self, folder, text=CARTPOLE):
        self.folder, self.path = folder, folder / "runs" / "toy"
        folder.mkdir(exist_ok=True)
        (folder / "run.yaml").write_text(text)
        self.out = open(folder / "out", "w+")  # noqa: SIM115 - open as long as the run
        self.process = None

    def start(self, *arguments):
        self.process = subprocess.Popen(
            command("run.yaml", "--plain", *QUICK, *arguments),
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.out)
        return self

    def attempts(self):
        return [rundir.read_json(file) or {} for file in sorted((self.path / "attempts").glob("*.json"))]

    def status(self):
        """Of the attempt under way."""
        attempts, status = self.attempts(), rundir.read_json(self.path / rundir.STATUS) or {}
        if attempts and attempts[-1]["pid"] == self.process.pid and len(attempts) == status.get("attempt"):
            return status
        return {"version": None, "state": "starting"}

    def until(self, wanted):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not wanted(status := self.status()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, (status, self.said())
            time.sleep(0.01)
        return status

    def reaches(self, version):
        return self.until(lambda status: (status["version"] or -1) >= version)

    def kill(self):
        """SIGKILL for the supervisor alone: its children must die of that."""
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.alive():
            assert time.monotonic() < deadline, self.alive()
            time.sleep(0.01)

    def end(self, number=None):
        """Waits for the end, which `number` asks for; nothing is left then. Returns the summary."""
        if number is not None:
            self.process.send_signal(number)
        assert self.process.wait(DEADLINE_SECONDS) == 0, self.said()
        assert self.alive() == []
        assert self.named() & segments() == set()
        return rundir.read_json(self.path / rundir.SUMMARY)

    def named(self):
        """Segments that any attempt has named."""
        return {name.removeprefix("/") for record in self.attempts() for name in record["segments"]}

    def alive(self):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (process / "cmdline").read_bytes().split(b"\0")
                if str(self.path).encode() in line:
                    found.append(b" ".join(line).decode())
        return found

    def said(self):
        self.out.seek(0)
        return self.out.read()

    def policy(self):
        return (self.path / "checkpoints" / "latest" / "policy.pt").read_bytes()

    def events(self, kind):
        lines = (self.path / rundir.EVENTS).read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for name in self.named() & segments():
            (SHM / name).unlink(missing_ok=True)
        self.out.close()


@pytest.fixture
def run(tmp_path):
    runs = []

    def make(name="one", text=CARTPOLE):
        runs.append(Run(tmp_path / name, text))
        return runs[-1]

    yield make
    for one in runs:
        one.close()


def balanced(status):
    slots = status["slots"]
    return slots["committed"] == slots["consumed"] + slots["dropped"] + slots["in_flight"]


def test_a_killed_supervisor_takes_its_children_along_and_the_next_one_goes_on(run):
    one = run().start()
    version, steps = one.reaches(30)["version"], 0
    for _ in range(2):
        one.kill()
        assert one.named() <= segments(), "the memory stays for the next one"
        one.start()
        now = one.until(lambda status: status["state"] == "running")
        assert now["version"] >= version
        assert now["steps"] > steps
        assert (now["resume"]["kind"], now["resume"]["version"] >= version) == ("attached", True)
        version, steps = one.reaches(now["version"] + 30)["version"], now["steps"]
    summary = one.end(signal.SIGTERM)
    assert summary["version"] >= version
    assert balanced(summary)
    assert (summary["slots"]["in_flight"], summary["lag"]["max"]) == (0, 1)
    assert summary["slots"]["consumed"] == 2 * summary["version"], "no batch was lost or trained twice"
    assert set(summary["restarts"].values()) == {0}
    assert [event["how"] for event in one.events("resumed")] == ["hot", "hot"]
    assert one.said().count("goes on in memory from version") == 2


@pytest.mark.soak
def test_starts_killed_at_any_moment_leave_what_a_good_start_goes_on_from(run):
    one = run().start()
    one.reaches(10)
    one.kill()
    dice = random.Random(1)
    for _ in range(STARTS_KILLED):
        one.start()
        time.sleep(dice.uniform(0.1, 1.5))
        one.kill()
    one.start()
    one.until(lambda status: status["state"] == "running")
    summary = one.end(signal.SIGTERM)
    assert balanced(summary)
    assert summary["version"] >= 10
    assert summary["slots"]["consumed"] == 2 * summary["version"]


def test_after_a_reboot_a_run_goes_on_from_its_newest_good_checkpoint(run):
    one = run().start()
    one.until(lambda status: (status.get("checkpoint") or {}).get("count", 0) >= 3)
    before = one.reaches(10)
    one.kill()
    before = rundir.read_json(one.path / rundir.STATUS)
    for name in one.named():
        with (SHM / name).open("r+b") as file:
            file.seek(72)
            file.write(bytes(16))  # another boot's
    newest = max((one.path / "checkpoints").glob("version-*"))
    os.truncate(newest / "learner.pt", 100)
    one.start()
    now = one.until(lambda status: status["state"] == "running")
    assert now["resume"]["kind"] == "checkpoint"
    assert now["resume"]["version"] < int(newest.name.removeprefix("version-"))
    assert now["version"] > before["version"], "no version is ever published twice"
    assert f"{newest.name}/learner.pt: damaged" in one.said()
    assert (one.path / "checkpoints" / f"damaged-{newest.name}").is_dir()
    summary = one.end(signal.SIGTERM)
    assert balanced(summary)
    assert summary["slots"]["committed"] > before["slots"]["committed"]
    assert summary["slots"]["dropped"] >= before["slots"]["in_flight"]
    assert summary["seconds"] > before["seconds"]


@pytest.mark.soak
def test_a_stopped_run_goes_on_and_a_done_one_where_it_is_told_to(run):
    one = run().start()
    one.reaches(5)
    stopped = one.end(signal.SIGTERM)
    assert stopped["state"] == "stopped"
    version = stopped["version"] + 20
    done = one.start(f"stop.versions={version}").end()
    assert (done["state"], done["version"]) == ("done", version)
    assert done["slots"]["consumed"] == 2 * (version - 1), "going on from disk makes a version of its own"
    assert done["steps"] == done["totals"]["steps"] > stopped["steps"]
    assert balanced(done)
    further = one.start("--resume", f"stop.versions={version + 10}").end()
    assert (further["state"], further["version"]) == ("done", version + 10)
    assert [(record["attempt"], record["state"]) for record in one.attempts()] == [
        (1, "stopped"), (2, "done"), (3, "done")]
    assert further["seconds"] > done["seconds"] > stopped["seconds"]
    assert further["score"]["episodes"] > done["score"]["episodes"] > stopped["score"]["episodes"]
    assert "changed since attempt 1: stop.versions nothing -> " in one.said()


@pytest.mark.parametrize("sim", [pytest.param("breakout", marks=pytest.mark.soak), "cartpole"])
def test_a_sync_run_that_was_killed_and_stopped_equals_one_that_was_not(run, sim):
    whole = run("whole", SYNC.format(sim=sim)).start()
    one = run("broken", SYNC.format(sim=sim)).start()
    one.reaches(30)
    one.kill()
    one.start()
    one.reaches(60)
    assert one.end(signal.SIGTERM)["state"] == "stopped"
    summary, expected = one.start().end(), whole.end()
    assert (summary["state"], summary["version"], summary["resume"]["exact"]) == ("done", 120, True)
    assert one.policy() == whole.policy()
    for name in ("version", "steps", "updates", "score", "solved_at_seconds"):
        assert summary[name] == expected[name], name
    assert balanced(summary)
    assert "not exact" not in one.said()


@pytest.mark.soak
@pytest.mark.parametrize("sim", ["breakout", "cartpole"])
def test_a_sync_run_killed_at_random_moments_equals_one_that_was_not(run, sim):
    """Starts, steps, checkpoints and ends included; HEADRACE_SYNC_KILLS: how often."""
    whole = run("whole", SYNC.format(sim=sim)).start()
    one, dice = run("broken", SYNC.format(sim=sim)), random.Random(2)
    for _ in range(SYNC_KILLS):
        one.start("checkpoint.interval_seconds=0.01")
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(dice.uniform(0.5, 12))
        one.kill()
        if (rundir.read_json(one.path / rundir.SUMMARY) or {}).get("state") == "done":
            break
    summary, expected = one.start("--resume").end(), whole.end()
    assert (summary["state"], summary["version"]) == ("done", 120)
    assert one.policy() == whole.policy()
    assert (summary["steps"], summary["score"]) == (expected["steps"], expected["score"])
    assert balanced(summary)
