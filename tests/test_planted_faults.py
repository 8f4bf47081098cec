"""A fault that is planted in a run, from the C producer to the learner, is found by the audit that is there
for it; and no audit speaks up without one."""

import itertools
import os
import random
import time

import pytest
import torch
from native import DATA, compile_simulator
from planted import TASKS, Line, build_producer

import consumers.audits
import consumers.batch
import consumers.objective
import consumers.update
from consumers.corrections import CORRECTIONS, Segments, decays
from consumers.models import PolicyModel

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "60"))


@pytest.fixture(autouse=True)
def _threads():
    """A learner sets them for its process, which is ours."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _every_batch_is_looked_at(monkeypatch):
    """These runs are too small for their faults to be met otherwise."""
    monkeypatch.setattr(consumers.audits, "LOOKS_APART", 1)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    return compile_simulator((DATA / "relay.c").read_text(), folder / "relay.so")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    return build_producer(tmp_path_factory.mktemp("faulty"))


# In the producer


@pytest.mark.parametrize(
    ("plant", "task"),
    [
        ("label-1", "cartpole"),
        ("label+1", "tabular"),
        ("stale", "pendulum"),
        ("unreset", "memory"),
        ("unreset", "memory-lstm"),
        ("bf16", "cartpole"),
        ("unmasked", "masked"),
    ],
)
def test_the_label_audit_finds_an_actor_that_is_not_the_weights_it_names(
    plant, task, tmp_path, faulty, masked
):
    with Line(tmp_path, task, "stop.versions=12", producer=faulty, masked=masked) as line:
        assert line.run(plant) == {"label"}
        assert "labelled" in line.events()[0]["cause"]


def test_a_producer_that_could_be_faulty_and_is_not_gives_no_alarm(tmp_path, faulty, masked):
    with Line(tmp_path, "masked", producer=faulty, masked=masked) as line:
        assert line.run() == set()


def test_the_ratio_audit_finds_an_actor_whose_actions_are_not_drawn_as_it_says(tmp_path, faulty):
    """It takes the likeliest action and tells the truth about how likely that was."""
    with Line(tmp_path, "tabular", "staleness.exact=4", "ring.slots=8", producer=faulty) as line:
        assert line.run("greedy") == {"ratio"}


# In the learner


class LateChannel:
    """Puts out the weights of the version before under each version's name."""

    def __init__(self, channel):
        self._channel, self._last = channel, None

    def __getattr__(self, name):
        return getattr(self._channel, name)

    def publish(self, version, flat, **rest):
        late, self._last = flat if self._last is None else self._last, flat.copy()
        self._channel.publish(version, late, **rest)


def test_the_label_audit_finds_weights_that_are_published_a_version_late(tmp_path):
    with Line(tmp_path, "cartpole", "stop.versions=12", channel=LateChannel) as line:
        assert line.run() == {"label"}


def test_the_label_audit_finds_a_learner_that_does_not_reset_its_state(tmp_path, monkeypatch):
    def never(terminated, valid):
        return torch.zeros(len(valid) + 1, valid.shape[1], dtype=torch.bool)

    monkeypatch.setattr(consumers.batch, "_reset_before", never)
    with Line(tmp_path, "memory-lstm", "stop.versions=12") as line:
        assert line.run() == {"label"}


def test_the_label_audit_finds_a_learner_that_rounds_its_log_probabilities(tmp_path, monkeypatch):
    exact = PolicyModel.log_prob
    monkeypatch.setattr(PolicyModel, "log_prob", lambda *given: exact(*given).bfloat16().float())
    with Line(tmp_path, "cartpole", "stop.versions=12") as line:
        assert line.run() == {"label"}


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
def test_the_ratio_audit_finds_a_learner_that_applies_no_mask(targets, tmp_path, monkeypatch, masked):
    """Its labels are right: what acted had the mask, and the audit has it too."""
    fields = consumers.update.Update._fields
    monkeypatch.setattr(
        consumers.update.Update, "_fields", lambda self, batch: fields(self, batch)._replace(mask=None)
    )
    settings = f"learner.targets={targets}", "learner.epochs=1"
    with Line(tmp_path, "masked", *settings, masked=masked) as line:
        assert line.run() == {"ratio"}


def terminals_go_on(terminated, truncated, valid, **rates):
    return decays(torch.zeros_like(terminated), truncated, valid, **rates)


