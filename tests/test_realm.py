"""The realm as a world: maps, lives and their ends, pictures, saved states, parameters."""

from __future__ import annotations

import numpy as np
import pytest
import realms as r
from realms import Open, act, grid, self_of, stage

from sims.loader import SimulatorError, load

SMALL = {"width": 48, "height": 40, "agents": 24}
CARDINALITIES = (4, 4, 17, 5, 3, 5, 5, 5, 7, 4)


def play(worlds, steps, seed=0):
    """Random play; yields after every step, for which the observations have been poisoned."""
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        worlds.obs.fill(0xEE)
        worlds.step(generator.integers(0, 26, worlds.agents))
        yield


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_the_same_world_to_the_byte_and_another_seed_another(seed):
    with (
        load("realm").create(1, SMALL, [seed]) as one,
        load("realm").create(1, SMALL, [seed]) as two,
        load("realm").create(1, SMALL, [seed + 5]) as other,
    ):
        for worlds in (one, two, other):
            worlds.reset()
        for _ in zip(play(one, 200), play(two, 200), play(other, 200)):
            assert (one.obs == two.obs).all()
            assert (one.rewards == two.rewards).all()
            assert (one.obs != other.obs).any()
        assert one.save(0) == two.save(0)


def test_a_saved_world_goes_on_to_the_byte_and_is_saved_to_the_same_bytes():
    with load("realm").create(1, SMALL, [1]) as one, load("realm").create(1, SMALL, [2]) as two:
        one.reset()
        two.reset()
        for _ in play(one, 150):
            pass
        two.load(0, one.save(0))
        assert two.save(0) == one.save(0)
        for _ in zip(play(one, 150, 1), play(two, 150, 1)):
            assert (one.obs == two.obs).all()
        assert two.save(0) == one.save(0)


def test_a_saved_world_of_another_size_is_refused():
    with load("realm").create(1, SMALL) as one, load("realm").create(1, {**SMALL, "beasts": 2}) as two:
        one.reset()
        two.reset()
        with pytest.raises(SimulatorError, match="saved world"):
            two.load(0, one.save(0))
        size = len(two.save(0))
        with pytest.raises(SimulatorError, match="load returned"):
            two.load(0, one.save(0)[:64] + bytes(size - 64))


def test_every_byte_is_fresh_and_within_its_range():
    shape = load("realm").shape(SMALL)
    assert (shape.obs_shape, shape.agents, shape.coded, shape.heads[0].choices) == ((1707,), 24, 47, 26)
    assert shape.grid is not None
    assert (shape.grid.rows, shape.grid.columns, tuple(shape.grid.values)) == (11, 15, CARDINALITIES)
    with load("realm").create(1, SMALL, [1]) as worlds:
        worlds.reset()
        seen = np.zeros((len(CARDINALITIES), 17), bool)
        for _ in play(worlds, 600):
            cells = grid(worlds.obs)
            assert (cells < CARDINALITIES).all()
            assert (worlds.obs[:, 1650:] < 128).all()
            assert (cells[..., r.TIER][cells[..., r.ITEM] == 0] == 0).all()
            assert (cells[cells[..., r.ENTITY] == 0][:, r.ENTITY :] == 0).all()
            assert (cells[:, 5, 7, r.ENTITY] == 1).all(), "an agent sees itself in the middle"
            for plane in range(len(CARDINALITIES)):
                seen[plane, np.unique(cells[..., plane])] = True
        common = [r.SEASON, r.GROUND, r.ENTITY, r.ANIMATION]
        assert seen.sum(axis=1)[common].tolist() == [CARDINALITIES[plane] for plane in common]
        assert seen[r.ITEM].sum() > 10


def test_agents_see_one_another_where_they_are():
    with stage(agents=2) as worlds:
        act(worlds, r.WAIT, r.RUN_NORTH)
        cells = grid(worlds.obs)
        assert cells[0, 3, 9, [r.ENTITY, r.ANIMATION]].tolist() == [1, r.RUN]
        assert cells[1, 7, 5, [r.ENTITY, r.ANIMATION]].tolist() == [1, r.STILL]


@pytest.mark.parametrize(("width", "height"), [(32, 32), (33, 97), (200, 64)])
def test_all_land_can_be_walked_to_and_is_at_least_half_of_the_map(width, height):
    for seed in range(3):
        with load("realm").create(1, {"width": width, "height": height, "agents": 4}, [seed]) as worlds:
            worlds.reset()
            opened = Open(worlds)
            ground = opened.view[..., r.GROUND]
            land = ground <= r.DIRT
            assert land.sum() == len(opened.land) >= width * height // 2
            assert land.reshape(-1)[opened.land].all()
            assert len(np.unique(opened.land)) == len(opened.land)
            reached = np.zeros_like(land)
            reached.reshape(-1)[opened.land[0]] = True
            before = 0
            while reached.sum() > before:
                before = reached.sum()
                reached[1:] |= reached[:-1] & land[1:]
                reached[:-1] |= reached[1:] & land[:-1]
                reached[:, 1:] |= reached[:, :-1] & land[:, 1:]
                reached[:, :-1] |= reached[:, 1:] & land[:, :-1]
            assert (reached == land).all()
            inside = opened.view[5 : 5 + height, 7 : 7 + width]
            margin = np.ones(land.shape, bool)
            margin[5 : 5 + height, 7 : 7 + width] = False
            assert (ground[margin] == r.WATER).all()
            assert len(np.unique(inside[..., r.SEASON])) == 4


