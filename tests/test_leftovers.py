"""The tests look at what they left themselves, whoever else runs on the machine."""

import subprocess
import sys

import leftovers
import pytest
from command import ROOT, SHM, segments

MAKES = """\
import os, sys
from ringbuf import segments
run_id = os.urandom(16)
name = segments.name(run_id, "control")
control = segments.create_control(name, run_id, sys.argv[1])
print(name, flush=True)
if sys.argv[2] == "lives":
    sys.stdin.read()
"""


@pytest.fixture
def stranger():
    """Makes a segment, of a run in a directory, in a process of its own that lives on or not; returns its
    name."""
    made = []

    def make(directory, lives):
        command = [sys.executable, "-c", MAKES, directory, lives]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=ROOT, **pipes)
        made.append((process, process.stdout.readline().strip().removeprefix("/")))
        if lives == "dies":
            process.communicate()
        return made[-1][1]

    yield make
    for process, name in made:
        process.communicate()
        (SHM / name).unlink()


def test_a_ring_that_is_left_is_found(rig, tmp_path):
    before = segments()
    left = rig()
    names = {name.removeprefix("/") for name in left.names}
    assert leftovers.segments_of(tmp_path, before) == names
    left.close()
    assert leftovers.segments_of(tmp_path, before) == set()


@pytest.mark.parametrize("lives", ["lives", "dies"])
@pytest.mark.parametrize(("directory", "ours"), [("", False), ("/elsewhere/runs/a", False), ("{}/a", True)])
def test_what_somebody_else_makes_meanwhile_is_theirs(stranger, tmp_path, directory, ours, lives):
    before = segments()
    name = stranger(directory.format(tmp_path), lives)
    assert name in segments()
    assert (name in leftovers.segments_of(tmp_path, before)) == ours


def test_a_child_that_is_left_is_found():
    child = subprocess.Popen(["sleep", "60"])
    assert [line for line in leftovers.children() if "sleep 60" in line]
    child.kill()
    child.wait()
    assert not [line for line in leftovers.children() if "sleep 60" in line]
