"""Actions are drawn from the softmax of their logits by noise, a pure function of agent, step and head."""

import ctypes
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import compile_native
from programs import logits_program, random_mask

from producers.c_policy import CPolicy

# noise_block as it is, and sample_rows with a uniform number of the test's choice in place of the noise.
SHIM = """
#include "policy_sample.h"
#include "policy_sample.c"
__attribute__((visibility("default"))) void noise(uint64_t key, uint64_t agent, uint64_t step, uint32_t block,
                                                  uint32_t *out) {
    uint32_t word[4][SAMPLE_ROWS];
    noise_block(key, agent, step, block, word);
    memcpy(out, word, sizeof word);
}
__attribute__((visibility("default"))) float uniform(uint32_t word) { return noise_uniform(word); }
"""
FORCED = """
#include "policy_sample.h"
static float forced;
#define noise_uniform(word) ((void)(word), forced)
#include "policy_sample.c"
__attribute__((visibility("default"))) int32_t choose_with(float u, const float *logits, const uint8_t *mask,
                                                           int32_t choices, float *scratch, float *logprob) {
    float rows[SAMPLE_ROWS * 64];
    int32_t action;
    for (uint32_t r = 0; r < SAMPLE_ROWS; r++)
        for (int32_t c = 0; c < choices; c++) rows[r * 64 + (uint32_t)c] = logits[c];
    forced = u;
    sample_rows(rows, 64, mask, (size_t)choices, &choices, 1, 1, 0, 0, 0, 0, scratch, &action, logprob);
    return action;
}
"""
BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """noise(key, agent, step, block) -> uint32 [4, 16]: words of 16 agents from `agent` on."""
    library = ctypes.CDLL(str(compile_native(SHIM, tmp_path_factory.mktemp("noise") / "noise.so")))
    u64 = ctypes.c_uint64
    library.noise.argtypes = [u64, u64, u64, ctypes.c_uint32, ctypes.c_void_p]
    library.uniform.argtypes, library.uniform.restype = [ctypes.c_uint32], ctypes.c_float

    def call(key, agent, step, block=0):
        out = np.empty((4, 16), np.uint32)
        library.noise(key, agent, step, block, out.ctypes.data)
        return out

    call.uniform = library.uniform
    return call


@pytest.fixture(scope="module")
def choose_with(tmp_path_factory):
    """choose_with(uniform, logits, mask=None) -> (action, log-probability) of one head."""
    library = ctypes.CDLL(str(compile_native(FORCED, tmp_path_factory.mktemp("forced") / "forced.so")))
    pointer = ctypes.c_void_p
    library.choose_with.argtypes = [ctypes.c_float, pointer, pointer, ctypes.c_int32, pointer, pointer]

    def call(uniform, logits, mask=None):
        logits = np.ascontiguousarray(logits, np.float32)
        mask = None if mask is None else np.ascontiguousarray(mask, np.uint8)
        scratch, log_prob = np.empty(2 * len(logits) * 16, np.float32), np.empty(1, np.float32)
        action = library.choose_with(
            uniform, logits.ctypes.data, None if mask is None else mask.ctypes.data, len(logits),
            scratch.ctypes.data, log_prob.ctypes.data,
        )  # fmt: skip
        return action, log_prob[0]

    return call


def test_the_noise_is_philox4x32_10(noise):
    """The known answers of Random123 (kat_vectors): counter words 0..3, key words 0..1, result."""
    ones = 0xFFFFFFFF
    cases = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones, ones), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, expected in cases:
        step = counter[2] | (counter[3] & 0x3FFFFFFF) << 32
        words = noise(key[0] | key[1] << 32, counter[0] | counter[1] << 32, step, counter[3] >> 30)
        assert tuple(int(word) for word in words[:, 0]) == expected


def test_an_agents_noise_does_not_depend_on_whom_it_is_computed_with(noise):
    together = noise(5, 2**32 - 8, 77)  # across a carry of the agent's low word
    for i in range(16):
        np.testing.assert_array_equal(noise(5, 2**32 - 8 + i, 77)[:, 0], together[:, i])


