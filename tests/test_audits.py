"""An audit finds what it looks for, passes what is right, and changes nothing that is trained."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from segments import Slot

import config
from consumers import audits
from consumers.audits import AUDITED_STEPS, POOLED_BATCHES, TARGETS_EVERY, Pool, label_limit, logit_scale
from consumers.batch import Batch
from consumers.causes import CAUSES
from consumers.corrections import CORRECTIONS, Segments, decays
from consumers.sums import FORMS, Segment, summed
from consumers.update import Update
from producers import footprint
from producers.program import build

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SPEC = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": False}


@pytest.fixture(autouse=True)
def _every_batch_is_looked_at(monkeypatch):
    monkeypatch.setattr(audits, "LOOKS_APART", 1)


def update(*, policy=None, bf16=False, versions=8, spec=SPEC, **learner):
    base = {"minibatches": 2, "epochs": 1, "learning_rate": 1e-2, "batch_slots": 2}
    program = build({"hidden": [16], "activation": "tanh"} | (policy or {}), spec)
    return Update(config.Learner(**base | learner), program, seed=3, device=CPU, bf16=bf16, versions=versions)


def slots(count=2, **options):
    return [Slot(seed, **options) for seed in range(count)]


def train(updater, on, version=0, **options):
    batch = Batch(on, device=CPU, **options)
    try:
        return updater.train(batch, version, 0)
    finally:
        batch.close()


@torch.no_grad()
def acted(updater, on, version):
    """Has the updater's weights, as `version`, say the log-probabilities of the slots' actions."""
    for slot in on:
        obs = torch.from_numpy(slot.fields["obs"][:-1])
        action = torch.from_numpy(slot.fields["action"]).long()
        if updater.program.state_width:
            slot.fields["state0"] = (
                np.random.default_rng(version)
                .normal(size=(obs.shape[1], updater.program.state_width))
                .astype(np.float32)
            )
            ended = torch.from_numpy((slot.fields["terminated"] > 0) | (slot.fields["valid"] == 0))
            reset = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])
            logits, *_ = updater.model.unroll(obs, torch.from_numpy(slot.fields["state0"]), reset)
        else:
            logits, _ = updater.model(obs)
        slot.fields["logprob"] = updater.model.log_prob(logits, action).numpy().copy()
        slot.fields["version"][:] = version
    return on


def test_bytes_that_stand_for_categories_are_audited_as_bytes():
    grid = {"rows": 4, "columns": 5, "planes": 2, "values": [3, 6]}
    obs = {"dtype": "uint8", "shape": [46], "grid": grid, "coded": 4}
    policy = {"channels": 4, "recurrent": "mingru", "recurrent_width": 8}
    updater = update(policy=policy, spec=SPEC | {"obs": obs})
    on, rng = slots(), np.random.default_rng(1)
    for slot in on:
        shape = slot.fields["obs"].shape[:2]
        cells = np.stack([rng.integers(0, n, (*shape, 20)) for n in grid["values"]], -1)
        rest = rng.integers(0, 128, (*shape, 6))
        slot.fields["obs"] = np.concatenate([cells.reshape(*shape, 40), rest], -1).astype(np.uint8)
    figures = train(updater, acted(updater, on, 0), recurrent=True)
    assert figures["audit_label_steps"] > 0
    assert figures["audit_label_error"] < 1e-5
    assert not figures["alarms"]


def names(figures):
    return {alarm.audit for alarm in figures["alarms"]}


# The label audit


@pytest.mark.parametrize("kind", [{}, {"recurrent": "mingru"}, {"recurrent": "lstm"}], ids=str)
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_labels_are_right_at_any_lag_and_a_wrong_log_probability_or_label_is_found(lag, bf16, kind):
    recurrent = bool(kind)
    updater = update(bf16=bf16, policy=kind)
    queue = []
    for version in range(8):
        queue.append(acted(updater, slots(agents=5), version))
        if len(queue) > lag:
            figures = train(updater, queue.pop(0), version, recurrent=recurrent)
            assert "label" not in names(figures), (version, figures["alarms"])
            assert figures["audit_label_error"] <= 1e-5
            assert (figures["audit_label_steps"] > 0, figures["audit_label_unaudited"]) == (True, 0)
        else:
            train(updater, acted(updater, slots(), version), version, recurrent=recurrent)
    for step in (-1, 1):
        wrong = acted(updater, slots(), 8)
        for slot in wrong:
            slot.fields["version"] += step
        assert "label" in names(train(updater, wrong, 8, recurrent=recurrent)), step
    wrong = acted(updater, slots(), 8)
    wrong[0].fields["logprob"] += np.float32(0.002)
    assert "label" in names(train(updater, wrong, 8, recurrent=recurrent))


def test_weights_that_are_no_longer_kept_are_counted_and_no_alarm():
    updater = update(versions=3)
    for version in range(5):
        first = acted(updater, slots(), version)
        if version == 1:
            old = first
        train(updater, first, version)
    figures = train(updater, old, 5)
    assert "label" not in names(figures)
    assert figures["audit_label_steps"] == 0
    assert figures["audit_label_unaudited"] == sum(int(slot.fields["valid"].sum()) for slot in old)
    assert math.isnan(figures["audit_label_error"])


def test_after_a_restart_versions_that_nobody_has_are_unaudited_and_later_ones_are_not():
    dead, successor = update(), update()
    old = acted(dead, slots(), 6)
    train(dead, acted(dead, slots(), 6), 6)
    successor.load_weights(dead.flat_weights)
    figures = train(successor, old, 7)
    assert "label" not in names(figures)
    assert figures["audit_label_unaudited"] > 0
    assert train(successor, acted(successor, slots(), 8), 8)["audit_label_steps"] > 0


def test_a_version_that_is_taken_up_again_is_audited_by_the_weights_it_has_then():
    updater = update()
    train(updater, acted(updater, slots(), 4), 4)
    updater.load_weights(updater.flat_weights * 1.5)
    assert "label" not in names(train(updater, acted(updater, slots(), 4), 4))


def test_steps_that_are_not_trained_on_are_not_compared():
    updater = update()
    train(updater, slots(), 0)
    on = acted(updater, slots(p_end=0.3), 1)
    invalid = 0
    for slot in on:
        where = slot.fields["valid"] == 0
        slot.fields["logprob"][where] = np.nan
        invalid += int(where.sum())
    assert invalid
    figures = train(updater, on, 1)
    assert "label" not in names(figures)
    assert figures["audit_label_steps"] + invalid == 2 * 8 * 6
    young, old = acted(updater, slots(), 2)
    old.fields["version"][:] = 0
    old.fields["logprob"][:] = -9.0
    figures = train(updater, [old, young], 2, oldest_version=1)
    assert "label" not in names(figures)
    assert figures["audit_label_steps"] == young.fields["valid"].sum()


def test_the_action_of_a_reset_step_widens_no_limit():
    """It is ignored: any number may stand there."""
    spec = SPEC | {"heads": [{"low": -1.0, "high": 1.0}]}
    limits = []
    for ignored in (0.0, 1e4):
        updater, on = update(spec=spec), slots(p_end=0.2)
        batch = Batch(on, device=CPU, discrete=False)
        batch.action = torch.from_numpy(np.random.default_rng(0).normal(size=batch.action.shape)).float()
        batch.action[~batch.valid] = ignored
        updater.audits.begin(batch, 0, updater.flat_weights)
        batch.close()
        limits.append(updater.audits.figures["audit_label_tolerance"])
    assert limits[0] == limits[1]


@pytest.mark.parametrize("kind", [{}, {"recurrent": "lstm"}], ids=str)
def test_behind_weights_that_nobody_has_the_state_is_unknown_and_with_it_the_rest_of_a_segment(kind):
    updater = update(policy=kind)
    on = acted(updater, slots(p_end=0.0), 5)
    for slot in on:
        slot.fields["valid"][:] = 1
        slot.fields["version"][:3] = 1
    figures = train(updater, on, 5, recurrent=bool(kind))
    assert "label" not in names(figures)
    compared = 0 if kind else 2 * 6 * (8 - 3)
    assert figures["audit_label_steps"] == compared
    assert figures["audit_label_unaudited"] == 2 * 6 * 8 - compared


@pytest.mark.parametrize("kind", [{}, {"recurrent": "lstm"}], ids=str)
def test_weights_may_change_inside_a_segment(kind):
    """Two versions act in turn; the state is handed on from one to the other."""
    updater = update(policy=kind)
    models = []
    for version in range(2):
        models.append(updater.flat_weights.clone())
        train(updater, acted(updater, slots(), version), version, recurrent=bool(kind))
    (slot,) = acted(updater, slots(1, p_end=0.0), 1)
    obs, action = torch.from_numpy(slot.fields["obs"]), torch.from_numpy(slot.fields["action"]).long()
    state = torch.from_numpy(slot.fields["state0"]) if kind else None
    helper = update(policy=kind).model
    for rows, version in ((slice(0, 3), 0), (slice(3, 8), 1)):
        helper.load_flat(models[version])
        with torch.no_grad():
            logits, _, *rest = helper(obs[rows]) if state is None else helper.unroll(obs[rows], state)
            slot.fields["logprob"][rows] = helper.log_prob(logits, action[rows]).numpy()
        slot.fields["version"][rows] = version
        state = rest[0] if rest else None
    figures = train(updater, [slot], 2, recurrent=bool(kind))
    assert figures["audit_label_error"] < 1e-5
    assert figures["audit_label_steps"] == slot.fields["valid"].sum()


@pytest.mark.parametrize(
    ("horizon", "agents", "count"), [(8, 6, 2), (8, 64, 2), (64, 7, 3), (300, 5, 1), (16, 37, 2)]
)
def test_each_batch_is_audited_in_at_least_256_steps_and_every_agent_has_its_turn(horizon, agents, count):
    batch = Batch([Slot(i, horizon=horizon, agents=agents) for i in range(count)], device=CPU)
    seen = []
    for version in range(agents * count):
        parts = [*audits._drawn(batch, version)]
        found = torch.cat([part.segments for part in parts])
        assert len(found) >= 2
        assert len(found.unique()) == len(found)
        assert len(found) * horizon >= min(AUDITED_STEPS, batch.segments * horizon)
        for part in parts:
            assert len((part.segments // agents).unique()) == 1, "one group, which acts by the same weights"
        seen.append(found)
    assert len(torch.cat(seen).unique()) == batch.segments


def test_a_look_costs_small_batches_no_more_of_their_time_than_large_ones(monkeypatch):
    """One comes with the first batch, and then one in so many steps."""
    monkeypatch.undo()
    updater, steps = update(minibatches=1), 64 * 64
    every, looks = -(-audits.LOOKS_APART // steps), []
    for version in range(2 * every + 1):
        slot = Slot(version, horizon=64, agents=64)
        acted(updater, [slot], version)
        updater.audits.begin(Batch([slot], device=CPU), version, updater.flat_weights)
        looks.append(updater.audits.figures["audit_label_steps"] > 0)
        assert math.isnan(updater.audits.figures["audit_label_error"]) != looks[-1]
    assert every == 4
    assert [i for i, looked in enumerate(looks) if looked] == [0, every, 2 * every]


def test_a_look_that_found_no_weights_to_compare_with_is_made_up_for_by_the_next_batch(monkeypatch):
    """Else a learner that is started again often would never audit small batches."""
    monkeypatch.undo()
    updater, looks = update(minibatches=1), []
    for version, acting in ((5, 4), (6, 4), (6, 5), (7, 6)):  # as behind a restart at version 5
        slot = Slot(version, horizon=64, agents=64)
        acted(updater, [slot], acting)
        updater.audits.begin(Batch([slot], device=CPU), version, updater.flat_weights)
        figures = updater.audits.figures
        looks.append((figures["audit_label_steps"] > 0, figures["audit_label_unaudited"] > 0))
    assert looks == [(False, True), (False, True), (True, False), (False, False)]


def test_the_limit_grows_with_what_rounding_does():
    assert label_limit(1, 1.0) == 1e-3
    assert label_limit(4, 100.0) == pytest.approx(3 * (8e-4 + 1e-3))
    logits = torch.tensor([[3.0, -40.0]])
    assert logit_scale(logits, None, torch.tensor([[0]])) == 40.0
    mean, log_std, action = torch.tensor([[2.0]]), torch.tensor([math.log(0.1)]), torch.tensor([[2.3]])
    assert logit_scale(mean, log_std, action) == pytest.approx(2.0 * 3.0 / 0.1, rel=1e-4)


def test_a_collapsed_gaussian_ends_no_learner():
    """Its deviation has become 0 in float32."""
    mean, log_std, action = torch.tensor([[2.0]]), torch.tensor([-200.0]), torch.tensor([[2.0]])
    assert logit_scale(mean, log_std, action) > 1e30
    assert logit_scale(mean, log_std, action + 1) > 1e60


# The mean ratio


def test_a_policy_that_has_left_every_action_behind_is_no_alarm_and_ends_no_learner():
    pool = Pool()
    pool.add(torch.full((8, 4), -60.0), None)
    mean, limit = pool.judge()
    assert mean == pytest.approx(0.0, abs=1e-6)
    assert math.isnan(limit)


def drawn(rng, horizon=8, agents=16, spread=0.3, shift=0.0):
    """log w of a segment's steps that go together, whose mean w is exp(shift)."""
    common = rng.normal(size=(1, agents)) * spread
    own = rng.normal(size=(horizon, agents)) * spread
    return torch.tensor(common + own - spread**2 + shift, dtype=torch.float32)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dropped=st.sampled_from([0.0, 0.4]))
