/* Plays many small realms of all kinds of sizes by random and scripted actions, compiled with the sanitizers and
 * with REALM_CHECK, so that every tick checks the invariants of sims/realm/check.c.
 *
 *     realm_soak TICKS SEED
 *
 * Every buffer is poisoned before a step. Now and then a world is saved and goes on as a copy of itself. Status 0
 * if all is well, else 1 and a line that says where it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "realm.h"
#include "scripts.h"

enum { TICKS_A_WORLD = 1500, SAVE_TICKS = 500 };

static const sim_api *api;

static void set(double *values, const char *name, double value) {
    for (int32_t i = 0; i < api->n_params; i++)
        if (strcmp(api->params[i].name, name) == 0) values[i] = value;
}

/* Small maps, often crowded, with short lives now and then; some have no beasts, and some nothing that grows. */
static void draw_parameters(rng *random, double *values) {
    for (int32_t i = 0; i < api->n_params; i++) values[i] = api->params[i].value;
    int32_t width = 32 + (int32_t)rng_below(random, 12), height = 32 + (int32_t)rng_below(random, 12);
    set(values, "width", width);
    set(values, "height", height);
    set(values, "agents", 1 + rng_below(random, rng_below(random, 16) == 0 ? 80 : 8));
    if (rng_below(random, 4) == 0) set(values, "beasts", rng_below(random, 120));
    if (rng_below(random, 8) == 0) set(values, "ore", 0);
    if (rng_below(random, 4) == 0) set(values, "herb", 80);
    if (rng_below(random, 4) == 0) set(values, "regrowth", 1 + rng_below(random, 20));
    if (rng_below(random, 4) == 0) set(values, "decay", 1 + rng_below(random, 250));
    if (rng_below(random, 4) == 0) set(values, "patience", 1 + rng_below(random, 100));
    if (rng_below(random, 4) == 0) set(values, "lifetime", 1 + rng_below(random, 200));
    if (rng_below(random, 4) == 0) set(values, "levels", 1 + rng_below(random, 40));
}

typedef struct arrays {
    int32_t *actions;
    uint8_t *obs, *terminated, *truncated, *saved;
    float *rewards, *statistics;
    uint32_t *state;
} arrays;

static arrays allocate(size_t agents, size_t state_bytes) {
    return (arrays){
        .actions = calloc(agents, sizeof(int32_t)),
        .obs = malloc(agents * OBS_BYTES),
        .terminated = malloc(agents),
        .truncated = malloc(agents),
        .saved = malloc(state_bytes),
        .rewards = malloc(agents * sizeof(float)),
        .statistics = malloc(agents * STATS * sizeof(float)),
        .state = calloc(agents, sizeof(uint32_t)),
    };
}

static void release(arrays *a) {
    free(a->actions);
    free(a->obs);
    free(a->terminated);
    free(a->truncated);
    free(a->saved);
    free(a->rewards);
    free(a->statistics);
    free(a->state);
}

/* Agent i acts by script i % 4, the last of which is chance. */
static void choose_actions(rng *random, const arrays *a, size_t agents) {
    for (size_t i = 0; i < agents; i++) {
        if (i % 4 == SCRIPTS)
            a->actions[i] = (int32_t)rng_below(random, ACTIONS);
        else if (realm_script((int)(i % 4), a->obs + i * OBS_BYTES, 1, a->state + i, a->actions + i) < 0)
            abort();
    }
}

/* 0, or what step or load returned. */
static int play(rng *random, void *world, void *copy, arrays *a, size_t agents, int ticks) {
    sim_io io = {a->actions, a->obs, NULL, a->rewards, a->terminated, a->truncated, a->statistics};
    int error = api->reset(world, &io);
    for (int t = 0; t < ticks && error == 0; t++) {
        choose_actions(random, a, agents);
        if (t % SAVE_TICKS == SAVE_TICKS - 1) {
            (void)api->save(world, a->saved);
            error = api->load(copy, a->saved);
            if (error < 0) return error;
            void *before = world;
            world = copy;
            copy = before;
        }
        memset(a->obs, 0xa5, agents * OBS_BYTES);
        error = api->step(world, &io);
    }
    return error;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long ticks = atol(argv[1]), seed = atol(argv[2]), worlds = 0;
    api = sim_entry();
    double *values = calloc((size_t)api->n_params, sizeof *values);
    int error = 0;
    while (ticks > 0 && error == 0) {
        rng random;
        rng_seed(&random, rng_mix((uint64_t)seed) + (uint64_t)worlds);
        draw_parameters(&random, values);
        sim_shape shape;
        if (api->shape(values, &shape) < 0) return 1;
        void *world = api->create(values, rng_u32(&random)), *copy = api->create(values, 1);
        arrays a = allocate((size_t)shape.agents, api->state_bytes(world));
        int now = ticks < TICKS_A_WORLD ? (int)ticks : TICKS_A_WORLD;
        error = play(&random, world, copy, &a, (size_t)shape.agents, now);
        release(&a);
        api->destroy(world);
        api->destroy(copy);
        if (error < 0) printf("world %ld of seed %ld: invariant in line %d of check.c\n", worlds, seed, -error);
        ticks -= now;
        worlds++;
    }
    free(values);
    if (error < 0) return 1;
    printf("%ld worlds\n", worlds);
    return 0;
}