def test_agents_steps_heads_and_keys_have_noise_of_their_own(noise):
    words = [
        noise(key, agent, step, block)
        for key in (0, 1, 2**32) for agent in (0, 16, 2**32, 2**33) for step in (0, 1, 2**32, 2**61)
        for block in range(4)
    ]  # fmt: skip
    flat = np.concatenate([block.ravel() for block in words])
    # Of n random words n² / 2^33 pairs collide: some 0.02 are expected, dozens if two streams coincide.
    assert len(flat) - len(np.unique(flat)) < 5


def test_uniforms_cover_zero_to_just_below_one(noise):
    assert noise.uniform(0) == 0
    assert noise.uniform(1) == 2.0**-32
    assert noise.uniform(0x80000000) == 0.5
    assert noise.uniform(0xFFFFFFFF) == BELOW_ONE < 1


def chi_square(counts, probabilities):
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


def chi_square_limit(freedom):
    """Above it with probability 1e-6 (Wilson and Hilferty 1931); with fixed seeds it is passed or not."""
    a = 2 / (9 * freedom)
    return freedom * (1 - a + 4.7534 * math.sqrt(a)) ** 3


LOGITS = [0.3, -1.0, 1.2, 0.0, -2.5]


def softmax(logits):
    weights = np.exp(np.float64(logits))
    return weights / weights.sum()


@pytest.mark.parametrize("over", ["agents", "steps"])
def test_frequencies_are_the_softmax(over):
    """Over agents at one step, and over steps of a few agents."""
    agents, steps = (100_000, 1) if over == "agents" else (20, 5000)
    policy = CPolicy(logits_program([5]), agents)
    obs = np.tile(np.float32(LOGITS), (agents, 1))
    taken = np.concatenate([policy.act(obs, key=123, first_agent=10, step=s)[0] for s in range(steps)])
    counts = np.bincount(taken.ravel(), minlength=5)
    assert chi_square(counts, softmax(LOGITS)) < chi_square_limit(4)


def test_heads_neighbours_and_successive_steps_are_independent():
    """Pairs of actions have the product of the frequencies: of two heads, also in different Philox blocks, of
    an agent and the next, of a step and the next."""
    agents = 60_000
    policy = CPolicy(logits_program([3, 2, 2, 2, 3]), agents)
    head = np.float32([0.5, 0.0, -0.7])
    obs = np.tile(np.concatenate([head, [0, 0.4], [0.1, 0], [0, 0], head]).astype(np.float32), (agents, 1))
    now, later = (policy.act(obs, key=7, step=s)[0] for s in (40, 41))
    pairs = {
        "heads of a block": (now[:, 0], now[:, 3], 3, 2),
        "heads of two blocks": (now[:, 0], now[:, 4], 3, 3),
        "neighbours": (now[:-1, 0], now[1:, 0], 3, 3),
        "steps": (now[:, 4], later[:, 4], 3, 3),
    }
    for name, (a, b, n, m) in pairs.items():
        counts = np.bincount(a * m + b, minlength=n * m)
        expected = np.outer(np.bincount(a, minlength=n), np.bincount(b, minlength=m)).ravel() / len(a) ** 2
        assert chi_square(counts, expected) < chi_square_limit((n - 1) * (m - 1)), name


def test_two_keys_act_differently():
    policy = CPolicy(logits_program([2]), 1000)
    obs = np.zeros((1000, 2), np.float32)
    a, b = (policy.act(obs, key=key)[0] for key in (1, 2))
    assert 400 < (a != b).sum() < 600


logits_lists = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(logits_lists, st.floats(0, float(BELOW_ONE), width=32), st.data())
def test_the_choice_is_the_inverse_cdf_of_the_allowed(choose_with, logits, uniform, data):
    mask = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)).filter(any))
    action, log_prob = choose_with(uniform, logits, mask)
    assert mask[action], "a masked choice was taken"
    weights = np.where(mask, np.exp(np.float64(logits) - max(logits)), 0.0)
    running = np.cumsum(weights)
    slack = 1e-5 * running[-1]
    before = running[action - 1] if action else 0.0
    assert before - slack <= uniform * running[-1] <= running[action] + slack
    np.testing.assert_allclose(log_prob, np.log(weights[action] / running[-1]), rtol=0, atol=4e-6)


