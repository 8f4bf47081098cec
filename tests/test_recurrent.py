"""Recurrent state is carried on and zeroed by the same rules in the C policy and in the torch module."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import instruction_sets
from programs import ROWS, programs, random_mask, random_obs, random_weights

from consumers import recurrent
from consumers.models import PolicyModel
from producers.c_policy import LIBRARY, CPolicy
from producers.program import Builder, ProgramError, build

STEPS = 6
SPEC = {"obs": {"dtype": "float32", "shape": [7]}, "heads": [{"choices": 3}], "mask": False}
KINDS = ("lstm", "mingru")


def segments(program, agents, seed):
    """Weights, obs [T, B, ...], masks, state0, reset_before [T, B] drawn from `seed`; row 0 is never reset,
    as in a slot."""
    generator = np.random.default_rng(seed)
    flat = random_weights(program, generator)
    obs = np.stack([random_obs(program, agents, generator) for _ in range(STEPS)])
    masks = [random_mask(program, agents, generator) for _ in range(STEPS)]
    state0 = generator.standard_normal((agents, program.state_width)).astype(np.float32)
    reset_before = (generator.random((STEPS, agents)) < 0.3).astype(np.uint8)
    reset_before[0] = 0
    return flat, obs, masks, state0, reset_before


def act_all(program, flat, obs, masks, state0, reset_before, *, first_agent=0, library=LIBRARY):
    """What the C policy does step by step: actions and log-probabilities [T, B, ...], the last state."""
    policy = CPolicy(program, obs.shape[1], library)
    policy.load(flat)
    state, done = state0.copy(), []
    for t in range(len(obs)):
        done.append(
            policy.act(
                obs[t], masks[t], state=state, reset_before=reset_before[t], key=9, first_agent=first_agent,
                step=t,
            )
        )  # fmt: skip
    actions, log_prob = (np.stack(x) for x in zip(*done))
    return actions, log_prob, state


def largest_excess(program, agents, seed, library=LIBRARY):
    """By how much the largest difference between C and torch exceeds what is allowed; below 0 is good."""
    flat, obs, masks, state0, reset_before = segments(program, agents, seed)
    actions, log_prob, state = act_all(program, flat, obs, masks, state0, reset_before, library=library)
    model = PolicyModel(program)
    model.load_flat(flat)
    mask = None if masks[0] is None else torch.from_numpy(np.stack(masks)).bool()
    actions = torch.from_numpy(actions if program.continuous else actions.astype(np.int64))
    with torch.no_grad():
        logits, _, last = model.unroll(
            torch.from_numpy(obs), torch.from_numpy(state0), torch.from_numpy(reset_before).bool()
        )
        expected = model.log_prob(logits, actions, mask).numpy()
    assert np.isfinite(expected).all()
    tolerance = 2e-4 * program.heads + 1e-5 * np.abs(logits.numpy()).max(-1)
    scale = 1 + np.abs(last.numpy()).max()
    return max(
        float((np.abs(log_prob - expected) - tolerance).max()),
        float(np.abs(state - last.numpy()).max() / scale - 1e-4),
    )


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.booleans().flatmap(lambda c: programs(recurrent=True, continuous=c)), st.sampled_from(ROWS[:-1]),
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_any_recurrent_program_gives_the_same_log_probabilities_and_state_in_c_and_in_torch(
    program, agents, seed
):
    assert largest_excess(program, agents, seed) <= 0


@pytest.mark.parametrize("march", instruction_sets())
def test_every_instruction_set_carries_the_same_state(march, policy_library):
    library = policy_library(march)

    @settings(deadline=None, max_examples=10, derandomize=True)
    @given(programs(recurrent=True), st.sampled_from(ROWS[:-1]))
    def check(program, agents):
        assert largest_excess(program, agents, 5, library) <= 0

    check()


@settings(deadline=None, max_examples=30, derandomize=True)
@given(programs(recurrent=True), st.integers(2, 150), st.data())
def test_any_split_of_the_agents_gives_identical_bits_of_actions_and_state(program, agents, data):
    cut = data.draw(st.integers(1, agents - 1))
    flat, obs, masks, state0, reset_before = segments(program, agents, agents)
    whole = act_all(program, flat, obs, masks, state0, reset_before)
    for part in (slice(0, cut), slice(cut, agents)):
        some = [None if m is None else m[part] for m in masks]
        actions, log_prob, state = act_all(
            program, flat, obs[:, part], some, state0[part], reset_before[:, part], first_agent=part.start
        )
        assert actions.tobytes() == whole[0][:, part].tobytes()
        assert log_prob.tobytes() == whole[1][:, part].tobytes()
        assert state.tobytes() == whole[2][part].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_too_large_for_the_cache_gives_identical_bits_wherever_a_row_stands(kind):
    program = build({"hidden": [300], "recurrent": kind, "recurrent_width": 500}, SPEC)
    flat, obs, _, state0, reset_before = segments(program, 100, 1)
    order = np.random.default_rng(2).permutation(100)
    policy = CPolicy(program, 100)
    policy.load(flat)
    state, moved = state0.copy(), state0[order]
    logits = policy.logits(obs[1], state=state, reset_before=reset_before[1])
    there = policy.logits(obs[1][order], state=moved, reset_before=reset_before[1][order])
    assert there.tobytes() == logits[order].tobytes()
    assert moved.tobytes() == state[order].tobytes()
    assert largest_excess(program, 100, 1) <= 0


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_reset_nothing_of_the_old_episode_is_left(kind):
    """A state that is not finite included, in C as in torch."""
    program = build({"hidden": [16], "recurrent": kind, "recurrent_width": 20}, SPEC)
    flat, obs, _, state0, _ = segments(program, 30, 3)
    hit = np.zeros(30, np.uint8)
    hit[[0, 7, 29]] = 1
    fresh = np.where(hit[:, None], 0, state0).astype(np.float32)
    policy = CPolicy(program, 30)
    policy.load(flat)
    model = PolicyModel(program)
    model.load_flat(flat)
    for old in (state0, np.where(hit[:, None], np.nan, state0).astype(np.float32)):
        carried, begun = old.copy(), fresh.copy()
        reset = policy.logits(obs[0], state=carried, reset_before=hit)
        assert reset.tobytes() == policy.logits(obs[0], state=begun).tobytes()
        assert carried.tobytes() == begun.tobytes()
        inputs = torch.from_numpy(obs[0]), torch.from_numpy(old), torch.from_numpy(hit).bool()
        logits, _, state = model.step(*inputs)
        expected, _, expected_state = model.step(inputs[0], torch.from_numpy(fresh))
        assert torch.equal(logits, expected)
        assert torch.equal(state, expected_state)
    other = policy.logits(obs[0], state=state0.copy())
    assert (other != reset).any(1).tolist() == hit.astype(bool).tolist(), "the state changes nothing"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separate", [False, True])
def test_a_segment_is_its_steps_one_after_another_wherever_it_is_cut(kind, separate):
    settings_ = {"hidden": [16], "recurrent": kind, "recurrent_width": 20, "separate_value": separate}
    model = PolicyModel(build(settings_, SPEC), seed=2)
    obs, reset = torch.randn(9, 5, 7), torch.rand(9, 5) < 0.3
    state = torch.randn(5, model.program.state_width)
    logits, value, last = model.unroll(obs, state, reset)
    assert (logits.shape, value.shape, last.shape) == ((9, 5, 3), (9, 5), state.shape)
    for t in range(9):
        one_logits, one_value, state = model.step(obs[t], state, reset[t])
        torch.testing.assert_close(one_logits, logits[t])
        torch.testing.assert_close(one_value, value[t])
    torch.testing.assert_close(state, last)


def test_the_actor_carries_the_state_of_a_value_network_of_its_own():
    settings_ = {"hidden": [4], "recurrent": "mingru", "recurrent_width": 6, "separate_value": True}
    program = build(settings_, SPEC)
    assert program.state_width == 12
    assert len(program.learner_only) == 1, "the value's last layer"
    policy, state = CPolicy(program, 2), np.zeros((2, 12), np.float32)
    policy.load(random_weights(program, np.random.default_rng(0)))
    policy.act(np.ones((2, 7), np.float32), state=state)
    assert (state != 0).all()


def test_the_lstm_is_torchs():
    lstm = torch.nn.LSTM(7, 11)
    x, h, c = torch.randn(9, 4, 7), torch.randn(1, 4, 11), torch.randn(1, 4, 11)
    expected, (_, last) = lstm(x, (h, c))
    inputs = torch.nn.functional.linear(x, lstm.weight_ih_l0, lstm.bias_ih_l0 + lstm.bias_hh_l0)
    outputs, cell = recurrent.lstm(inputs, lstm.weight_hh_l0, h[0], c[0], None)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(cell, last[0])


def test_the_lstms_gradient_is_that_of_its_formula():
    """By finite differences, over resets; in every input, the first state included."""
    inputs, weight = torch.randn(5, 3, 16).double(), torch.randn(16, 4).double()
    drawn = [x.requires_grad_() for x in (inputs, weight, *torch.randn(2, 3, 4).double())]
    reset = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) < 0.3
    assert 0 < int(reset.sum()) < reset.numel()
    assert torch.autograd.gradcheck(lambda *x: recurrent.lstm(*x, reset, torch.float64), drawn)
    assert torch.autograd.gradcheck(lambda *x: recurrent.lstm(*x, None, torch.float64), drawn)


def test_the_lstms_weights_get_a_gradient_that_no_rounding_adds_up_in():
    generator = torch.Generator().manual_seed(0)
    inputs, h, c = (torch.randn(*size, generator=generator) for size in ((200, 8, 16), (8, 4), (8, 4)))
    weight = torch.randn(16, 4, generator=generator) / 4
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        w = weight.clone().requires_grad_()
        recurrent.lstm(inputs, w, h, c, None, dtype)[0].square().sum().backward()
        gradients.append(w.grad)
    exact, rounded = gradients
    assert float((rounded - exact).norm() / exact.norm()) < 0.005


def mingru_by_its_formula(gate, candidate, h, reset_before):
    states = []
    for t in range(len(gate)):
        h = torch.where(reset_before[t, :, None], torch.zeros_like(h), h)
        z = torch.sigmoid(gate[t])
        h = (1 - z) * h + z * candidate[t]
        states.append(h)
    return torch.stack(states)


def test_the_mingru_and_its_gradient_are_those_of_its_formula():
    drawn = [torch.randn(8, 3, 5), torch.randn(8, 3, 5), torch.randn(3, 5)]
    reset = torch.rand(8, 3) < 0.3
    results = []
    for function in (recurrent.mingru, mingru_by_its_formula):
        inputs = [x.double().requires_grad_() for x in drawn]
        states = function(*inputs, reset)
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
        results.append([states, *(x.grad for x in inputs)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_back_to_the_episodes_beginning_and_no_further(kind):
    model = PolicyModel(build({"hidden": [], "recurrent": kind, "recurrent_width": 6}, SPEC), seed=0)
    obs = torch.randn(8, 2, 7, requires_grad=True)
    reset = torch.zeros(8, 2, dtype=torch.bool)
    reset[4, 0] = True
    logits, _, _ = model.unroll(obs, model.initial_state(2), reset)
    logits[7].square().sum().backward()
    touched = obs.grad.abs().sum(-1) > 0
    assert touched[:, 0].tolist() == [False] * 4 + [True] * 4
    assert touched[:, 1].all()


@pytest.mark.parametrize("kind", KINDS)
def test_in_bf16_the_state_stays_float32_and_results_stay_near(kind):
    model = PolicyModel(build({"hidden": [64], "recurrent": kind, "recurrent_width": 64}, SPEC), seed=1)
    obs, state = torch.randn(20, 30, 7), model.initial_state(30)
    exact, _, _ = model.unroll(obs, state)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _, last = model.unroll(obs, state)
    assert rounded.dtype == last.dtype == torch.float32
    assert 0 < float((rounded - exact).detach().abs().max()) < 0.05


def test_without_its_state_a_recurrent_program_is_not_evaluated():
    program = build({"hidden": [4], "recurrent": "lstm", "recurrent_width": 3}, SPEC)
    with pytest.raises(ValueError, match="unroll"):
        PolicyModel(program)(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"float32 \(2, 6\)"):
        CPolicy(program, 2).act(np.zeros((2, 7), np.float32))


def test_states_that_overlap_or_leave_a_gap_are_refused():
    builder = Builder("float32", (7,), [3])
    x = builder.mingru(builder.cast_affine(), 4, "a")
    builder.head(builder.linear(builder.lstm(x, 5, "b"), 3, "policy", gain=1.0))
    program = builder.finish()
    assert program.state_width == 4 + 10
    CPolicy(program, 1)
    for index, wrong in ((1, 1), (2, 3), (2, 5), (2, -1)):
        code = bytearray(program.encode())
        at = code.index(program.ops[index].weights[0].name.encode())
        assert at > 0
        ops = len(code) - 4 * sum(len(op.inputs) for op in program.ops) - 112 * len(program.weights)
        place = ops - 144 * (len(program.ops) - index) + 28
        code[place : place + 4] = wrong.to_bytes(4, "little", signed=True)
        with pytest.raises(ProgramError, match="does not fit"):
            CPolicy(bytes(code), 1)
