/* The realm: its constants, its memory, and what its files say to one another. The rules: docs/realm.md. */
#ifndef HEADRACE_REALM_H
#define HEADRACE_REALM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rng.h"
#include "sight.h"
#include "sim.h"

enum { STATE_VERSION = 1 };

/* Ways an entity may go, and how its tile changes. */
enum { NORTH, SOUTH, WEST, EAST, WAYS };

/* Balance. Health, attack and defence stay below SIM_CODES, so that each is one byte of the observation. */
enum {
    BLOW = 20,          /* damage between equals */
    BEAST_BLOW = 10,    /* the same when a beast strikes */
    HEALTH = 80,        /* of an agent, and one more for each level */
    BEAST_HEALTH = 20,  /* of a beast, and two more for each level */
    ARMOUR_POINTS = 2,  /* defence a tier, for each of three pieces */
    BLADE_POINTS = 6,   /* attack a tier */
    BOW_POINTS = 4,     /* attack a tier */
    HERB_HEALTH = 16,   /* a tier, and once more */
    SKILL_LEVELS = 8,   /* levels that a tier can teach in a profession */
    TIER_LEVELS = 8,    /* levels of beasts in a tier */
    RANK_LEVELS = 4,    /* levels that look alike */
    GEAR_POINTS = 6,    /* attack and defence that are worth as much as a level */
    SHOT = 4,           /* tiles that an arrow flies */
    EYES = 3,           /* tiles that a beast sees, in each direction */
    LEASH = 12,         /* tiles from its home where a beast turns back */
    ROAM = 6,           /* tiles from its home that a beast strolls */
    SHOOTING_TIER = 2,  /* beasts from this tier on shoot, counted from 0 */
    COMBAT_TICKS = 5,   /* after a blow, in which there is no trading */
    FALLEN_TURNS = 3,   /* turns that a fallen beast lies there */
    HEALING_TICKS = 4,  /* in which an agent regains one point of health */
    LEVELS = 40,
};

/* What an agent is. The first bytes are what it sees of itself, in the order of the observation. */
typedef struct agent {
    uint8_t combat; /* coded bytes: see sight.h */
    uint8_t skill[SKILLS];
    uint8_t element, facing, animation, health, max_health;
    uint8_t menu, choice, gold_seen, in_combat, hand;
    uint8_t price[TIERS];
    uint8_t item[SLOTS], slot[SLOTS];
    uint8_t attack, defence, idle, age;
    uint8_t born, levelled, skilled, geared, dealt, taken, healed, sold, bought, found; /* of the last tick */
    uint8_t pending; /* truncated: the next tick begins another life. From here on hidden */
    uint8_t record;  /* attack and defence together, at their best in this life */
    uint8_t spare[5];
} agent;
_Static_assert(offsetof(agent, born) == CODED_BYTES, "coded bytes");
_Static_assert(offsetof(agent, pending) == CODED_BYTES + PLAIN_BYTES, "plain bytes");
_Static_assert(sizeof(agent) == 64, "one cache line");

/* The rest of an agent's life, which no policy sees as it is. */
typedef struct life {
    int64_t born, progressed; /* ticks */
    int32_t gold;
    int32_t kills, harvests, crafted, bought, sold;
} life;

typedef struct beast {
    int32_t tile, home;
    uint8_t level, element, health, facing, animation;
    uint8_t fallen; /* turns until it rises again elsewhere; 0: alive */
    uint8_t angry;  /* has been struck */
    uint8_t tier;
} beast;

/* What will happen to a tile: a resource grows again, a thing left on the ground is gone. */
typedef struct event {
    int64_t due;
    int32_t tile;
    uint8_t item;
    uint8_t mark; /* of the thing that is meant, see `left` */
    uint8_t spare[2];
} event;

/* Events in the order in which they fall due, in a circle of `room`. */
typedef struct queue {
    int32_t first, count, room, spare;
} queue;

