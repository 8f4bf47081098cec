/* Beasts: where they rise, whom they hunt, and how far from home. */
#include <stdlib.h>

#include "realm.h"

static const uint8_t element_of_season[SEASONS] = {
    [SPRING] = LOAM, [SUMMER] = FLAME, [AUTUMN] = GALE, [WINTER] = TIDE};

/* Each tier is half as frequent as the one below. A beast keeps its tier: if those that are felled could rise
 * in a higher one, the lower ones would die out. */
void draw_tiers(realm *w) {
    for (int32_t b = 0; b < w->set.beasts; b++) {
        uint8_t tier = 0;
        while (tier < TIERS - 1 && rng_below(&w->s->random, 2) == 1) tier++;
        w->beast[b].tier = tier;
    }
}

/* Somewhere else, with another level of its tier; beyond the first tier of the element of its season. */
void raise_beast(realm *w, int32_t b) {
    rng *random = &w->s->random;
    beast *one = &w->beast[b];
    int level = one->tier * TIER_LEVELS + 1 + (int)rng_below(random, TIER_LEVELS);
    *one = (beast){.tier = one->tier, .facing = (uint8_t)rng_below(random, WAYS)};
    one->level = (uint8_t)(level < w->set.levels ? level : w->set.levels);
    one->health = (uint8_t)max_health_of(one);
    one->tile = one->home = free_land(w);
    uint8_t *at = cell(w, one->tile);
    one->element = one->tier > 0 ? element_of_season[at[PLANE_SEASON]] : NEUTRAL;
    w->occupant[one->tile] = -1 - b;
    show_beast(w, one);
}

/* From tile to tile: columns east and rows south. */
typedef struct gap {
    int32_t x, y;
} gap;

static gap gap_between(const realm *w, int32_t from, int32_t to) {
    return (gap){to % w->columns - from % w->columns, to / w->columns - from / w->columns};
}

static int32_t length(gap g) { return abs(g.x) + abs(g.y); }

/* A bit for each tile of one row around `tile` that a beast sees: where agents are. */
static uint32_t agents_in_row(const realm *w, int32_t tile) {
    int32_t first = tile - EYES;
    uint32_t word;
    memcpy(&word, w->crowd + (first >> 3), sizeof word);
    return word >> (first & 7) & ((1u << (2 * EYES + 1)) - 1);
}

/* The nearest agent that a beast sees, where it stands itself: none. */
static gap nearest_agent(const realm *w, int32_t tile) {
    gap nearest = {0, 0};
    for (int32_t dy = -EYES; dy <= EYES; dy++) {
        for (uint32_t row = agents_in_row(w, tile + dy * w->columns); row != 0; row &= row - 1) {
            gap g = {__builtin_ctz(row) - EYES, dy};
            if (length(nearest) == 0 || length(g) < length(nearest)) nearest = g;
        }
    }
    return nearest;
}

/* The two ways that lead nearer, the longer one first. */
static void ways_along(gap g, int ways[2]) {
    int x = g.x < 0 ? WEST : EAST, y = g.y < 0 ? NORTH : SOUTH;
    bool level = abs(g.x) > abs(g.y);
    ways[0] = level ? x : y;
    ways[1] = level ? y : x;
}

static bool step(realm *w, beast *one, int way) {
    one->facing = (uint8_t)way;
    one->animation = WALK;
    int32_t to = one->tile + w->step[way];
    if (!is_free(cell(w, to))) return false;
    show_nobody(cell(w, one->tile));
    w->occupant[to] = w->occupant[one->tile];
    w->occupant[one->tile] = 0;
    one->tile = to;
    return true;
}

static void approach(realm *w, beast *one, gap g) {
    int ways[2];
    ways_along(g, ways);
    if (!step(w, one, ways[0]) && g.x != 0 && g.y != 0) (void)step(w, one, ways[1]);
}

/* Straight, and nothing of stone between: as far as a beast sees. */
static bool can_shoot(const realm *w, const beast *one, gap g) {
    if (one->tier < SHOOTING_TIER || (g.x != 0 && g.y != 0)) return false;
    int ways[2];
    ways_along(g, ways);
    for (int32_t far = 1; far < length(g); far++)
        if (cell(w, one->tile + far * w->step[ways[0]])[PLANE_GROUND] == STONE) return false;
    return true;
}

static void hunt(realm *w, beast *one, gap g) {
    bool beside = length(g) == 1;
    if (beside || can_shoot(w, one, g)) {
        int ways[2];
        ways_along(g, ways);
        one->facing = (uint8_t)ways[0];
        int32_t prey = w->occupant[one->tile + g.y * w->columns + g.x] - 1;
        strike_agent(w, one, prey, !beside);
    } else {
        approach(w, one, g);
    }
}

/* A step at random, or homeward where home is far. */
static void stroll(realm *w, beast *one, int way) {
    gap home = gap_between(w, one->tile, one->home);
    if (length(home) > ROAM)
        approach(w, one, home);
    else
        (void)step(w, one, way);
}

static void lie(realm *w, int32_t b) {
    beast *one = &w->beast[b];
    if (--one->fallen > 0) return;
    show_nobody(cell(w, one->tile));
    w->occupant[one->tile] = 0;
    raise_beast(w, b);
}

/* The first tier hunts only whom it has been struck by, or whoever is near by then. Most turns are spent in
 * rest, and change nothing that can be seen. */
void take_turn(realm *w, int32_t b) {
    beast *one = &w->beast[b];
    if (one->fallen) {
        lie(w, b);
        return;
    }
    gap prey = nearest_agent(w, one->tile);
    uint32_t chance = rng_below(&w->s->random, 4 * WAYS);
    bool hunts = length(prey) > 0 && (one->angry || one->tier > 0);
    if (!hunts && chance >= WAYS && one->animation == STILL) return;
    one->animation = STILL;
    gap home = gap_between(w, one->tile, one->home);
    if (hunts && length(home) > LEASH)
        approach(w, one, home);
    else if (hunts)
        hunt(w, one, prey);
    else if (chance < WAYS)
        stroll(w, one, (int)chance);
    show_beast(w, one);
}