def test_the_standard_error_is_that_of_the_sums_of_segments(seed, dropped):
    rng, pool = np.random.default_rng(seed), Pool()
    sums, counts, largest = [], [], 0.0
    for _ in range(4):
        x = drawn(rng)
        kept = torch.tensor(rng.random(x.shape) >= dropped)
        pool.add(torch.where(kept, x, math.nan), None if dropped == 0.0 else kept)
        for segment, keeps in zip(x.double().exp().T, kept.T, strict=True):
            ours = segment[keeps].numpy()
            sums.append(ours.sum())
            counts.append(len(ours))
            largest = max(largest, ours.max(initial=0.0))
    sums, counts = np.array(sums), np.array(counts)
    mean = sums.sum() / counts.sum()
    error = np.sqrt(((sums - mean * counts) ** 2).sum() + (10 * largest) ** 2) / counts.sum()
    found, limit = pool.judge()
    assert found == pytest.approx(mean, rel=1e-5)
    assert limit == pytest.approx(0.01 + 6 * error, rel=1e-4)


def test_steps_that_go_together_give_no_false_alarm_and_a_mean_that_is_off_is_found():
    rng, furthest = np.random.default_rng(0), 0.0
    for _ in range(100):
        pool = Pool()
        for _ in range(20):
            pool.add(drawn(rng), None)
        mean, limit = pool.judge()
        furthest = max(furthest, abs(mean - 1.0) / limit)
    assert furthest < 0.8
    for shift in (-0.1, 0.1):
        pool = Pool()
        for _ in range(POOLED_BATCHES):
            pool.add(drawn(rng, agents=64, shift=shift), None)
        mean, limit = pool.judge()
        assert abs(mean - 1.0) > limit


