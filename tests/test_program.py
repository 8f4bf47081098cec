"""The policy program: what can be described, how it travels, and who refuses what."""

import dataclasses
import math
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from kernels import ROOT
from programs import perceptron, programs

from producers.c_policy import CPolicy
from producers.program import Builder, Program, ProgramError, build

SPEC = {"obs": {"dtype": "float32", "shape": [118]}, "heads": [{"choices": 3}, {"choices": 2}], "mask": False}

HEADER_BYTES, BUFFER_BYTES = 264, 24  # hr_program and hr_buffer of program.h


@settings(deadline=None, max_examples=100, derandomize=True)
@given(programs() | programs(recurrent=True) | programs(continuous=True) | programs(categories=True))
def test_decoding_gives_the_program_that_was_encoded(program):
    code = program.encode()
    assert Program.decode(code) == program
    assert Program.decode(code + b"what follows in the segment") == program
    assert Program.decode(code).fingerprint == program.fingerprint


def test_the_fingerprint_tells_networks_apart():
    settings_ = [{"hidden": [64]}, {"hidden": [65]}, {"activation": "tanh"}, {"normalize_obs": True}, {}]
    assert len({build(s, SPEC).fingerprint for s in settings_}) == len(settings_)


def test_the_weights_are_one_vector_in_program_order():
    program = build({"hidden": [64, 32], "activation": "relu"}, SPEC)
    assert [(w.name, w.shape) for w in program.weights] == [
        ("trunk.0.weight", (64, 118)), ("trunk.0.bias", (64,)),
        ("trunk.1.weight", (32, 64)), ("trunk.1.bias", (32,)),
        ("policy.weight", (5, 32)), ("policy.bias", (5,)),
        ("value.weight", (1, 32)), ("value.bias", (1,)),
    ]  # fmt: skip
    end = 0
    for weight in program.weights:
        assert weight.offset == end
        end += math.prod(weight.shape)
    assert program.count == end
    assert (program.heads, program.choices, program.logits) == (2, (3, 2), 5)


def test_settings_may_be_a_mapping_or_an_object():
    mapping = {"hidden": [8], "activation": "tanh", "separate_value": True}
    assert build(mapping, SPEC) == build(SimpleNamespace(**mapping), SPEC)


def test_initial_gains_are_small_for_the_policy_and_one_for_the_value():
    gains = {w.name: w.init_gain for w in build({"hidden": [8]}, SPEC).weights}
    assert gains["trunk.0.weight"] == pytest.approx(math.sqrt(2))
    assert gains["policy.weight"] == pytest.approx(0.01)
    assert gains["value.weight"] == 1.0
    assert gains["policy.bias"] == 0.0


def test_normalised_observations_ship_their_statistics_untrained():
    program = build({"normalize_obs": True}, SPEC)
    frozen = [(w.name, w.shape, w.init_value) for w in program.weights if not w.trainable]
    assert frozen == [("normalize.mean", (118,), 0.0), ("normalize.inv_std", (118,), 1.0)]


@pytest.mark.parametrize(
    ("dtype", "shape", "scale"),
    [("uint8", [3, 8, 8], 1 / 255), ("uint8", [9], 1.0), ("int8", [8, 8], 1.0), ("float32", [8, 8], 1.0)],
)
def test_images_of_bytes_are_scaled_to_one_and_nothing_else_is(dtype, shape, scale):
    spec = SPEC | {"obs": {"dtype": dtype, "shape": shape}}
    assert build({}, spec).ops[0].attrs["scale"] == pytest.approx(scale)
    assert build({"obs_scale": 0.5, "obs_offset": 2.0}, spec).ops[0].attrs["scale"] == 0.5


@pytest.mark.parametrize("separate", [False, True])
def test_the_actor_skips_what_only_the_value_needs(separate):
    program = build({"hidden": [8, 8], "separate_value": separate}, SPEC)
    skipped = {w.name.split(".")[0] for i in program.learner_only for w in program.ops[i].weights}
    assert skipped == ({"value", "value_trunk"} if separate else {"value"})
    assert len(program.learner_only) == (5 if separate else 1)


def test_unpacked_bytes_are_those_of_the_observation():
    assert build({}, SPEC).unpacked_step_bytes(SPEC) == 118 * 4
    bytes_ = SPEC | {"obs": {"dtype": "uint8", "shape": [11, 15, 10]}}
    assert build({}, bytes_).unpacked_step_bytes(bytes_) == 1650


def test_unpacked_bytes_count_a_grid_of_categories_as_one_byte_a_category():
    grid = {"rows": 2, "columns": 3, "planes": 2, "values": [4, 7]}
    spec = SPEC | {"obs": {"dtype": "uint8", "shape": [17], "grid": grid, "coded": 2}}
    assert build({}, spec).unpacked_step_bytes(spec) == 2 * 3 * (4 + 7) + 5


