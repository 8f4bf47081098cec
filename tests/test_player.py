"""The evaluator plays while somebody watches, as it is told, and otherwise does nothing."""

import socket
import time

import msgpack
import numpy as np
import pytest

from consumers import player
from consumers.player import Player
from monitor.endpoint import watch_line


class Stage:
    """A world whose steps are counted."""

    made = ()

    def __init__(self, world):
        self.world, self.steps, self.acts, self.closed = world, 0, [], False
        self.weights, self.picture = None, b"picture"
        Stage.made += (self,)

    def load(self, flat):
        self.weights = float(flat[0])

    def act(self, *, greedy):
        self.acts.append(greedy)

    def step(self):
        self.steps += 1

    def frame(self, agent):
        return {"world": self.world, "agent": agent, "step": self.steps, "png": self.picture}

    def close(self):
        self.closed = True


class Control:
    phases = ()

    def pulse(self, phase, progress):
        Control.phases += (phase,)


class Weights:
    published = 7

    def read(self):
        return self.published, np.array([self.published], np.float32)


class Rig:
    """A player whose exporter is the test."""

    def __init__(self, make=Stage):
        Stage.made, Control.phases = (), ()
        theirs, self.ours = watch_line()
        self.weights = Weights()
        self.player = Player(Control(), self.weights, theirs, make)
        self.sockets = theirs, self.ours

    def wish(self, **changes):
        self.ours.send(msgpack.packb({"watch": True, "speed": 60.0, **changes}))

    def turn(self, times=1):
        for _ in range(times):
            self.player.turn()

    def frames(self):
        """What has come by now."""
        found = []
        while True:
            try:
                found.append(msgpack.unpackb(self.ours.recv(1 << 20, socket.MSG_DONTWAIT)))
            except BlockingIOError:
                return found

    def until(self, wanted):
        """Turns until a message fulfils `wanted`."""
        while True:
            self.turn()
            for message in self.frames():
                if wanted(message):
                    return message


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setattr(player, "SLICE_SECONDS", 0.02)
    made = []

    def make(*arguments):
        made.append(Rig(*arguments))
        return made[-1]

    yield make
    for one in made:
        for end in one.sockets:
            end.close()


def test_without_a_viewer_there_is_no_world_and_no_message(rig):
    idle = rig()
    idle.turn(3)
    assert Stage.made == ()
    assert idle.frames() == []
    assert set(Control.phases) == {"wait_data"}, "a wait that may last for ever"


def test_the_newest_weights_play_the_world_that_is_wanted(rig):
    watched = rig()
    watched.wish(world=3, agent=2)
    first = watched.until(lambda _: True)
    assert (first["kind"], first["world"], first["agent"], first["version"]) == ("frame", 3, 2, 7)
    watched.weights.published = 9
    assert watched.until(lambda frame: frame["version"] == 9)["step"] > 0
    assert Stage.made[0].weights == 9.0
    watched.wish(world=1, greedy=True)
    assert watched.until(lambda frame: frame["world"] == 1)["step"] == 0, "from its beginning"
    assert Stage.made[0].closed
    assert Stage.made[1].acts[0] is True


def test_a_world_is_looked_at_once_before_each_step(rig):
    watched = rig()
    watched.wish()
    watched.until(lambda frame: frame["step"] == 5)
    assert len(Stage.made[0].acts) == 6


def test_a_pause_holds_the_world_and_single_steps_are_counted(rig):
    watched = rig()
    watched.wish(paused=True, steps=40)
    for _ in range(3):
        assert watched.until(lambda _: True)["step"] == 0, "shown again, to those who come meanwhile"
    watched.wish(paused=True, steps=43)
    assert watched.until(lambda frame: frame["step"] == 3)
    watched.turn(3)
    assert {frame["step"] for frame in watched.frames()} <= {3}
    watched.wish(paused=True, steps=0)  # of an exporter that was started again
    watched.turn(3)
    assert Stage.made[0].steps == 3


def test_who_hears_nothing_more_of_viewers_stops(rig, monkeypatch):
    monkeypatch.setattr(player, "LEASE_SECONDS", 0.1)
    left = rig()
    left.wish()
    left.until(lambda _: True)
    while not Stage.made[0].closed:
        left.turn()
    left.frames()
    left.turn(3)
    assert left.frames() == []
    left.wish()
    assert left.until(lambda _: True)["step"] == 0
    left.wish(watch=False)
    left.turn()
    assert Stage.made[1].closed


def test_nobody_who_does_not_read_holds_it_up(rig):
    watched = rig()
    watched.wish()
    watched.until(lambda _: True)
    Stage.made[0].picture = bytes(40_000)
    watched.wish()
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        watched.turn()
        watched.wish()
    assert Stage.made[0].steps > 10


def test_a_picture_that_is_too_large_leaves_the_rest(rig):
    watched = rig()
    watched.wish(paused=True)
    watched.until(lambda _: True)
    Stage.made[0].picture = bytes(8 << 20)
    told = watched.until(lambda frame: "note" in frame)
    assert told["png"] is None
    assert "too large" in told["note"]


def test_a_world_that_breaks_is_told_of_and_tried_again(rig, monkeypatch, capfd):
    monkeypatch.setattr(player, "RETRY_SECONDS", 0.05)
    tries = []

    def make(world):
        tries.append(world)
        if len(tries) == 1:
            raise ValueError("no such thing")
        return Stage(world)

    broken = rig(make)
    broken.wish()
    told = broken.until(lambda _: True)
    assert (told["kind"], told["text"]) == ("broken", "ValueError: no such thing")
    assert "no such thing" in capfd.readouterr().err, "with its stack in the log"
    broken.wish()
    assert broken.until(lambda message: message["kind"] == "frame")


def test_before_there_are_weights_that_is_said(rig):
    early = rig()
    early.weights.published = None
    early.wish()
    assert early.until(lambda _: True)["kind"] == "waiting"
    early.weights.published = 0
    assert early.until(lambda message: message["kind"] == "frame")["version"] == 0