def test_an_action_that_nearly_always_was_taken_and_no_longer_is_gives_no_false_alarm():
    """Of the ratios 0.3 and 701 no step is likely to show the second; all others agree on the first."""
    acting, now = 0.999, 0.3
    pool = Pool()
    for _ in range(POOLED_BATCHES):
        pool.add(torch.full((4, 4), math.log(now / acting)), None, torch.full((4, 4), math.log(acting)))
    mean, limit = pool.judge()
    assert mean == pytest.approx(now / acting)
    steps = POOLED_BATCHES * 16
    variance = acting * (now / acting - 1) ** 2 + (1 - acting) * ((1 - now) / (1 - acting) - 1) ** 2
    error = math.sqrt(steps * variance + (10 * now / acting) ** 2) / steps
    assert limit == pytest.approx(0.01 + 6 * error, rel=1e-3)
    assert abs(mean - 1.0) < limit


def test_where_actions_are_drawn_as_told_what_may_be_unseen_leaves_the_standard_error_as_it_is():
    rng = np.random.default_rng(0)
    acting, now = (np.array(p) for p in ([0.5, 0.3, 0.2], [0.45, 0.35, 0.2]))
    known, plain = Pool(), Pool()
    for _ in range(POOLED_BATCHES):
        action = rng.choice(3, size=(16, 64), p=acting)
        log_ratio = torch.tensor(np.log(now / acting)[action], dtype=torch.float32)
        known.add(log_ratio, None, torch.tensor(np.log(acting)[action], dtype=torch.float32))
        plain.add(log_ratio, None)
    assert known.judge()[0] == plain.judge()[0]
    assert known.judge()[1] < 1.1 * plain.judge()[1]


