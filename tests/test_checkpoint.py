"""A checkpoint is whole or not there: `latest` loads after a kill between any two steps of a save."""

import io
import os
import pathlib
import shutil
import sys
import threading

import pytest
import torch

from consumers import checkpoint, shelf
from consumers.checkpoint import Checkpoint, Writer, load, save
from consumers.shelf import CheckpointError, latest, newest_good, versions


def made(version, value=None, score=None, worlds=()):
    policy = {"trunk.weight": torch.full((3, 2), float(version if value is None else value))}
    learner = {"optimizer": {"state": {0: {"step": torch.tensor(3.0)}}}, "seed": 7, "name": "adamw"}
    state = {"version": version, "steps": 10 * version}
    if score is not None:
        state["score"] = {"mean": score}
    return Checkpoint(version, policy, learner, state, worlds)


def test_what_was_saved_is_what_is_loaded(tmp_path):
    size = save(tmp_path, made(12), keep=2)
    back = load(latest(tmp_path))
    assert latest(tmp_path).name == "version-000000012"
    assert back.version == 12
    assert torch.equal(back.policy["trunk.weight"], made(12).policy["trunk.weight"])
    assert back.learner["optimizer"]["state"][0]["step"] == 3.0
    assert back.state == {"version": 12, "steps": 120}
    assert size == sum(f.stat().st_size for f in latest(tmp_path).iterdir())


def test_the_worlds_of_every_producer_come_back_in_the_order_of_their_rings(tmp_path):
    worlds = [bytes([ring]) * ring for ring in range(12)]
    save(tmp_path, made(1, worlds=worlds), keep=1)
    assert load(latest(tmp_path)).worlds == worlds
    assert [path.name for path in shelf.worlds(latest(tmp_path))][-1] == "worlds-011.bin"


def test_the_policy_is_a_plain_state_dict(tmp_path):
    save(tmp_path, made(1), keep=1)
    policy = torch.load(tmp_path / "latest" / "policy.pt", weights_only=True)
    assert list(policy) == ["trunk.weight"]


def test_the_newest_are_kept_and_the_rest_is_deleted(tmp_path):
    for version in (0, 5, 1000, 999999999, 1000000000):
        save(tmp_path, made(version), keep=3)
    assert [p.name for p in versions(tmp_path)] == [f"version-{v:09d}" for v in (1000, 999999999, 10**9)]
    assert sorted(os.listdir(tmp_path)) == sorted([p.name for p in versions(tmp_path)] + ["latest"])


def test_the_best_is_kept_beside_the_newest(tmp_path):
    for version, score in [(1, None), (2, 5.0), (3, 9.0), (4, 7.0), (5, None), (6, 8.0)]:
        save(tmp_path, made(version, score=score), keep=2)
    assert [load(folder).version for folder in versions(tmp_path)] == [3, 5, 6]
    assert load((tmp_path / "best").resolve()).version == 3
    save(tmp_path, made(7, score=9.5), keep=2)
    assert [load(folder).version for folder in versions(tmp_path)] == [6, 7]
    assert load((tmp_path / "best").resolve()).version == 7


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(file):
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("name", ["policy.pt", "learner.pt", "state.json", "worlds-000.bin", "SHA256SUMS",
                                  "COMPLETE"])
@pytest.mark.parametrize("harm", [flip, truncate, os.unlink], ids=["flipped", "truncated", "missing"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path, name, harm):
    for version in (1, 2, 3):
        save(tmp_path, made(version, score=version, worlds=[b"a saved state"]), keep=3)
    harm(tmp_path / "version-000000003" / name)
    told = []
    good = newest_good(tmp_path, told.append)
    assert load(good).version == 2
    assert latest(tmp_path) == good == (tmp_path / "best").resolve()
    assert len(told) == 1
    assert "version-000000003/" + name in told[0] or "its SHA-256 is not the one noted in COMPLETE" in told[0]
    assert (tmp_path / "damaged-version-000000003").is_dir()
    save(tmp_path, made(3, value=7.0), keep=3)  # the version comes again
    assert load(newest_good(tmp_path)).policy["trunk.weight"][0, 0] == 7.0


def test_of_the_damaged_ones_two_are_kept(tmp_path):
    for version in range(5):
        save(tmp_path, made(version), keep=5)
        truncate(tmp_path / f"version-00000000{version}" / "policy.pt")
    told = []
    assert newest_good(tmp_path, told.append) is None
    assert len(told) == 5
    left = ["damaged-version-000000000", "damaged-version-000000001", "latest"]
    assert sorted(os.listdir(tmp_path)) == left


def test_a_disk_without_room_for_two_fails_before_anything_is_written(tmp_path, monkeypatch):
    last = save(tmp_path, made(1), keep=2)
    before = sorted(os.listdir(tmp_path))

    class Facts:
        f_frsize = 1
        f_bavail = 2 * last - 1

    monkeypatch.setattr(os, "statvfs", lambda path: Facts)
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "mkdir", lambda path, **how: None)  # any further step would raise
        with pytest.raises(OSError, match="no room for a checkpoint") as raised:
            save(tmp_path, made(2), keep=2)
    assert raised.value.errno == 28
    assert sorted(os.listdir(tmp_path)) == before
    Facts.f_bavail += 1
    save(tmp_path, made(2), keep=2)
    assert load(latest(tmp_path)).version == 2