@pytest.mark.parametrize(
    ("policy", "spec", "message"),
    [
        ({"recurrent": "gru"}, SPEC, "'gru'; needs none, lstm or mingru"),
        ({"recurrent": "lstm", "recurrent_width": 0}, SPEC, "positive"),
        ({}, SPEC | {"heads": [{"low": -1.0, "high": 1.0}], "mask": True}, "continuous"),
        ({}, SPEC | {"heads": [{"low": -1.0, "high": 1.0}, {"choices": 2}]}, "continuous"),
        ({"activation": "swish"}, SPEC, "swish"),
        ({"hidden": [0]}, SPEC, "positive"),
        ({}, SPEC | {"heads": []}, "heads"),
        ({}, SPEC | {"heads": [{"choices": 2}] * 17}, "16"),
        ({}, SPEC | {"obs": {"dtype": "float64", "shape": [3]}}, "float64"),
        ({}, SPEC | {"obs": {"dtype": "uint8", "shape": [2, 2, 2, 2, 2]}}, "at most 4"),
    ],
)
def test_what_cannot_be_described_is_refused_with_a_reason(policy, spec, message):
    with pytest.raises(ProgramError, match=message):
        build(policy, spec)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda b, x: b.head(b.linear(x, 4, "policy", gain=1.0)),
        lambda b, x: b.add(x, b.linear(x, 4, "a", gain=1.0)),
        lambda b, x: b.slice(x, 3, 11),
        lambda b, x: b.reshape(x, (3, 3)),
        lambda b, x: [b.linear(x, 4, "twice", gain=1.0) for _ in range(2)],
        lambda b, x: b.linear(x, 4, "n" * 64, gain=1.0),
        lambda b, x: b.concat([]),
        lambda b, x: b.finish(),
        lambda b, x: [b.head(b.slice(x, 0, 5)) for _ in range(2)],
        lambda b, x: (b.head(b.slice(x, 0, 5)), b.finish(value=x)),
    ],
)
def test_operations_that_do_not_fit_are_refused(misuse):
    builder = Builder("float32", (10,), [3, 2])
    x = builder.cast_affine()
    with pytest.raises(ProgramError):
        misuse(builder, x)


def with_op(program: Program, index: int, **changes) -> Program:
    ops = list(program.ops)
    ops[index] = dataclasses.replace(ops[index], **changes)
    return dataclasses.replace(program, ops=tuple(ops))


def test_the_c_policy_names_what_it_does_not_run():
    program = perceptron(5, [4], [3])
    code = bytearray(program.encode())
    struct.pack_into("<I", code, HEADER_BYTES + len(program.buffers) * BUFFER_BYTES, 77)
    with pytest.raises(ProgramError, match=r"unknown \(77\) is not implemented"):
        CPolicy(bytes(code), 1)
    code = bytearray(program.encode())
    struct.pack_into("<I", code, 4, 3)
    with pytest.raises(ProgramError, match=r"format 3.*make build"):
        CPolicy(bytes(code), 1)
    with pytest.raises(ProgramError, match="format 3"):
        Program.decode(bytes(code))


def that_remembers_its_actions() -> Program:
    builder = Builder("float32", (3,), [3])
    builder.head(builder.cast_affine())
    builder.lstm(builder.finish().action, 2, "layer")
    return builder.finish()


def test_the_c_policy_refuses_programs_whose_parts_do_not_fit():
    program = perceptron(5, [4], [3])
    cast, linear, activation, policy, head, _ = range(6)
    hidden, features, logits = (program.ops[i].output for i in (linear, activation, policy))
    broken = {
        "reads a later buffer": with_op(program, linear, inputs=(logits,)),
        "reads no buffer": with_op(program, linear, inputs=(99,)),
        "writes twice": with_op(program, activation, output=hidden),
        "writes the observation": with_op(program, activation, output=program.obs),
        "reads the raw observation": with_op(program, linear, inputs=(program.obs,)),
        "wrong width": with_op(program, policy, inputs=(program.ops[cast].output,)),
        "head of another width": with_op(program, head, inputs=(features,)),
        "reads the actions": that_remembers_its_actions(),
        "no weights": with_op(program, linear, weights=()),
        "no head": dataclasses.replace(program, ops=program.ops[:head]),
        "other heads": dataclasses.replace(program, choices=(2,)),
    }
    for name, other in broken.items():
        with pytest.raises(ProgramError):
            CPolicy(other.encode(), 1)
        assert name
    CPolicy(program.encode(), 1)


def test_a_program_cut_short_is_refused_at_every_length():
    code = perceptron(5, [4], [3]).encode()
    for length in range(len(code)):
        with pytest.raises(ProgramError):
            CPolicy(code[:length], 1)
        with pytest.raises(ProgramError):
            Program.decode(code[:length])


DAMAGE = """
import sys
import numpy as np
from producers.c_policy import CPolicy
from producers.program import Program, ProgramError, build
from programs import expander, perceptron
spec = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"low": -1.0, "high": 1.0}]}
code = {
    "perceptron": perceptron(5, [4], [3]),
    "expander": expander(),
    "recurrent": build({"hidden": [4], "recurrent": "lstm", "recurrent_width": 3}, spec),
}[sys.argv[1]].encode()
generator = np.random.default_rng(0)
run = 0
for _ in range(4000):
    damaged = bytearray(code)
    for place in generator.integers(0, len(code), generator.integers(1, 4)):
        damaged[place] = generator.choice([0, 1, 2, 127, 128, 255, generator.integers(256)])
    damaged = bytes(damaged)
    try:
        program = Program.decode(damaged)
        policy = CPolicy(damaged, 20)
    except ProgramError:
        continue
    if program.buffers[program.obs].width <= 4096 and program.count <= 100000:
        policy.load(np.zeros(program.count, np.float32))
        obs = program.buffers[program.obs]
        state = np.zeros((20, program.state_width), np.float32)
        policy.act(np.zeros((20, *obs.shape), obs.dtype), state=state)
        run += 1
assert run > 500, run
"""


@pytest.mark.parametrize("network", ["perceptron", "recurrent", "expander"])
def test_a_damaged_program_is_refused_or_runs_but_never_crashes(network):
    """What slips through is damage of names and gains, mostly."""
    paths = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, network],
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_describing_a_network_needs_neither_torch_nor_numpy():
    code = "import sys, producers.program; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