def traces_cross_ends(terminated, truncated, valid, **rates):
    discounts, _ = decays(terminated, truncated, valid, **rates)
    return discounts, torch.full_like(discounts, rates["gamma"] * rates["lambda_"])


def next_episodes_value(values, rewards, discounts, traces, valid):
    """Behind a truncation the value of the first observation of the next episode, and not of the last."""
    cut = ((traces == 0) & (discounts > 0))[:-1]
    values = values.clone()
    values[1:-1] = torch.where(cut, values[2:], values[1:-1])
    return Segments(values, rewards, discounts, traces, valid)


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (consumers.update, "decays", terminals_go_on),
        (consumers.update, "decays", traces_cross_ends),
        (consumers.objective, "Segments", next_episodes_value),
    ],
    ids=["terminals go on", "traces cross ends", "the next episode's value"],
)
def test_the_target_audit_finds_a_wrong_bootstrap(place, name, wrong, tmp_path, monkeypatch):
    monkeypatch.setattr(place, name, wrong)
    with Line(tmp_path, "memory", "stop.versions=3") as line:
        assert line.run() == {"target"}


# And without a fault

LAGS = {0: "mode=sync staleness.exact=0", 1: "staleness.exact=1", 4: "staleness.exact=4 ring.slots=8"}
ASYNC = "mode=async staleness.exact=0 weights.pickup=step"
ARMS = (*CORRECTIONS, "tis ewma")
BEHAVIOUR = ("vtrace", "ppo", "vtrace_pg", "puff", "cispo", "m2po")  # which need no pass at batch start


def settings_of(arm):
    name, *averaged = arm.split()
    return [f"learner.correction={name}", *(["learner.proximal=ewma"] if averaged else [])]


def healthy(folder, task, settings, masked):
    """Runs and is judged by every audit; whatever speaks up fails."""
    with Line(folder, task, *settings, masked=masked) as line:
        found = line.run()
        told = [(event["audit"], event["found"], event["limit"]) for event in line.events()]
        assert found == set(), (task, settings, told)
        lines, counts = line.lines(), line.counters()
    assert counts["audited_steps"] > 100 * len(lines)
    assert counts["unaudited_steps"] == 0
    for figure in ("audit_label_error", "audit_ratio_mean", "audit_target_error"):
        assert any(one[figure] is not None for one in lines), figure


ALL = [*zip(ARMS, itertools.cycle(TASKS), itertools.cycle(LAGS)), ("ppo", "memory", ASYNC)]


@pytest.mark.parametrize(
    ("arm", "task", "lag"),
    [pytest.param(*one, marks=[pytest.mark.soak] * (i % 2)) for i, one in enumerate(ALL)],
)
def test_no_audit_speaks_up_in_a_healthy_run(arm, task, lag, tmp_path, masked):
    settings = LAGS.get(lag, lag).split() + settings_of(arm)
    healthy(tmp_path, task, [*settings, "stop.versions=52"], masked)


@pytest.mark.soak
def test_no_audit_speaks_up_in_healthy_runs_of_any_kind(tmp_path, masked):
    """For HEADRACE_SOAK_SECONDS (60): any arm, task, lag, precision and way to make targets, drawn at random;
    a failure names them. Each run is long enough for several judgements of every audit."""
    rng, until = random.Random(1), time.monotonic() + SECONDS
    runs = 0
    while runs == 0 or time.monotonic() < until:
        arm, task = rng.choice(ARMS), rng.choice([*TASKS])
        lag = rng.choice([*LAGS.values(), ASYNC, f"{ASYNC} staleness.limit=3"])
        settings = [
            *lag.split(),
            *settings_of(arm),
            f"run.seed={rng.randrange(10**6)}",
            "stop.versions=202",
            f"learner.precision={rng.choice(['float32', 'bf16'])}",
            f"learner.learning_rate={rng.choice([1e-3, 5e-3])}",
            f"learner.normalize_value={rng.choice(['true', 'false'])}",
        ]
        if rng.random() < 0.5:
            settings += ["producers.count=2", "learner.batch_slots=2", "producers.agents=16"]
        if arm in BEHAVIOUR and rng.random() < 0.3:
            settings += ["learner.targets=minibatch", "learner.epochs=1"]
        healthy(tmp_path / f"{runs}", task, settings, masked)
        runs += 1