def test_the_same_version_again_replaces_the_first(tmp_path):
    save(tmp_path, made(4, value=1.0), keep=2)
    save(tmp_path, made(4, value=2.0), keep=2)
    assert load(latest(tmp_path)).policy["trunk.weight"][0, 0] == 2.0
    assert len(versions(tmp_path)) == 1
    save(tmp_path, made(4, value=3.0), keep=2)
    assert load(latest(tmp_path)).policy["trunk.weight"][0, 0] == 3.0
    assert len(versions(tmp_path)) == 1


class Killed(BaseException):
    pass


STEPS = [
    (pathlib.Path, "mkdir"),
    (pathlib.Path, "write_text"),
    (pathlib.Path, "write_bytes"),
    (pathlib.Path, "rename"),
    (pathlib.Path, "replace"),
    (pathlib.Path, "symlink_to"),
    (torch, "save"),
    (os, "fsync"),
    (os, "unlink"),
    (os, "rmdir"),
]


def kill_at(monkeypatch, call, torn):
    """From here on every step that changes the disk is counted; the one numbered `call` does not happen,
    or, with `torn`, happens as the last one."""
    count = 0

    def counted(step):
        def run(*args, **kwargs):
            nonlocal count
            count += 1
            if count == call and not torn:
                raise Killed
            result = step(*args, **kwargs)
            if count >= call:
                raise Killed
            return result

        return run

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    return lambda: count


@pytest.mark.parametrize("again", [False, True], ids=["a new version", "the same version again"])
@pytest.mark.parametrize("torn", [False, True], ids=["before the step", "after the step"])
def test_a_kill_between_any_two_steps_leaves_a_loadable_latest(tmp_path, torn, again):
    new = 2 if again else 3
    for call in range(1, 200):
        folder = tmp_path / str(call)
        save(folder, made(1), keep=2)
        save(folder, made(2, score=2.0), keep=2)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, call, torn)
            try:
                save(folder, made(new, value=3.0, score=3.0, worlds=[b"state"]), keep=2)
                finished = True
            except Killed:
                finished = False
        assert (folder / "latest" / "policy.pt").is_file()
        found = load(latest(folder)).policy["trunk.weight"][0, 0]
        assert found in (2.0, 3.0)
        for whole in versions(folder):
            load(whole)  # nothing half written bears the name of a checkpoint
        assert load(newest_good(folder)).version in (2, 3)
        save(folder, made(4), keep=2)  # the next save clears up
        assert load(latest(folder)).version == 4
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
        if finished:
            break
    assert finished
    assert call > 15, "the kills did not reach the steps of a save"


def test_a_lost_link_falls_back_to_the_newest_version(tmp_path):
    save(tmp_path, made(1), keep=5)
    save(tmp_path, made(2), keep=5)
    (tmp_path / "latest").unlink()
    assert load(latest(tmp_path)).version == 2


def test_a_missing_or_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=f"{tmp_path}: no checkpoint"):
        latest(tmp_path)
    save(tmp_path, made(1), keep=1)
    file = latest(tmp_path) / "policy.pt"
    flip(file)
    with pytest.raises(CheckpointError, match=r"policy\.pt: damaged"):
        load(latest(tmp_path))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"policy\.pt: missing"):
        load(latest(tmp_path))


def test_a_full_disk_leaves_the_old_checkpoint_and_no_litter(tmp_path, monkeypatch, capfd):
    save(tmp_path, made(1), keep=2)
    results = []
    writer = Writer(tmp_path, 2, lambda size, seconds: results.append(size))

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    writer.submit(lambda: made(2))
    writer.wait()
    monkeypatch.undo()
    assert results == [None]
    assert "No space left" in capfd.readouterr().err
    assert load(latest(tmp_path)).version == 1
    assert sorted(os.listdir(tmp_path)) == ["latest", "version-000000001"]
    writer.submit(lambda: made(3))
    writer.wait()
    assert results[1] > 0
    assert load(latest(tmp_path)).version == 3


def test_the_writer_saves_one_at_a_time_without_holding_up_the_caller(tmp_path, monkeypatch):
    allowed, order = threading.Event(), []
    real = checkpoint.save

    def slow(folder, one, keep):
        assert allowed.wait(30)
        order.append(one.version)
        return real(folder, one, keep)

    monkeypatch.setattr(checkpoint, "save", slow)
    writer = Writer(tmp_path, 3, lambda size, seconds: None)
    writer.submit(lambda: made(1))
    assert writer.busy
    assert order == []
    allowed.set()
    writer.submit(lambda: made(2))
    writer.wait()
    assert not writer.busy
    assert order == [1, 2]


def test_a_failed_checkpoint_is_known_to_have_failed_even_if_the_log_is_full_too(tmp_path, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    (tmp_path / "checkpoints").write_text("a file, so that nothing can be saved there")
    results = []
    writer = Writer(tmp_path / "checkpoints", 2, lambda size, seconds: results.append(size))
    monkeypatch.setattr(sys, "stderr", Full())
    writer.submit(lambda: made(1))
    writer.wait()
    monkeypatch.undo()
    assert results == [None]


def test_what_cannot_be_deleted_does_not_stop_a_save(tmp_path, monkeypatch, capfd):
    save(tmp_path, made(1), keep=1)

    def stuck(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(shutil, "rmtree", stuck)
    save(tmp_path, made(2), keep=1)
    assert load(latest(tmp_path)).version == 2
    assert "not deleted" in capfd.readouterr().err
