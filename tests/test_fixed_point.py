"""What values come to, from a producer's slots through batch, targets, loss and optimizer, when one policy
acts and another one is learned: with V-trace the fixed point known in closed form, without it another one."""

from itertools import islice

import numpy as np
import pytest
import torch
from closed_forms import process, random_policy

import config
from bench.rig import Rig
from consumers.batch import Batch
from consumers.models import PolicyModel
from consumers.update import Update

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
STATES, ACTIONS, GAMMA = 4, 3, 0.9
TASK = {"ending": 0.1, "max_steps": 7}  # most episodes are truncated, many terminate
GROUPS, UPDATES = 8, 70  # slots, each for a learner of its own; updates of such a learner
ERRORS = 5.5  # standard errors that a mean may be off
RUN = """\
run: {name: toy, seed: 5}
sim: {name: tabular, ending: 0.1, max_steps: 7}
producers: {count: 1, agents: 256, cores: [0]}
rollout: {horizon: 32}
ring: {slots: 3}
policy: {hidden: []}
learner: {batch_slots: 1}
"""


class Held:
    """A slot that is no longer leased."""

    def __init__(self, lease):
        names = (name for name in lease.plan.fields if name != "episodes")
        self._fields = {name: lease.array(name).copy() for name in names}

    def array(self, name):
        return self._fields[name]


def tables(model):
    """The weights of logits [ACTIONS, STATES] and value [1, STATES]; states are unit vectors."""
    by_shape = {tuple(parameter.shape): parameter for parameter in model.parameters()}
    return by_shape[ACTIONS, STATES], by_shape[1, STATES]


@torch.no_grad()
def set_policy(model, policy):
    tables(model)[0].copy_(torch.from_numpy(np.log(policy).T))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(behaviour, policy, program, slots): what a producer played with the first of the policies."""
    generator = np.random.default_rng(11)
    behaviour, policy = (random_policy(generator, STATES, ACTIONS, spread=1.2) for _ in range(2))
    path = tmp_path_factory.mktemp("played") / "run.yaml"
    path.write_text(RUN)
    with Rig(path) as rig:
        model = PolicyModel(rig.prepared.program)
        set_policy(model, behaviour)
        rig.publish(0, model.flat_weights().numpy())
        rig.spawn()
        rig.grant()
        slots = []
        for lease in islice(rig.leases(), GROUPS):
            slots.append(Held(lease))
            lease.ack()
            rig.grant()
    return behaviour, policy, model.program, slots


def learned(played, slot, **learner):
    """The values [STATES] that come of one slot, while the policy stays as it is."""
    _, policy, program, _ = played
    steps = UPDATES * 256 * 32
    rate = config.Schedule(start=0.05, end=0.0, kind="cosine", steps=steps)
    base = {
        "minibatches": 1,
        "gamma": GAMMA,
        "gae_lambda": 0.8,
        "learning_rate": rate,
        "max_grad_norm": None,
        "normalize_advantage": False,
    }
    updater = Update(config.Learner(**base | learner), program, seed=1, device=CPU, bf16=False)
    set_policy(updater.model, policy)
    logits, values = tables(updater.model)
    for parameter in updater.model.parameters():
        if parameter is not values:  # biases are 0
            parameter.register_hook(torch.zeros_like)
    before = logits.detach().clone()
    for version in range(UPDATES):
        batch = Batch([slot], device=CPU)
        figures = updater.train(batch, version + 1, steps * version // UPDATES)
        batch.close()
        assert figures["skipped"] == 0
    assert torch.equal(logits, before)
    assert figures["update_ratio"] < 1e-4, "still on its way"
    return values.detach()[0].numpy().astype(float)


OTHERS = [pytest.param(arm, marks=pytest.mark.soak) for arm in ("vtrace_pg", "puff", "impact", "decoupled")]


@pytest.mark.parametrize("arm", ["vtrace", "none", *OTHERS])
def test_with_vtrace_values_reach_its_fixed_point_and_without_they_do_not(played, arm):
    behaviour, policy, _, slots = played
    task = process(**TASK)
    each = np.array([learned(played, slot, correction=arm) for slot in slots])
    mean, error = each.mean(0), each.std(0, ddof=1) / GROUPS**0.5
    assert error.max() < 0.02
    fixed, acted = task.vtrace_value(behaviour, policy, 1.0, GAMMA), task.value(behaviour, GAMMA)
    corrected = arm in ("vtrace", "vtrace_pg", "puff", "impact")
    right, wrong = (fixed, acted) if corrected else (acted, fixed)
    assert (np.abs(mean - right) < ERRORS * error).all()
    assert (np.abs(mean - wrong) > 2 * ERRORS * error).any()
