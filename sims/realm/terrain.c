/* The map: heights from noise, seasons around scattered sites, roads between the sites, and no land that
 * cannot be walked to. Whole numbers only, so that a seed gives the same map on every machine. */
#include <stdlib.h>

#include "realm.h"

/* Noise is a sum of lattices, each twice as fine and half as high as the one before. */
enum { OCTAVES = 4, COARSEST_BITS = 5, LATTICE_BITS = 12, HEIGHTS = 2 << LATTICE_BITS };
enum { SITE_TILES = 40 }; /* mean distance of the sites */
enum { WATER_PERCENT = 14, STONE_PERCENT = 16, DIRT_PERCENT = 18 };

typedef struct site {
    int32_t x, y, season;
} site;

/* A number to a point of a lattice, the same whenever it is asked for. */
static uint32_t lattice(uint64_t seed, int32_t x, int32_t y) {
    return (uint32_t)(rng_mix(seed ^ ((uint64_t)(uint32_t)x << 32 | (uint32_t)y)) >> 32);
}

/* Between a and b, at t of a period of 2^bits, with a slope of 0 at both ends. */
static int32_t blend(int32_t a, int32_t b, int32_t t, int bits) {
    int32_t weight = t * t * ((3 << bits) - 2 * t); /* of the period cubed */
    return a + (((b - a) * weight) >> (3 * bits));
}
_Static_assert(LATTICE_BITS + 3 * COARSEST_BITS < 31, "a blend stays within 32 bits");

/* Below HEIGHTS. */
static int32_t noise(uint64_t seed, int32_t x, int32_t y) {
    int32_t sum = 0;
    for (int octave = 0; octave < OCTAVES; octave++) {
        int bits = COARSEST_BITS - octave, shift = 32 - LATTICE_BITS + octave;
        int32_t i = x >> bits, j = y >> bits, dx = x - (i << bits), dy = y - (j << bits);
        uint64_t s = seed + (uint64_t)octave;
        int32_t corner[4];
        for (int k = 0; k < 4; k++) corner[k] = (int32_t)(lattice(s, i + k % 2, j + k / 2) >> shift);
        int32_t upper = blend(corner[0], corner[1], dx, bits), lower = blend(corner[2], corner[3], dx, bits);
        sum += blend(upper, lower, dy, bits);
    }
    return sum;
}

/* The height that `percent` of the map's tiles lie below. `height` is [tiles]. */
static int32_t level_at(const realm *w, const int32_t *height, int percent) {
    int32_t count[HEIGHTS] = {0}, below = 0, level = 0;
    int64_t wanted = (int64_t)w->set.width * w->set.height * percent / 100;
    for (int32_t y = 0; y < w->set.height; y++)
        for (int32_t x = 0; x < w->set.width; x++) count[height[tile_at(w, x, y)]]++;
    while (level < HEIGHTS && below + count[level] <= wanted) below += count[level++];
    return level;
}

static void fill_noise(const realm *w, uint64_t seed, int32_t *height) {
    for (int32_t y = 0; y < w->set.height; y++)
        for (int32_t x = 0; x < w->set.width; x++) height[tile_at(w, x, y)] = noise(seed, x, y);
}

/* `scarcity` 0 is the usual share of water and stone; each step more halves it. */
static void draw_ground(realm *w, uint64_t seed, int scarcity) {
    int32_t *height = w->occupant; /* nobody is there yet */
    fill_noise(w, seed, height);
    int32_t sea = level_at(w, height, WATER_PERCENT >> scarcity);
    int32_t rock = level_at(w, height, 100 - (STONE_PERCENT >> scarcity));
    for (int32_t t = 0; t < w->tiles; t++) cell(w, t)[PLANE_GROUND] = WATER;
    for (int32_t y = 0; y < w->set.height; y++) {
        for (int32_t x = 0; x < w->set.width; x++) {
            int32_t t = tile_at(w, x, y);
            cell(w, t)[PLANE_GROUND] = height[t] < sea ? WATER : height[t] >= rock ? STONE : GRASS;
        }
    }
    fill_noise(w, ~seed, height);
    int32_t dry = level_at(w, height, DIRT_PERCENT);
    for (int32_t t = 0; t < w->tiles; t++) {
        uint8_t *at = cell(w, t);
        if (at[PLANE_GROUND] == GRASS && height[t] < dry) at[PLANE_GROUND] = DIRT;
        height[t] = 0;
    }
}

static int32_t sites_along(int32_t length) { return length < 2 * SITE_TILES ? 2 : length / SITE_TILES; }

/* Site (i, j): somewhere in the middle half of its field. Neighbours differ in season. */
static site site_at(const realm *w, uint64_t seed, int32_t i, int32_t j) {
    int32_t columns = sites_along(w->set.width), rows = sites_along(w->set.height);
    int32_t wide = w->set.width / columns, high = w->set.height / rows;
    uint32_t chance = lattice(seed, i, j);
    return (site){
        .x = i * wide + wide / 4 + (int32_t)(chance % (uint32_t)(wide / 2)),
        .y = j * high + high / 4 + (int32_t)((chance >> 16) % (uint32_t)(high / 2)),
        .season = (int32_t)(((uint32_t)i + 2 * (uint32_t)j + (uint32_t)seed) % SEASONS),
    };
}