/* The part of a world's state that is no array. */
typedef struct state {
    uint32_t version;
    int32_t width, height, agents, beasts; /* what the state's size follows from, with the resources */
    int32_t resources;
    int32_t lands; /* tiles that can be walked to */
    int32_t spare;
    int64_t tick;
    int64_t minted, sunk; /* gold: found on beasts; lost with lives */
    rng random;
    queue regrowth, leavings;
    int32_t first[ITEMS][PRICES], last[ITEMS][PRICES]; /* offers of an item at a price, by age; -1: none */
    uint16_t prices[ITEMS];                            /* bit p: there is an offer at price p + 1 */
} state;

typedef struct settings {
    int32_t width, height, agents, beasts, levels;
    int32_t grows[KINDS]; /* resources by kind */
    int32_t resources;    /* their sum */
    int32_t regrowth, decay, patience, lifetime;
    float reward_combat, reward_skill, reward_gear, reward_trade, reward_death;
    int32_t view_x, view_y, view_width, view_height;
} settings;

/* A world: one block of memory, which is what `save` copies, and where its parts lie in it. Tiles are
 * numbered over the map and a margin of sea around it, as wide as an agent sees. */
typedef struct realm {
    settings set;
    int32_t rows, columns, tiles; /* with the margin */
    int32_t step[WAYS];           /* from a tile to its neighbours */
    double age_share, idle_share; /* sixteenths of a limit that a tick is */
    size_t bytes;
    uint8_t *block;

    state *s;
    uint8_t *view;     /* [tiles, PLANES] as it is seen, but for the level: see observe.c */
    int32_t *occupant; /* [tiles] 0: nobody; i + 1: agent i; -1 - b: beast b */
    uint8_t *crowd;    /* a bit for each tile: an agent is here */
    uint8_t *left;     /* [tiles] 0, or the mark of the thing that was left here; a resource has none */
    int32_t *land;     /* [lands] tiles that can be walked to */
    int32_t *tile;     /* [agents] where each is */
    agent *agent;
    life *life;
    beast *beast;
    event *regrowth, *leavings;
    int32_t *after, *before; /* [agents, SLOTS] neighbours in the list of offers; -1: none */
    uint8_t *asked;          /* [agents, SLOTS] price of what is on offer; 0: is not */
    int32_t followed;        /* the agent that pictures are of */
} realm;

enum { ROW_MARGIN = VIEW_ROWS / 2, COLUMN_MARGIN = VIEW_COLUMNS / 2 };

static inline uint8_t *cell(const realm *w, int32_t tile) { return w->view + (size_t)tile * PLANES; }

static inline int32_t tile_at(const realm *w, int32_t x, int32_t y) {
    return (y + ROW_MARGIN) * w->columns + x + COLUMN_MARGIN;
}

static inline bool is_land(const uint8_t *at) { return at[PLANE_GROUND] <= DIRT; }
static inline bool is_free(const uint8_t *at) { return is_land(at) && at[PLANE_ENTITY] == NOBODY; }

static inline uint8_t item_of(int kind, int tier) { return (uint8_t)(1 + (kind - 1) * TIERS + tier); }
static inline int kind_of(int item) { return item == 0 ? NOTHING : 1 + (item - 1) / TIERS; }
static inline int tier_of(int item) { return item == 0 ? 0 : (item - 1) % TIERS; }

static inline int item_on(const uint8_t *at) {
    return at[PLANE_ITEM] == NOTHING ? 0 : item_of(at[PLANE_ITEM], at[PLANE_TIER]);
}

static inline void put_item(uint8_t *at, int item) {
    at[PLANE_ITEM] = (uint8_t)kind_of(item);
    at[PLANE_TIER] = (uint8_t)tier_of(item);
}

static inline void add(uint8_t *to, int amount) {
    int sum = *to + amount;
    *to = (uint8_t)(sum < SIM_CODES - 1 ? sum : SIM_CODES - 1);
}

static inline int max_health_of(const beast *one) { return BEAST_HEALTH + 2 * one->level; }
static inline int fifth(int health, int of) { return health == 0 ? 0 : (health * 5 - 1) / of; }

