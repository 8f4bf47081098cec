"""The first steps of a segment can be there for the recurrent state alone: they warm it up with the weights
in training, and nothing is learned from them."""

import numpy as np
import pytest
import torch
from segments import Slot

import config
from consumers.batch import Batch
from consumers.update import Update
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SPEC = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": False}
GAMMA, LAMBDA, CLIP, VALUE, ENTROPY = 0.9, 0.8, 0.2, 0.5, 0.03
HORIZON, AGENTS, WARM = 7, 6, 3


def updater(kind, **learner):
    policy = {"hidden": [8], "activation": "tanh", "recurrent": kind, "recurrent_width": 4}
    base = {
        "minibatches": 1, "batch_slots": 1, "correction": "ppo", "gamma": GAMMA, "gae_lambda": LAMBDA,
        "clip": CLIP, "value_coef": VALUE, "entropy_coef": ENTROPY, "normalize_advantage": False,
    }  # fmt: skip
    program = build(policy, SPEC)
    return Update(config.Learner(**base | learner), program, seed=3, device=CPU, bf16=False)


def slot(seed, width):
    one, rng = Slot(seed, horizon=HORIZON, agents=AGENTS, p_end=0.15), np.random.default_rng(seed)
    one.fields["state0"] = rng.normal(size=(AGENTS, width)).astype(np.float32)
    one.fields["logprob"] += rng.normal(0, 0.3, (HORIZON, AGENTS)).astype(np.float32)
    return one


def gradient_of(one, on, burn_in):
    """The gradient of the whole slot's loss, and the figures of the update."""
    seen = []

    def step(loss, learning_rate):
        seen.extend(x.clone() for x in one.optimizer.gradients)
        one.optimizer.clear()

    one.optimizer.step = step
    batch = Batch([on], device=CPU, recurrent=True, burn_in=burn_in)
    figures = one.train(batch, 0, 0)
    return torch.cat(seen), figures


def defined(model, on, burn_in, *, constant=True):
    """The same from the definition, step by step: `constant`, the state that the burn-in leaves is one."""
    f = {name: torch.from_numpy(x) for name, x in on.fields.items()}
    valid, terminated = f["valid"].bool(), f["terminated"].bool()
    ends = terminated | f["truncated"].bool()
    state, logits, values = f["state0"], [], []
    for t in range(HORIZON + 1):
        if t:
            state = torch.where((terminated[t - 1] | ~valid[t - 1])[:, None], 0.0, state)
        if t == burn_in and constant:
            state = state.detach()
        out, value, state = model.step(f["obs"][t], state)
        logits.append(out)
        values.append(value)
    errors, targets = torch.zeros(AGENTS), {}
    for t in reversed(range(burn_in, HORIZON)):
        after = torch.where(terminated[t], 0.0, values[t + 1].detach())
        error = f["reward"][t] + GAMMA * after - values[t].detach()
        going_on = (~ends[t] & valid[t]).float()
        errors = torch.where(valid[t], error + GAMMA * LAMBDA * going_on * errors, 0.0)
        targets[t] = values[t].detach() + errors, errors
    total, count = torch.zeros(()), 0
    for t, (target, advantage) in targets.items():
        log_p = logits[t].log_softmax(-1)
        chosen = log_p.gather(1, f["action"][t].long())[:, 0]
        w = (chosen - f["logprob"][t]).exp()
        policy = -torch.minimum(w * advantage, w.clamp(1 - CLIP, 1 + CLIP) * advantage)
        entropy = -(log_p.exp() * log_p).sum(-1)
        loss = policy + VALUE * 0.5 * (values[t] - target) ** 2 - ENTROPY * entropy
        total, count = total + loss[valid[t]].sum(), count + int(valid[t].sum())
    gradients = torch.autograd.grad(total / count, list(model.parameters()))
    return torch.cat([x.flatten() for x in gradients]), count


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", ["lstm", "mingru"])
def test_the_gradient_is_that_of_the_definition(kind, parts, targets):
    one = updater(kind, minibatch_parts=parts, targets=targets)
    on = slot(4, one.program.state_width)
    (expected, count), (through, _) = (
        defined(one.model, on, WARM, constant=constant) for constant in (True, False)
    )
    found, figures = gradient_of(one, on, WARM)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(through, expected, rtol=1e-2), "a gradient through the burn-in would show"
    assert figures["samples"] == count


def test_what_the_first_steps_hold_does_not_matter_but_their_observations_warm_the_state_up():
    def gradient(change):
        one = updater("lstm")
        on = slot(5, one.program.state_width)
        on.fields["terminated"][:WARM] = on.fields["truncated"][:WARM] = 0
        on.fields["valid"][: WARM + 1] = 1
        change(on.fields)
        return gradient_of(one, on, WARM)[0]

    def others(fields):
        fields["action"][:WARM] = 2
        fields["logprob"][:WARM] = -1.0
        fields["reward"][:WARM] = 9.0

    def seen(fields):
        fields["obs"][:WARM] += 1.0

    plain = gradient(lambda fields: None)
    assert torch.equal(gradient(others), plain)
    assert not torch.allclose(gradient(seen), plain, rtol=1e-3)


def test_the_steps_of_the_burn_in_are_counted_apart_from_those_that_are_too_old():
    one = updater("mingru")
    on = slot(6, one.program.state_width)
    on.fields["version"][: WARM + 1] = 2  # the last one of these is too old and not of the burn-in
    on.fields["version"][WARM + 1 :] = 5
    valid = on.fields["valid"].astype(bool)
    batch = Batch([on], device=CPU, recurrent=True, oldest_version=5, burn_in=WARM)
    figures = one.train(batch, 5, 0)
    assert figures["burn_in"] == valid[:WARM].sum()
    assert figures["masked"] == valid[WARM].sum()
    assert figures["samples"] == valid[WARM + 1 :].sum()


def test_a_segment_that_begins_anew_behind_the_burn_in_needs_no_stored_state():
    """With an end at its last step, what lies before it changes nothing."""
    found = []
    for state in (0.0, 5.0):
        one = updater("lstm")
        on = slot(7, one.program.state_width)
        on.fields["state0"][:] = state
        on.fields["terminated"][WARM - 1] = 1
        on.fields["valid"][WARM - 1 : WARM + 1] = 1
        found.append(gradient_of(one, on, WARM)[0])
    assert torch.equal(*found)
