"""A slot that was set aside is kept for its author to look at, and its place in the ring is given back."""

import errno
import os
import signal
import time

import numpy as np
import pytest
from command import SHM
from rings import Raw, produce, small_plan
from test_arbiter import stop

from consumers import dumps as reader
from monitor import dumps


def bad_slots(rig, count):
    """A rig with slots 0 ... count - 1 written and set aside."""
    run = rig(slots=4, grant=4)
    producer = run.producer()
    for sequence in range(count):
        produce(producer, version=7, valid_steps=13)
        run.raw().set_word("bad", sequence, deliveries=3)
    return run


def test_a_dump_is_the_slot_as_it_was_written(rig, tmp_path):
    run = bad_slots(rig, 3)
    path = dumps.dump(run.ring, 2, tmp_path / "bad", keep=4)
    found = reader.read(path)
    plan = small_plan()
    assert {name: field.shape for name, field in found.fields.items()} == {
        name: field.shape for name, field in plan.fields.items()
    }
    assert found.fields["obs"].dtype == np.uint8
    assert (found.fields["obs"] == 2).all()
    assert found.fields["reward"].dtype == np.float32
    facts = found.facts
    assert (facts["ring"], facts["sequence"], facts["simulator"]) == (0, 2, "toy")
    header = facts["header"]
    assert (header["state"], header["deliveries"], header["valid_steps"]) == ("bad", 3, 13)
    assert header["oldest_version"] == 7
    assert path.stat().st_size == run.ring.slot_range(2)[1] == facts["bytes"]


def test_the_newest_dumps_are_kept(rig, tmp_path):
    run = bad_slots(rig, 4)
    for sequence in range(4):
        path = dumps.dump(run.ring, sequence, tmp_path, keep=2)
        os.utime(path, (sequence, sequence))  # writing may be quicker than the file system's clock
    names = {f"ring-0-slot-{sequence}.{kind}" for sequence in (2, 3) for kind in ("bin", "json")}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_none_is_written_where_none_is_to_be_kept(rig, tmp_path):
    assert dumps.dump(bad_slots(rig, 1).ring, 0, tmp_path / "bad", keep=0) is None
    assert not (tmp_path / "bad").exists()


def test_a_full_disk_loses_the_dump_and_leaves_no_part_of_it(rig, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dumps, "write_json", full)
    assert dumps.dump(bad_slots(rig, 1).ring, 0, tmp_path, keep=4) is None
    assert list(tmp_path.iterdir()) == []


def test_a_dump_that_was_cut_off_is_refused(rig, tmp_path):
    path = dumps.dump(bad_slots(rig, 1).ring, 0, tmp_path, keep=4)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ValueError, match="bytes"):
        reader.read(path)


def stop_the_learner_before_a_ready_slot(run, ring):
    """Its pid, and the sequence of a slot that nobody can take from READY now."""
    while True:
        learner = run.kill("learner", number=signal.SIGSTOP)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            for state, sequence, *_ in ring.observe().slots:
                if state == "ready":
                    return learner, sequence
            time.sleep(0.01)
        os.kill(learner, signal.SIGCONT)  # it stood where the producer has no credit left to write with
        time.sleep(0.02)


def test_a_run_frees_its_bad_slots_and_counts_them(start):
    run = start()
    run.running()
    _, rings = run.attach()
    learner, sequence = stop_the_learner_before_a_ready_slot(run, rings[0])
    name = next(name for name in run.segments() if name.endswith("-ring-0"))
    with open(SHM / name, "rb+") as file:
        Raw(file.fileno()).set_word("bad", sequence, deliveries=3)
    run.when(lambda: rings[0].books()["dropped"]["bad"] == 1)
    os.kill(learner, signal.SIGCONT)
    (event,) = run.when(lambda: run.events("slot set aside"))
    assert (event["ring"], event["header"]["sequence"]) == (0, sequence)
    found = reader.read(run.path / event["dump"])
    assert found.facts["sequence"] == sequence
    assert set(np.unique(found.fields["valid"])) <= {0, 1}
    assert found.fields["obs"].shape == (17, 16, 4)
    version = run.status()["version"]
    run.until(lambda status: status["version"] > version + 2)
    stop(run)
    assert f"slot {sequence} was set aside after 3 deliveries" in run.told()
