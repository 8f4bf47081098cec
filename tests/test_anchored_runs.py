"""The second set of weights is part of what training is taken up from: snapshot, checkpoint, roll-back."""

import pytest
import torch
from liverun import RUN, equal

from consumers import checkpoint, shelf
from consumers.models import PolicyModel
from producers.prepare import Layout, prepare

ARMS = {
    "target": ("learner.correction=impact", "learner.impact_versions=3"),
    "average": ("learner.correction=decoupled", "learner.proximal=ewma", "learner.proximal_decay=0.95"),
}
ONE = ["target", pytest.param("average", marks=pytest.mark.soak)]


@pytest.mark.parametrize("arm", ONE)
def test_killed_learners_and_a_new_run_from_the_checkpoint_go_on_bit_for_bit(live, arm):
    whole = live(*ARMS[arm])
    whole.start()
    assert whole.finish() == 0
    run = live(*ARMS[arm], "stop.versions=8")
    run.start("publish:3")
    for fault in ("train:2", "counted:1", ""):
        assert not run.until(lambda: False)
        assert run.bury() == -9
        run.learner(fault)
    assert run.finish() == 0
    again = live(*ARMS[arm], after=run, worlds=run.saved().worlds)
    again.start(resume=shelf.latest(run.folder / "checkpoints"))
    assert again.finish() == 0
    assert again.saved().version == whole.saved().version == 14
    assert equal(again.weights(), whole.weights())
    saved, expected = (one.saved().learner["update"]["anchor"] for one in (again, whole))
    assert torch.equal(saved["flat"], expected["flat"])
    assert saved["count"] == expected["count"]


@pytest.mark.parametrize("arm", ARMS)
def test_a_roll_back_takes_up_the_anchor_of_its_checkpoint(live, arm):
    run = live(*ARMS[arm], "learner.nonfinite_steps=3", "stop.versions=9")
    run.start("nan:6")
    back = lambda: [event for event in run.events() if event["event"] == "rolled_back"]  # noqa: E731
    assert run.until(back), "it is counted before it is told of"
    run.kill()
    run.learner()
    assert run.finish() == 0
    (event,) = back()
    assert (event["from_version"], event["checkpoint"]) == (6, "version-000000000")
    assert run.saved().state["updates"] == 2
    saved = run.saved().learner["update"]["anchor"]
    first = checkpoint.load(run.folder / "checkpoints" / event["checkpoint"]).policy
    if arm == "target":  # two updates old
        assert saved["count"] == 2
        assert equal(first, as_policy(run, saved["flat"]))
    else:  # the first weights and 2 x 8 steps, one of which the new learner has not made yet
        assert saved["count"] == pytest.approx(sum(0.95**n for n in range(17)))


def as_policy(run, flat):
    model = PolicyModel(run.prepared.program)
    model.load_flat(flat)
    return model.state_dict()


TOGETHER = {**ARMS, "ess": ("learner.correction=tis", "learner.ess_learning_rate=true")}


@pytest.mark.parametrize("arm", [*ONE, "ess"])
def test_two_learners_have_one_anchor_and_one_rate_and_train_what_one_would(live, arm):
    whole_batch = ("learner.minibatches=1", "learner.normalize_advantage=false", "policy.normalize_obs=false")
    lagged = ("mode=lagged", "staleness.exact=2", "stop.versions=6")
    found = []
    for count in (1, 2):
        run = live(f"learner.count={count}", *whole_batch, *lagged, *TOGETHER[arm])
        run.start()
        assert run.finish() == 0
        found.append((run.saved(), run.lines()))
    (one, told), (two, told_by_two) = found
    assert not equal(one.policy, two.policy), "else it would have been one learner"
    for name, weights in one.policy.items():
        torch.testing.assert_close(two.policy[name], weights, rtol=1e-4, atol=1e-5)
    for a, b in zip(told, told_by_two, strict=True):
        assert a["learning_rate"] == pytest.approx(b["learning_rate"], rel=1e-5)
        assert a["warm_up"] == b["warm_up"]


def test_a_snapshot_has_room_for_the_anchor(tmp_path):
    (tmp_path / "live.yaml").write_text(RUN)
    plain, anchored = (prepare(str(tmp_path / "live.yaml"), list(arm)) for arm in ((), ARMS["target"]))
    room = [Layout(one).channel["snapshot_bytes"] for one in (plain, anchored)]
    assert room[1] - room[0] == 4 * plain.program.count
