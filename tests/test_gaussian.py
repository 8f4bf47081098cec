"""Continuous actions are drawn from the Gaussian of mean and log-std by the noise that all actions have."""

import ctypes
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import compile_native, instruction_sets
from programs import ROWS, programs, random_obs, random_weights

from consumers.models import PolicyModel
from producers.c_policy import LIBRARY, CPolicy
from producers.program import Builder, ProgramError, build

SHIM = """
#include "policy_sample.h"
__attribute__((visibility("default"))) void words(uint64_t key, uint64_t agent, uint64_t step, uint32_t block,
                                                  uint32_t *out) {
    noise_block(key, agent, step, block, (uint32_t(*)[SAMPLE_ROWS])out);
}
__attribute__((visibility("default"))) void normals(const uint32_t *word, float *out, long n) {
    for (long i = 0; i < n; i += SAMPLE_ROWS) noise_normal(word + i, out + i);
}
#include "policy_sample.c"
"""


@pytest.fixture(scope="module", params=["native", *instruction_sets()])
def noise(request, tmp_path_factory):
    """The library; .normal(words uint32 [n]) -> float32 [n], .words(key, agent, step, block) -> uint32
    [4, 16]."""
    library = ctypes.CDLL(
        str(compile_native(SHIM, tmp_path_factory.mktemp("noise") / "noise.so", request.param))
    )
    pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
    library.words.argtypes = [u64, u64, u64, ctypes.c_uint32, pointer]
    library.normals.argtypes = [pointer, pointer, ctypes.c_long]

    class Noise:
        @staticmethod
        def words(key, agent, step, block):
            out = np.empty((4, 16), np.uint32)
            library.words(key, agent, step, block, out.ctypes.data)
            return out

        @staticmethod
        def normal(words):
            padded = np.concatenate([words, np.zeros(-len(words) % 16, np.uint32)])
            out = np.empty(len(padded), np.float32)
            library.normals(padded.ctypes.data, out.ctypes.data, len(padded))
            return out[: len(words)]

    return Noise


def quantile(words):
    """The definition, in float64."""
    p = ((words & 0x7FFFFFFF).astype(np.float64) + 0.5) * 2.0**-32
    magnitude = -torch.special.ndtri(torch.from_numpy(p)).numpy()
    return np.where(words >> 31, -magnitude, magnitude)


def test_normal_numbers_are_the_inverse_distribution_function_of_their_words(noise):
    generator = np.random.default_rng(0)
    edges = np.uint32([0, 1, 2, 100, 2**16, 2**30, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])
    tails = (generator.integers(0, 2**31, 100_000) >> generator.integers(0, 31, 100_000)).astype(np.uint32)
    words = np.concatenate([edges, tails, generator.integers(0, 2**32, 200_000).astype(np.uint32)])
    error = np.abs(noise.normal(words) - quantile(words))
    assert error.max() <= 4e-6
    extreme = np.abs(noise.normal(np.uint32([0, 2**31])))
    assert ((extreme > 6.3) & (extreme <= 6.34)).all()


def test_a_normal_number_does_not_depend_on_its_neighbours(noise):
    words = np.random.default_rng(1).integers(0, 2**32, 256).astype(np.uint32)
    expected = noise.normal(words)
    for shift in (1, 3, 15):
        assert noise.normal(np.roll(words, shift)).tobytes() == np.roll(expected, shift).tobytes()


def means_program(heads: int):
    """The observation is the means."""
    builder = Builder("float32", (heads,), low=[-1.0] * heads, high=[1.0] * heads)
    builder.gaussian(builder.cast_affine(), "log_std", log_std=0.0)
    return builder.finish()


