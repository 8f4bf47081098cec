"""What other programs get of an archive: the command line, files of other formats, tensors."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import Trajectories, all_of, block_of, schema_of, store_of, write
from torch.utils.data import DataLoader

from consumers.archive import __main__ as commands
from consumers.archive import reading
from consumers.archive.__main__ import main
from consumers.archive.episodes import Reader
from consumers.offline import Episodes

ROOT = Path(__file__).resolve().parent.parent


def archive(*arguments):
    """(exit code, stdout, stderr) of the command line, in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), errors.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An archive of one shard, and its episodes."""
    folder = tmp_path_factory.mktemp("archive")
    write(folder, slots=30, blocks=3, agents=3)
    return folder, list(Reader([folder]).episodes())


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """An archive of ten shards, with episodes across their borders."""
    folder = tmp_path_factory.mktemp("shards")
    trajectories = Trajectories(3, agents=3, end=0.1)
    cuts = all_of(trajectories.plan)
    store = store_of(folder, schema_of(trajectories.plan, cuts))
    for _ in range(10):
        store.write(block_of(trajectories.plan, cuts, [trajectories.slot() for _ in range(3)]))
        store._close_shard()
    return folder, list(Reader([folder]).episodes())


def test_ls_and_verify_tell_what_is_there_and_what_is_wrong(made, tmp_path):
    folder = tmp_path / "archive"
    shutil.copytree(made[0], folder)
    code, out, errors = archive("ls", folder)
    assert (code, errors) == (0, "")
    assert "shard-000000.zst" in out
    assert "0-29" in out
    code, out, errors = archive("verify", folder)
    assert (code, errors) == (0, "")
    assert f"{len(made[1])} ends of episodes: good" in out
    shard = folder / "shard-000000.zst"
    data = bytearray(shard.read_bytes())
    data[-1200] ^= 1
    shard.write_bytes(data)
    for command in ("ls", "verify"):
        code, out, errors = archive(command, folder)
        assert code == 1
        assert f"{shard}: byte " in errors
        assert "Traceback" not in errors
    assert "sha256" in errors
    shard.unlink()
    (folder / "shard-000001.open").write_bytes(b"")
    code, _, errors = archive("verify", folder)
    assert code == 1
    assert "and not there" in errors
    assert archive("ls", tmp_path / "nowhere")[0] == 2
    assert archive("look", folder)[0] == 2


@pytest.mark.parametrize("number", ["-1", "0", "many"])
def test_a_number_of_episodes_that_is_none_is_usage(made, tmp_path, number):
    code, _, errors = archive(
        "export", made[0], "--format", "npz", "--out", tmp_path / "x", "--episodes", number
    )
    assert code == 2
    assert "needs a whole number" in errors


def test_shards_that_are_sealed_or_deleted_meanwhile_are_no_damage(shards, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "archive"
    shutil.copytree(shards[0], folder)
    found = reading.find([folder, folder / "shard-000000.zst"])
    assert len(found) == 10, "named twice, read once"
    found[0].unlink()
    moved = [path.with_suffix(".open") if path == found[-1] else path for path in found]
    assert commands.ls(moved) == 0
    out = capsys.readouterr().out
    assert "shard-000000" not in out
    assert "shard-000009.zst" in out
    monkeypatch.setattr(commands, "read_sums", lambda folder: {})
    assert commands.verify(moved) == 0
    assert "good" in capsys.readouterr().out


def test_npz_holds_every_whole_episode(made, tmp_path):
    folder, episodes = made
    code, out, errors = archive("export", folder, "--format", "npz", "--out", tmp_path / "npz")
    assert (code, errors) == (0, "")
    assert out.startswith(f"{len(episodes)} whole episodes")
    with np.load(tmp_path / "npz" / "episodes-000000.npz", allow_pickle=False) as file:
        ends = file["episode_ends"].tolist()
        for one, begin, end in zip(episodes, [0, *ends], ends, strict=False):
            assert (file["observations"][begin:end] == one.obs).all()
            assert (file["actions"][begin:end] == one.action).all()
            assert (file["rewards"][begin:end] == one.reward).all()
            assert file["terminations"][begin:end].tolist() == [False] * (one.length - 1) + [one.terminated]
            assert file["truncations"][begin:end].tolist() == [False] * (one.length - 1) + [
                not one.terminated
            ]
        finals = [[0, 0, 0] if one.final_obs is None else one.final_obs.tolist() for one in episodes]
        assert file["final_observations"].tolist() == finals
        assert file["returns"].tolist() == [one.ret for one in episodes]
        assert json.loads(str(file["about"]))["simulator"] == "toy"
    assert archive("export", folder, "--format", "npz", "--out", tmp_path / "npz")[0] == 2  # not empty
    few = archive("export", folder, "--format", "npz", "--out", tmp_path / "few", "--episodes", 2)
    assert few[1].startswith("2 whole episodes")


def test_parquet_holds_every_whole_episode(made, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    folder, episodes = made
    code, _, errors = archive("export", folder, "--format", "parquet", "--out", tmp_path)
    assert (code, errors) == (0, "")
    steps, ends = pq.read_table(tmp_path / "steps.parquet"), pq.read_table(tmp_path / "episodes.parquet")
    assert steps["observations"].to_pylist() == [obs for one in episodes for obs in one.obs.tolist()]
    assert steps["actions"].to_pylist() == [action for one in episodes for action in one.action.tolist()]
    assert steps["episode"].to_pylist() == [n for n, one in enumerate(episodes) for _ in range(one.length)]
    assert steps["step"].to_pylist() == [t for one in episodes for t in range(one.length)]
    assert steps["terminations"].to_pylist() == [
        one.terminated and t == one.length - 1 for one in episodes for t in range(one.length)
    ]
    assert ends["return"].to_pylist() == [one.ret for one in episodes]
    assert ends["statistic_figure_1"].to_pylist() == [one.ret for one in episodes]
    finals = [None if one.final_obs is None else one.final_obs.tolist() for one in episodes]
    assert ends["final_observation"].to_pylist() == finals
    assert json.loads(steps.schema.metadata[b"headrace"])["observation"] == {"dtype": "uint8", "shape": [3]}


def test_minari_reads_what_was_exported_for_it(made, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    pytest.importorskip("pyarrow")
    episodes = made[1]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from consumers.archive import export

    count, steps = export.minari(iter(episodes), "toy/recorded-v0")
    data = minari.load_dataset("toy/recorded-v0")
    assert (data.total_episodes, data.total_steps) == (count, steps)
    assert count == len(episodes)
    for one, read in zip(episodes, data.iterate_episodes(), strict=True):
        last = one.obs[-1] if one.final_obs is None else one.final_obs
        assert (read.observations == np.concatenate([one.obs, last[None]])).all()
        assert (read.actions == one.action).all()
        assert (read.rewards == one.reward).all()
        assert (read.terminations[-1], read.truncations[-1]) == (one.terminated, not one.terminated)
    with pytest.raises(ValueError):
        export.minari(iter(episodes), "no name")


def test_a_package_that_is_missing_is_named_with_what_installs_it(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, errors = archive("export", made[0], "--format", "parquet", "--out", "/nowhere/at/all")
    assert code == 69
    assert "pip install pyarrow" in errors


def test_the_command_line_is_one(made):
    done = subprocess.run(
        [sys.executable, "-m", "consumers.archive", "verify", made[0]], cwd=ROOT, check=False
    )
    assert done.returncode == 0


def test_runs_of_other_shapes_are_not_exported_into_one_file(made, tmp_path):
    other = tmp_path / "other"
    write(other, slots=30, blocks=3, agents=3, choices=(3, 2, 4))
    code, _, errors = archive("export", made[0], other, "--format", "npz", "--out", tmp_path / "npz")
    assert code == 1
    assert "one by one" in errors


# Tensors


def keys(some):
    return Counter(
        (int(one["agent"]), int(one["sequence"]), len(one["reward"]), float(one["ret"])) for one in some
    )


def wanted(episodes):
    return Counter((one.agent, one.sequence, one.length, one.ret) for one in episodes)


@pytest.mark.parametrize("shuffle", [0, 5, 1000])
def test_a_data_set_gives_every_whole_episode_once(shards, shuffle):
    folder, episodes = shards
    data = Episodes([folder], shuffle=shuffle, seed=1)
    found = list(data)
    assert keys(found) == wanted(episodes)
    order = [(one.agent, one.sequence) for one in episodes]
    assert ([(int(one["agent"]), int(one["sequence"])) for one in found] == order) == (shuffle == 0)
    by_key = {(one.agent, one.sequence, one.length, one.ret): one for one in episodes}
    for one in found:
        expected = by_key[(int(one["agent"]), int(one["sequence"]), len(one["reward"]), float(one["ret"]))]
        assert one["obs"].dtype is torch.uint8
        assert one["obs"].shape[1:] == (3,)
        assert one["terminated"].item() == expected.terminated
    again = Episodes([folder], shuffle=shuffle, seed=1)
    assert [int(one["sequence"]) for one in again] == [int(one["sequence"]) for one in found]
    if shuffle:
        again.set_epoch(1)
        assert [int(one["sequence"]) for one in again] != [int(one["sequence"]) for one in found]


@pytest.mark.parametrize("parts", [1, 3])
def test_workers_and_learners_share_the_episodes_among_them(shards, parts):
    folder, episodes = shards
    found = []
    for part in range(parts):
        data = Episodes([folder], part=part, parts=parts)
        found += list(DataLoader(data, batch_size=None, num_workers=2))
    assert keys(found) == wanted(episodes)


def test_a_damaged_shard_costs_what_is_behind_the_damage_and_no_more(shards, tmp_path):
    folder, episodes = tmp_path / "shards", shards[1]
    shutil.copytree(shards[0], folder)
    victim = folder / "shard-000004.zst"
    data = bytearray(victim.read_bytes())
    data[-300] ^= 1
    victim.write_bytes(data)
    some = Episodes([folder])
    found = keys(some)
    assert [damage.file for damage in some.damage] == [str(victim)]
    assert not found - wanted(episodes)
    outside = [one for one in episodes if one.sequence < 12]
    assert not wanted(outside) - found
    assert any(sequence >= 20 for _, sequence, _, _ in found)
    with pytest.raises(Exception, match="shard-000004"):
        list(Episodes([folder], strict=True))
