"""A world of the realm laid open: its saved state as arrays that a test reads and sets, and small stages.

The layout is that of `state`, `agent`, `life` and `beast` in sims/realm/realm.h and of sims/realm/state.c.
"""

from __future__ import annotations

import numpy as np

from sims.loader import load

ROW_MARGIN, COLUMN_MARGIN, PLANES, SLOTS = 5, 7, 10, 12
SEASON, GROUND, ITEM, TIER, ENTITY, ELEMENT, RANK, HEALTH, ANIMATION, DIRECTION = range(PLANES)
GRASS, DIRT, STONE, WATER = range(4)
NORTH, SOUTH, WEST, EAST = range(4)
(
    NOTHING,
    HOOD,
    COAT,
    BOOTS,
    BLADE,
    BOW,
    PICK,
    SICKLE,
    AXE,
    FLAME,
    LOAM,
    TIDE,
    GALE,
    ORE,
    SHARD,
    WOOD,
    HERB,
) = range(17)
STILL, WALK, RUN, STRIKE, SHOOT, HANDLE, FALLEN = range(7)
CARRIED, WORN, ON_OFFER = range(3)
WAIT, ATTACK, BUY_GOODS, DROP, KEY, BUY_GEAR, SELL, RUN_NORTH = 4, 5, 6, 7, 8, 20, 21, 22
STEPS = {NORTH: (0, -1), SOUTH: (0, 1), WEST: (-1, 0), EAST: (1, 0)}

AGENT = np.dtype(
    [
        ("combat", "u1"),
        ("skill", "u1", 3),
        ("element", "u1"),
        ("facing", "u1"),
        ("animation", "u1"),
        ("health", "u1"),
        ("max_health", "u1"),
        ("menu", "u1"),
        ("choice", "u1"),
        ("gold_seen", "u1"),
        ("in_combat", "u1"),
        ("hand", "u1"),
        ("price", "u1", 5),
        ("item", "u1", SLOTS),
        ("slot", "u1", SLOTS),
        ("attack", "u1"),
        ("defence", "u1"),
        ("idle", "u1"),
        ("age", "u1"),
        ("born", "u1"),
        ("levelled", "u1"),
        ("skilled", "u1"),
        ("geared", "u1"),
        ("dealt", "u1"),
        ("taken", "u1"),
        ("healed", "u1"),
        ("sold", "u1"),
        ("bought", "u1"),
        ("found", "u1"),
        ("pending", "u1"),
        ("record", "u1"),
        ("spare", "u1", 5),
    ]
)
SELF = np.dtype(AGENT.descr[:-3])  # what an agent sees of itself: the last 57 bytes of an observation
LIFE = np.dtype(
    [
        ("born", "i8"),
        ("progressed", "i8"),
        ("gold", "i4"),
        ("kills", "i4"),
        ("harvests", "i4"),
        ("crafted", "i4"),
        ("bought", "i4"),
        ("sold", "i4"),
    ]
)
BEAST = np.dtype(
    [
        ("tile", "i4"),
        ("home", "i4"),
        ("level", "u1"),
        ("element", "u1"),
        ("health", "u1"),
        ("facing", "u1"),
        ("animation", "u1"),
        ("fallen", "u1"),
        ("angry", "u1"),
        ("tier", "u1"),
    ]
)
QUEUE = np.dtype([("first", "i4"), ("count", "i4"), ("room", "i4"), ("spare", "i4")])
STATE = np.dtype(
    [
        ("version", "u4"),
        ("width", "i4"),
        ("height", "i4"),
        ("agents", "i4"),
        ("beasts", "i4"),
        ("resources", "i4"),
        ("lands", "i4"),
        ("spare", "i4"),
        ("tick", "i8"),
        ("minted", "i8"),
        ("sunk", "i8"),
        ("random", "u8", 2),
        ("regrowth", QUEUE),
        ("leavings", QUEUE),
        ("first", "i4", (81, 12)),
        ("last", "i4", (81, 12)),
        ("prices", "u2", 81),
    ],
    align=True,
)


def item(kind, tier=0):
    """The code of a thing; tiers from 0."""
    return 1 + (kind - 1) * 5 + tier


def grid(obs):
    """Windows [B, 11, 15, 10] of observations [B, 1707]."""
    return obs[:, :1650].reshape(-1, 11, 15, PLANES)


def self_of(obs):
    """What agents see of themselves, [B] of SELF."""
    return np.ascontiguousarray(obs[:, 1650:]).view(SELF)[:, 0]


