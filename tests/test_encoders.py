"""Networks that expand the bytes of an observation: which ones, and that C and torch compute the same."""

import numpy as np
import pytest
import torch
from programs import random_obs, random_weights

import config
from consumers.models import PolicyModel
from producers.c_policy import CPolicy
from producers.program import ProgramError, build

VALUES = [4, 4, 17, 5, 3, 5, 5, 5, 7, 4]
GRID = {"rows": 11, "columns": 15, "planes": 10, "values": VALUES}
MANY = {
    "name": "many",
    "obs": {"dtype": "uint8", "shape": [1707], "grid": GRID, "coded": 47},
    "heads": [{"choices": 26}],
    "mask": False,
}


def spec(rows=4, columns=6, values=(3, 2), coded=5, plain=2):
    grid = {"rows": rows, "columns": columns, "planes": len(values), "values": list(values)}
    width = rows * columns * len(values) + coded + plain
    obs = {"dtype": "uint8", "shape": [width], "grid": grid, "coded": coded}
    return MANY | {"obs": obs}


@pytest.fixture
def policy(tmp_path):
    """The resolved `policy` section of a run file with these settings."""

    def read(**settings_):
        path = tmp_path / "run.yaml"
        lines = "".join(f"  {key}: {value}\n" for key, value in settings_.items())
        path.write_text(f"sim: {{name: many}}\npolicy:\n{lines}")
        return config.load(path).policy

    return read


@pytest.mark.parametrize(("preset", "count", "state"), [("full", 3_385_499, 1024), ("small", 256_315, 128)])
def test_a_preset_is_a_network_of_a_stated_size(policy, preset, count, state):
    program = build(policy(preset=preset), MANY)
    assert (program.count, program.state_width) == (count, state)


def test_what_a_run_file_gives_itself_stays_whatever_the_preset(policy):
    chosen = policy(preset="small", recurrent="none", channels=7)
    assert (chosen.recurrent, chosen.channels) == ("none", 7)
    assert (chosen.hidden, chosen.layer_norm) == ((128,), True)
    assert policy(preset="none").hidden == (128, 128)


@pytest.mark.parametrize("preset", ["full", "small"])
def test_actor_and_learner_agree_on_a_preset_over_steps_and_resets(policy, preset):
    program = build(policy(preset=preset), MANY)
    generator = np.random.default_rng(0)
    agents, flat = 61, random_weights(program, generator)
    actor, model = CPolicy(program, agents), PolicyModel(program)
    actor.load(flat)
    model.load_flat(flat)
    state, carried = np.zeros((agents, program.state_width), np.float32), model.initial_state(agents)
    for step in range(3):
        obs, reset = random_obs(program, agents, generator), generator.integers(0, 2, agents, np.uint8)
        actions, log_prob = actor.act(obs, state=state, reset_before=reset, step=step)
        with torch.no_grad():
            logits, _, carried = model.step(torch.from_numpy(obs), carried, torch.from_numpy(reset).bool())
            expected = model.log_prob(logits, torch.from_numpy(actions).long()).numpy()
        tolerance = 2e-4 + 1e-5 * np.abs(logits.numpy()).max(1)
        assert (np.abs(log_prob - expected) <= tolerance).all()
        np.testing.assert_allclose(state, carried.numpy(), atol=1e-4)


def test_the_grid_encoder_is_two_convolutions_an_embedding_and_the_numbers(policy):
    program = build(policy(preset="full"), MANY)
    kinds = [op.kind for op in program.ops]
    assert kinds == [
        "cast_affine", "multihot_conv2d", "activation", "conv2d", "embedding", "concat", "linear",
        "activation", "lstm", "layer_norm", "linear", "head", "linear",
    ]  # fmt: skip
    shapes = {op.kind: program.buffers[op.output].shape for op in program.ops}
    assert shapes["multihot_conv2d"] == (3, 4, 128)
    assert shapes["conv2d"] == (1, 2, 128)
    assert shapes["embedding"] == (47, 32)
    assert shapes["cast_affine"] == (57,)
    assert shapes["concat"] == (256 + 47 * 32 + 57,)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 9), (5, 3)])
def test_a_small_grid_gets_kernels_that_fit(rows, columns):
    program = build({"channels": 3, "embedding": 2}, spec(rows, columns))
    assert CPolicy(program, 1).program == program


@pytest.mark.parametrize(("coded", "plain"), [(0, 2), (3, 0), (0, 0)])
def test_every_part_of_an_observation_may_be_missing(coded, plain):
    program = build({}, spec(coded=coded, plain=plain))
    kinds = {op.kind for op in program.ops}
    assert ("embedding" in kinds) == (coded > 0)
    assert ("cast_affine" in kinds) == (coded + plain > 0)
    CPolicy(program, 1)
    no_grid = MANY | {"obs": {"dtype": "uint8", "shape": [9], "grid": None, "coded": 4}}
    assert "embedding" in {op.kind for op in build({}, no_grid).ops}


def test_an_encoder_is_chosen_by_what_the_simulator_describes():
    plain = MANY | {"obs": {"dtype": "uint8", "shape": [9], "grid": None, "coded": 0}}
    assert build({"encoder": "auto"}, plain) == build({"encoder": "mlp"}, plain)
    assert build({"encoder": "auto"}, MANY) == build({"encoder": "grid"}, MANY)
    assert build({"encoder": "mlp"}, MANY) != build({"encoder": "grid"}, MANY)
    with pytest.raises(ProgramError, match=r"policy\.encoder: .*many does not say.*needs auto or mlp"):
        build({"encoder": "grid"}, plain)


def test_a_separate_value_has_an_encoder_of_its_own():
    program = build({"separate_value": True}, spec())
    trunks = {weight.name.split(".")[0] for weight in program.weights if ".grid." in weight.name}
    assert trunks == {"trunk", "value_trunk"}


def test_normalised_observations_are_the_numbers_alone():
    program = build({"normalize_obs": True}, spec(coded=5, plain=2))
    frozen = {weight.name: weight.shape for weight in program.weights if not weight.trainable}
    assert frozen == {"normalize.mean": (7,), "normalize.inv_std": (7,)}
    assert program.ops[0].attrs["start"] == 4 * 6 * 2