@pytest.mark.parametrize("uniform", [0.0, 2.0**-32, 0.5, float(BELOW_ONE)])
def test_a_masked_choice_is_never_taken_at_either_end(choose_with, uniform):
    for n in range(2, 40):
        generator = np.random.default_rng(n)
        logits = generator.normal(0, 5, n)
        for allowed in (0, n // 2, n - 1):
            mask = np.zeros(n, np.uint8)
            mask[allowed] = 1
            assert choose_with(uniform, logits, mask) == (allowed, 0.0)


def test_a_choice_of_probability_zero_is_never_taken(choose_with):
    for uniform in (0.0, float(BELOW_ONE)):
        assert choose_with(uniform, [-np.inf, 3.0, -np.inf])[0] == 1
        assert choose_with(uniform, [-200.0, 0.0, -200.0])[0] == 1


def test_a_masked_logit_may_be_anything(choose_with):
    for wild in (np.nan, np.inf, 1e38):
        assert choose_with(0.3, [wild, 1.0, wild], [0, 1, 0]) == (1, 0.0)


@pytest.mark.parametrize(
    "logits", [[np.nan, 0, 1], [0, np.nan, 1], [0, 1, np.nan], [np.inf, 0, 1], [-np.inf] * 3]
)
def test_a_distribution_that_is_none_gives_nan_and_a_valid_action(choose_with, logits):
    for uniform in (0.0, 0.7, float(BELOW_ONE)):
        action, log_prob = choose_with(uniform, logits)
        assert action == 0
        assert np.isnan(log_prob)


def test_an_agent_whose_logits_are_none_takes_an_allowed_action_all_the_same():
    """A NaN is reported by its log-probability; the simulator must not get what it forbade."""
    policy = CPolicy(logits_program([3, 2], mask=True), 4)
    mask = np.uint8([[0, 1, 1, 0, 1], [0, 0, 1, 1, 0], [1, 0, 0, 0, 1], [0, 1, 0, 1, 1]])
    for argmax in (True, False):
        actions, log_prob = policy.act(np.full((4, 5), np.nan, np.float32), mask=mask, argmax=argmax)
        assert mask[np.arange(4), actions[:, 0]].all()
        assert mask[np.arange(4), 3 + actions[:, 1]].all()
        assert np.isnan(log_prob).all()


def test_argmax_takes_the_likeliest_allowed_choice_and_the_first_of_equals():
    policy = CPolicy(logits_program([3, 2], mask=True), 4)
    obs = np.float32([[1, 3, 2, 0, 0], [5, 5, 5, 1, 2], [9, 3, 4, 2, 1], [1, np.nan, 2, 0, 7]])
    mask = np.uint8([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
    actions, log_prob = policy.act(obs, mask, argmax=True)
    assert actions.tolist() == [[1, 0], [0, 1], [2, 1], [0, 1]]
    assert np.isnan(log_prob[3])
    np.testing.assert_allclose(log_prob[2], np.log(softmax([3, 4])[1]), atol=1e-6)


def test_log_probability_is_the_sum_over_heads():
    """Six heads: also across the border of a noise block."""
    choices, agents = [3, 17, 2, 1, 5, 4], 500
    program = logits_program(choices, mask=True)
    generator = np.random.default_rng(3)
    obs = generator.normal(0, 4, (agents, sum(choices))).astype(np.float32)
    mask = random_mask(program, agents, generator)
    actions, log_prob = CPolicy(program, agents).act(obs, mask, key=1, step=2)
    allowed = np.where(mask, obs.astype(np.float64), -np.inf)
    expected, first = np.zeros(agents), 0
    for head, n in enumerate(choices):
        x = allowed[:, first : first + n]
        x = x - x.max(1, keepdims=True)
        x = x - np.log(np.exp(x).sum(1, keepdims=True))
        expected += x[np.arange(agents), actions[:, head]]
        first += n
    np.testing.assert_allclose(log_prob, expected, rtol=0, atol=2e-5)


def test_without_a_mask_all_choices_are_allowed():
    program = logits_program([4], mask=True)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    policy = CPolicy(program, 64)
    a, b = policy.act(obs, None, step=9), policy.act(obs, np.ones((64, 4), np.uint8), step=9)
    assert a[0].tobytes() == b[0].tobytes()
    assert a[1].tobytes() == b[1].tobytes()