def test_resources_grow_where_they_like_it_and_higher_tiers_are_scarcer():
    with load("realm").create(1, {"width": 192, "height": 192, "agents": 8}, [1]) as worlds:
        worlds.reset()
        view = Open(worlds).view
        kind, tier, ground = view[..., r.ITEM], view[..., r.TIER], view[..., r.GROUND]
        area = 192 * 192
        amounts = {
            r.ORE: 128,
            r.SHARD: 256,
            r.WOOD: 256,
            r.HERB: 128,
            **dict.fromkeys(range(r.FLAME, r.GALE + 1), 512),
        }
        for what, tiles in amounts.items():
            assert (kind == what).sum() == area // tiles
        for what, neighbour in ((r.ORE, r.STONE), (r.SHARD, r.STONE), (r.WOOD, r.WATER), (r.HERB, r.WATER)):
            beside = np.zeros(ground.shape, bool)
            for axis in (0, 1):
                for way in (1, -1):
                    beside |= np.roll(ground, way, axis) == neighbour
            assert beside[kind == what].mean() > 0.9
        for what, season in ((r.FLAME, 1), (r.LOAM, 0), (r.TIDE, 3), (r.GALE, 2)):
            assert (view[..., r.SEASON][kind == what] == season).mean() > 0.9
        share = np.bincount(tier[kind > 0], minlength=5) / (kind > 0).sum()
        assert share == pytest.approx(np.array([16, 8, 4, 2, 1]) / 31, abs=0.06)


def test_death_terminates_pays_once_and_begins_another_life():
    with stage(agents=2, beasts=1) as worlds:
        opened = Open(worlds)
        opened.move_beast(0, 10, 9)
        opened.beast["tier"], opened.beast["level"], opened.beast["health"] = 1, 16, 52
        opened.agent["health"][0] = 5
        opened.agent["skill"][0] = 3, 0, 1
        opened.give(0, r.HOOD, 1, slot=4)
        opened.give_gold(0, 9)
        opened.close()
        ends = []
        for _ in range(4):
            row = np.full(2, r.WAIT)
            ends += worlds.step(row).tolist()
            if worlds.terminated[0]:
                break
        assert worlds.terminated.tolist() == [1, 0]
        assert worlds.truncated.tolist() == [0, 0]
        assert worlds.rewards[0] == -1
        me = self_of(worlds.obs)[0]
        assert (me["born"], me["combat"], me["health"], me["gold_seen"]) == (1, 1, 81, 0)
        assert me["skill"].tolist() == [0, 0, 0]
        assert (me["item"] > 0).sum() == 1, "a tool to begin with"
        assert r.PICK <= 1 + (me["item"][0] - 1) // 5 <= r.AXE
        assert Open(worlds).state["sunk"] == 9
        names = [statistic.name for statistic in worlds.simulator.statistics]
        figures = dict(zip(names, ends[0][3]))
        assert (figures["died"], figures["mining"], figures["gold"], figures["progress"]) == (1, 3, 9, 4)
        worlds.step(np.full(2, r.WAIT))
        assert worlds.rewards[0] == 0, "paid once"
        assert worlds.valid.tolist() == [1, 1]


@pytest.mark.parametrize(("params", "ticks"), [({"lifetime": 30}, 30), ({"patience": 20}, 20)])
def test_the_end_of_patience_or_of_a_lifetime_truncates_and_shows_the_last_of_the_old_life(params, ticks):
    with stage(**params) as worlds:
        opened = Open(worlds)
        opened.give(0, r.HERB, 2, slot=3)
        opened.close()
        for t in range(1, ticks + 1):
            assert worlds.truncated[0] == 0
            me = act(worlds)[0]
            byte = me["age"] if "lifetime" in params else me["idle"]
            assert byte == 16 * t // (ticks + 1), "sixteenths of the limit"
        assert (worlds.truncated[0], worlds.terminated[0], worlds.valid[0]) == (1, 0, 1)
        assert me["item"][3] == r.item(r.HERB, 2)
        place = Open(worlds).place(0)
        me = act(worlds, 0)[0]
        assert (worlds.truncated[0], worlds.valid[0], worlds.rewards[0]) == (0, 0, 0)
        assert (me["born"], me["item"][3], me["age"], me["idle"]) == (1, 0, 0, 0)
        assert Open(worlds).place(0) != place


