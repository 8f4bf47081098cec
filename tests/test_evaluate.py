"""The evaluator plays whole episodes of worlds that training never saw, and says what it did not finish."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from consumers import checkpoint
from consumers.evaluate import Player, evaluate, main, play, render, student_t, summarize
from consumers.models import PolicyModel
from producers.program import build
from sims.loader import EVALUATE, TRAIN, Worlds, load, world_seeds

ROOT = Path(__file__).resolve().parent.parent
NEVER = float("inf")


def balance(model):
    """Weights of a CartPole policy that pushes where the pole falls: it survives for long."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        tensors = dict(model.named_parameters())
        tensors["trunk.0.weight"][0] = torch.tensor([0.1, 0.5, 10.0, 3.0])
        tensors["policy.weight"][:, 0] = torch.tensor([-20.0, 20.0])


@pytest.fixture
def run(tmp_path):
    """A run directory of CartPole, episodes of at most 60 steps, with one checkpoint."""
    text = json.dumps(
        {
            "run": {"seed": 3},
            "sim": {"name": "cartpole", "max_steps": 60},
            "producers": {"count": 1},
            "learner": {"batch_slots": 1},
            "evaluate": {"episodes": 6, "worlds": 3, "seconds": 60},
        }
    )
    (tmp_path / "config.resolved.yaml").write_text(text)
    spec = {"obs": {"dtype": "float32", "shape": [4]}, "heads": [{"choices": 2}], "mask": False}
    program = build({"hidden": [4], "activation": "tanh"}, spec)
    model = PolicyModel(program, seed=0)
    balance(model)
    state = {"version": 7, "program": {"encoded": program.encode().hex()}}
    made = checkpoint.Checkpoint(7, model.state_dict(), {}, state)
    checkpoint.save(tmp_path / "checkpoints", made, keep=1)
    return tmp_path


def unsure(player):
    """The player with a policy that is sampled well and badly."""
    with torch.no_grad():
        dict(player.model.named_parameters())["policy.weight"].mul_(0.02)
    return player


def test_every_world_plays_equally_many_episodes_to_their_end(run, monkeypatch):
    step, seen = Worlds.step, []

    def watched(worlds, actions):
        episodes = step(worlds, actions)
        seen.extend((int(e["agent"]), float(e["statistics"][0])) for e in episodes)
        return episodes

    monkeypatch.setattr(Worlds, "step", watched)
    result = play(unsure(Player.load(run)), 5, 3, torch.Generator().manual_seed(0), NEVER)
    by_agent = [[score for agent, score in seen if agent == i] for i in range(5)]
    assert min(map(len, by_agent)) == 3, "it ends when the slowest world has played its own"
    assert max(map(len, by_agent)) > 3, "what the others play meanwhile does not count"
    counted = [score for scores in by_agent for score in scores[:3]]
    assert (result["n"], result["unfinished"]) == (15, 0)
    assert result["mean"] == pytest.approx(np.mean(counted))
    assert result["mean"] != pytest.approx(np.mean([score for _, score in seen[:15]])), "nor the first 15"


def test_the_figures_are_those_of_the_episodes(run):
    result = evaluate(run, episodes=6, worlds=3, seconds=60)
    assert result["version"] == 7
    assert result["statistic"] == "steps"
    for one in (result, result["argmax"]):
        assert one["n"] == 6
        assert one["low"] <= one["mean"] <= one["high"]
        assert one["min"] <= one["mean"] <= one["max"] <= 60.0
        assert one["length"] == one["mean"], "CartPole's score is its length"
    assert result["argmax"]["mean"] == 60.0, "the policy balances"


def test_the_same_evaluation_twice_gives_the_same_figures(run):
    first, second = (evaluate(run, episodes=9, worlds=3, seconds=60) for _ in range(2))
    assert first == second


def test_sampled_and_argmax_differ_where_the_policy_is_not_sure(run):
    player = unsure(Player.load(run))
    sampled = play(player, 8, 1, torch.Generator().manual_seed(1), NEVER)
    argmax = play(player, 8, 1, None, NEVER)
    assert argmax["mean"] == 60.0
    assert sampled["mean"] < 60.0


