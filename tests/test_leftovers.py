"""The tests look at what they left themselves, whoever else runs on the machine."""

import os
import subprocess
import sys

import leftovers
import pytest
from command import ROOT, segments

MAKES = """\
import os, sys, time
from ringbuf import segments
run_id = os.urandom(16)
name = segments.name(run_id, "control")
control = segments.create_control(name, run_id, sys.argv[1])
print(name, flush=True)
sys.stdin.read()
segments.unlink(name)
"""


@pytest.fixture
def stranger(tmp_path):
    """Makes a segment, of a run in a directory, in a process that does not descend from this one; returns its
    name."""
    made = []

    def make(directory):
        link, end = os.pipe()
        reader, writer = os.pipe()
        code = f"exec 3<&0; {sys.executable} -c '{MAKES}' '{directory}' <&3 &"
        subprocess.run(["sh", "-c", code], cwd=ROOT, stdin=link, stdout=writer, check=True)
        os.close(link)
        os.close(writer)
        with os.fdopen(reader) as file:
            name = file.readline().strip().removeprefix("/")
        made.append((end, name))
        return name

    yield make
    for end, _ in made:
        os.close(end)


def test_a_ring_that_is_left_is_found(rig, tmp_path):
    before = segments()
    left = rig()
    names = {name.removeprefix("/") for name in left.names}
    assert leftovers.segments_of(tmp_path, before) == names
    left.close()
    assert leftovers.segments_of(tmp_path, before) == set()


@pytest.mark.parametrize(("directory", "ours"), [("", False), ("/elsewhere/runs/a", False), ("{}/a", True)])
def test_what_somebody_else_makes_meanwhile_is_theirs(stranger, tmp_path, directory, ours):
    before = segments()
    name = stranger(directory.format(tmp_path))
    assert name in segments()
    assert (name in leftovers.segments_of(tmp_path, before)) == ours


def test_a_child_that_is_left_is_found():
    child = subprocess.Popen(["sleep", "60"])
    assert [line for line in leftovers.children() if "sleep 60" in line]
    child.kill()
    child.wait()
    assert not [line for line in leftovers.children() if "sleep 60" in line]