def test_a_mean_that_few_steps_make_is_undecided():
    rng, pool = np.random.default_rng(1), Pool()
    for _ in range(20):
        pool.add(drawn(rng, spread=1.6), None)
    assert math.isnan(pool.judge()[1])
    assert all(math.isnan(x) for x in Pool().judge())


@pytest.mark.parametrize(
    "options", [{"targets": "minibatch", "minibatches": 4}, {"epochs": 4, "minibatches": 4}], ids=str
)
def test_ratios_count_as_they_are_before_any_training_on_their_steps(options, monkeypatch):
    """At lag 0 they are 1 then, and far from it after steps as large as these."""
    monkeypatch.setattr(audits, "POOLED_BATCHES", 10)
    updater = update(learning_rate=0.05, correction="ppo", **options)
    judged = []
    for version in range(20):
        figures = train(updater, acted(updater, slots(agents=8), version), version)
        judged += [figures["audit_ratio_mean"]] * (not math.isnan(figures["audit_ratio_mean"]))
        assert "ratio" not in names(figures)
    assert len(judged) == 2
    assert judged == pytest.approx([1.0, 1.0], abs=1e-5)


# The target audit


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    arm=st.sampled_from(sorted(CORRECTIONS)),
    horizon=st.sampled_from([1, 2, 9]),
    p_end=st.sampled_from([0.0, 0.3]),
    lambda_=st.sampled_from([0.0, 0.8, 1.0]),
)
def test_every_arm_estimates_the_sum_that_it_is_audited_by(seed, arm, horizon, p_end, lambda_):
    fields = Slot(seed, horizon=horizon, agents=3, p_end=p_end).fields
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(horizon + 1, 3)).astype(np.float32) * 3
    log_ratio = rng.normal(size=(horizon, 3)).astype(np.float32)
    flags = [fields[name] > 0 for name in ("terminated", "truncated", "valid")]
    s = config.Learner(correction=arm, gamma=0.9, gae_lambda=lambda_, rho_clip=1.3, c_clip=1.1)
    tensors = [torch.tensor(x) for x in (*flags, values, fields["reward"], log_ratio)]
    discounts, traces = decays(*tensors[:3], gamma=s.gamma, lambda_=s.gae_lambda)
    segments = Segments(tensors[3], tensors[4], discounts, traces, tensors[2])
    target, advantage = CORRECTIONS[arm].estimate(segments, tensors[5], s)
    for b in range(3):
        one = [x[:, b].astype(float) for x in (values, fields["reward"])]
        segment = Segment(*one, *(x[:, b] for x in flags), log_ratio[:, b].astype(float))
        sums = summed(segment, FORMS[arm], s)
        np.testing.assert_allclose(target[:, b], sums.targets, atol=1e-6 * max(1, sums.size), rtol=0)
        np.testing.assert_allclose(advantage[:, b], sums.advantages, atol=1e-6 * max(1, sums.size), rtol=0)