def test_progress_renews_patience():
    with stage(patience=10) as worlds:
        for t in range(40):
            opened = Open(worlds)
            if t % 8 == 0:
                opened.give(0, r.COAT, t // 8, slot=0)
                opened.agent["defence"] = 0
            opened.close()
            act(worlds, r.KEY if t % 8 == 0 else r.WAIT)
            assert worlds.truncated[0] == 0


def test_no_place_in_the_order_is_favoured():
    """Two agents that walk onto one tile: each is first half of the times."""
    firsts = 0
    with stage(agents=2) as worlds:
        opened = Open(worlds)
        saved = bytes(opened.saved)
        generator = np.random.default_rng(0)
        for _ in range(400):
            worlds.load(0, saved)
            opened = Open(worlds)
            opened.state["random"][0] = generator.integers(1 << 60)
            opened.close()
            act(worlds, r.EAST, r.WEST)
            firsts += Open(worlds).place(0) == (11, 10)
    assert 140 < firsts < 260


def test_reset_begins_all_lives_anew_on_the_same_map():
    with load("realm").create(1, SMALL, [4]) as worlds:
        worlds.reset()
        ground = Open(worlds).view[..., [r.SEASON, r.GROUND]].copy()
        for _ in play(worlds, 100):
            pass
        worlds.reset()
        assert (Open(worlds).view[..., [r.SEASON, r.GROUND]] == ground).all()
        assert (self_of(worlds.obs)["born"] == 1).all()
        assert (Open(worlds).life["gold"] == 0).all()


def test_pictures_show_the_region_that_was_asked_for():
    params = {"view_width": 20, "view_height": 9, "view_x": 10, "view_y": 10}
    with stage(agents=2, beasts=1, **params) as worlds:
        opened = Open(worlds)
        opened.view[..., r.SEASON] = 0
        opened.at(8, 10)[r.GROUND] = r.STONE
        opened.put_item(9, 10, r.ORE)
        opened.agent["facing"] = r.EAST
        for i in range(2):
            x, y = opened.place(i)
            opened.at(x, y)[r.DIRECTION] = r.EAST
        opened.close()
        lines = worlds.render_text(0).splitlines()
        assert lines[0].startswith("tick 0   agent 0: level 1, health 81 of 81")
        assert len(lines) == 10
        assert {len(line) for line in lines[1:]} == {20}
        assert lines[5] == "........▲o→.→......."
        picture = worlds.render_rgb(0)
        assert picture.shape == (9 * 8, 20 * 8, 3)
        grass = picture[0, 0]
        tiles = picture.reshape(9, 8, 20, 8, 3)
        differs = (tiles[4] != grass).any(axis=(0, 2, 3))
        assert differs.nonzero()[0].tolist() == [8, 9, 10, 12]


def test_pictures_follow_the_agent_that_was_asked_for():
    view = {"view_width": 11, "view_height": 7}
    with load("realm").create(1, {"width": 64, "height": 64, "agents": 8, **view}) as worlds:
        worlds.reset()
        middles = []
        for agent in range(8):
            worlds.follow(0, agent)
            lines = worlds.render_text(0).splitlines()
            assert f"agent {agent}: " in lines[0]
            middles.append(lines[1 + 7 // 2][11 // 2])
            middle = worlds.render_rgb(0)[28, 44]
            assert middle.tolist() == [255, 64, 160], "no other agent looks like this one"
        assert set(middles) <= set("↑↓←→")
        with pytest.raises(IndexError, match="agent 8 of 8"):
            worlds.follow(0, 8)


def test_the_largest_region_can_be_seen():
    with load("realm").create(1, {**SMALL, "view_width": 512, "view_height": 512}) as worlds:
        worlds.reset()
        lines = worlds.render_text(0).splitlines()
        assert [len(line) for line in lines[1:]] == [512] * 512
        assert worlds.render_rgb(0).shape == (4096, 4096, 3)


@pytest.mark.parametrize("params", [{"agents": 300}, {"beasts": 260}, {"ore": 300}, {"charms": 70}])
def test_a_map_too_small_for_what_it_shall_hold_is_refused(params):
    with pytest.raises(SimulatorError, match="shape returned"):
        load("realm").shape({"width": 32, "height": 32, "agents": 8, **params})


def test_rewards_are_weighed_by_parameters():
    weights = {"reward_combat": 2, "reward_skill": 3, "reward_gear": 0.5, "reward_death": -7}
    with stage(beasts=1, **weights) as worlds:
        opened = Open(worlds)
        opened.move_beast(0, 10, 9)
        opened.beast["health"] = 1
        opened.give(0, r.HOOD, 4, slot=0)
        opened.give(0, r.PICK, 0, slot=1)
        opened.put_item(11, 10, r.ORE)
        opened.close()
        rewards = []
        for action in (r.ATTACK, r.KEY, r.KEY + 1, r.EAST):
            act(worlds, action)
            rewards.append(float(worlds.rewards[0]))
        assert rewards == pytest.approx([2, 0.5 * 10 / 6, 0, 3])
