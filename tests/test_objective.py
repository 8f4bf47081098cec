"""The objective is what its parts say, and the native one is the one that torch composes of the corrections,
its gradient included."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import config
from consumers import objective
from consumers.corrections import CORRECTIONS, Steps, decays
from consumers.models import PolicyModel
from consumers.normalizers import ValueStatistics
from consumers.objective import Fields, NativeObjective, TorchObjective, View, choose
from producers.program import build

CPU = torch.device("cpu")
NATIVE = sorted(name for name, arm in CORRECTIONS.items() if arm.native)


def model_of(choices):
    heads = [{"choices": n} for n in choices]
    spec = {"obs": {"dtype": "float32", "shape": [4]}, "heads": heads, "mask": False}
    return PolicyModel(build({"hidden": [4], "activation": "tanh"}, spec))


class Case:
    """A minibatch of random steps, T of m segments, as both objectives get it."""

    def __init__(
        self, seed, horizon, segments, choices, *, prior, masked, partial, anchored=False, **learner
    ):
        """`anchored`: prox is not the policy at batch start."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator)

        def chance(p, *shape):
            return torch.rand(shape, generator=generator) < p

        t_m, rows, width = (horizon, segments), horizon + (not prior), sum(choices)
        self.model = model_of(choices)
        # As the model lays them out: column by column.
        self.logits = normal(width, rows * segments).t().unflatten(0, (rows, segments)).detach()
        self.output = normal(rows, segments)
        action = torch.stack([torch.randint(n, t_m, generator=generator) for n in choices], -1)
        mask = None
        if masked:
            mask = chance(0.6, *t_m, width)
            for head, first in enumerate(itertools.accumulate((0, *choices[:-1]))):
                mask.scatter_(2, action[..., head : head + 1] + first, True)
        valid = chance(0.8, *t_m) if partial else None
        kept = valid & chance(0.8, *t_m) if partial else None
        discounts, traces = decays(chance(0.1, *t_m), chance(0.1, *t_m), valid, gamma=0.97, lambda_=0.9)
        behaviour, rewards = -normal(*t_m).abs() - 0.3, normal(*t_m)
        self.steps = Fields(action, behaviour, rewards, discounts, traces, valid, kept, mask)
        self.prior = None
        if prior:
            start = behaviour + 0.3 * normal(*t_m)
            prox = start + 0.1 * normal(*t_m) if anchored else start
            self.prior = View(start, *(normal(*t_m) for _ in range(3)), normal(1, segments), prox)
        self.settings = config.Learner(rho_clip=1.2, c_clip=0.9, tis_cap=1.5, **learner)
        self.values = ValueStatistics()
        if self.settings.normalize_value:
            self.values.weight, self.values.first, self.values.second = 1.0, 3.0, 34.0

    def run(self, kind):
        """Figures, view, and the gradients of logits and output."""
        logits, output = (x.clone().requires_grad_() for x in (self.logits, self.output))
        outcome = kind(self.settings, self.model, self.values)(logits, output, self.steps, self.prior, 0.02)
        outcome.backward()
        return outcome, logits.grad, output.grad


def assert_equal(case):
    (exact, *gradients), (native, *native_gradients) = (
        case.run(kind) for kind in (TorchObjective, NativeObjective)
    )
    torch.testing.assert_close(native.figures, exact.figures, rtol=2e-5, atol=2e-6)
    count = case.steps.rewards.numel()
    for a, b in zip(native_gradients, gradients, strict=True):
        torch.testing.assert_close(a * count, b * count, rtol=1e-4, atol=5e-5)
    kept = case.steps.kept
    for a, b in zip(native.view, exact.view, strict=True):
        some = kept if kept is not None and len(a) == len(kept) else ...
        a, b = a[some], b[some]
        torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-5)


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    horizon=st.integers(1, 7),
    segments=st.sampled_from([1, 3, 15, 16, 17, 40]),
    choices=st.sampled_from([(3,), (2, 4), (1,), (5, 1, 2)]),
    correction=st.sampled_from(NATIVE),
    prior=st.booleans(),
    masked=st.booleans(),
    partial=st.booleans(),
    normalize_advantage=st.booleans(),
    normalize_value=st.booleans(),
    value_clip=st.sampled_from([None, 0.3]),
)
def test_any_minibatch_gives_the_same_figures_targets_and_gradients(**options):
    assert_equal(Case(options.pop("seed"), options.pop("horizon"), options.pop("segments"), **options))


@pytest.mark.parametrize("correction", NATIVE)
@pytest.mark.parametrize("prior", [False, True])
def test_a_step_that_is_not_valid_may_allow_no_choice(correction, prior):
    case = Case(3, 6, 9, (2, 3), prior=prior, masked=True, partial=True, correction=correction)
    case.steps.mask[~case.steps.valid] = False
    assert not case.steps.mask.any(-1).all()
    assert_equal(case)