/* The sites of a field and of those around it; returns how many there are. */
static int sites_around(const realm *w, uint64_t seed, int32_t i, int32_t j, site near[9]) {
    int32_t columns = sites_along(w->set.width), rows = sites_along(w->set.height);
    int count = 0;
    for (int32_t row = j > 0 ? j - 1 : 0; row <= j + 1 && row < rows; row++)
        for (int32_t column = i > 0 ? i - 1 : 0; column <= i + 1 && column < columns; column++)
            near[count++] = site_at(w, seed, column, row);
    return count;
}

/* A tile has the season of the nearest site, seen from a little beside it, so that borders wind. */
static int32_t season_at(const site *near, int count, uint64_t seed, int32_t x, int32_t y) {
    int32_t aside = (noise(seed, x, y) - HEIGHTS / 2) * SITE_TILES / 2 / HEIGHTS;
    int32_t best = INT32_MAX, season = SPRING;
    for (int n = 0; n < count; n++) {
        int32_t dx = near[n].x - x - aside, dy = near[n].y - y + aside;
        if (dx * dx + dy * dy >= best) continue;
        best = dx * dx + dy * dy;
        season = near[n].season;
    }
    return season;
}

/* Field by field; the last of a row or column takes what is left over. */
static void draw_seasons(realm *w, uint64_t seed) {
    int32_t columns = sites_along(w->set.width), rows = sites_along(w->set.height);
    int32_t wide = w->set.width / columns, high = w->set.height / rows;
    for (int32_t j = 0; j < rows; j++) {
        for (int32_t i = 0; i < columns; i++) {
            site near[9];
            int count = sites_around(w, seed, i, j, near);
            int32_t bottom = j + 1 < rows ? (j + 1) * high : w->set.height;
            int32_t right = i + 1 < columns ? (i + 1) * wide : w->set.width;
            for (int32_t y = j * high; y < bottom; y++)
                for (int32_t x = i * wide; x < right; x++)
                    cell(w, tile_at(w, x, y))[PLANE_SEASON] = (uint8_t)season_at(near, count, seed, x, y);
        }
    }
}

/* A winding road of dirt over whatever lies between. */
static void draw_road(realm *w, site from, site to) {
    int32_t x = from.x, y = from.y;
    cell(w, tile_at(w, x, y))[PLANE_GROUND] = DIRT;
    while (x != to.x || y != to.y) {
        uint32_t dx = (uint32_t)abs(to.x - x), dy = (uint32_t)abs(to.y - y);
        if (rng_below(&w->s->random, dx + dy) < dx)
            x += to.x > x ? 1 : -1;
        else
            y += to.y > y ? 1 : -1;
        cell(w, tile_at(w, x, y))[PLANE_GROUND] = DIRT;
    }
}

static void draw_roads(realm *w, uint64_t seed) {
    int32_t columns = sites_along(w->set.width), rows = sites_along(w->set.height);
    for (int32_t j = 0; j < rows; j++) {
        for (int32_t i = 0; i < columns; i++) {
            site here = site_at(w, seed, i, j);
            if (i + 1 < columns) draw_road(w, here, site_at(w, seed, i + 1, j));
            if (j + 1 < rows) draw_road(w, here, site_at(w, seed, i, j + 1));
        }
    }
}

/* Collects all that can be walked to from the first site; what cannot is grown over with stone. */
static void find_land(realm *w, uint64_t seed) {
    site first = site_at(w, seed, 0, 0);
    int32_t lands = 0;
    w->land[lands++] = tile_at(w, first.x, first.y);
    w->left[w->land[0]] = 1; /* marks what has been reached */
    for (int32_t next = 0; next < lands; next++) {
        for (int way = 0; way < WAYS; way++) {
            int32_t t = w->land[next] + w->step[way];
            if (w->left[t] || !is_land(cell(w, t))) continue;
            w->left[t] = 1;
            w->land[lands++] = t;
        }
    }
    for (int32_t t = 0; t < w->tiles; t++)
        if (is_land(cell(w, t)) && !w->left[t]) cell(w, t)[PLANE_GROUND] = STONE;
    memset(w->left, 0, (size_t)w->tiles);
    w->s->lands = lands;
}

/* A map that is less than half land is drawn again with half as much water and stone, at last with none. */
void draw_map(realm *w) {
    rng *random = &w->s->random;
    uint64_t seed = (uint64_t)rng_u32(random) << 32 | rng_u32(random);
    draw_seasons(w, seed);
    int32_t half = w->set.width * w->set.height / 2;
    for (int scarcity = 0; w->s->lands < half; scarcity++) {
        draw_ground(w, seed, scarcity);
        draw_roads(w, seed);
        find_land(w, seed);
    }
}

/* Tries at random, then takes the next that is free: there is more land than there are agents and beasts. */
int32_t free_land(realm *w) {
    uint32_t lands = (uint32_t)w->s->lands, pick = 0;
    for (int tries = 0; tries < 16; tries++) {
        pick = rng_below(&w->s->random, lands);
        if (is_free(cell(w, w->land[pick]))) return w->land[pick];
    }
    do pick = pick + 1 < lands ? pick + 1 : 0;
    while (!is_free(cell(w, w->land[pick])));
    return w->land[pick];
}
