"""A whole run under fire: producers, learner, exporter, now and then the supervisor, which is started again.

    HEADRACE_SOAK_SECONDS=N   how long each case is under fire (30)
    HEADRACE_SOAK_SEED=N      of the random deaths (0)
"""

import contextlib
import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from command import CARTPOLE
from test_resume import Run, balanced

from monitor import rundir

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "30"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0"))
SUPERVISOR_SECONDS = (5.0, 15.0)  # between its deaths
BATCH_SLOTS = 2
BREAKOUT = CARTPOLE.replace("{name: cartpole}", "{name: breakout}")
# Random deaths come thicker here than any fault; hung is soon found.
PATIENT = ("supervisor.max_failures=1000", "supervisor.backoff_seconds=0.01", "supervisor.hung_seconds=20",
           "supervisor.backoff_max_seconds=0.02", "supervisor.abort_seconds=0.2")


class Fire:
    """Shoots at the processes that status.json names."""

    def __init__(self, run, seed):
        self.run, self.random = run, random.Random(seed)
        self.stopped = {}  # pid: until when
        self.shots = 0

    def shoot(self):
        now = time.monotonic()
        for pid, until in list(self.stopped.items()):
            if now > until:
                self.send(pid, signal.SIGCONT)
                del self.stopped[pid]
        table = self.run.status().get("processes", [])
        targets = [one for one in table if one["role"] != "supervisor" and one["state"] == "running"]
        if not targets:
            return
        learners = [one for one in targets if one["role"] == "learner"]
        pid = self.random.choice(learners * len(targets) + targets)["pid"]  # half are the learner's
        self.shots += 1
        if self.random.random() < 0.3:
            self.send(pid, signal.SIGSTOP)
            self.stopped[pid] = now + self.random.uniform(0.0, 1.0)
        else:
            self.send(pid, signal.SIGKILL)

    def cease(self):
        for pid in self.stopped:
            self.send(pid, signal.SIGCONT)
        self.stopped.clear()

    def send(self, pid, number):
        """Only to a process of the run: the pid may have been taken by another since."""
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if str(self.run.path).encode() in line:
                os.kill(pid, number)


@pytest.mark.soak
@pytest.mark.parametrize("text", [CARTPOLE, BREAKOUT], ids=["cartpole", "breakout"])
def test_a_run_outlives_everybody_and_its_supervisor_and_its_books_balance(tmp_path, text):
    run = Run(tmp_path / "run", text)
    fire = Fire(run, SEED)
    versions = [0]
    try:
        end, deaths = time.monotonic() + SECONDS, 0
        while time.monotonic() < end or deaths == 0:
            run.start(*PATIENT)
            run.until(lambda status: status["state"] == "running")
            ceases = time.monotonic() + fire.random.uniform(*SUPERVISOR_SECONDS)
            while time.monotonic() < ceases:
                fire.shoot()
                time.sleep(fire.random.choice((0.02, 0.2, 1.0, 3.0)))
                assert run.process.poll() is None, run.said()
                versions.append(run.status()["version"] or versions[-1])
            fire.cease()
            run.kill()
            deaths += 1
        run.start(*PATIENT)
        run.reaches(versions[-1] + 3)
        summary = run.end(signal.SIGTERM)
    finally:
        run.close()
    assert fire.shots > 0
    assert all(earlier <= later for earlier, later in itertools.pairwise(versions)), "a version was lost"
    assert summary["state"] == "stopped"
    assert summary["attempt"] == deaths + 1
    assert balanced(summary)
    assert summary["slots"]["in_flight"] == 0
    # Each version is made of one batch and each batch makes one version: none is trained twice or left out.
    assert run.events("rolled_back") == []
    assert summary["slots"]["consumed"] == BATCH_SLOTS * summary["version"]
    assert summary["updates"] == summary["version"]
    lines = [json.loads(line) for file in sorted(run.path.glob("metrics.jsonl*"), reverse=True)
             for line in file.read_text().splitlines()]
    told = [line["version"] for line in lines]
    assert len(set(told)) == len(told), "a version was told of twice"
    assert told == sorted(told)
    assert (lines[-1]["version"], lines[-1]["steps"]) == (summary["version"], summary["steps"])
    assert rundir.read_json(run.path / rundir.STATUS)["version"] == summary["version"]
    print(f"{deaths} deaths of the supervisor, {fire.shots} shots, version {summary['version']}, "
          f"restarts {summary['restarts']}")
