"""Each of the 26 actions does what docs/realm.md says, with every slot and every kind of thing."""

from __future__ import annotations

import numpy as np
import pytest
import realms as r
from realms import Open, act, grid, item, stage

from sims.loader import SimulatorError

WAYS = list(r.STEPS)
TOOL_OF = {
    r.ORE: r.PICK,
    r.SHARD: r.PICK,
    r.WOOD: r.AXE,
    r.HERB: r.SICKLE,
    **dict.fromkeys(range(r.FLAME, r.GALE + 1), r.PICK),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("first", "tiles", "animation"), [(0, 1, r.WALK), (r.RUN_NORTH, 2, r.RUN)])
def test_walking_goes_one_tile_and_running_two(way, first, tiles, animation):
    with stage() as worlds:
        me = act(worlds, first + way)[0]
        x, y = Open(worlds).place(0)
        dx, dy = r.STEPS[way]
        assert (x, y) == (10 + tiles * dx, 10 + tiles * dy)
        assert (me["facing"], me["animation"]) == (way, animation)
        middle = grid(worlds.obs)[0, 5, 7]
        assert middle[[r.ENTITY, r.ANIMATION, r.DIRECTION]].tolist() == [1, animation, way]


@pytest.mark.parametrize("ground", [r.STONE, r.WATER])
def test_neither_stone_nor_water_nor_somebody_else_can_be_walked_on(ground):
    with stage(agents=2) as worlds:
        opened = Open(worlds)
        opened.at(9, 10)[r.GROUND] = ground
        opened.move(1, 11, 10)
        opened.close()
        for action in (2, 3, r.RUN_NORTH + 2, r.RUN_NORTH + 3):
            me = act(worlds, action)[0]
            assert Open(worlds).place(0) == (10, 10)
            assert me["facing"] == action % 2 + 2, "it turns all the same"


@pytest.mark.parametrize("kind", range(1, 17))
@pytest.mark.parametrize("tier", [0, 4])
def test_every_kind_that_was_left_is_taken_by_walking_there_and_not_by_running_past(kind, tier):
    with stage(agents=2) as worlds:
        opened = Open(worlds)
        opened.give(0, kind, tier, slot=7)
        opened.close()
        act(worlds, r.DROP)
        assert act(worlds, r.KEY + 7)["item"][0].tolist() == [0] * r.SLOTS
        assert grid(worlds.obs)[0, 5, 7, [r.ITEM, r.TIER]].tolist() == [kind, tier]
        act(worlds, r.RUN_NORTH + r.NORTH)
        assert act(worlds, r.RUN_NORTH + 1)["item"][0].tolist() == [0] * r.SLOTS, "ran there"
        assert act(worlds, r.EAST)["item"][0].tolist() == [0] * r.SLOTS, "walked away"
        me = act(worlds, 2)[0]
        assert me["item"].tolist() == [item(kind, tier)] + [0] * (r.SLOTS - 1)
        assert me["found"] == 1
        assert grid(worlds.obs)[0, 5, 7, r.ITEM] == 0


def test_waiting_takes_what_lies_underneath_and_heals():
    with stage() as worlds:
        opened = Open(worlds)
        opened.agent["health"][0] = 40
        opened.put_item(10, 10, r.HOOD)
        opened.left[15, 17] = 1
        opened.close()
        before = int(Open(worlds).agent["health"][0])
        me = act(worlds, r.WAIT)[0]
        assert me["item"][0] == item(r.HOOD)
        for _ in range(7):
            me = act(worlds, r.WAIT)[0]
        assert me["health"] == before + 8 + 2, "one for each wait, one for every fourth tick"


@pytest.mark.parametrize("kind", TOOL_OF)
def test_what_grows_is_harvested_with_its_tool_of_at_least_its_tier_in_hand(kind):
    skill = TOOL_OF[kind] - r.PICK
    for tool, tool_tier, tier, harvested in (
        (TOOL_OF[kind], 1, 1, True),
        (TOOL_OF[kind], 1, 0, True),
        (TOOL_OF[kind], 0, 1, False),
        (r.PICK + (skill + 1) % 3, 4, 0, False),
        (r.BLADE, 4, 0, False),
    ):
        with stage() as worlds:
            opened = Open(worlds)
            opened.give(0, tool, tool_tier, slot=3, worn=True)
            opened.put_item(10, 9, kind, tier)
            opened.close()
            me = act(worlds, r.NORTH)[0]
            assert (me["item"][0] == item(kind, tier)) == harvested
            assert me["skill"].tolist() == [int(harvested and s == skill) for s in range(3)]
            assert worlds.rewards[0] == harvested


