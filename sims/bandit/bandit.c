/* Bandit: arms that pay 1 or nothing, by chances that are known.
 *
 * Arm k of n pays with probability worst + (best - worst) * k / (n - 1). An episode is one pull and
 * terminates: nothing is bootstrapped and nothing follows, so that the expectation of any estimator that
 * weighs rewards by importance ratios, and with it the bias that clipping or masking a ratio brings, is a sum
 * over the arms. The observation is a constant 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "sim.h"

#define MAX_ARMS 64

/* ---- What a user may set, and what is reported of a finished episode ---- */

enum { PARAM_ARMS, PARAM_WORST, PARAM_BEST };

static const sim_param params[] = {
    [PARAM_ARMS] = {"arms", "arms to choose from", SIM_INT, 4, 2, MAX_ARMS},
    [PARAM_WORST] = {"worst", "chance that the first arm pays", SIM_FLOAT, 0.1, 0, 1},
    [PARAM_BEST] = {"best", "chance that the last arm pays; it rises evenly", SIM_FLOAT, 0.9, 0, 1},
};

enum { STAT_RETURN, STAT_CHANCE };

static const sim_statistic statistics[] = {
    [STAT_RETURN] = {"return", "what the pull paid, 0 or 1"},
    [STAT_CHANCE] = {"chance", "chance that the pulled arm pays: the return without its noise, and the score"},
};

/* ---- The world: the arms, and the state that `save` and `load` copy ---- */

enum { STATE_VERSION = 1 }; /* raised when `state` changes, so that `load` refuses an old one */

typedef struct state {
    uint32_t version;
    int32_t pulled; /* the last arm; -1 before the first pull */
    int32_t paid;
    int32_t reserved; /* makes the padding explicit: every saved byte is defined */
    rng random;
} state;

typedef struct bandit {
    int32_t arms;
    float chance[MAX_ARMS];
    state now;
} bandit;

/* ---- The ABI: see sim.h for what each function owes ---- */

static int shape(const double *values, sim_shape *out) {
    *out = (sim_shape){
        .agents = 1,
        .obs_dtype = SIM_UINT8,
        .obs_dims = 1,
        .obs_shape = {1},
        .heads = 1,
        .head = {{.choices = (int32_t)values[PARAM_ARMS]}},
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    bandit *world = calloc(1, sizeof *world);
    if (world == NULL) return NULL;
    world->arms = (int32_t)values[PARAM_ARMS];
    double worst = values[PARAM_WORST], range = values[PARAM_BEST] - worst;
    for (int32_t k = 0; k < world->arms; k++)
        world->chance[k] = (float)(worst + range * k / (world->arms - 1));
    world->now.version = STATE_VERSION;
    world->now.pulled = -1;
    rng_seed(&world->now.random, seed);
    return world;
}

static int reset(void *world, const sim_io *io) {
    (void)world; /* every pull begins where all begin */
    *(uint8_t *)io->obs = 1;
    return 0;
}

static int step(void *self, const sim_io *io) {
    bandit *world = self;
    state *now = &world->now;
    int32_t arm = *(const int32_t *)io->actions;
    if (arm < 0 || arm >= world->arms) return -1;
    now->pulled = arm;
    now->paid = rng_float(&now->random) < world->chance[arm];
    io->rewards[0] = (float)now->paid;
    io->terminated[0] = 1;
    io->statistics[STAT_RETURN] = (float)now->paid;
    io->statistics[STAT_CHANCE] = world->chance[arm];
    return reset(world, io);
}

static size_t state_bytes(const void *world) {
    (void)world;
    return sizeof(state);
}

static int save(const void *world, void *out) {
    memcpy(out, &((const bandit *)world)->now, sizeof(state));
    return 0;
}

static int load(void *world, const void *saved) {
    state loaded;
    memcpy(&loaded, saved, sizeof loaded);
    if (loaded.version != STATE_VERSION) return -1;
    ((bandit *)world)->now = loaded;
    return 0;
}

/* ---- Pictures (optional) ---- */

static int render_text(const void *world, char *out, size_t capacity) {
    const state *now = &((const bandit *)world)->now;
    int length = now->pulled < 0 ? snprintf(out, capacity, "no arm pulled yet\n")
                                 : snprintf(out, capacity, "arm %d paid %d\n", now->pulled, now->paid);
    return (size_t)length < capacity ? length : -1;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "bandit",
    .help = "arms with known chances, one pull an episode: every bias of importance sampling is a sum",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = STAT_CHANCE,
    .shape = shape,
    .create = create,
    .destroy = free,
    .reset = reset,
    .step = step,
    .state_bytes = state_bytes,
    .save = save,
    .load = load,
    .render_text = render_text,
};

const sim_api *sim_entry(void) { return &api; }