def test_every_arm_has_a_sum_and_every_audit_a_cause():
    assert FORMS.keys() == CORRECTIONS.keys()
    assert {name: form.of_target for name, form in FORMS.items()} == {
        name: arm.target for name, arm in CORRECTIONS.items()
    }
    assert CAUSES.keys() == {"label", "ratio", "target", "precision"}


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_segment_is_summed_up_now_and_then_in_the_units_of_the_rewards(targets, normalize):
    updater = update(targets=targets, normalize_value=normalize, minibatches=4, correction="vtrace")
    told = []
    for version in (*range(3), TARGETS_EVERY, 2 * TARGETS_EVERY):
        figures = train(updater, slots(agents=8), version)
        told.append(figures["audit_target_error"])
        assert "target" not in names(figures)
    assert [math.isnan(x) for x in told] == [False, True, True, False, False]
    assert max(x for x in told if not math.isnan(x)) < 1e-5


def test_what_a_reset_step_holds_keeps_no_segment_from_being_summed_up():
    updater, on = update(correction="vtrace"), slots(p_end=0.0)
    for slot in on:
        slot.fields["truncated"][2], slot.fields["valid"][3] = 1, 0
        slot.fields["reward"][3] = slot.fields["logprob"][3] = np.nan
    figures = train(updater, on)
    assert figures["audit_target_error"] < 1e-6
    assert "target" not in names(figures)


