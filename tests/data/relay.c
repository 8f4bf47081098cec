/* A simulator for tests: every agent's episodes follow a fixed script, so each figure can be computed by
 * hand.
 *
 * Agent i's episode e lasts 3 + i steps and ends, by e modulo 3: terminated, truncated, both. A step's reward
 * is 1 + 10 * (action of head 0), or 1 + action when `continuous`. An observation is [agent, episode, step,
 * 7]. Before step s choice s % 3 of head 0 is forbidden. With `unruly` it breaks the rules that the host
 * enforces: it rewards and flags the step after a truncation, and its flags are 255 instead of 1. `fail_at`
 * makes that step of the world return -7. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { AGENTS, CONTINUOUS, UNRULY, FAIL_AT, MAX_AGENTS = 8 };

static const sim_param params[] = {
    [AGENTS] = {"agents", "agents of a world", SIM_INT, 2, 1, MAX_AGENTS},
    [CONTINUOUS] = {"continuous", "one head within [-1, 2] instead of two discrete ones", SIM_BOOL, 0, 0, 1},
    [UNRULY] = {"unruly", "break the rules that the host enforces", SIM_BOOL, 0, 0, 1},
    [FAIL_AT] = {"fail_at", "step that fails, 0 for none", SIM_INT, 0, 0, 1e6},
};

static const sim_statistic statistics[] = {{"episode", "its number"}, {"twice", "two times its number"}};

typedef struct relay {
    int32_t agents, continuous, unruly, fail_at;
    struct {
        int32_t steps;
        int32_t episode[MAX_AGENTS], step[MAX_AGENTS], pending[MAX_AGENTS];
    } now;
} relay;

static int shape(const double *values, sim_shape *out) {
    *out = (sim_shape){
        .agents = (int32_t)values[AGENTS],
        .obs_dtype = SIM_INT32,
        .obs_dims = 2,
        .obs_shape = {2, 2},
        .heads = 2,
    };
    out->head[0].choices = 3;
    out->head[1].choices = 2;
    out->has_mask = 1;
    if (values[CONTINUOUS] != 0.0) {
        out->heads = 1;
        out->head[0] = (sim_head){0, -1.0f, 2.0f};
        out->has_mask = 0;
    }
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    (void)seed;
    relay *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->agents = (int32_t)values[AGENTS];
    r->continuous = values[CONTINUOUS] != 0.0;
    r->unruly = values[UNRULY] != 0.0;
    r->fail_at = (int32_t)values[FAIL_AT];
    return r;
}

static void show(const relay *r, const sim_io *io) {
    for (int32_t i = 0; i < r->agents; i++) {
        int32_t *obs = (int32_t *)io->obs + 4 * i;
        obs[0] = i;
        obs[1] = r->now.episode[i];
        obs[2] = r->now.step[i];
        obs[3] = 7;
        if (io->mask != NULL) io->mask[5 * i + r->now.step[i] % 3] = 0;
    }
}

static int reset(void *world, const sim_io *io) {
    relay *r = world;
    for (int32_t i = 0; i < r->agents; i++) r->now.step[i] = r->now.pending[i] = r->now.episode[i] = 0;
    show(r, io);
    return 0;
}

static int step(void *world, const sim_io *io) {
    relay *r = world;
    if (++r->now.steps == r->fail_at) return -7;
    uint8_t set = r->unruly ? 255 : 1;
    for (int32_t i = 0; i < r->agents; i++) {
        if (r->now.pending[i]) {
            r->now.pending[i] = 0;
            r->now.step[i] = 0;
            r->now.episode[i]++;
            if (r->unruly) {
                io->rewards[i] = 1000.0f;
                io->terminated[i] = io->truncated[i] = set;
            }
            continue;
        }
        io->rewards[i] = 1.0f + (r->continuous ? ((const float *)io->actions)[i]
                                               : 10.0f * (float)((const int32_t *)io->actions)[2 * i]);
        if (++r->now.step[i] < 3 + i) continue;
        int32_t episode = r->now.episode[i], kind = episode % 3;
        io->terminated[i] = kind != 1 ? set : 0;
        io->truncated[i] = kind != 0 ? set : 0;
        io->statistics[2 * i] = (float)episode;
        io->statistics[2 * i + 1] = 2.0f * (float)episode;
        if (kind == 1) {
            r->now.pending[i] = 1;
        } else {
            r->now.step[i] = 0;
            r->now.episode[i]++;
        }
    }
    show(r, io);
    return 0;
}

static size_t state_bytes(const void *world) {
    (void)world;
    return sizeof((relay *)0)->now;
}

static int save(const void *world, void *out) {
    memcpy(out, &((const relay *)world)->now, sizeof((relay *)0)->now);
    return 0;
}

static int load(void *world, const void *state) {
    memcpy(&((relay *)world)->now, state, sizeof((relay *)0)->now);
    return 0;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "relay",
    .help = "episodes by a script, for tests",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = 1,
    .shape = shape,
    .create = create,
    .destroy = free,
    .reset = reset,
    .step = step,
    .state_bytes = state_bytes,
    .save = save,
    .load = load,
};

const sim_api *sim_entry(void) { return &api; }
