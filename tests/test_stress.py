"""A study runs to its end whatever is killed on the way, and its cells are what they say they are."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command import ROOT, left_since, segments, supervise

import config
from consumers import checkpoint, shelf
from producers import cores
from producers.program import Program
from stress.cells import Matrix
from stress.reading import read

DEADLINE_SECONDS = 300  # against hanging only

STUDY = """\
study: {name: tiny, dir: DIR}
base:
  producers: {count: 1, agents: 4}
  rollout: {horizon: 16}
  ring: {slots: 8}
  policy: {hidden: [8]}
  learner: {device: cpu, threads: 1, precision: float32, batch_slots: 1, epochs: 2, minibatches: 2}
  stop: {steps: 1200, window: 10}
  evaluate: {episodes: 8, worlds: 8}
  monitor: {port: 0}
tasks:
  unused: {settings: {sim: {name: bandit}}, solved: 1, floor: 0}
  cartpole: {settings: {sim: {name: cartpole}}, solved: 475, floor: 20}
matrix:
  frozen:     # so slow that no weight ever moves
    {tasks: [cartpole], lags: [0, 3], corrections: [none, vtrace], seeds: [1, 2], learning_rates: [1e-30]}
  moving:
    {tasks: [cartpole], lags: [2], corrections: [vtrace], seeds: [1], learning_rates: [3e-3]}
