"""What an agent does depends on its observation, the weights and the noise, on nothing beside it."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import ROOT, instruction_sets
from programs import perceptron, programs, random_mask, random_obs, random_weights

from producers.c_policy import LIBRARY, CPolicy


def act(program, flat, obs, mask, first_agent, library=LIBRARY):
    policy = CPolicy(program, len(obs), library)
    policy.load(flat)
    return policy.act(obs, mask, key=99, first_agent=first_agent, step=12)


def assert_splits_agree(program, agents, cuts, library=LIBRARY):
    generator = np.random.default_rng(agents)
    flat = random_weights(program, generator)
    obs, mask = random_obs(program, agents, generator), random_mask(program, agents, generator)
    actions, log_prob = act(program, flat, obs, mask, 1000, library)
    borders = sorted({0, agents, *(cut % agents for cut in cuts)})
    for start, stop in pairwise(borders):
        part = None if mask is None else mask[start:stop]
        some, some_log_prob = act(program, flat, obs[start:stop], part, 1000 + start, library)
        np.testing.assert_array_equal(some, actions[start:stop])
        assert some_log_prob.tobytes() == log_prob[start:stop].tobytes()


splits = st.tuples(st.integers(1, 300), st.lists(st.integers(1, 300), max_size=4))


@settings(deadline=None, max_examples=80, derandomize=True)
@given(programs() | programs(categories=True), splits)
def test_any_split_of_the_agents_gives_identical_bits(program, split):
    assert_splits_agree(program, *split)


@pytest.mark.parametrize("obs", [1707, 3001])
def test_a_split_of_a_network_larger_than_the_cache_gives_identical_bits(obs):
    assert_splits_agree(perceptron(obs, [400, 65], [7]), 150, [1, 13, 60, 149])


def test_a_split_of_agents_in_many_blocks_gives_identical_bits():
    assert_splits_agree(perceptron(700, [64], [5, 3], mask=True), 500, [1, 60, 200, 411])


@pytest.mark.parametrize("march", instruction_sets())
def test_any_split_gives_identical_bits_with_every_instruction_set(march, policy_library):
    library = policy_library(march)
    for hidden in ([3], [65, 130], [16, 48]):
        assert_splits_agree(perceptron(118, hidden, [3, 5], "gelu-erf"), 150, [1, 13, 60, 149], library)


def test_the_same_call_twice_gives_identical_bits():
    program = perceptron(118, [128, 128], [3])
    generator = np.random.default_rng(0)
    policy = CPolicy(program, 100)
    policy.load(random_weights(program, generator))
    obs = random_obs(program, 100, generator)
    first, second = (policy.act(obs, key=1, step=5) for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1].tobytes() == second[1].tobytes()


def test_a_row_does_not_depend_on_its_place():
    program = perceptron(118, [128], [3])
    generator = np.random.default_rng(1)
    policy = CPolicy(program, 100)
    policy.load(random_weights(program, generator))
    obs = random_obs(program, 100, generator)
    order = generator.permutation(100)
    assert policy.logits(obs[order]).tobytes() == policy.logits(obs)[order].tobytes()


def test_new_weights_replace_the_old_wholly():
    program = perceptron(20, [65, 17], [3])
    generator = np.random.default_rng(2)
    obs = random_obs(program, 30, generator)
    old, new = random_weights(program, generator), random_weights(program, generator)
    used, fresh = CPolicy(program, 30), CPolicy(program, 30)
    used.load(old)
    used.logits(obs)
    used.load(new)
    fresh.load(new)
    assert used.logits(obs).tobytes() == fresh.logits(obs).tobytes()


@pytest.mark.parametrize("activation", ["relu", "gelu-tanh", "gelu-erf", "tanh", "sigmoid"])
def test_a_nan_shows_in_its_own_row_and_in_no_other(activation):
    program = perceptron(20, [65, 17], [3], activation)
    generator = np.random.default_rng(3)
    policy = CPolicy(program, 30)
    policy.load(random_weights(program, generator))
    obs = random_obs(program, 30, generator)
    _, clean = policy.act(obs)
    obs[4, 7] = np.nan
    obs[29, 0] = -np.float32(np.nan)
    actions, log_prob = policy.act(obs)
    hit = np.isin(np.arange(30), (4, 29))
    assert np.isnan(log_prob[hit]).all()
    assert log_prob[~hit].tobytes() == clean[~hit].tobytes()
    assert ((actions >= 0) & (actions < 3)).all()


def test_a_nan_weight_gives_nan_log_probabilities_and_valid_actions():
    program = perceptron(20, [17], [3])
    flat = random_weights(program, np.random.default_rng(4))
    flat[5] = np.nan
    policy = CPolicy(program, 30)
    policy.load(flat)
    actions, log_prob = policy.act(random_obs(program, 30, np.random.default_rng(5)))
    assert np.isnan(log_prob).all()
    assert ((actions >= 0) & (actions < 3)).all()


GUARDED = """
import ctypes, mmap
import numpy as np
from producers.c_policy import CPolicy
from producers.program import Builder
from programs import random_weights

libc, kept = ctypes.CDLL(None), []
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def up_to_a_forbidden_page(shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    pages = -(-size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    kept.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(address + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    start = pages * mmap.PAGESIZE - size
    return np.frombuffer(memory, dtype, int(np.prod(shape)), start).reshape(shape)

for dtype in ("float32", "uint8"):
    for first in ("head", "linear", "activation", "add", "reshape", "slice", "concat"):
        builder = Builder(dtype, (7,), [3, 4], mask=True)
        x = builder.cast_affine()
        if first == "linear":
            x = builder.activation(builder.linear(x, 20, "trunk", gain=1.0), "tanh")
        elif first == "activation":
            x = builder.activation(x, "tanh")
        elif first == "add":
            x = builder.add(x, x)
        elif first == "reshape":
            x = builder.activation(builder.reshape(x, (7, 1)), "tanh")
        elif first == "slice":
            x = builder.slice(x, 2, 7)
        elif first == "concat":
            x = builder.concat([x, x])
        if first != "head":
            x = builder.linear(x, 7, "policy", gain=1.0)
        builder.head(x)
        program = builder.finish()
        for agents in (1, 11, 12, 13, 16, 48, 50, 97):
            policy = CPolicy(program, agents)
            policy.load(random_weights(program, np.random.default_rng(0)))
            obs = up_to_a_forbidden_page((agents, 7), dtype)
            mask = up_to_a_forbidden_page((agents, 7), "uint8")
            mask[:] = 1
            actions = up_to_a_forbidden_page((agents, 2), "int32")
            log_prob = up_to_a_forbidden_page((agents,), "float32")
            policy._library.hr_policy_act(
                policy._policy, obs.ctypes.data, mask.ctypes.data, None, None, 0, 0, 0, 0,
                actions.ctypes.data, log_prob.ctypes.data,
            )
            assert (log_prob < 0).all()
"""


def test_nothing_beyond_the_callers_arrays_is_touched():
    """Each array ends where a page begins that may be neither read nor written."""
    paths = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(
        [sys.executable, "-c", GUARDED],
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
