"""Agents buy and sell from one another: gold and things change hands, and none is made or lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
import realms as r
from realms import Open, act, grid, item, stage

from sims.loader import load
from sims.scripted import Scripted


def market(agents=2, things=((0, 5, r.HOOD, 2),), gold=50, **params):
    """Agents with things (agent, slot, kind, tier), all with gold."""
    worlds = stage(agents=agents, **params)
    opened = Open(worlds)
    for agent, slot, kind, tier in things:
        opened.give(agent, kind, tier, slot=slot)
    for i in range(agents):
        opened.give_gold(i, gold)
    opened.close()
    return worlds


def gold(worlds):
    return Open(worlds).life["gold"].tolist()


def sell(worlds, slot, price, seller=0):
    for action in (r.SELL, r.KEY + slot, r.KEY + price - 1):
        seen = act(worlds, *[r.WAIT] * seller, action)
    return seen


def buy(worlds, kind, tier, buyer=1):
    opening, key = (r.BUY_GEAR, kind - r.HOOD) if kind < r.ORE else (r.BUY_GOODS, kind - r.ORE)
    for action in (opening, r.KEY + key, r.KEY + tier):
        seen = act(worlds, *[r.WAIT] * buyer, action)
    return seen


@pytest.mark.parametrize("kind", range(1, 17))
@pytest.mark.parametrize("tier", [0, 3])
def test_every_kind_and_tier_can_be_sold_and_bought(kind, tier):
    with market(things=[(0, 5, kind, tier)], reward_trade=0.5) as worlds:
        sell(worlds, 5, 7)
        seen = buy(worlds, kind, tier)
        assert seen["item"][0].tolist() == [0] * r.SLOTS
        assert seen["item"][1].tolist() == [item(kind, tier)] + [0] * (r.SLOTS - 1)
        assert gold(worlds) == [57, 43]
        assert seen["gold_seen"].tolist() == [57, 43]
        assert (seen["sold"].tolist(), seen["bought"].tolist()) == ([1, 0], [0, 1])
        assert worlds.rewards.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("slot", range(r.SLOTS))
@pytest.mark.parametrize("price", range(1, 13))
def test_every_slot_can_be_offered_at_every_price(slot, price):
    with market(things=[(0, slot, r.HOOD, 0)]) as worlds:
        seen = sell(worlds, slot, price)
        assert seen["slot"][0, slot] == r.ON_OFFER
        act(worlds, r.WAIT, r.BUY_GEAR)
        assert act(worlds, r.WAIT, r.KEY)["price"][1].tolist() == [price, 0, 0, 0, 0], (
            "shown before it is bought"
        )
        act(worlds, r.WAIT, r.KEY)
        assert gold(worlds) == [50 + price, 50 - price]


def test_the_cheapest_is_sold_first_and_of_equal_ones_the_oldest():
    with market(4, [(0, 0, r.HOOD, 0), (1, 0, r.HOOD, 0), (2, 0, r.HOOD, 0)]) as worlds:
        for seller, price in ((0, 4), (1, 3), (2, 3)):
            sell(worlds, 0, price, seller)
        for expected in ([50, 53, 50, 47], [50, 53, 53, 44], [54, 53, 53, 40]):
            buy(worlds, r.HOOD, 0, buyer=3)
            assert gold(worlds) == expected


def test_nobody_buys_from_themselves_or_beyond_their_means_or_into_a_full_bag():
    with market(things=[(0, 0, r.HOOD, 0)]) as worlds:
        sell(worlds, 0, 3)
        assert buy(worlds, r.HOOD, 0, buyer=0)["slot"][0, 0] == r.ON_OFFER
        assert gold(worlds) == [50, 50]
    with market(things=[(0, 0, r.HOOD, 0)], gold=2) as worlds:
        sell(worlds, 0, 3)
        assert buy(worlds, r.HOOD, 0)["item"][1, 0] == 0
        assert gold(worlds) == [2, 2]
    with market(things=[(0, 0, r.HOOD, 0), *((1, slot, r.HERB, 0) for slot in range(r.SLOTS))]) as worlds:
        sell(worlds, 0, 3)
        assert (buy(worlds, r.HOOD, 0)["item"][1] == item(r.HERB)).all()
        assert gold(worlds) == [50, 50]


def test_an_own_offer_that_is_cheaper_does_not_hide_that_of_another():
    with market(2, [(0, 0, r.HOOD, 0), (1, 0, r.HOOD, 0)]) as worlds:
        sell(worlds, 0, 5, seller=0)
        sell(worlds, 0, 2, seller=1)
        buy(worlds, r.HOOD, 0, buyer=1)
        assert gold(worlds) == [55, 45]


def test_an_offer_is_taken_back_by_using_it_dropping_it_or_selling_it_again():
    with market(things=[(0, 0, r.HOOD, 0)]) as worlds:
        sell(worlds, 0, 3)
        assert act(worlds, r.KEY)["slot"][0, 0] == r.CARRIED
        buy(worlds, r.HOOD, 0)
        assert gold(worlds) == [50, 50]
        sell(worlds, 0, 3)
        act(worlds, r.SELL)
        assert act(worlds, r.KEY)["slot"][0, 0] == r.CARRIED
        act(worlds, r.KEY + 8)
        buy(worlds, r.HOOD, 0)
        assert gold(worlds) == [59, 41]
    with market(things=[(0, 0, r.HOOD, 0)]) as worlds:
        sell(worlds, 0, 3)
        act(worlds, r.DROP)
        assert act(worlds, r.KEY)["item"][0, 0] == 0
        buy(worlds, r.HOOD, 0)
        assert gold(worlds) == [50, 50]


def test_what_is_worn_is_taken_off_to_be_sold_or_dropped():
    for opening in (r.SELL, r.DROP):
        with market() as worlds:
            assert act(worlds, r.KEY + 5)["slot"][0, 5] == r.WORN
            act(worlds, opening)
            seen = act(worlds, r.KEY + 5)[0]
            assert (seen["slot"][5], seen["defence"]) == (r.CARRIED, 0)


def test_the_market_is_closed_in_combat_and_a_blow_closes_the_menu():
    with market() as worlds:
        opened = Open(worlds)
        opened.agent["in_combat"][0] = 3
        opened.close()
        menus = [int(act(worlds, r.SELL)["menu"][0]) for _ in range(4)]
        assert menus == [0, 0, 4, 4]
    with market(beasts=1) as worlds:
        opened = Open(worlds)
        opened.move_beast(0, 10, 9)
        opened.beast["tier"], opened.beast["level"], opened.beast["health"] = 1, 9, 38
        opened.close()
        act(worlds, r.SELL)
        seen = act(worlds, r.SELL)
        assert (seen["taken"][0] > 0, seen["menu"][0], seen["choice"][0]) == (True, 0, 0)


def test_any_other_action_closes_a_menu_and_is_done():
    for action in (r.WAIT, r.ATTACK, r.EAST):
        with market() as worlds:
            act(worlds, r.SELL)
            assert act(worlds, action)["menu"][0] == 0
    with market() as worlds:
        act(worlds, r.SELL)
        act(worlds, r.EAST)
        assert Open(worlds).place(0) == (11, 10)


def test_offers_end_with_the_life_of_their_seller_and_its_gold_is_sunk():
    with market(lifetime=20) as worlds:
        sell(worlds, 5, 3)
        while not worlds.truncated[0]:
            act(worlds)
        assert gold(worlds)[0] == 50, "the final observation still has it"
        act(worlds)
        assert gold(worlds) == [0, 0]
        state = Open(worlds).state
        assert (state["minted"], state["sunk"]) == (100, 100)
        assert (state["first"] == -1).all()
        opened = Open(worlds)
        opened.give_gold(1, 50)
        opened.close()
        buy(worlds, r.HOOD, 2)
        assert gold(worlds) == [0, 50]


def test_gold_is_conserved_through_all_that_agents_do():
    with load("realm").create(1, {"width": 64, "height": 64, "agents": 60}, [3]) as worlds:
        worlds.reset()
        generator, traders, bought = np.random.default_rng(0), Scripted(worlds.simulator, "trade", 60, 1), 0
        for t in range(1200):
            actions = traders.act(worlds.obs)
            actions[::6] = generator.integers(0, 26, 10)
            worlds.step(actions)
            if t % 50 == 0:
                opened = Open(worlds)
                assert opened.life["gold"].sum() == opened.state["minted"] - opened.state["sunk"]
                assert opened.life["gold"].min() >= 0
                bought = max(bought, opened.life["bought"].sum())
        assert bought > 0, "some have traded"
        assert 0 < opened.state["sunk"] < opened.state["minted"], "some have died with gold, some live"


def test_a_gift_goes_from_hand_to_hand_over_the_ground():
    with market(things=[(0, 2, r.PICK, 4)]) as worlds:
        act(worlds, r.DROP)
        act(worlds, r.KEY + 2)
        act(worlds, r.EAST)
        act(worlds, 0, r.WAIT)
        act(worlds, r.WAIT, 2)
        seen = act(worlds, r.WAIT, 2)
        assert item(r.PICK, 4) in seen["item"][1]
        assert grid(worlds.obs)[1, 5, 7, 2] == 0
