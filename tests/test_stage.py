"""What is shown of an agent is what the simulator and the policy say: rewards, ends, states, chances."""

import io
import struct
import zlib

import numpy as np
import pytest
from programs import random_weights

from consumers import stage as stages
from consumers.picture import MOST_PIXELS, png
from consumers.stage import Stage
from producers import native
from producers.program import build
from sims.loader import EVALUATE, TRAIN, load, world_seeds


def make(name, policy=None, world=0, **parameters):
    """A stage with random weights."""
    spec = native.describe(native.simulator_path(name), parameters)
    program = build({"hidden": [16], **(policy or {})}, spec)
    made = Stage(load(name), parameters, program, 1, world)
    made.load(random_weights(program, np.random.default_rng(1)))
    return made


class Counter:
    """Of steps in an episode, in the place of a network: its recurrent state."""

    def __init__(self, program, agents):
        self.program, self.agents = program, agents

    def load(self, flat):
        pass

    def look(self, obs, state, reset_before):
        state[reset_before.astype(bool)] = 0
        state += 1
        self.state = state
        return np.zeros((self.agents, self.program.logits), np.float32), None


@pytest.mark.parametrize(
    ("name", "parameters"), [("cartpole", {"max_steps": 15}), ("memory", {}), ("pendulum", {"max_steps": 9})]
)
def test_recurrent_state_begins_anew_with_every_episode(name, parameters, monkeypatch):
    made = []

    def actor(program, agents):
        made.append(Counter(program, agents))
        return made[-1]

    monkeypatch.setattr(stages, "actor", actor)
    one, episodes = make(name, {"recurrent": "mingru", "recurrent_width": 3}, **parameters), set()
    for _ in range(120):
        one.act(greedy=False)
        frame = one.frame(0)
        assert made[0].state[0, 0] == frame["step"] + 1
        episodes.add(frame["episode"])
        one.step()
    assert len(episodes) > 3


def test_the_return_is_the_sum_of_the_rewards_of_its_episode():
    one, total, ends = make("cartpole", max_steps=12), 0.0, []
    for _ in range(80):
        one.act(greedy=False)
        frame = one.frame(0)
        if frame["step"] == 0:
            total = 0.0
        else:
            total += frame["reward"]
        assert frame["return"] == pytest.approx(total)
        if frame["last"] and (not ends or ends[-1] != (frame["episode"], frame["last"])):
            ends.append((frame["episode"], frame["last"]))
        one.step()
    assert len(ends) > 3
    for _, last in ends:
        assert last["return"] == last["length"] == last["score"]


def test_chances_are_of_what_may_be_chosen_and_actions_follow_them():
    one, taken = make("cartpole"), []
    for _ in range(200):
        one.act(greedy=False)
        (head,) = one.frame(0)["heads"]
        assert sum(head["probabilities"]) == pytest.approx(1)
        taken.append((head["action"], head["probabilities"][1]))
        one.step()
    actions, chances = np.array(taken).T
    error = np.sqrt((chances * (1 - chances)).sum())
    assert abs((actions - chances).sum()) < 5 * error
    one.act(greedy=True)
    (head,) = one.frame(0)["heads"]
    assert head["action"] == int(np.argmax(head["probabilities"]))


def test_a_choice_that_is_forbidden_has_no_chance():
    chances = stages.softmax(np.array([5.0, 1.0, 1.0]), np.array([False, True, True]))
    assert chances.tolist() == [0.0, 0.5, 0.5]


def test_a_policy_that_broke_down_is_shown_as_such():
    one = make("cartpole")
    one.load(np.full(one._program.count, np.nan, np.float32))
    one.act(greedy=False)
    frame = one.frame(0)
    assert frame["value"] is None
    assert frame["heads"][0]["probabilities"] == [None, None]


def test_continuous_actions_are_shown_with_mean_and_deviation():
    one = make("pendulum", {"log_std": -0.5})
    one.act(greedy=True)
    (head,) = one.frame(0)["heads"]
    assert head["mean"] == head["action"]
    assert head["std"] > 0
    one.step()


def test_of_many_agents_any_is_shown_with_what_is_around_it():
    one = make("realm", {"preset": "none"}, width=64, height=64, agents=6)
    one.act(greedy=False)
    frames = [one.frame(agent) for agent in range(6)]
    assert [frame["agents"] for frame in frames] == [6] * 6
    assert len({frame["png"] for frame in frames}) > 1
    assert "agent 5: " in frames[5]["text"]
    assert one.frame(99)["agent"] == 5


def test_worlds_are_those_that_training_never_sees(monkeypatch):
    asked = []
    create = stages.Simulator.create

    def spy(self, worlds, parameters, seeds):
        asked.extend(seeds.tolist())
        return create(self, worlds, parameters, seeds)

    monkeypatch.setattr(stages.Simulator, "create", spy)
    for world in range(4):
        make("cartpole", world=world).close()
    assert asked == world_seeds(1, 4, domain=EVALUATE).tolist()
    assert not set(asked) & set(world_seeds(1, 1000, domain=TRAIN).tolist())


def pixels(data):
    """[height, width, 3] of a PNG as `png` writes it."""
    file = io.BytesIO(data)
    assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    while head := file.read(8):
        length, kind = struct.unpack(">I4s", head)
        chunks[kind] = file.read(length)
        assert struct.unpack(">I", file.read(4))[0] == zlib.crc32(kind + chunks[kind])
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_a_picture_comes_back_from_its_file_and_a_huge_one_is_thinned():
    picture = np.random.default_rng(1).integers(0, 256, (7, 5, 3), np.uint8)
    assert (pixels(png(picture)) == picture).all()
    huge = np.zeros((3000, 2000, 3), np.uint8)
    huge[::3, ::3] = 9
    thin = pixels(png(huge))
    assert thin.shape == (1000, 667, 3)
    assert (thin == 9).all()
    assert thin.shape[0] * thin.shape[1] <= MOST_PIXELS