def test_a_tier_teaches_eight_levels_and_a_harvest_grows_again_on_its_place():
    with stage(regrowth=3) as worlds:
        opened = Open(worlds)
        opened.give(0, r.SICKLE, 2, slot=11, worn=True)
        opened.put_item(10, 9, r.HERB, 0)
        opened.close()
        levels = []
        for _ in range(10):
            levels.append(act(worlds, r.NORTH)["skill"][0, 1])
            opened = Open(worlds)
            opened.agent["item"][0, 0] = 0
            opened.close()
            act(worlds, 1)
            act(worlds, r.WAIT)
            act(worlds, r.WAIT)
            assert grid(worlds.obs)[0, 4, 7, r.ITEM] == r.HERB, "three ticks after the harvest"
        assert levels == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]


@pytest.mark.parametrize("slot", range(r.SLOTS))
def test_each_key_wears_and_takes_off_what_is_in_its_slot(slot):
    with stage() as worlds:
        opened = Open(worlds)
        opened.give(0, r.COAT, 2, slot=slot)
        opened.close()
        me = act(worlds, r.KEY + slot)[0]
        assert (me["slot"][slot], me["defence"], me["animation"]) == (r.WORN, 6, r.HANDLE)
        assert worlds.rewards[0] == pytest.approx(6 / 6)
        me = act(worlds, r.KEY + slot)[0]
        assert (me["slot"][slot], me["defence"]) == (r.CARRIED, 0)
        act(worlds, r.KEY + slot)
        assert worlds.rewards[0] == 0, "the best so far pays once"


GEAR = {
    r.HOOD: (0, 2),
    r.COAT: (0, 2),
    r.BOOTS: (0, 2),
    r.BLADE: (6, 0),
    r.BOW: (4, 0),
    r.PICK: (0, 0),
    r.SICKLE: (0, 0),
    r.AXE: (0, 0),
    **dict.fromkeys(range(r.FLAME, r.GALE + 1), (1, 1)),
}


@pytest.mark.parametrize("kind", GEAR)
def test_every_kind_of_gear_gives_its_points_for_each_tier(kind):
    attack, defence = GEAR[kind]
    for tier in range(5):
        with stage() as worlds:
            opened = Open(worlds)
            opened.give(0, kind, tier, slot=5)
            opened.close()
            me = act(worlds, r.KEY + 5)[0]
            assert (me["attack"], me["defence"]) == (attack * (tier + 1), defence * (tier + 1))
            assert me["element"] == (kind - r.FLAME + 1 if r.FLAME <= kind <= r.GALE else 0)
            assert me["hand"] == (item(kind, tier) if r.BLADE <= kind <= r.AXE else 0)


