"""A policy is compared with others that play the same worlds for as long, by figures of whole worlds."""

import json

import numpy as np
import pytest
import torch
from test_evaluate import balance

from consumers import checkpoint
from consumers.compare import AtRandom, compare, compete, contestants, main, table
from consumers.evaluate import Player, student_t
from consumers.models import PolicyModel
from producers import native
from producers.program import build
from sims.loader import load

pytestmark = pytest.mark.usefixtures("one_thread")

REALM = {"width": 48, "height": 48, "agents": 8, "patience": 30, "lifetime": 60}


def run_of(folder, name, parameters, settings, change=lambda model: None):
    """A run directory with one checkpoint."""
    text = {"run": {"seed": 3}, "sim": {"name": name, **parameters}, "producers": {"count": 1, "agents": 8}}
    (folder / "config.resolved.yaml").write_text(json.dumps(text | {"learner": {"batch_slots": 1}}))
    program = build(settings, native.describe(native.simulator_path(name), parameters))
    model = PolicyModel(program, seed=0)
    change(model)
    state = {"version": 7, "program": {"encoded": program.encode().hex()}}
    saved = checkpoint.Checkpoint(7, model.state_dict(), {}, state)
    checkpoint.save(folder / "checkpoints", saved, keep=1)
    return folder


@pytest.fixture
def realm(tmp_path):
    return run_of(tmp_path, "realm", REALM, {"hidden": [4], "recurrent": "mingru", "recurrent_width": 4})


def test_a_policy_that_can_play_is_above_chance_by_more_than_chance(tmp_path):
    run = run_of(tmp_path, "cartpole", {"max_steps": 60}, {"hidden": [4], "activation": "tanh"}, balance)
    found = compare(run, steps=150, worlds=32)
    policy, random = (found["contestants"][name]["score"] for name in ("argmax", "random"))
    assert policy["low"] > 2 * random["high"]
    assert set(found["contestants"]) == {"policy", "argmax", "random"}
    assert found["statistic"] == "steps"


def test_scores_are_of_everybodys_first_episode_however_long(tmp_path):
    """Within 20 steps only those episodes end that went badly."""
    run = run_of(tmp_path, "cartpole", {"max_steps": 60}, {"hidden": [4], "activation": "tanh"}, balance)
    found = compare(run, steps=20, worlds=8)["contestants"]
    for one in found.values():
        assert (one["episodes"], one["unfinished"]) == (8, 0)
    assert found["argmax"]["score"]["mean"] == 60
    assert found["random"]["score"]["mean"] < 40
    cut_short = compare(run, steps=2, worlds=8)["contestants"]["argmax"]
    assert (cut_short["episodes"], cut_short["unfinished"], cut_short["score"]["mean"]) == (0, 8, None)


def test_scripted_agents_play_where_the_simulator_has_some_and_a_world_counts_as_one(realm):
    found = compare(realm, steps=40, worlds=3)
    assert list(found["contestants"]) == ["policy", "argmax", "random", "wander", "fight", "trade"]
    for one in found["contestants"].values():
        reward = one["reward"]
        assert reward["n"] == 3
        half = student_t(2) * reward["sd"] / np.sqrt(3)
        assert reward["high"] - reward["mean"] == pytest.approx(half)
    lines = table(found).splitlines()
    assert "3 worlds, 40 steps each" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == list(found["contestants"])


def test_rewards_are_those_of_the_valid_steps_of_each_world(realm):
    player, seen = Player.load(realm), []

    class Watched(AtRandom):
        def act(self, worlds):
            if self.begun:
                seen.append((worlds.rewards.copy(), worlds.valid.copy()))
            self.begun = True
            self.last = worlds
            return super().act(worlds)

    who = Watched(1)
    who.begun = False
    result = compete(player, who, steps=300, worlds=2)
    seen.append((who.last.rewards.copy(), who.last.valid.copy()))
    rewards, valid = (np.array(x).reshape(300, 2, 8) for x in zip(*seen[:300], strict=True))
    assert (rewards != 0).any()
    means = (rewards * valid).sum((0, 2), dtype=float) / valid.sum((0, 2)) * 1000
    assert result["reward"]["mean"] == pytest.approx(means.mean())
    assert (result["reward"]["min"], result["reward"]["max"]) == pytest.approx((means.min(), means.max()))


def test_the_same_worlds_are_played_by_all_and_again(realm):
    player = Player.load(realm)
    begun = []
    for who in contestants(player).values():
        begin = who.begin
        who.begin = lambda worlds, begin=begin: (begun.append(worlds.obs.copy()), begin(worlds))
        compete(player, who, steps=1, worlds=2)
    assert len(begun) == 6
    assert all(np.array_equal(obs, begun[0]) for obs in begun)
    again = [compete(player, contestants(player)["policy"], steps=30, worlds=2)["reward"] for _ in range(2)]
    assert again[0] == again[1]


def test_chance_takes_no_choice_that_is_not_allowed_and_every_other_one():
    class Worlds:
        agents = 4000
        shape = load("breakout").shape()
        mask = np.tile(np.array([1, 0, 1], np.uint8), (4000, 1))

    actions = AtRandom(1).act(Worlds)
    assert set(actions[:, 0].tolist()) == {0, 2}
    assert np.bincount(actions[:, 0])[0] == pytest.approx(2000, abs=300)


def test_it_prints_a_table_and_writes_the_figures(realm, tmp_path, capsys):
    path = tmp_path / "figures.json"
    torch.set_num_threads(1)
    assert main([str(realm), "--steps", "20", "--worlds", "2", "--json", str(path)]) == 0
    assert "wander" in capsys.readouterr().out
    assert json.loads(path.read_text())["contestants"]["trade"]["reward"]["n"] == 2
    assert main([str(tmp_path / "none")]) == 2
    assert "needs the directory of a run" in capsys.readouterr().err
