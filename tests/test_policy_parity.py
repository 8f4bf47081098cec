"""The C policy and the torch module compute the same network."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import instruction_sets
from programs import ROWS, perceptron, programs, random_mask, random_obs, random_weights

from consumers.models import PolicyModel
from producers.c_policy import LIBRARY, CPolicy
from producers.program import Builder, Program

LOG_PROB_TOLERANCE_A_HEAD = 2e-4
LOG_PROB_TOLERANCE_A_LOGIT = 1e-5


def largest_excess(program: Program, agents: int, seed: int, gain: float, library=LIBRARY) -> float:
    """By how much the largest difference in log-probability exceeds what is allowed; below 0 is good."""
    generator = np.random.default_rng(seed)
    flat = random_weights(program, generator, gain)
    obs, mask = random_obs(program, agents, generator), random_mask(program, agents, generator)
    policy = CPolicy(program, agents, library)
    policy.load(flat)
    actions, log_prob = policy.act(obs, mask, key=seed, first_agent=7, step=3)
    model = PolicyModel(program)
    model.load_flat(flat)
    allowed = None if mask is None else torch.from_numpy(mask).bool()
    with torch.no_grad():
        logits, _ = model(torch.from_numpy(obs))
        expected = model.log_prob(logits, torch.from_numpy(actions).long(), allowed).numpy()
    assert np.isfinite(expected).all(), "a choice of probability 0 was taken"
    largest_logit = np.abs(logits.numpy()).max(1)
    tolerance = LOG_PROB_TOLERANCE_A_HEAD * program.heads + LOG_PROB_TOLERANCE_A_LOGIT * largest_logit
    np.testing.assert_allclose(policy.logits(obs), logits.numpy(), rtol=0, atol=2 * tolerance.max())
    return float((np.abs(log_prob - expected) - tolerance).max())


@settings(deadline=None, max_examples=150, derandomize=True)
@given(programs(), st.sampled_from(ROWS), st.integers(0, 2**32 - 1), st.sampled_from((0.01, 1.0, 8.0)))
def test_any_program_gives_the_same_log_probabilities_in_c_and_in_torch(program, agents, seed, gain):
    assert largest_excess(program, agents, seed, gain) <= 0


@settings(deadline=None, max_examples=80, derandomize=True)
@given(programs(categories=True), st.sampled_from(ROWS), st.integers(0, 2**32 - 1))
def test_any_program_that_expands_bytes_gives_the_same_log_probabilities(program, agents, seed):
    assert largest_excess(program, agents, seed, 1.0) <= 0


@pytest.mark.parametrize("activation", ["relu", "gelu-tanh", "gelu-erf", "tanh", "sigmoid"])
def test_a_network_too_large_for_the_cache_gives_the_same_log_probabilities(activation):
    assert largest_excess(perceptron(1707, [700, 300], [5, 9, 2], activation), 100, 1, 1.0) <= 0


def a_chain_of_activations() -> Program:
    builder = Builder("float32", (20,), [3])
    x = builder.linear(builder.cast_affine(), 20, "trunk", gain=1.0)
    builder.head(
        builder.linear(builder.activation(builder.activation(x, "tanh"), "relu"), 3, "policy", gain=1.0)
    )
    return builder.finish()


def a_gate_beside_its_input() -> Program:
    builder = Builder("float32", (20,), [3])
    x = builder.linear(builder.cast_affine(), 20, "trunk", gain=1.0)
    builder.head(builder.linear(builder.mul(x, builder.activation(x, "relu")), 3, "policy", gain=1.0))
    return builder.finish()


@pytest.mark.parametrize("program", [a_chain_of_activations(), a_gate_beside_its_input()])
def test_a_fused_activation_takes_nothing_from_its_neighbours(program):
    assert largest_excess(program, 100, 2, 1.0) <= 0


@pytest.mark.parametrize("march", instruction_sets())
def test_every_instruction_set_gives_the_same_log_probabilities(march, policy_library):
    library = policy_library(march)

    @settings(deadline=None, max_examples=20, derandomize=True)
    @given(programs() | programs(categories=True), st.sampled_from(ROWS))
    def check(program, agents):
        assert largest_excess(program, agents, 5, 1.0, library) <= 0

    check()
