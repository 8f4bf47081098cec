/* A world's memory: one block with everything that changes, so that saving it is copying it. */
#include <stdlib.h>

#include "realm.h"

enum { LINE = 64 };

/* The next part of the block: `count` elements of `size` bytes, on a cache line of its own. */
static void *part(realm *w, size_t count, size_t size) {
    size_t at = w->bytes;
    w->bytes = (at + count * size + LINE - 1) / LINE * LINE;
    return w->block == NULL ? NULL : w->block + at;
}

/* Lays the parts out; without a block only to see how large it has to be. */
static void lay_out(realm *w) {
    size_t tiles = (size_t)w->tiles, agents = (size_t)w->set.agents, beasts = (size_t)w->set.beasts;
    size_t resources = (size_t)w->set.resources;
    w->bytes = 0;
    w->s = part(w, 1, sizeof *w->s);
    w->view = part(w, tiles, PLANES);
    w->occupant = part(w, tiles, sizeof *w->occupant);
    w->crowd = part(w, tiles / 8 + sizeof(uint32_t), 1); /* beasts read words of it */
    w->left = part(w, tiles, 1);
    w->land = part(w, tiles, sizeof *w->land);
    w->tile = part(w, agents, sizeof *w->tile);
    w->agent = part(w, agents, sizeof *w->agent);
    w->life = part(w, agents, sizeof *w->life);
    w->beast = part(w, beasts, sizeof *w->beast);
    w->regrowth = part(w, resources, sizeof *w->regrowth);
    w->leavings = part(w, agents + beasts, sizeof *w->leavings);
    w->after = part(w, agents * SLOTS, sizeof *w->after);
    w->before = part(w, agents * SLOTS, sizeof *w->before);
    w->asked = part(w, agents * SLOTS, 1);
}

realm *realm_create(const settings *set, uint64_t seed) {
    realm *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    w->set = *set;
    w->rows = set->height + 2 * ROW_MARGIN;
    w->columns = (set->width + 2 * COLUMN_MARGIN + 7) / 8 * 8; /* whole bytes of `crowd` */
    w->tiles = w->rows * w->columns;
    w->step[NORTH] = -w->columns;
    w->step[SOUTH] = w->columns;
    w->step[WEST] = -1;
    w->step[EAST] = 1;
    w->age_share = 16.0 / (set->lifetime + 1.0);
    w->idle_share = 16.0 / (set->patience + 1.0);
    lay_out(w);
    w->block = aligned_alloc(LINE, w->bytes);
    if (w->block == NULL) {
        free(w);
        return NULL;
    }
    memset(w->block, 0, w->bytes);
    lay_out(w);
    state *s = w->s; /* field by field: an assignment of the whole may leave anything in the gaps */
    s->version = STATE_VERSION;
    s->width = set->width;
    s->height = set->height;
    s->agents = set->agents;
    s->beasts = set->beasts;
    s->resources = set->resources;
    s->regrowth.room = set->resources;
    s->leavings.room = set->agents + set->beasts;
    rng_seed(&s->random, seed);
    draw_map(w);
    populate(w);
    return w;
}

void realm_destroy(realm *w) {
    free(w->block);
    free(w);
}

/* Negative if the saved world is of another version or size. */
int realm_load(realm *w, const void *saved) {
    const size_t fixed = offsetof(state, lands);
    if (memcmp(saved, w->s, fixed) != 0) return -1;
    memcpy(w->block, saved, w->bytes);
    return 0;
}
