/* Memory: a T-maze, which only a policy that remembers can solve.
 *
 * Source: Bakker 2002, "Reinforcement Learning with Long Short-Term Memory". A sign at the start says which
 * way to turn at the far end of a corridor, and is seen nowhere else:
 *  - the sign is one of `cues`, uniform; the junction has an arm for each;
 *  - action 0 walks one cell ahead, from the start through the corridor to the junction, `corridor` steps in
 *    all; at the junction it waits;
 *  - action 1 + k turns into arm k. At the junction that ends the episode (terminated), and earns 1 if the
 *    sign said so, else nothing. Before it the agent bumps into a wall and stays, at the cost of `bump`;
 *  - truncated after `patience` times the steps that a straight walk takes.
 * The observation shows the sign at the start, then only whether the agent is in the corridor or at the
 * junction. So a policy without memory turns the right way with chance 1 / cues, whatever it does, and one
 * that remembers for `corridor` steps always. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "sim.h"

#define MAX_CORRIDOR 1000
#define MAX_CUES 8

/* ---- What a user may set, and what is reported of a finished episode ---- */

enum { PARAM_CORRIDOR, PARAM_CUES, PARAM_BUMP, PARAM_PATIENCE };

static const sim_param params[] = {
    [PARAM_CORRIDOR] = {"corridor", "steps from the sign to the junction: how long to remember", SIM_INT, 10,
                        1, MAX_CORRIDOR},
    [PARAM_CUES] = {"cues", "different signs, and arms at the junction", SIM_INT, 2, 2, MAX_CUES},
    [PARAM_BUMP] = {"bump", "what a turn before the junction costs", SIM_FLOAT, 0.05, 0, 1},
    [PARAM_PATIENCE] = {"patience", "an episode is truncated after this times corridor + 1 steps", SIM_INT,
                        4, 1, 1000},
};

enum { STAT_CORRECT, STAT_RETURN, STAT_STEPS };

static const sim_statistic statistics[] = {
    [STAT_CORRECT] = {"correct", "1 if the agent turned where the sign said, else 0"},
    [STAT_RETURN] = {"return", "sum of the episode's rewards"},
    [STAT_STEPS] = {"steps", "steps of the episode"},
};

/* ---- The world: settings that `create` was given, and the state that `save` and `load` copy ---- */

enum { STATE_VERSION = 1 }; /* raised when `state` changes, so that `load` refuses an old one */

typedef struct state {
    uint32_t version;
    int32_t steps;    /* of this episode */
    int32_t pending;  /* 1: the last step was truncated, so the next one begins an episode */
    int32_t at;       /* cells from the start; the junction is at `corridor` */
    int32_t sign;     /* the arm to turn into */
    int32_t reserved; /* makes the padding explicit: every saved byte is defined */
    rng random;
    double earned; /* in this episode */
} state;

typedef struct maze {
    int32_t corridor, cues, max_steps;
    float bump;
    state now;
} maze;

/* ---- The task ---- */

static void begin_episode(maze *world) {
    state *now = &world->now;
    now->steps = 0;
    now->pending = 0;
    now->at = 0;
    now->earned = 0.0;
    now->sign = (int32_t)rng_below(&now->random, (uint32_t)world->cues);
}

/* [cues + 2]: the sign one-hot, in the corridor, at the junction. */
static void write_obs(const maze *world, uint8_t *obs) {
    const state *now = &world->now;
    memset(obs, 0, (size_t)world->cues + 2);
    obs[now->at == 0 ? now->sign : now->at < world->corridor ? world->cues : world->cues + 1] = 1;
}

/* ---- The ABI: see sim.h for what each function owes ---- */

static int shape(const double *values, sim_shape *out) {
    int32_t cues = (int32_t)values[PARAM_CUES];
    *out = (sim_shape){
        .agents = 1,
        .obs_dtype = SIM_UINT8,
        .obs_dims = 1,
        .obs_shape = {cues + 2},
        .heads = 1,
        .head = {{.choices = 1 + cues}},
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    maze *world = calloc(1, sizeof *world);
    if (world == NULL) return NULL;
    world->corridor = (int32_t)values[PARAM_CORRIDOR];
    world->cues = (int32_t)values[PARAM_CUES];
    world->bump = (float)values[PARAM_BUMP];
    world->max_steps = (int32_t)values[PARAM_PATIENCE] * (world->corridor + 1);
    world->now.version = STATE_VERSION;
    rng_seed(&world->now.random, seed);
    begin_episode(world);
    return world;
}

static int reset(void *self, const sim_io *io) {
    maze *world = self;
    begin_episode(world);
    write_obs(world, io->obs);
    return 0;
}

static int step(void *self, const sim_io *io) {
    maze *world = self;
    state *now = &world->now;
    if (now->pending) return reset(world, io); /* after a truncation: no action, reward or flags */

    int32_t action = *(const int32_t *)io->actions;
    if (action < 0 || action > world->cues) return -1;
    now->steps++;
    int at_junction = now->at == world->corridor;
    int turned = action > 0 && at_junction, correct = turned && action - 1 == now->sign;
    if (action == 0) now->at += !at_junction;
    io->rewards[0] = correct ? 1.0f : action > 0 && !at_junction ? -world->bump : 0.0f;
    now->earned += (double)io->rewards[0];

    int timed_out = now->steps >= world->max_steps;
    if (turned || timed_out) {
        io->statistics[STAT_CORRECT] = (float)correct;
        io->statistics[STAT_RETURN] = (float)now->earned;
        io->statistics[STAT_STEPS] = (float)now->steps;
    }
    if (turned) {
        io->terminated[0] = 1;
        begin_episode(world); /* so that the first observation of the next episode is written below */
    } else if (timed_out) {
        io->truncated[0] = 1;
        now->pending = 1; /* the final observation is written below, the first one at the next step */
    }
    write_obs(world, io->obs);
    return 0;
}

static size_t state_bytes(const void *world) {
    (void)world;
    return sizeof(state);
}

static int save(const void *world, void *out) {
    memcpy(out, &((const maze *)world)->now, sizeof(state));
    return 0;
}

static int load(void *self, const void *saved) {
    maze *world = self;
    state loaded;
    memcpy(&loaded, saved, sizeof loaded);
    if (loaded.version != STATE_VERSION) return -1;
    if (loaded.sign < 0 || loaded.sign >= world->cues) return -1;
    if (loaded.at < 0 || loaded.at > world->corridor) return -1;
    world->now = loaded;
    return 0;
}

/* ---- Pictures (optional) ---- */

/* The maze from above, shrunk to at most this many cells of corridor: the sign at the left, the
 * junction at the right. */
enum { TEXT_WIDTH = 60 };

static int render_text(const void *self, char *out, size_t capacity) {
    const maze *world = self;
    const state *now = &world->now;
    int cells = world->corridor < TEXT_WIDTH ? world->corridor : TEXT_WIDTH;
    char row[TEXT_WIDTH + 2];
    memset(row, '.', sizeof row);
    row[cells] = '+';
    row[now->at * cells / world->corridor] = '@';
    row[cells + 1] = '\0';
    int length = snprintf(out, capacity, "step %d   the sign says arm %d of %d\n%s\n", now->steps,
                          now->sign + 1, world->cues, row);
    return (size_t)length < capacity ? length : -1;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "memory",
    .help = "a T-maze: remember the sign at the start until the junction",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = STAT_CORRECT,
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
