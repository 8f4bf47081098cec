"""Parts of a minibatch change nothing but rounding, whatever is a matter of the whole of it."""

import math
import threading

import numpy as np
import pytest
import torch
from segments import Slot

import config
from config import rules
from consumers.batch import Batch, Pieces, pieces
from consumers.corrections import CORRECTIONS
from consumers.peers import Alone
from consumers.update import Update
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
DISCRETE = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": True}
CONTINUOUS = DISCRETE | {"heads": [{"low": -1.0, "high": 1.0}], "mask": False}
OPTIONS = {  # each is a matter of the whole minibatch or the whole batch
    "learning_rate": 0.02, "epochs": 2, "minibatches": 2, "batch_slots": 2, "value_clip": 0.3,
    "normalize_value": True, "max_lag": 1, "gamma": 0.9,
}  # fmt: skip
ARMS = [(name, "batch") for name in CORRECTIONS] + [
    (name, "minibatch") for name in CORRECTIONS if name not in rules.PROXIMAL
]


def updater(spec=DISCRETE, policy=None, peers=None, **learner):
    program = build({"hidden": [8], "activation": "tanh"} | (policy or {}), spec)
    settings = config.Learner(**OPTIONS | learner)
    return Update(settings, program, seed=3, device=CPU, bf16=False, peers=peers)


