/* A simulator for tests whose observation has a grid of categories, codes and plain numbers.
 *
 * Each agent sees rows x columns cells of three planes (4, 7 and 2 categories), then three codes, then two
 * plain bytes, all drawn anew each step. The reward is 1 for the action that plane 0 of the middle cell names.
 * Episodes of 5 steps terminate. `stray` makes step number `stray` write a byte out of its range: into the
 * last cell, or into the last code where `stray_code` is set. */
#include <stdlib.h>

#include "rng.h"
#include "sim.h"

enum { ROWS, COLUMNS, AGENTS, STRAY, STRAY_CODE, PLANES = 3, CODED = 3, PLAIN = 2, STEPS = 5 };

static const uint8_t categories[PLANES] = {4, 7, 2};

static const sim_param params[] = {
    [ROWS] = {"rows", "rows of the grid", SIM_INT, 5, 1, 64},
    [COLUMNS] = {"columns", "columns of the grid", SIM_INT, 7, 1, 64},
    [AGENTS] = {"agents", "agents of a world", SIM_INT, 4, 1, 1e6},
    [STRAY] = {"stray", "step that writes a byte out of range, 0 for none", SIM_INT, 0, 0, 1e6},
    [STRAY_CODE] = {"stray_code", "that byte is a code, not of the grid", SIM_BOOL, 0, 0, 1},
};

static const sim_statistic statistics[] = {{"right", "actions that were right"}};

typedef struct crop {
    int32_t rows, columns, agents, stray, stray_code, steps, episode;
    rng random;
    uint8_t *named;  /* [agents] the action that is right */
    float *right;    /* [agents] */
} crop;

static int shape(const double *values, sim_shape *out) {
    int32_t cells = (int32_t)(values[ROWS] * values[COLUMNS]);
    out->agents = (int32_t)values[AGENTS];
    out->obs_dtype = SIM_UINT8;
    out->obs_dims = 1;
    out->obs_shape[0] = cells * PLANES + CODED + PLAIN;
    out->heads = 1;
    out->head[0].choices = categories[0];
    out->grid_rows = (int32_t)values[ROWS];
    out->grid_columns = (int32_t)values[COLUMNS];
    out->grid_planes = PLANES;
    for (int p = 0; p < PLANES; p++) out->grid_values[p] = categories[p];
    out->coded = CODED;
    return 0;
}

static void destroy(void *world) {
    crop *c = world;
    free(c->named);
    free(c->right);
    free(c);
}

static void *create(const double *values, uint64_t seed) {
    crop *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->rows = (int32_t)values[ROWS];
    c->columns = (int32_t)values[COLUMNS];
    c->agents = (int32_t)values[AGENTS];
    c->stray = (int32_t)values[STRAY];
    c->stray_code = values[STRAY_CODE] != 0.0;
    c->named = calloc((size_t)c->agents, sizeof *c->named);
    c->right = calloc((size_t)c->agents, sizeof *c->right);
    rng_seed(&c->random, seed);
    if (c->named != NULL && c->right != NULL) return c;
    destroy(c);
    return NULL;
}

static void show(crop *c, const sim_io *io) {
    int32_t cells = c->rows * c->columns, middle = (c->rows / 2 * c->columns + c->columns / 2) * PLANES;
    int32_t grid = cells * PLANES, row = grid + CODED + PLAIN;
    for (int32_t i = 0; i < c->agents; i++) {
        uint8_t *obs = (uint8_t *)io->obs + (size_t)i * (size_t)row;
        for (int32_t j = 0; j < grid; j++) obs[j] = (uint8_t)rng_below(&c->random, categories[j % PLANES]);
        for (int32_t j = 0; j < CODED; j++) obs[grid + j] = (uint8_t)rng_below(&c->random, SIM_CODES);
        for (int32_t j = 0; j < PLAIN; j++) obs[grid + CODED + j] = (uint8_t)rng_below(&c->random, 256);
        c->named[i] = obs[middle];
        if (c->stray > 0 && c->steps == c->stray) {
            if (c->stray_code) obs[grid + CODED - 1] = SIM_CODES;
            else obs[grid - 1] = categories[PLANES - 1];
        }
    }
}

static int reset(void *world, const sim_io *io) {
    crop *c = world;
    c->episode = 0;
    for (int32_t i = 0; i < c->agents; i++) c->right[i] = 0.0f;
    show(c, io);
    return 0;
}

static int step(void *world, const sim_io *io) {
    crop *c = world;
    int ends = ++c->episode == STEPS;
    c->steps++;
    for (int32_t i = 0; i < c->agents; i++) {
        io->rewards[i] = ((const int32_t *)io->actions)[i] == c->named[i] ? 1.0f : 0.0f;
        c->right[i] += io->rewards[i];
        if (!ends) continue;
        io->terminated[i] = 1;
        io->statistics[i] = c->right[i];
        c->right[i] = 0.0f;
    }
    if (ends) c->episode = 0;
    show(c, io);
    return 0;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "crop",
    .help = "a grid, codes and plain numbers, for tests",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = 0,
    .shape = shape,
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .step = step,
};

const sim_api *sim_entry(void) { return &api; }