def test_one_thing_is_worn_on_each_part_of_the_body():
    with stage() as worlds:
        opened = Open(worlds)
        for slot, kind in enumerate(
            (r.HOOD, r.HOOD, r.COAT, r.BOOTS, r.BLADE, r.BOW, r.AXE, r.FLAME, r.GALE)
        ):
            opened.give(0, kind, 0, slot=slot)
        opened.close()
        for slot in range(9):
            me = act(worlds, r.KEY + slot)[0]
        assert me["slot"].tolist() == [0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("raw", "made"), [(r.ORE, {r.HOOD, r.COAT, r.BOOTS}), (r.SHARD, {r.BLADE}), (r.WOOD, {r.BOW})]
)
def test_raw_things_become_gear_of_their_tier(raw, made):
    seen = set()
    with stage() as worlds:
        for n in range(20):
            opened = Open(worlds)
            opened.give(0, raw, n % 5, slot=2)
            opened.close()
            code = int(act(worlds, r.KEY + 2)[0]["item"][2])
            assert (code - 1) % 5 == n % 5
            seen.add(1 + (code - 1) // 5)
        assert Open(worlds).life["crafted"][0] == 20
    assert seen == made


def test_a_herb_heals_by_its_tier_and_is_gone():
    for tier in range(5):
        with stage() as worlds:
            opened = Open(worlds)
            opened.agent["health"][0] = 30
            opened.give(0, r.HERB, tier, slot=4)
            opened.close()
            me = act(worlds, r.KEY + 4)[0]
            gain = min(81 - 30, 16 * (tier + 2))
            assert (me["health"], me["healed"], me["item"][4]) == (30 + gain, gain, 0)


def at_odds(weapon=None, dx=0, dy=-1, level=1, tier=0, **agent):
    """An agent, and a beast beside it that has not been struck yet."""
    worlds = stage(beasts=1)
    opened = Open(worlds)
    opened.move_beast(0, 10 + dx, 10 + dy)
    opened.beast["level"][0] = level
    opened.beast["health"][0] = 20 + 2 * level
    opened.beast["tier"][0] = tier
    if weapon:
        opened.give(0, weapon, 0, slot=0, worn=True)
        opened.agent["attack"][0] = {r.BLADE: 6, r.BOW: 4}.get(weapon, 0)
    for name, value in agent.items():
        opened.agent[name][0] = value
    opened.close()
    return worlds


def reach(weapon):
    """Where, relative to the agent, an attack hits."""
    hit = set()
    for dx in range(-5, 6):
        for dy in range(-5, 6):
            if (dx, dy) != (0, 0):
                with at_odds(weapon, dx, dy) as worlds:
                    if act(worlds, r.ATTACK)[0]["dealt"]:
                        hit.add((dx, dy))
    return hit


def test_an_attack_reaches_by_what_is_in_hand():
    cross = {(0, -1), (0, 1), (-1, 0), (1, 0)}
    assert reach(None) == reach(r.AXE) == cross
    assert reach(r.BLADE) == cross | {(-1, -1), (-1, 1), (1, -1), (1, 1)}
    assert reach(r.BOW) == {(dx * far, dy * far) for dx, dy in cross for far in range(1, 5)}


def test_stone_stops_an_arrow_and_water_does_not():
    for ground, stopped in ((r.STONE, True), (r.WATER, False)):
        with at_odds(r.BOW, 3, 0) as worlds:
            opened = Open(worlds)
            opened.at(11, 10)[r.GROUND] = ground
            opened.close()
            assert (act(worlds, r.ATTACK)[0]["dealt"] == 0) == stopped


@pytest.mark.parametrize(
    ("own", "other", "halves"), [(0, 0, 2), (1, 2, 3), (2, 1, 1), (4, 1, 3), (1, 3, 2), (1, 0, 2)]
)
def test_a_blow_is_the_difference_of_the_two_and_the_elements(own, other, halves):
    with at_odds(r.BLADE, level=9, combat=5, element=own) as worlds:
        opened = Open(worlds)
        opened.beast["element"][0] = other
        opened.close()
        me = act(worlds, r.ATTACK)[0]
        base = 20 + 5 + 6 - 9 - 9 // 2
        assert me["dealt"] == base * halves // 2
        assert (me["animation"], me["facing"], me["in_combat"]) == (r.STRIKE, r.NORTH, 5)


def test_a_kill_gives_gold_and_a_level_where_the_beast_was_no_weaker():
    for level, gained in ((4, 1), (3, 1), (2, 0)):
        with at_odds(level=level, combat=3) as worlds:
            opened = Open(worlds)
            opened.beast["health"][0] = 1
            opened.agent["max_health"][0] = 83
            opened.close()
            me = act(worlds, r.ATTACK)[0]
            assert (me["combat"], me["max_health"], me["levelled"]) == (3 + gained, 83 + gained, gained)
            assert (me["gold_seen"], worlds.rewards[0]) == (1, gained)
            assert grid(worlds.obs)[0, 4, 7, [r.HEALTH, r.ANIMATION]].tolist() == [0, r.FALLEN]
            assert Open(worlds).state["minted"] == 1


def test_gentle_beasts_strike_back_and_the_others_strike_first():
    for tier, strikes in ((0, False), (1, True)):
        with at_odds(tier=tier, level=8 * tier + 1) as worlds:
            taken = sum(int(act(worlds, r.WAIT)[0]["taken"]) for _ in range(8))
            assert (taken > 0) == strikes
    with at_odds(level=8) as worlds:
        act(worlds, r.ATTACK)
        assert sum(int(act(worlds, r.WAIT)[0]["taken"]) for _ in range(4)) > 0


def test_beasts_of_the_third_tier_shoot_from_afar():
    for tier, shoots in ((1, False), (2, True)):
        with at_odds(dx=0, dy=-3, tier=tier, level=8 * tier + 1) as worlds:
            taken = [int(act(worlds, r.WAIT)[0]["taken"]) for _ in range(2)]
            assert (max(taken) > 0) == shoots
    with at_odds(dx=0, dy=-4, tier=2, level=17) as worlds:  # farther than it sees
        assert sum(int(act(worlds, r.WAIT)[0]["taken"]) for _ in range(2)) == 0


def test_a_beast_turns_back_where_its_leash_ends():
    with at_odds(dx=2, dy=0, tier=1, level=9) as worlds:
        for _ in range(16):
            act(worlds, r.RUN_NORTH + 1 if Open(worlds).place(0)[1] < 24 else 0)
            opened = Open(worlds)
            opened.agent["health"][0] = 81
            opened.close()
        farthest = 0
        for t in range(200):
            opened = Open(worlds)
            row, column = divmod(int(opened.beast["tile"][0]), opened.columns)
            farthest = max(farthest, abs(row - 5 - 10) + abs(column - 7 - 12))
            opened.agent["health"][0] = 81
            opened.close()
            act(worlds, t % 2)
        assert farthest <= 13


@pytest.mark.parametrize("combat", [1, 9, 40])
def test_levels_are_seen_as_ranks_beside_the_own(combat):
    with stage(beasts=1) as worlds:
        for level in range(1, 41):
            opened = Open(worlds)
            opened.agent["combat"][0] = combat
            opened.move_beast(0, 0, 0)  # it may have strolled
            opened.move_beast(0, 14, 6)
            opened.beast["level"][0] = level
            row, column = divmod(int(opened.beast["tile"][0]), opened.columns)
            opened.view[row, column, r.RANK] = level // 4 + 3
            opened.beast["animation"][0] = 0
            opened.close()
            act(worlds, r.WAIT)
            seen = grid(worlds.obs)[0]
            assert seen[seen[..., r.ENTITY] == 2, r.RANK].tolist() == [
                min(4, max(0, level // 4 - combat // 4 + 2))
            ]


def test_what_was_left_decays_and_the_place_is_free_again():
    with stage(decay=5) as worlds:
        opened = Open(worlds)
        opened.give(0, r.BOW, 3, slot=0)
        opened.close()
        act(worlds, r.DROP)
        act(worlds, r.KEY)
        act(worlds, r.RUN_NORTH)
        lies = []
        for _ in range(5):
            act(worlds, r.ATTACK)
            lies.append(int(grid(worlds.obs)[0, 7, 7, r.ITEM]))
        assert lies == [r.BOW] * 3 + [0] * 2


def test_a_full_bag_takes_nothing_more():
    with stage() as worlds:
        opened = Open(worlds)
        for slot in range(r.SLOTS):
            opened.give(0, r.HERB, 0, slot=slot)
        opened.put_item(10, 9, r.BOW)
        opened.left[14, 17] = 1
        opened.close()
        assert act(worlds, r.NORTH)[0]["item"].tolist() == [item(r.HERB)] * r.SLOTS
        assert grid(worlds.obs)[0, 5, 7, r.ITEM] == r.BOW


def test_an_action_that_is_none_is_refused():
    with stage() as worlds:
        for action in (-1, 26):
            with pytest.raises(ValueError, match="outside"):
                act(worlds, action)
            with pytest.raises(SimulatorError, match="returned -1"):
                worlds.play(np.full((1, 1, 1), action))
