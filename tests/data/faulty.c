/* A simulator for tests that breaks down at a chosen step, in a way that is chosen too.
 *
 * From step `at` on (the first is 1), or at reset if that is 0, worlds do `fault`; with `odd` only those whose seed
 * is odd. Otherwise an observation is [steps, 0, 0, 0], the reward is 1 and episodes never end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { FAULT, AT, ODD };
enum { NONE, DIVIDE, NULL_POINTER, ENDLESS, OBS_OVERRUN, REWARD_OVERRUN, NAN_REWARD, INFINITE_REWARD, ERROR, RECURSION,
       ABORT, FAULTS };

static const sim_param params[] = {
    [FAULT] = {"fault", "which", SIM_INT, 0, 0, FAULTS - 1},
    [AT] = {"at", "step from which on it happens", SIM_INT, 1, 0, 1e9},
    [ODD] = {"odd", "only in worlds with an odd seed", SIM_BOOL, 0, 0, 1},
};
static const sim_statistic statistics[] = {{"none", "nothing"}};

typedef struct faulty {
    int32_t fault, at, odd, steps;
    volatile int32_t zero;
} faulty;

static int shape(const double *values, sim_shape *out) {
    (void)values;
    *out = (sim_shape){.agents = 1, .obs_dtype = SIM_FLOAT32, .obs_dims = 1, .obs_shape = {4}, .heads = 1,
                       .head = {{.choices = 2}}};
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    faulty *f = calloc(1, sizeof *f);
    if (f == NULL) return NULL;
    f->fault = !values[ODD] || seed % 2 == 1 ? (int32_t)values[FAULT] : NONE;
    f->at = (int32_t)values[AT];
    return f;
}

static int recurse(volatile char *above) {
    volatile char here[4096];
    here[0] = (char)(above[0] + 1);
    return recurse(here) + here[0];
}

static int fail(faulty *f, const sim_io *io) {
    switch (f->fault) {
    case DIVIDE: f->zero = 7 / f->zero; break;
    case NULL_POINTER: *(volatile int *)(uintptr_t)f->zero = 1; break;
    case ENDLESS: for (;;) f->zero = 0;
    case OBS_OVERRUN: memset(io->obs, 1, 6 * sizeof(float)); break;
    case REWARD_OVERRUN: io->rewards[1] = 1.0f; break;
    case NAN_REWARD: io->rewards[0] = NAN; break;
    case INFINITE_REWARD: io->rewards[0] = -INFINITY; break;
    case ERROR: return -7;
    case RECURSION: return recurse(&(volatile char){0});
    case ABORT: abort();
    default: break;
    }
    return 0;
}

static int show(faulty *f, const sim_io *io) {
    memset(io->obs, 0, 4 * sizeof(float));
    *(float *)io->obs = (float)f->steps;
    return f->steps >= f->at ? fail(f, io) : 0;
}

static int reset(void *world, const sim_io *io) { return show(world, io); }

static int step(void *world, const sim_io *io) {
    ((faulty *)world)->steps++;
    io->rewards[0] = 1.0f;
    return show(world, io);
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "faulty",
    .help = "breaks down as told, for tests",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = 1,
    .shape = shape,
    .create = create,
    .destroy = free,
    .reset = reset,
    .step = step,
};

const sim_api *sim_entry(void) { return &api; }
