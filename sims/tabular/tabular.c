/* Tabular: a random Markov decision process, small enough that every value is known in closed form.
 *
 * `task` alone fixes the process, so that all worlds of a run share it; a world's seed draws what happens. By
 * state s and action a, in this order, a generator seeded with `task` draws
 *  - P(s' | s, a): an exponential variate for each successor, then divided by their sum, which is uniform
 *    over all distributions;
 *  - R(s, a), uniform in [-1, 1): what the action earns, always;
 *  - the chance that the episode ends there, uniform in [0, 2 * ending).
 * An episode begins in a uniform state; it terminates by that chance, and is truncated after `max_steps`
 * steps. The limit is not part of the task: who bootstraps from the final observation learns the value of the
 * process without it. The observation is the state, one-hot. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "sim.h"

#define MAX_STATES 32
#define MAX_ACTIONS 16

/* ---- What a user may set, and what is reported of a finished episode ---- */

enum { PARAM_STATES, PARAM_ACTIONS, PARAM_TASK, PARAM_ENDING, PARAM_MAX_STEPS };

static const sim_param params[] = {
    [PARAM_STATES] = {"states", "states of the process", SIM_INT, 4, 2, MAX_STATES},
    [PARAM_ACTIONS] = {"actions", "actions in every state", SIM_INT, 3, 2, MAX_ACTIONS},
    [PARAM_TASK] = {"task", "number of the random process; the same for all worlds", SIM_INT, 1, 0, 1e9},
    [PARAM_ENDING] = {"ending", "mean chance that a step terminates the episode", SIM_FLOAT, 0.05, 0, 0.5},
    [PARAM_MAX_STEPS] = {"max_steps", "steps after which an episode is truncated", SIM_INT, 100, 1, 1e9},
};

enum { STAT_RETURN, STAT_STEPS };

static const sim_statistic statistics[] = {
    [STAT_RETURN] = {"return", "sum of the episode's rewards"},
    [STAT_STEPS] = {"steps", "steps of the episode"},
};

/* ---- The world: the process, which `create` draws, and the state that `save` and `load` copy ---- */

enum { STATE_VERSION = 1 }; /* raised when `state` changes, so that `load` refuses an old one */

typedef struct state {
    uint32_t version;
    int32_t steps;   /* of this episode */
    int32_t pending; /* 1: the last step was truncated, so the next one begins an episode */
    int32_t at;      /* the state that the process is in */
    rng random;
    double earned; /* in this episode */
} state;

typedef struct choice {
    float reward, ending;
    float up_to[MAX_STATES]; /* chance of a successor up to and with this one */
} choice;

typedef struct tabular {
    int32_t states, actions, max_steps;
    state now;
    choice choices[]; /* [states, actions] */
} tabular;

/* ---- The task ---- */

static void draw_choice(rng *random, int32_t states, double ending, choice *out) {
    double weight[MAX_STATES], total = 0.0, sum = 0.0;
    for (int32_t i = 0; i < states; i++) total += weight[i] = -log1p(-(double)rng_float(random));
    for (int32_t i = 0; i < states; i++) out->up_to[i] = (float)((sum += weight[i]) / total);
    out->up_to[states - 1] = 1.0f; /* whatever the roundings, there is a successor */
    out->reward = 2.0f * rng_float(random) - 1.0f;
    out->ending = (float)(2.0 * ending * (double)rng_float(random));
}

static void begin_episode(tabular *world) {
    state *now = &world->now;
    now->steps = 0;
    now->pending = 0;
    now->earned = 0.0;
    now->at = (int32_t)rng_below(&now->random, (uint32_t)world->states);
}

static int32_t successor(rng *random, const choice *taken) {
    float u = rng_float(random);
    int32_t next = 0;
    while (u >= taken->up_to[next]) next++;
    return next;
}

static void write_obs(const tabular *world, uint8_t *obs) {
    memset(obs, 0, (size_t)world->states);
    obs[world->now.at] = 1;
}

/* ---- The ABI: see sim.h for what each function owes ---- */

static int shape(const double *values, sim_shape *out) {
    *out = (sim_shape){
        .agents = 1,
        .obs_dtype = SIM_UINT8,
        .obs_dims = 1,
        .obs_shape = {(int32_t)values[PARAM_STATES]},
        .heads = 1,
        .head = {{.choices = (int32_t)values[PARAM_ACTIONS]}},
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    int32_t states = (int32_t)values[PARAM_STATES], actions = (int32_t)values[PARAM_ACTIONS];
    int32_t n = states * actions;
    tabular *world = calloc(1, sizeof *world + (size_t)n * sizeof *world->choices);
    if (world == NULL) return NULL;
    world->states = states;
    world->actions = actions;
    world->max_steps = (int32_t)values[PARAM_MAX_STEPS];
    rng task;
    rng_seed(&task, (uint64_t)values[PARAM_TASK]);
    for (int32_t i = 0; i < n; i++) draw_choice(&task, states, values[PARAM_ENDING], &world->choices[i]);
    world->now.version = STATE_VERSION;
    rng_seed(&world->now.random, seed);
    begin_episode(world);
    return world;
}

static int reset(void *self, const sim_io *io) {
    tabular *world = self;
    begin_episode(world);
    write_obs(world, io->obs);
    return 0;
}

static int step(void *self, const sim_io *io) {
    tabular *world = self;
    state *now = &world->now;
    if (now->pending) return reset(world, io); /* after a truncation: no action, reward or flags */

    int32_t action = *(const int32_t *)io->actions;
    if (action < 0 || action >= world->actions) return -1;
    const choice *taken = &world->choices[now->at * world->actions + action];
    now->steps++;
    now->earned += (double)taken->reward;
    io->rewards[0] = taken->reward;

    int terminated = rng_float(&now->random) < taken->ending;
    int timed_out = now->steps >= world->max_steps;
    if (terminated || timed_out) {
        io->statistics[STAT_RETURN] = (float)now->earned;
        io->statistics[STAT_STEPS] = (float)now->steps;
    }
    if (terminated) {
        io->terminated[0] = 1;
        begin_episode(world); /* so that the first observation of the next episode is written below */
    } else {
        now->at = successor(&now->random, taken);
        io->truncated[0] = (uint8_t)timed_out;
        now->pending = timed_out; /* the final observation is written below, the first one at the next step */
    }
    write_obs(world, io->obs);
    return 0;
}

static size_t state_bytes(const void *world) {
    (void)world;
    return sizeof(state);
}

static int save(const void *world, void *out) {
    memcpy(out, &((const tabular *)world)->now, sizeof(state));
    return 0;
}

static int load(void *self, const void *saved) {
    tabular *world = self;
    state loaded;
    memcpy(&loaded, saved, sizeof loaded);
    if (loaded.version != STATE_VERSION || loaded.at < 0 || loaded.at >= world->states) return -1;
    world->now = loaded;
    return 0;
}

/* ---- Pictures (optional) ---- */

/* A dot a state, and the one that the process is in. */
static int render_text(const void *self, char *out, size_t capacity) {
    const tabular *world = self;
    char row[MAX_STATES + 1];
    memset(row, '.', sizeof row);
    row[world->now.at] = '@';
    row[world->states] = '\0';
    int length = snprintf(out, capacity, "step %d   return %+.2f\n%s\n", world->now.steps,
                          world->now.earned, row);
    return (size_t)length < capacity ? length : -1;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "tabular",
    .help = "a random Markov decision process whose values are known in closed form",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = STAT_RETURN,
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