def slots(model, seed, *, horizon=6, agents=6):
    """Two slots of experience some way off the policy: steps that are not valid, steps too old to be kept,
    more of them in some segments than in others, and in some segments nothing else."""
    found = []
    for i in range(2):
        slot = Slot(10 * seed + i, horizon=horizon, agents=agents, p_end=0.2)
        rng = np.random.default_rng(seed)
        fields = slot.fields
        fields["version"] = np.full((horizon, 1), 5 - 3 * i, np.int64)  # the second one's are too old
        if i == 1:
            fields["version"][horizon // 2 :] = 5
        if model.program.continuous:
            fields["action"] = rng.normal(size=fields["action"].shape).astype(np.float32)
        if model.program.state_width:
            fields["state0"] = rng.normal(size=(agents, model.program.state_width)).astype(np.float32)
        fields["logprob"] = (fields["logprob"] + rng.normal(0, 0.5, (horizon, agents))).astype(np.float32)
        found.append(slot)
    return found


def train(one, *, updates=2, burn_in=0):
    """What the updates come to: weights, and the last figures."""
    program = one.program
    for version in range(5, 5 + updates):
        batch = Batch(
            slots(one.model, version), device=CPU, has_mask=program.mask is not None,
            discrete=not program.continuous, recurrent=program.state_width > 0, oldest_version=4,
            burn_in=burn_in,
        )  # fmt: skip
        figures = one.train(batch, version, 0)
        batch.close()
    return one.flat_weights.clone(), figures


def assert_equal(divided, whole, *, rtol=2e-4):
    """Weights and figures, but for rounding."""
    torch.testing.assert_close(divided[0], whole[0], rtol=rtol, atol=2e-6)
    for name, x in whole[1].items():
        if isinstance(x, int | float):
            other = divided[1][name]
            same = math.isnan(x) and math.isnan(other)
            assert same or other == pytest.approx(x, rel=20 * rtol, abs=1e-5), name


CASES = [(kind, *arm) for kind in ("none", "mingru") for arm in ARMS] + [("lstm", "mis", "batch")]


@pytest.mark.parametrize(("recurrent", "correction", "targets"), CASES)
def test_each_arm_learns_the_same_from_parts(recurrent, correction, targets):
    policy = {"recurrent": recurrent, "recurrent_width": 4}
    options = {"correction": correction, "targets": targets, "epochs": 2 if targets == "batch" else 1}
    options |= {"ess_learning_rate": targets == "batch", "mis_veto": 0.2, "m2po_bound": 0.1}
    whole = train(updater(policy=policy, **options))
    start = updater(policy=policy, **options).flat_weights
    assert float((whole[0] - start).abs().max()) > 1e-3, "it has learned something"
    assert_equal(train(updater(policy=policy, minibatch_parts=3, **options)), whole)


@pytest.mark.parametrize("correction", rules.AVERAGED)
def test_an_average_of_the_weights_is_the_same_from_parts(correction):
    options = {"correction": correction, "proximal": "ewma", "mis_veto": 0.2}
    assert_equal(train(updater(minibatch_parts=3, **options)), train(updater(**options)))


@pytest.mark.parametrize("correction", ["vtrace", "m2po", "tis"])
def test_continuous_actions_are_learned_the_same_from_parts(correction):
    """The deviation of the actions gets its gradient from the loss itself."""
    options = {"spec": CONTINUOUS, "correction": correction}
    assert_equal(train(updater(minibatch_parts=2, **options)), train(updater(**options)))


@pytest.mark.parametrize(
    "options",
    [{"normalize_advantage": False}, {"normalize_advantage": False, "targets": "minibatch", "epochs": 1},
     {"correction": "tis", "loss": "torch"}, {"correction": "tis", "target_kl": 1e-4},
     {"correction": "mis", "burn_in": 2}, {"correction": "tis", "burn_in": 2}],
)  # fmt: skip
def test_other_settings_mean_the_same_for_parts(options):
    policy = {"recurrent": "mingru", "recurrent_width": 4}
    run = {"burn_in": options.get("burn_in", 0)}
    whole = train(updater(policy=policy, **options), **run)
    assert_equal(train(updater(policy=policy, minibatch_parts=3, **options), **run), whole)


class Pair(Alone):
    """Two learners in one process; with the methods of Group."""

    count = 2

    def __init__(self, index, table, meeting):
        super().__init__()
        self.index, self.leads, self._table, self._meeting = index, index == 0, table, meeting

    def gather(self, mine):
        self._table[self.index] = mine
        self._meeting.wait(20)
        found = list(self._table)
        self._meeting.wait(20)
        return found

    def average(self, values, weight):
        each = self.gather((values.clone(), weight))
        total = sum(w for _, w in each)
        return sum(x * w for x, w in each) / total if total else values * 0.0, total


@pytest.mark.parametrize("correction", ["tis", "mis", "m2po"])
def test_several_learners_learn_the_same_from_parts(correction):
    def together(**options):
        table, meeting, found = [None, None], threading.Barrier(2), [None, None]

        def learn(index):
            peers = Pair(index, table, meeting)
            found[index] = train(updater(correction=correction, peers=peers, **options))

        threads = [threading.Thread(target=learn, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.equal(found[0][0], found[1][0])
        return found[0]

    assert_equal(together(minibatch_parts=3), together())


def test_activations_are_those_of_one_part_at_a_time():
    """The largest number of segments that the network is run over, with or without gradients."""
    for options in ({}, {"correction": "m2po"}, {"correction": "impact"}):
        one = updater(minibatch_parts=3, **options)
        seen = []
        one.model.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].shape[1]))
        train(one, updates=1)
        assert max(seen) == 2, "of minibatches of 6 segments"
        one.examine(Batch(slots(one.model, 1), device=CPU, has_mask=True))
        assert max(seen) == 2


def test_a_part_is_the_segments_of_the_minibatch_in_their_order():
    x = torch.arange(3 * 24).view(3, 24)
    for part in (
        pieces(torch.tensor([0, 2, 3]), 4, CPU),
        pieces(torch.arange(1), 24, CPU),
        Pieces(torch.arange(3, 9), 1, [(3, 9)]),
    ):
        for count in (1, 2, 3, 6):
            parts = part.split(count)
            assert len(parts) == count
            assert {one.size for one in parts} == {part.size // count}
            assert torch.equal(torch.cat([one.take(x) for one in parts], 1), part.take(x))
            assert torch.equal(torch.cat([one.segments for one in parts]), part.segments)
            runs = [segment for one in parts for run in one.runs for segment in range(*run)]
            assert runs == part.segments.tolist()
    with pytest.raises(ValueError, match="cannot be divided into 7 parts"):
        part.split(7)