/* Levels are seen as ranks of four levels, and stand in the map three ranks higher than they are, so that
 * subtracting without going below 0, and cutting off, makes both "nobody" and "far below" 0. */
static inline uint8_t rank_shown(int level) { return (uint8_t)(level / RANK_LEVELS + 3); }
static inline uint8_t rank_subtracted(int level) { return (uint8_t)(level / RANK_LEVELS + 1); }

/* Planes ENTITY to DIRECTION of a tile. */
static inline void show(uint8_t *at, int entity, int element, int level, int fifths, int animation, int way) {
    const uint8_t seen[PLANES - PLANE_ENTITY] = {(uint8_t)entity, (uint8_t)element,   rank_shown(level),
                                                 (uint8_t)fifths, (uint8_t)animation, (uint8_t)way};
    memcpy(at + PLANE_ENTITY, seen, sizeof seen);
}

static inline void show_nobody(uint8_t *at) { memset(at + PLANE_ENTITY, 0, PLANES - PLANE_ENTITY); }

static inline void show_agent(const realm *w, int32_t i) {
    const agent *a = &w->agent[i];
    show(cell(w, w->tile[i]), AGENT, a->element, a->combat, fifth(a->health, a->max_health), a->animation,
         a->facing);
}

static inline void show_beast(const realm *w, const beast *b) {
    show(cell(w, b->tile), BEAST, b->element, b->level, fifth(b->health, max_health_of(b)), b->animation,
         b->facing);
}

static inline void crowd_flip(const realm *w, int32_t tile) {
    w->crowd[tile >> 3] ^= (uint8_t)(1 << (tile & 7));
}

/* state.c: memory */
realm *realm_create(const settings *set, uint64_t seed);
void realm_destroy(realm *w);
int realm_load(realm *w, const void *saved);

/* terrain.c */
void draw_map(realm *w);
int32_t free_land(realm *w); /* a tile at random that nobody stands on */

/* items.c */
void scatter_resources(realm *w);
void change_ground(realm *w); /* what falls due: growth and decay */
int empty_slot(const agent *a);
void pick_up(realm *w, int32_t i);
void leave(realm *w, int32_t tile, int item);
void use(realm *w, int32_t i, int slot);
void take_off(realm *w, int32_t i, int slot);
void reckon_gear(agent *a);

/* market.c */
void open_market(realm *w);
void offer(realm *w, int32_t i, int slot, int price);
void withdraw(realm *w, int32_t i, int slot);
void buy(realm *w, int32_t i, int item);
int cheapest(const realm *w, int item); /* price, 0: none */
void count_gold(realm *w, int32_t i, int32_t change);

/* combat.c */
void attack(realm *w, int32_t i);
void strike_agent(realm *w, beast *b, int32_t i, bool from_afar);

/* agents.c */
void be_born(realm *w, int32_t i);
void live_on(realm *w, int32_t i, int32_t action);
void pass_away(realm *w, int32_t i); /* leaves the world, with all it has */

/* beasts.c */
void draw_tiers(realm *w);
void raise_beast(realm *w, int32_t b);
void take_turn(realm *w, int32_t b);

/* tick.c */
void populate(realm *w);
int tick(realm *w, const sim_io *io);
enum {
    STAT_PROGRESS,
    STAT_COMBAT,
    STAT_MINING,
    STAT_FORAGING,
    STAT_LOGGING,
    STAT_GEAR,
    STAT_KILLS,
    STAT_HARVESTS,
    STAT_CRAFTED,
    STAT_BOUGHT,
    STAT_SOLD,
    STAT_GOLD,
    STAT_DIED,
    STATS,
};

/* observe.c */
void observe(const realm *w, uint8_t *obs);

/* render.c */
int draw_text(const realm *w, char *out, size_t capacity);
void draw_rgb(const realm *w, uint8_t *out);
enum { PIXELS = 8 }; /* a side of a tile in a picture */

#ifdef REALM_CHECK
/* check.c: 0, or minus the line there of the first invariant that does not hold. `obs` is what was just
 * written. */
int broken_invariant(const realm *w, const uint8_t *obs);
#endif

#endif