"""


class Started:
    """`python -m stress` under way in `folder`."""

    def __init__(self, folder, *arguments):
        self.folder = folder
        (folder / "tiny.yaml").write_text(STUDY.replace("DIR", str(folder)))
        command = [sys.executable, "-m", "stress", str(folder / "tiny.yaml"), "--plain", "--workers", "1"]
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=output, stderr=output)

    def said(self):
        return (self.folder / "output").read_text()

    def files(self):
        """Finished cells: name to contents and the time they were written."""
        paths = (self.folder / "tiny" / "cells").glob("*.json")
        return {path.name: (path.read_text(), path.stat().st_mtime_ns) for path in paths}

    def cells(self):
        return [json.loads(text) for text, _ in self.files().values()]

    def until(self, condition):
        """Waits while the runner lives; returns what `condition` gave."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (found := condition()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)
        return found

    def end(self):
        return self.process.wait(DEADLINE_SECONDS)

    def close(self):
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.processes() and time.monotonic() < deadline:  # they die with it
            time.sleep(0.01)

    def processes(self, part=""):
        """Of the runner's children, or whoever was one, those with `part` in their command line."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                ours = (
                    words[words.index("--parent") + 1] == str(self.process.pid) if "--parent" in words else 0
                )
                if ours and part in " ".join(words):
                    found.append(int(process.name))
        return found


@pytest.fixture
def study(tmp_path):
    started = []

    def start(*arguments):
        started.append(Started(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_study_that_was_killed_goes_on_and_runs_no_finished_cell_again(study, tmp_path):
    before = segments()
    first = study()
    first.until(lambda: len(first.files()) > 1 and first.processes("producers/producer"))
    first.process.kill()
    first.end()
    kept = first.files()
    first.close()
    assert first.processes() == []

    second = study()
    assert second.end() == 0, second.said()
    files = second.files()
    assert {name: files[name] for name in kept} == kept
    described = json.loads((tmp_path / "tiny" / "study.resolved.json").read_text())
    assert sorted(f"{cell}.json" for cell in described["cells"]) == sorted(files)
    assert described["planned_cells"] == len(files) == 9
    assert left_since(before) == set()
    assert list((tmp_path / "tiny" / "scratch").iterdir()) == []
    check_cells(second.cells())
    check_against_the_supervisor(tmp_path, second.cells())

    third = study()
    assert third.end() == 0
    assert third.files() == files
    assert "9 of 9 cells are finished (0 failed)" in third.said()


def check_cells(cells):
    """Weights that never move tell with which ones a run began, and scores in which worlds it was."""
    assert {cell["status"] for cell in cells} == {"done"}
    frozen = [cell for cell in cells if cell["learning_rate"] < 1e-20]
    begun = {
        seed: {
            (cell["gates"]["weights_sha256"], json.dumps(cell["curve"]["score"]))
            for cell in frozen
            if cell["seed"] == seed
        }
        for seed in (1, 2)
    }
    assert len(begun[1]) == len(begun[2]) == 1
    assert begun[1].isdisjoint(begun[2])
    for cell in cells:
        assert cell["steps"] >= 1200
        assert cell["versions"] > 15
        assert cell["evaluated"]["n"] == 8
        assert cell["lag_steps"]["max"] == cell["lag"]
        assert cell["curve"]["steps"][-1] == cell["steps"]
        assert cell["curve"]["score"][-1] is not None
        assert len(cell["diagnostics"]["ratio_ess"]) == len(cell["curve"]["steps"])


def check_against_the_supervisor(folder, cells, overrides=()):
    """The same run by supervisor.py has the same weights in the end."""
    (cell,) = (cell for cell in cells if cell["learning_rate"] > 1e-20)
    machine = cores.read_machine()
    matrix = Matrix(read(folder / "tiny.yaml", overrides), machine)
    (planned,) = (one for one in matrix.main({}) if one.id == cell["id"])
    prepared = planned.prepare(folder / "alone", machine)
    (folder / "run.yaml").write_text(config.dump_resolved(prepared.config))
    done = supervise(folder, "run.yaml", "evaluate.episodes=0")
    assert done.returncode == 0, done.stderr
    policy = checkpoint.load(shelf.latest(folder / "alone" / cell["id"] / "checkpoints")).policy
    program: Program = prepared.program
    flat = torch.cat([policy[weight.name].reshape(-1) for weight in program.weights])
    assert hashlib.sha256(flat.numpy().tobytes()).hexdigest() == cell["gates"]["weights_sha256"]


@pytest.mark.soak
def test_a_cell_whose_process_dies_has_failed_and_the_others_go_on_until_they_are_interrupted(study):
    before = segments()
    run = study()
    (producer, *_) = run.until(lambda: run.processes("producers/producer"))
    os.kill(producer, signal.SIGKILL)
    run.until(lambda: any(cell["status"] == "failed" for cell in run.cells()) or None)
    run.until(lambda: run.processes("producers/producer"))
    (worker,) = run.processes("stress.worker")
    os.kill(worker, signal.SIGKILL)
    run.until(lambda: any(cell["status"] == "done" for cell in run.cells()) and len(run.cells()) > 2)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 128 + signal.SIGINT, run.said()
    failed = sorted(cell["why"] for cell in run.cells() if cell["status"] == "failed")
    assert failed == ["learner 0 died of SIGKILL", "producer 0 died of SIGKILL"]
    assert "cells are finished (2 failed)" in run.said()
    assert "are left: the same command goes on with them" in run.said()
    assert left_since(before) == set()


@pytest.mark.soak
def test_a_cell_that_hangs_has_failed(study):
    run = study(
        "study.hung_seconds=3",
        "matrix={one: {tasks: [cartpole], corrections: [none], seeds: [1], learning_rates: [1e-3]}}",
    )
    (producer, *_) = run.until(lambda: run.processes("producers/producer"))
    os.kill(producer, signal.SIGSTOP)
    assert run.end() == 0, run.said()
    (cell,) = run.cells()
    assert cell["why"].startswith("nothing moved for 3 s (study.hung_seconds): ")


@pytest.mark.soak
def test_cells_of_several_learners_follow_each_other_and_are_what_the_supervisor_gives(study, tmp_path):
    overrides = (
        "base.producers.count=2",
        "base.learner.batch_slots=2",
        "matrix.frozen.learners=[2]",
        "matrix.frozen.seeds=[1]",
        "matrix.moving.learners=[2]",
    )
    run = study(*overrides)
    assert run.end() == 0, run.said()
    assert [(cell["status"], cell["learners"]) for cell in run.cells()] == [("done", 2)] * 5
    check_against_the_supervisor(tmp_path, run.cells(), overrides)


def test_nobody_runs_a_study_twice_at_once(study):
    first = study()
    first.until((first.folder / "tiny" / "lock").exists)
    first.until(lambda: (first.folder / "tiny" / "lock").read_text())
    second = study()
    assert second.end() == 69
    assert f"process {first.process.pid} runs this study" in second.said()