def test_what_no_number_comes_of_is_not_summed_up():
    updater, on = update(), slots()
    for slot in on:
        slot.fields["reward"][:] = np.nan
    figures = train(updater, on, 0)
    assert "target" not in names(figures)
    assert math.isnan(figures["audit_target_error"])


# Precision, and all of them


def test_bfloat16_may_change_log_probabilities_a_little_and_not_much():
    def gap(scale):
        updater = update(bf16=True)
        updater.load_weights(updater.flat_weights * scale)
        return train(updater, acted(updater, slots(agents=16), 0), 0)

    fine = gap(1.0)
    assert 0.0 < fine["precision_gap"] < 0.01
    assert names(fine) == set()
    coarse = gap(1e4)
    assert names(coarse) == {"precision"}
    assert math.isnan(train(update(), slots(), 0)["precision_gap"]), "there is none in float32"


@pytest.mark.parametrize(
    "options", [{}, {"targets": "minibatch"}, {"bf16": True}, {"policy": {"recurrent": "lstm"}}], ids=str
)
def test_audits_change_nothing_that_is_trained(options, monkeypatch):
    found = []
    for audited in (True, False):
        updater = update(**options)
        if not audited:
            plain = SimpleNamespace(
                begin=lambda batch, version, flat: flat.clone(), ratios=lambda *_: None,
                sums_up=lambda version: False, figures={}, alarms=[],
            )  # fmt: skip
            monkeypatch.setattr(updater, "audits", plain)
        for version in range(3):
            on = acted(updater, slots(), version)
            train(updater, on, version, recurrent=bool(updater.program.state_width))
        found.append((updater.flat_weights.clone(), updater.generator.get_state()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_weights_that_are_kept_are_bounded_in_memory(monkeypatch):
    monkeypatch.setattr(footprint, "KEPT_BYTES", 4 * 4 * update().program.count)
    updater = update(versions=100)
    for version in range(9):
        train(updater, slots(), version)
    assert sorted(updater.audits._kept) == [5, 6, 7, 8]