def test_worlds_of_evaluation_are_not_those_of_training(run):
    player = Player.load(run)
    training = load("cartpole").create(64, player.parameters, world_seeds(3, 64, domain=TRAIN))
    evaluation = player.worlds(64)
    again = load("cartpole").create(64, player.parameters, world_seeds(3, 64, domain=EVALUATE))
    starts = [worlds.reset().copy() for worlds in (training, evaluation, again)]
    assert (starts[1] == starts[2]).all()
    assert not (starts[0][:, None] == starts[1][None]).all(-1).any()


def test_what_the_deadline_cuts_off_is_reported(run):
    player = Player.load(run)
    result = play(player, 4, 2, None, time.monotonic())
    assert (result["n"], result["unfinished"]) == (0, 8)
    assert result["mean"] is None
    assert result["low"] is None


def test_the_interval_is_students():
    # Quantiles from the tables of Fisher and Yates.
    for freedom, quantile in ((1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)):
        assert student_t(freedom) == pytest.approx(quantile, abs=6e-4)
    assert student_t(100_000) == pytest.approx(1.95996, abs=1e-4)
    scores = [1.0, 2.0, 3.0, 4.0]
    result = summarize(scores, [1, 1, 1, 1], 0)
    half = 3.1824 * np.std(scores, ddof=1) / 2
    assert (result["mean"], result["n"]) == (2.5, 4)
    assert result["low"] == pytest.approx(2.5 - half, abs=1e-3)
    assert result["high"] == pytest.approx(2.5 + half, abs=1e-3)
    assert summarize([5.0], [1], 0)["low"] is None


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_leave_a_result_that_is_json(odd):
    result = summarize([1.0, odd, 2.0], [1, 1, 1], 0)
    assert (result["mean"], result["low"], result["n"]) == (None, None, 3)
    json.dumps(result, allow_nan=False)


def test_the_interval_covers_the_mean_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        result = summarize(rng.normal(1.0, 2.0, size=6).tolist(), [1] * 6, 0)
        covered += result["low"] <= 1.0 <= result["high"]
    assert 0.935 < covered / 2000 < 0.965


def test_an_episode_is_rendered_frame_by_frame(run):
    out = io.StringIO()
    assert render(Player.load(run), None, out, episodes=2) == [60.0, 60.0]
    assert out.getvalue().count("step ") >= 120
    assert "\x1b" not in out.getvalue(), "no control codes where there is no terminal"


def test_the_command_prints_a_table_and_writes_the_result(run, capsys):
    assert main([str(run), "--episodes", "3", "--json", str(run / "result.json")]) == 0
    shown = capsys.readouterr().out
    assert "sampled" in shown
    assert "argmax" in shown
    assert "60.00" in shown
    result = json.loads((run / "result.json").read_text())
    assert {"mean", "sd", "n", "low", "high", "argmax"} <= set(result)
    assert not list(run.glob(".*"))


def test_an_unfinished_evaluation_says_so(run, capsys):
    assert main([str(run), "--episodes", "3", "--seconds", "1e-9"]) == 0
    assert "did not finish" in capsys.readouterr().out


def test_what_is_missing_is_named(run, capsys, tmp_path):
    nowhere = tmp_path / "nowhere"
    assert main([str(nowhere)]) == 2
    assert str(nowhere) in capsys.readouterr().err
    for folder in run.glob("checkpoints/*"):
        folder.rename(tmp_path / folder.name)
    assert main([str(run)]) == 69
    assert "no checkpoint" in capsys.readouterr().err
    (run / "config.resolved.yaml").write_text("sim: {name: cartpole}\nlerner: {}\n")
    assert main([str(run)]) == 64
    assert "lerner" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--episodes", "0"), ("--episodes", "-1"), ("--seconds", "nan")])
def test_a_number_that_cannot_be_is_refused(run, capsys, option):
    with pytest.raises(SystemExit) as refusal:
        main([str(run), *option])
    assert refusal.value.code == 2
    assert f"invalid positive {'float' if 'nan' in option else 'int'} value" in capsys.readouterr().err


def test_a_result_that_cannot_be_written_is_printed_nevertheless(run, capsys):
    assert main([str(run), "--episodes", "3", "--json", str(run / "nowhere/result.json")]) == 69
    shown = capsys.readouterr()
    assert "sampled" in shown.out
    assert "nowhere/result.json: no such file or directory" in shown.err


def test_it_runs_as_a_program(run):
    command = [sys.executable, "-m", "consumers.evaluate", str(run), "--episodes", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "version 7" in done.stdout
