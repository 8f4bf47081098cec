"""Scripted agents: what they do depends on what they see alone, and they do better than chance."""

from __future__ import annotations

import numpy as np
import pytest
import realms as r
from realms import Open, act, stage

from sims.loader import SimulatorError, load
from sims.scripted import Scripted, kinds

WORLD = {"width": 96, "height": 96, "agents": 72}
STEPS = 1500


def score(kind):
    """Mean progress of the lives that ended; None acts at random."""
    with load("realm").create(1, WORLD, [11]) as worlds:
        worlds.reset()
        generator = np.random.default_rng(1)
        script = Scripted(worlds.simulator, kind, worlds.agents, 1) if kind else None
        ends = []
        for _ in range(STEPS):
            actions = script.act(worlds.obs) if script else generator.integers(0, 26, worlds.agents)
            ends.append(worlds.step(actions)["statistics"][:, worlds.simulator.score_index])
        return float(np.concatenate(ends).mean())


def test_each_script_beats_chance_and_the_clever_ones_the_wanderer():
    chance, wander, fight, trade = (score(kind) for kind in (None, "wander", "fight", "trade"))
    assert wander > 2 * chance
    assert fight > 2 * wander
    assert trade > 2 * wander


def test_an_agent_acts_by_its_own_observation_and_word_alone():
    simulator = load("realm")
    with simulator.create(1, WORLD, [3]) as worlds:
        worlds.reset()
        for kind in kinds(simulator):
            together, alone = Scripted(simulator, kind, 72, 5), Scripted(simulator, kind, 1, 0)
            for _ in range(30):
                before = together._state.copy()
                actions = together.act(worlds.obs)
                for i in (0, 17, 71):
                    alone._state[:] = before[i]
                    assert alone.act(worlds.obs[i : i + 1]).tolist() == [actions[i]]
                worlds.step(actions)


def test_the_trader_sells_what_it_has_twice_and_another_buys_it():
    with stage(agents=2) as worlds:
        opened = Open(worlds)
        for slot, kind in enumerate((r.HOOD, r.COAT, r.BOOTS, r.BLADE, r.PICK, r.SICKLE, r.AXE, r.AXE)):
            opened.give(0, kind, 0, slot=slot)
            if kind != r.AXE:
                opened.give(1, kind, 0, slot=slot)
        opened.give_gold(1, 5)
        opened.close()
        act(worlds)
        script = Scripted(worlds.simulator, "trade", 2, 1)
        for _ in range(300):
            worlds.step(script.act(worlds.obs))
        opened = Open(worlds)
        assert opened.life["gold"].tolist() == [1, 4]
        assert r.item(r.AXE) in opened.agent["item"][1]


def test_what_there_is_not_is_named():
    with pytest.raises(SimulatorError, match="no script 'sleep'; there are: wander, fight, trade"):
        Scripted(load("realm"), "sleep", 1, 1)
    with pytest.raises(SimulatorError, match="breakout has no script 'fight'; there are: none"):
        Scripted(load("breakout"), "fight", 1, 1)
    assert kinds(load("breakout")) == ()
    with pytest.raises(ValueError, match="shape"):
        Scripted(load("realm"), "fight", 2, 1).act(np.zeros((3, 1707), np.uint8))
