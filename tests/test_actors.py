"""Who plays to be watched thinks what the learner's network thinks, without torch: logits, values, states."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_module import Attentive
from programs import logits_program, perceptron, programs, random_obs, random_weights

from consumers.actors import ProgramActor, actor, with_value
from consumers.models import PolicyModel
from consumers.stage import softmax
from producers.opaque import opaque
from producers.program import ProgramError

AGENTS, STEPS = 5, 4
# Of DESIGN's parity: a head's log-probability, and a part of the largest logit.
TOLERANCE_A_HEAD, TOLERANCE_A_LOGIT = 2e-4, 1e-5


def largest_excess(program, seed):
    """By how much log-probabilities, values and states of several steps differ more than they may."""
    generator = np.random.default_rng(seed)
    flat = random_weights(program, generator)
    mine = ProgramActor(program, AGENTS)
    mine.load(flat)
    model = PolicyModel(program)
    model.load_flat(flat)
    state = generator.standard_normal((AGENTS, program.state_width)).astype(np.float32)
    torch_state, excess = torch.from_numpy(state.copy()), -1.0
    for _ in range(STEPS):
        obs, ended = random_obs(program, AGENTS, generator), (generator.random(AGENTS) < 0.3).astype(np.uint8)
        logits, value = mine.look(obs, state, ended)
        with torch.no_grad():
            wanted, wanted_value, torch_state = model.step(
                torch.from_numpy(obs), torch_state, torch.from_numpy(ended).bool()
            )
        size = wanted.abs().max().item()
        allowed = TOLERANCE_A_HEAD + TOLERANCE_A_LOGIT * size
        differences = [np.abs(state - torch_state.numpy()).max(initial=0.0)]
        if program.continuous:
            differences.append(np.abs(logits - wanted.numpy()).max())
        first = 0
        for count in program.choices:
            part = slice(first, first + count)
            both = (torch.as_tensor(one[:, part]).double() for one in (logits, wanted))
            log_found, log_wanted = (torch.log_softmax(one, 1).numpy() for one in both)
            chances = np.array([softmax(row, np.ones(count, bool)) for row in logits[:, part]])
            differences += [np.abs(log_found - log_wanted).max(), np.abs(chances - np.exp(log_wanted)).max()]
            first += count
        assert (value is None) == (wanted_value is None)
        if value is not None:
            scale = 1 + np.abs(wanted_value.numpy()).max()
            differences.append(np.abs(value - wanted_value.numpy()).max() / scale)
        excess = max(excess, *(difference - allowed for difference in differences))
    return excess


@settings(deadline=None, max_examples=12, derandomize=True)
@given(
    programs()
    | programs(recurrent=True)
    | programs(continuous=True)
    | programs(continuous=True, recurrent=True)
    | programs(categories=True),
    st.integers(0, 2**32 - 1),
)
def test_any_program_is_played_with_the_chances_and_values_of_the_learner(program, seed):
    assert largest_excess(program, seed) <= 0


def test_a_program_without_a_value_is_played_without_one():
    program = logits_program([3])
    assert with_value(program) is program
    assert largest_excess(program, 1) <= 0


def test_the_value_costs_the_program_nothing_but_its_own_operations():
    program = perceptron(4, [8], [2, 3], mask=True)
    widened = with_value(program)
    assert (widened.count, widened.weights) == (program.count, program.weights)
    assert widened.logits == program.logits + 1


def test_a_module_of_the_user_is_played_by_torch():
    spec = {"obs": {"dtype": "float32", "shape": [4]}, "heads": [{"choices": 3}], "mask": False}
    settings_ = {"recurrent_width": 6}
    tensors = [(name, tuple(one.shape)) for name, one in Attentive(spec, settings_).named_parameters()]
    program = opaque("own_module:Attentive", spec, settings_, 6, tensors)
    played = actor(program, 2)
    own = Attentive(spec, settings_)
    flat = np.concatenate([one.detach().numpy().ravel() for one in own.parameters()])
    played.load(flat)
    obs = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    state = np.ones((2, 6), np.float32)
    logits, value = played.look(obs, state, np.array([0, 1], np.uint8))
    with torch.no_grad():
        before = torch.tensor([[1.0] * 6, [0.0] * 6])
        wanted = [one.numpy() for one in own.step(torch.from_numpy(obs), before)]
    for found, expected in zip((logits, value, state), wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_module_that_is_gone_is_named():
    spec = {"obs": {"dtype": "float32", "shape": [4]}, "heads": [{"choices": 3}], "mask": False}
    with pytest.raises(ProgramError, match="own_module:Missing"):
        actor(opaque("own_module:Missing", spec, {}, 0, [("w", (3,))]), 1)
