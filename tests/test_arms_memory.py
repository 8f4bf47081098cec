"""Every correction trains a recurrent policy on a task that needs memory, from steps one version old."""

import json

import pytest
import torch
from liverun import RUN

from consumers.corrections import CORRECTIONS
from consumers.models import PolicyModel

ARMS = {name: (f"learner.correction={name}",) for name in CORRECTIONS}
ARMS["ewma"] = ("learner.correction=decoupled", "learner.proximal=ewma")
ARMS["ess"] = ("learner.correction=tis", "learner.tis_cap=8", "learner.ess_learning_rate=true")
UNCLIPPED = [name for name, arm in CORRECTIONS.items() if not arm.clips]
SLOWLY = ("learner.epochs=2", "learner.learning_rate=1e-3", "learner.entropy_coef=0.03")
MEMORY = RUN.replace("{name: cartpole, max_steps: 30}", "{name: memory, corridor: 3, patience: 2}")
LAGGED = (
    "mode=lagged", "staleness.exact=1", "producers.count=1", "producers.agents=32", "rollout.horizon=16",
    "learner.batch_slots=1", "learner.epochs=4", "learner.learning_rate=5e-3", "policy.recurrent_width=20",
    "policy.normalize_obs=false", "learner.normalize_value=false",
)  # fmt: skip


@pytest.fixture
def live(live):
    """Makes runs of the task that needs memory."""
    return lambda *overrides: live(*LAGGED, *overrides, text=MEMORY)


def updates(run):
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_trains_a_recurrent_policy(live, arm):
    run = live(*ARMS[arm], "policy.recurrent=lstm", "stop.versions=4")
    run.start()
    assert run.finish() == 0
    told = updates(run)
    assert [line["lag_max"] for line in told] == [0, 1, 1, 1]
    for line in told:
        assert (line["skipped"], line["sgd_steps"]) == (0, 16)
        assert line["grad_norm"] > 0
        assert line["update_ratio"] > 0
        assert line["ratio_mean"] == pytest.approx(1, abs=0.1)
    assert max(line["ratio_log_max"] for line in told) > 0.02
    start = PolicyModel(run.prepared.program, seed=7).state_dict()
    for name, weight in run.weights().items():
        assert weight.isfinite().all()
        assert not torch.equal(weight, start[name]), name


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["lstm", "mingru"])
@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_solves_a_task_that_needs_memory(live, arm, kind):
    """Without memory half the signs are guessed."""
    goal = "stop.score=0.95", "stop.window=200", "stop.versions=2000"
    pace = SLOWLY if arm in UNCLIPPED else ()  # nothing else holds them near where they start
    run = live(*ARMS[arm], f"policy.recurrent={kind}", *goal, *pace)
    run.start()
    done = -1
    while not run.counters()["stop_request"]:  # on a slow machine it takes its time, but it goes on
        assert run.until(lambda done=done: run.counters()["stop_request"] or run.counters()["updates"] > done)
        done = run.counters()["updates"]
    assert run.finish() == 0
    assert updates(run)[-1]["score_best"] >= 0.95
