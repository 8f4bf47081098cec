"""A torch module of the user's own: what it must have, and that it travels, acts and learns as any other
network."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from command import CARTPOLE, ROOT

import config
from consumers import modules, probe
from producers import probing
from producers.opaque import Opaque, decode, opaque
from producers.prepare import prepare
from producers.program import ProgramError

SPEC = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": False, "statistics": []}
CONTINUOUS = SPEC | {"heads": [{"low": -1.0, "high": 1.0}, {"low": -2.0, "high": 2.0}]}
SETTINGS = {"recurrent_width": 6}


def described(name, spec=SPEC):
    sizes = probe.probe(f"own_module:{name}", spec, SETTINGS)
    return opaque(f"own_module:{name}", spec, SETTINGS, sizes["state_width"], sizes["tensors"])


def test_its_description_survives_encoding():
    program = described("Attentive")
    again = decode(program.encode())
    assert isinstance(again, Opaque)
    assert again == program
    assert again.fingerprint == program.fingerprint
    assert (again.state_width, again.logits, again.heads, again.continuous) == (6, 3, 1, False)
    assert again.count == sum(weight.count for weight in again.weights)


def test_weights_are_one_vector_in_the_order_of_the_parameters():
    model = modules.make(described("Attentive"), seed=1)
    flat = np.concatenate([one.detach().numpy().ravel() for one in model.inner.parameters()])
    np.testing.assert_array_equal(model.flat_weights().numpy(), flat)
    model.load_flat(np.arange(len(flat), dtype=np.float32))
    first = next(model.inner.parameters())
    assert first.data_ptr() == model.flat_weights().data_ptr()
    assert first.flatten()[1] == 1


def test_fresh_weights_are_a_function_of_the_seed_alone():
    program = described("Attentive")
    before = torch.random.get_rng_state()
    one, same, other = (modules.make(program, seed=seed).flat_weights() for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_segment_is_the_same_as_step_by_step_with_the_state_zeroed_at_ends():
    model = modules.make(described("Attentive"), seed=1)
    obs, resets = torch.randn(4, 2, 5), torch.zeros(4, 2, dtype=torch.bool)
    resets[2, 1] = True
    with torch.no_grad():
        logits, value, last = model.unroll(obs, model.initial_state(2), resets)
        fresh, _, _ = model.step(obs[2], torch.zeros(2, 6))
        state = model.initial_state(2)
        for t in range(4):
            one, worth, state = model.step(obs[t], state, resets[t])
            torch.testing.assert_close(one, logits[t])
            torch.testing.assert_close(worth, value[t])
    torch.testing.assert_close(state, last)
    torch.testing.assert_close(logits[2, 1], fresh[1])


def test_a_module_without_state_takes_any_leading_dimensions():
    model = modules.make(described("Plain", CONTINUOUS), seed=1)
    obs = torch.randn(3, 4, 5)
    mean, value = model(obs)
    assert (mean.shape, value.shape) == ((3, 4, 2), (3, 4))
    density = torch.tensor(-np.log(2 * np.pi), dtype=torch.float32)  # of two standard normals at their means
    torch.testing.assert_close(model.log_prob(mean, mean)[0, 0], density)


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("own_module:Slanted", SPEC, "gives logits and value of shape (4, 3, 4) and (4, 3); needs (4, 3, 3)"),
        ("own_module:Forgetful", SPEC, "step by step gives other logits than unroll"),
        ("own_module:Crowded", SPEC, "gives a row other logits alone than beside others"),
        ("own_module:Undefined", CONTINUOUS, "gives logits or values that are not finite"),
        ("own_module:Deaf", SPEC, "step by step gives other logits than unroll, at step 2 of 4"),
        ("own_module:Growing", SPEC, "gives a state of (3, 7) torch.float32; needs that of initial_state"),
        ("own_module:Double", SPEC, "must give zeros [agents, width] float32"),
        ("own_module:Attentive", CONTINUOUS, "fails on a trial of 3 agents: KeyError|fails|KeyError"),
        ("own_module:Absent", SPEC, "has no attribute 'Absent'"),
        ("nowhere.at_all:X", SPEC, "No module named 'nowhere'"),
        ("collections:OrderedDict", SPEC, "OrderedDict(spec, settings): TypeError|is no torch.nn.Module"),
    ],
)
def test_what_it_lacks_is_said_in_a_line(name, spec, message):
    with pytest.raises(ProgramError) as error:
        probe.probe(name, spec, SETTINGS)
    assert any(part in str(error.value) for part in message.split("|")), str(error.value)


def test_the_probe_is_asked_in_a_process_of_its_own():
    command = [sys.executable, "-m", "consumers.probe"]
    given = json.dumps({"spec": SPEC, "settings": SETTINGS})
    environment = {"PYTHONPATH": str(ROOT / "tests")}
    options = {"input": given, "capture_output": True, "text": True, "cwd": ROOT, "env": environment}
    good = subprocess.run([*command, "own_module:Attentive"], check=False, **options)
    assert json.loads(good.stdout)["state_width"] == 6, good.stderr
    chatty = subprocess.run([*command, "own_module:Chatty"], check=False, **options)
    assert (json.loads(chatty.stdout), chatty.stderr) == (json.loads(good.stdout), "hello\n" * 2)
    bad = subprocess.run([*command, "own_module:Slanted"], check=False, **options)
    assert (bad.returncode, bad.stdout, len(bad.stderr.splitlines())) == (64, "", 1)


def test_a_module_that_ends_the_process_is_told_of(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    settings = config.Policy(module="own_module:Leaving", placement="server")
    with pytest.raises(ProgramError, match=r"policy\.module: ended the process that looked at it"):
        probing.build(settings, SPEC)


def test_a_burn_in_needs_a_module_with_a_state(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    path, settings = str(tmp_path / "run.yaml"), ["learner.burn_in=3", "policy.recurrent_width=4"]
    assert prepare(path, [*settings, "policy.module=own_module:Attentive"]).program.state_width == 4
    with pytest.raises(config.ConfigError) as error:
        prepare(path, [*settings, "policy.module=own_module:Stateless"])
    (problem,) = error.value.problems
    assert "learner.burn_in: warms up a recurrent state, but own_module:Stateless has none" in problem