class Open:
    """World 0 laid open at the time of this call; `close` puts back what has been set."""

    def __init__(self, worlds):
        self.worlds, self.saved = worlds, bytearray(worlds.save(0))
        self._at = 0
        self.state = self._part(STATE)[0]
        self.columns = -(-(int(self.state["width"]) + 2 * COLUMN_MARGIN) // 8) * 8
        rows = int(self.state["height"]) + 2 * ROW_MARGIN
        agents, tiles = int(self.state["agents"]), rows * self.columns
        self.view = self._part("u1", (rows, self.columns, PLANES))
        self.occupant = self._part("i4", (rows, self.columns))
        self.crowd = self._part("u1", (tiles // 8 + 4,))
        self.left = self._part("u1", (rows, self.columns))
        self.land = self._part("i4", (tiles,))[: self.state["lands"]]
        self.tile = self._part("i4", (agents,))
        self.agent = self._part(AGENT, (agents,))
        self.life = self._part(LIFE, (agents,))
        self.beast = self._part(BEAST, (int(self.state["beasts"]),))

    def _part(self, dtype, shape=(1,)):
        dtype, count = np.dtype(dtype), int(np.prod(shape))
        part = np.frombuffer(self.saved, dtype, count, self._at).reshape(shape)
        self._at = -(-(self._at + count * dtype.itemsize) // 64) * 64
        return part

    def close(self):
        self.worlds.load(0, bytes(self.saved))

    def place(self, i):
        """(x, y) of agent i."""
        row, column = divmod(int(self.tile[i]), self.columns)
        return column - COLUMN_MARGIN, row - ROW_MARGIN

    def at(self, x, y):
        """The planes of a tile of the map."""
        return self.view[y + ROW_MARGIN, x + COLUMN_MARGIN]

    def put_item(self, x, y, kind, tier=0):
        self.at(x, y)[[ITEM, TIER]] = kind, tier

    def move(self, i, x, y):
        """Puts agent i there; the tile must be free."""
        old, new = int(self.tile[i]), (y + ROW_MARGIN) * self.columns + x + COLUMN_MARGIN
        self._entity(old, new)
        for tile in (old, new):
            self.crowd[tile // 8] ^= 1 << tile % 8
        self.tile[i] = new

    def move_beast(self, b, x, y):
        """Puts beast b there, which is its home from then on."""
        new = (y + ROW_MARGIN) * self.columns + x + COLUMN_MARGIN
        self._entity(int(self.beast["tile"][b]), new)
        self.beast["tile"][b] = self.beast["home"][b] = new

    def _entity(self, old, new):
        view, occupant = self.view.reshape(-1, PLANES), self.occupant.reshape(-1)
        seen, who = view[old, ENTITY:].copy(), occupant[old]
        view[old, ENTITY:], occupant[old] = 0, 0
        assert occupant[new] == 0
        view[new, ENTITY:], occupant[new] = seen, who

    def give(self, i, kind, tier=0, slot=0, worn=False):
        """Something into a slot of agent i, and into its hand where it is worn there."""
        self.agent["item"][i, slot] = item(kind, tier)
        self.agent["slot"][i, slot] = WORN if worn else CARRIED
        if worn and BLADE <= kind <= AXE:
            self.agent["hand"][i] = item(kind, tier)

    def give_gold(self, i, gold):
        self.life["gold"][i] += gold
        self.agent["gold_seen"][i] = min(127, self.life["gold"][i])
        self.state["minted"] += gold


def stage(agents=1, beasts=0, **params):
    """A meadow of 32 x 32 on which nothing grows, but one thing may that a test puts there.

    Agents stand with empty hands in a row from (10, 10) eastwards, two tiles apart, beasts far off, from
    (2, 30) eastwards.
    """
    bare = {"ore": 1, "shard": 0, "wood": 0, "herb": 0, "charms": 0, "width": 32, "height": 32}
    worlds = load("realm").create(1, {**bare, "agents": agents, "beasts": beasts, **params}, [7])
    worlds.reset()
    opened = Open(worlds)
    opened.view[ROW_MARGIN:-ROW_MARGIN, COLUMN_MARGIN : COLUMN_MARGIN + 32, GROUND] = GRASS
    opened.view[..., [ITEM, TIER]] = 0
    opened.agent["item"] = 0
    for i in range(agents):
        opened.move(i, 31, i)  # out of the way of the others
    for b in range(beasts):
        opened.move_beast(b, 2 * b + 2, 30)
    for i in range(agents):
        opened.move(i, 10 + 2 * i, 10)
    opened.close()
    return worlds


def act(worlds, *actions):
    """One tick; who is not named waits. Returns what the agents see of themselves afterwards."""
    row = np.full(worlds.agents, WAIT, np.int32)
    row[: len(actions)] = actions
    worlds.step(row)
    return self_of(worlds.obs)