@pytest.mark.parametrize("correction", sorted(CORRECTIONS))
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("anchored", [False, True])
def test_figures_are_those_of_the_steps_that_count(correction, partial, anchored):
    """From the log-probabilities of the actions, step by step in numpy."""
    options = {"prior": True, "masked": False, "partial": partial, "anchored": anchored}
    bounds = {"pg_rho_clip": 1.1, "mis_cap": 1.2, "mis_veto": 0.5, "m2po_bound": 0.3, "decoupled_cap": 2.0}
    bounds |= {"impact_rho": 1.1, "normalize_advantage": False}
    case = Case(8, 6, 9, (3,), **options, **bounds, correction=correction)
    outcome, *_ = case.run(TorchObjective)
    got = dict(zip(objective.COLUMNS, outcome.figures.tolist(), strict=True))
    s, arm, steps = case.settings, CORRECTIONS[correction], case.steps
    kept = np.ones(steps.rewards.shape, bool) if steps.kept is None else steps.kept.numpy()
    pi = case.model.log_prob(case.logits, steps.action).numpy().astype(float)
    mu, prox, a = steps.behaviour.numpy(), case.prior.proximal.numpy(), case.prior.advantage.numpy()
    start = case.prior.log_prob.numpy()
    each = arm.policy_loss(Steps(*map(torch.tensor, (pi, mu, prox, a, kept))), s)
    anchor = prox if correction in ("none", "tis", "mis", "decoupled") else mu
    if correction == "impact":
        anchor = pi - np.log(np.minimum(np.exp(mu - prox), s.impact_rho) * np.exp(pi - mu))
    value = 0.5 * (case.output.numpy() - case.prior.target.numpy()) ** 2
    taking_part = kept if each.kept is None else each.kept.numpy()
    expected = {
        "loss_policy": each.loss.numpy()[taking_part].mean(),
        "loss_value": value[kept].mean(),
        "clipped_ratio": (abs(np.exp(pi - anchor) - 1) > s.clip)[kept].mean(),
        "bounded_weight": 0.0 if each.bounded is None else each.bounded.numpy()[kept].mean(),
        "approx_kl": (np.exp(pi - mu) - 1 - (pi - mu))[kept].mean(),
        "update_kl": (np.exp(pi - start) - 1 - (pi - start))[kept].mean(),
    }
    for name, x in expected.items():
        assert got[name] == pytest.approx(x, rel=1e-4, abs=1e-6), name
    total = got["loss_policy"] + s.value_coef * got["loss_value"] - 0.02 * got["loss_entropy"]
    assert got["loss_total"] == pytest.approx(total, rel=1e-5)
    if correction in ("mis", "m2po"):
        assert taking_part.sum() < kept.sum()
        assert got["bounded_weight"] == pytest.approx(1 - taking_part.sum() / kept.sum())


def test_a_minibatch_of_full_size_agrees():
    assert_equal(Case(1, 64, 128, (3,), prior=False, masked=False, partial=False, correction="vtrace"))


def test_what_is_left_out_may_be_anything():
    case = Case(2, 6, 9, (3,), prior=False, masked=False, partial=True, correction="vtrace")
    before, *gradients = case.run(NativeObjective)
    out = ~case.steps.valid
    case.steps.rewards[out] = float("nan")
    case.steps.behaviour[out] = float("inf")
    after, *more = case.run(NativeObjective)
    assert torch.equal(before.figures, after.figures)
    for a, b in zip(gradients, more, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("where", ["logits", "output", "rewards"])
def test_what_is_not_a_number_shows_in_the_loss(where):
    case = Case(3, 6, 9, (3,), prior=False, masked=False, partial=False, correction="vtrace")
    tensor = case.steps.rewards if where == "rewards" else getattr(case, where)
    tensor[2, 3] = float("nan")
    figures = case.run(NativeObjective)[0].figures
    assert torch.isnan(figures[objective.COLUMNS.index("loss_total")])


def test_only_valid_kept_steps_get_a_gradient():
    case = Case(4, 6, 9, (3,), prior=True, masked=False, partial=True, correction="tis")
    _, logits, output = case.run(NativeObjective)
    kept = case.steps.kept
    assert (logits[~kept] == 0).all()
    assert (output[~kept] == 0).all()
    assert (output[kept] != 0).all()


def test_a_masked_choice_gets_no_gradient():
    case = Case(5, 6, 9, (4,), prior=True, masked=True, partial=False, correction="ppo")
    _, logits, _ = case.run(NativeObjective)
    assert not case.steps.mask.all()
    assert (logits[~case.steps.mask] == 0).all()


def test_the_native_form_is_taken_where_there_is_one_and_when_it_is_asked_for():
    model, values = model_of((3,)), ValueStatistics()

    def kind(**learner):
        return type(choose(config.Learner(**learner), model, values, CPU))

    assert kind() is NativeObjective
    assert kind(loss="torch") is TorchObjective
    assert kind(loss="native") is NativeObjective
    assert type(choose(config.Learner(), model, values, torch.device("cuda"))) is TorchObjective
    assert kind(correction="decoupled") is TorchObjective
    assert kind(correction="tis") is NativeObjective
    assert kind(correction="tis", proximal="ewma") is TorchObjective
    with pytest.raises(ValueError, match="correction decoupled has no native form"):
        kind(correction="decoupled", loss="native")


def test_a_missing_library_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(objective, "LIBRARY", tmp_path / "loss.so")
    with pytest.raises(OSError, match=r"loss\.so is missing or broken; run: make build"):
        NativeObjective(config.Learner(), model_of((3,)), ValueStatistics())


def test_a_library_of_another_abi_says_what_to_run(monkeypatch):
    case = Case(6, 2, 2, (3,), prior=False, masked=False, partial=False, correction="vtrace")
    monkeypatch.setattr(objective, "ABI", 99)
    with pytest.raises(OSError, match="another ABI; run: make build"):
        case.run(NativeObjective)


def test_tensors_that_do_not_lie_side_by_side_are_refused():
    case = Case(7, 4, 6, (3,), prior=False, masked=False, partial=False, correction="vtrace")
    case.steps = case.steps._replace(rewards=case.steps.rewards.t().contiguous().t())
    with pytest.raises(ValueError, match="not contiguous"):
        case.run(NativeObjective)