def test_the_noise_of_a_head_is_word_four_of_its_block(noise):
    """As of discrete heads: head h of an agent's step takes word h % 4 of block h / 4."""
    policy = CPolicy(means_program(6), 40)
    policy.load(np.zeros(6, np.float32))
    actions, _ = policy.act(np.zeros((40, 6), np.float32), key=77, first_agent=2**32 - 8, step=5)
    for agent in range(40):
        words = [noise.words(77, 2**32 - 8 + agent, 5, head // 4)[head % 4, 0] for head in range(6)]
        np.testing.assert_allclose(actions[agent], quantile(np.uint32(words)), rtol=0, atol=4e-6)


def kolmogorov_smirnov(sample):
    """√n times the largest distance from the standard normal distribution: above 2.4 with probability
    2e-5."""
    x = np.sort(sample)
    below = 0.5 * (1 + torch.erf(torch.from_numpy(x).double() / math.sqrt(2)).numpy())
    n = len(x)
    distance = max((np.arange(1, n + 1) / n - below).max(), (below - np.arange(n) / n).max())
    return distance * math.sqrt(n)


@pytest.mark.parametrize("over", ["agents", "steps"])
def test_actions_are_normally_distributed_around_their_mean(over):
    agents, steps = (100_000, 1) if over == "agents" else (20, 5000)
    policy = CPolicy(means_program(5), agents)
    log_std = np.float32([0.0, -1.0, 0.5, -2.0, 1.0])
    policy.load(log_std)
    means = np.float32([0.0, 1.0, -3.0, 0.2, 8.0])
    obs = np.tile(means, (agents, 1))
    taken = np.concatenate([policy.act(obs, key=5, step=s)[0] for s in range(steps)])
    normal = (taken.astype(np.float64) - means) / np.exp(log_std.astype(np.float64))
    for head in range(5):
        assert kolmogorov_smirnov(normal[:, head]) < 2.4
    off_diagonal = np.corrcoef(normal.T) - np.eye(5)
    assert np.abs(off_diagonal).max() < 5 / math.sqrt(len(normal))
    neighbours = np.corrcoef(normal[:-1, 0], normal[1:, 0])[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(len(normal))


def largest_excess(program, agents, seed, library=LIBRARY):
    generator = np.random.default_rng(seed)
    flat, obs = random_weights(program, generator), random_obs(program, agents, generator)
    policy = CPolicy(program, agents, library)
    policy.load(flat)
    actions, log_prob = policy.act(obs, key=seed, first_agent=7, step=3)
    assert actions.dtype == np.float32
    model = PolicyModel(program)
    model.load_flat(flat)
    with torch.no_grad():
        mean, _ = model(torch.from_numpy(obs))
        expected = model.log_prob(mean, torch.from_numpy(actions)).numpy()
    tolerance = 2e-4 * program.heads + 1e-5 * np.abs(mean.numpy()).max(1)
    return float((np.abs(log_prob - expected) - tolerance).max())


@settings(deadline=None, max_examples=60, derandomize=True)
@given(programs(continuous=True), st.sampled_from(ROWS), st.integers(0, 2**32 - 1))
def test_any_program_gives_the_same_log_probabilities_in_c_and_in_torch(program, agents, seed):
    assert largest_excess(program, agents, seed) <= 0


@pytest.mark.parametrize("march", instruction_sets())
def test_every_instruction_set_gives_the_same_log_probabilities(march, policy_library):
    library = policy_library(march)

    @settings(deadline=None, max_examples=10, derandomize=True)
    @given(programs(continuous=True), st.sampled_from(ROWS))
    def check(program, agents):
        assert largest_excess(program, agents, 5, library) <= 0

    check()


@settings(deadline=None, max_examples=30, derandomize=True)
@given(programs(continuous=True), st.integers(2, 150), st.data())
def test_any_split_of_the_agents_gives_identical_bits(program, agents, data):
    cut = data.draw(st.integers(1, agents - 1))
    generator = np.random.default_rng(agents)
    flat, obs = random_weights(program, generator), random_obs(program, agents, generator)

    def act(part):
        policy = CPolicy(program, part.stop - part.start)
        policy.load(flat)
        return policy.act(obs[part], key=4, first_agent=part.start, step=8)

    whole = act(slice(0, agents))
    for part in (slice(0, cut), slice(cut, agents)):
        for some, all_ in zip(act(part), whole):
            assert some.tobytes() == all_[part].tobytes()


def test_argmax_is_the_mean():
    policy = CPolicy(means_program(2), 3)
    policy.load(np.float32([0.3, -0.7]))
    means = np.float32([[1, 2], [-5, 0], [0.25, 1e3]])
    actions, log_prob = policy.act(means, argmax=True)
    assert (actions == means).all()
    np.testing.assert_allclose(log_prob, -(0.3 - 0.7) - math.log(2 * math.pi), rtol=1e-6)


def test_what_is_not_finite_gives_nan_and_an_action_that_a_simulator_can_take():
    policy = CPolicy(means_program(2), 5)
    policy.load(np.zeros(2, np.float32))
    means = np.float32([[1, 2], [np.nan, 0], [0, np.inf], [-np.inf, np.nan], [3, 4]])
    for argmax in (False, True):
        actions, log_prob = policy.act(means, argmax=argmax)
        assert np.isfinite(actions).all()
        assert np.isnan(log_prob).tolist() == [False, True, True, True, False]
    policy.load(np.float32([np.nan, 0]))
    actions, log_prob = policy.act(means[[0, 4, 0, 4, 0]])
    assert np.isfinite(actions).all()
    assert np.isnan(log_prob).all()


SPEC = {"obs": {"dtype": "float32", "shape": [3]}, "heads": [{"low": -2.0, "high": 2.0}] * 2, "mask": False}


def test_the_module_is_torchs_normal_distribution():
    model = PolicyModel(build({"hidden": [8], "log_std": -0.5}, SPEC), seed=0)
    assert model.state_dict()["log_std"].tolist() == [-0.5, -0.5]
    mean, value = model(torch.randn(4, 6, 3))
    assert (mean.shape, value.shape) == ((4, 6, 2), (4, 6))
    actions = model.sample(mean, generator=torch.Generator().manual_seed(1))
    normal = torch.distributions.Normal(mean, model.state_dict()["log_std"].exp())
    log_prob, entropy = model.log_prob_entropy(mean, actions)
    torch.testing.assert_close(log_prob, normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(entropy, normal.entropy().sum(-1))
    assert model.mode(mean) is mean
    (log_prob.sum() + entropy.sum()).backward()
    assert (model.log_std.grad != 0).all(), "the standard deviations are trained"


def test_samples_of_the_module_have_the_distributions_moments():
    model = PolicyModel(build({"hidden": [8], "log_std": -0.5}, SPEC), seed=0)
    sample = model.sample(
        torch.tensor([1.0, -2.0]).expand(100_000, 2), generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(sample.mean(0), torch.tensor([1.0, -2.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(sample.std(0), torch.tensor([1.0, 1.0]) * math.exp(-0.5), atol=0.01, rtol=0)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: Builder("float32", (3,), [2], low=[-1.0], high=[1.0]),
        lambda: Builder("float32", (3,), low=[-1.0], high=[]),
        lambda: Builder("float32", (3,), low=[-1.0], high=[1.0], mask=True),
        lambda: Builder("float32", (3,), low=[-1.0] * 17, high=[1.0] * 17),
        lambda: (b := Builder("float32", (3,), low=[-1.0], high=[1.0])).head(b.slice(b.cast_affine(), 0, 1)),
        lambda: (b := Builder("float32", (3,), [3])).gaussian(b.cast_affine(), "log_std", log_std=0.0),
        lambda: (b := Builder("float32", (3,), low=[0.0], high=[1.0])).gaussian(
            b.cast_affine(), "log_std", log_std=0.0
        ),
    ],
)
def test_heads_that_contradict_are_refused(misuse):
    with pytest.raises(ProgramError):
        misuse()
