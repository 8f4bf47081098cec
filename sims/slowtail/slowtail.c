/* Slowtail: steps whose time has a heavy tail, in a task where slow episodes are long ones.
 *
 * It shows what throwing late data away does. A job (an episode) is quick or, with chance `slow`, slow; the
 * agent cannot see which. At every step it sees one of n `items`, uniform, and picks one of two tools:
 *  - for item i, tool 0 pays (i + 1/2) / n in a quick job and nothing in a slow one;
 *  - tool 1 pays 1 - (i + 1/2) / n in a slow job and nothing in a quick one.
 * If a share f of the steps that a policy is trained on belongs to slow jobs, tool 1 is the better one for
 * exactly the items with (i + 1/2) / n < f. So the share can be read off the policy: from all that was played
 * it is slow * slow_steps over the mean length of a job, from what is left of it when slow producers' data is
 * dropped it is less, and the policy then earns less. No action changes what comes next, so the best policy
 * is known in closed form, and gamma 0 is the discount to train with. The score is a policy's mean pay in
 * shares of the best one's; it leaves out which kind of job a step happened to be in, as a few long jobs
 * would drown everything else, and is 1 at best. (A policy with memory could do better: it can count steps,
 * and only slow jobs last beyond quick_steps.)
 *
 * A job takes quick_steps or slow_steps steps and terminates. Each of its steps takes the same time, which is
 * drawn so that the times of all steps together have a bounded Pareto distribution of mean `mean_us`,
 * exponent `tail` and greatest value longest * mean_us, with the steps of slow jobs slower than those of all
 * quick ones.
 *
 * The time is spent by arithmetic, a number of dependent rounds of mixing, and not by sleeping or watching a
 * clock: a real simulator keeps its core busy while it is slow, whereas a sleeping one would lend the core to
 * a learner beside it; the same seed gives the same work and the same bytes on every machine; and `step`
 * stays free of system calls. So microseconds are nominal: 200 rounds, which a core of 2 to 3 GHz does in
 * about one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "sim.h"

#define MAX_ITEMS 32
#define ROUNDS_PER_MICROSECOND 200.0

/* ---- What a user may set, and what is reported of a finished episode ---- */

enum {
    PARAM_MEAN,
    PARAM_TAIL,
    PARAM_LONGEST,
    PARAM_SLOW,
    PARAM_QUICK_STEPS,
    PARAM_SLOW_STEPS,
    PARAM_ITEMS,
};

static const sim_param params[] = {
    [PARAM_MEAN] = {"mean_us", "mean time of a step, nominal microseconds", SIM_FLOAT, 5, 0, 10000},
    [PARAM_TAIL] = {"tail", "exponent of the times' tail; smaller is heavier", SIM_FLOAT, 1.1, 0.3, 10},
    [PARAM_LONGEST] = {"longest", "longest step, in means", SIM_FLOAT, 300, 1.1, 1000},
    [PARAM_SLOW] = {"slow", "chance that a job is slow", SIM_FLOAT, 0.1, 0, 1},
    [PARAM_QUICK_STEPS] = {"quick_steps", "steps of a quick job", SIM_INT, 16, 1, 1e6},
    [PARAM_SLOW_STEPS] = {"slow_steps", "steps of a slow job", SIM_INT, 128, 1, 1e6},
    [PARAM_ITEMS] = {"items", "different items", SIM_INT, 8, 1, MAX_ITEMS},
};

enum { STAT_SKILL, STAT_RETURN, STAT_STEPS, STAT_SLOW, STAT_WORK };

static const sim_statistic statistics[] = {
    [STAT_SKILL] = {"skill", "what the picked tools pay on average, in shares of what the best ones do"},
    [STAT_RETURN] = {"return", "sum of the job's rewards"},
    [STAT_STEPS] = {"steps", "steps of the job"},
    [STAT_SLOW] = {"slow", "1 if the job was slow, else 0"},
    [STAT_WORK] = {"work_us", "time that the job's steps took, nominal microseconds"},
};

/* ---- The world: settings that `create` was given, and the state that `save` and `load` copy ---- */

enum { STATE_VERSION = 1 }; /* raised when `state` changes, so that `load` refuses an old one */

typedef struct state {
    uint32_t version;
    int32_t steps; /* of this job, so far */
    int32_t slow;  /* 1: the job is a slow one */
    int32_t item;
    rng random;
    double earned;   /* in this job */
    double missed;   /* in this job, of what the best tools pay on average */
    uint64_t rounds; /* of mixing, a step of this job */
    uint64_t mixed;  /* what they came to; kept so that no compiler leaves the work out */
} state;

typedef struct slowtail {
    double shortest_us, tail, reach; /* of the distribution: see `step_us` */
    double slow, slow_share;         /* of the jobs, of the steps */
    double best_pay;                 /* a step, of the best policy on average */
    int32_t quick_steps, slow_steps, items;
    state now;
} slowtail;

/* ---- The times ---- */

/* Mean of a Pareto distribution of exponent `tail` bounded to [shortest, 1]. */
static double bounded_mean(double shortest, double tail) {
    double mass = 1.0 - pow(shortest, tail), power = 1.0 - tail;
    double integral = fabs(power) < 1e-9 ? -log(shortest) : (1.0 - pow(shortest, power)) / power;
    return tail * pow(shortest, tail) * integral / mass;
}

/* The least value that gives the mean 1 / longest, by bisection: the mean rises with it. */
static double least_value(double longest, double tail) {
    double low = 0.0, high = 1.0 / longest; /* a mean is no less than the least value */
    for (int i = 0; i < 200; i++) {
        double middle = 0.5 * (low + high);
        if (bounded_mean(middle, tail) < 1.0 / longest) low = middle;
        else high = middle;
    }
    return high;
}

/* The time that a share `rank` of all steps stays below: the distribution's quantile. */
static double step_us(const slowtail *world, double rank) {
    return world->shortest_us * pow(1.0 - rank * world->reach, -1.0 / world->tail);
}

static uint64_t work(uint64_t x, uint64_t rounds) {
    while (rounds-- > 0) x = rng_mix(x);
    return x;
}

/* ---- The task ---- */

static void next_item(slowtail *world) {
    world->now.item = (int32_t)rng_below(&world->now.random, (uint32_t)world->items);
}

static void begin_episode(slowtail *world) {
    state *now = &world->now;
    now->steps = 0;
    now->earned = 0.0;
    now->missed = 0.0;
    now->slow = (double)rng_float(&now->random) < world->slow;
    double u = (double)rng_float(&now->random), quick_share = 1.0 - world->slow_share;
    double rank = now->slow ? quick_share + world->slow_share * u : quick_share * u;
    now->rounds = (uint64_t)llround(ROUNDS_PER_MICROSECOND * step_us(world, rank));
    next_item(world);
}

/* What a tool pays for an item in the jobs that it suits: tool 0 in quick ones, tool 1 in slow ones. */
static double pay(const slowtail *world, int32_t item, int32_t tool) {
    double quick = (item + 0.5) / world->items;
    return tool == 1 ? 1.0 - quick : quick;
}

/* The same on average over all steps. */
static double mean_pay(const slowtail *world, int32_t item, int32_t tool) {
    return pay(world, item, tool) * (tool == 1 ? world->slow_share : 1.0 - world->slow_share);
}

static double best_mean_pay(const slowtail *world, int32_t item) {
    return fmax(mean_pay(world, item, 0), mean_pay(world, item, 1));
}

static void write_obs(const slowtail *world, uint8_t *obs) {
    memset(obs, 0, (size_t)world->items);
    obs[world->now.item] = 1;
}

/* ---- The ABI: see sim.h for what each function owes ---- */

static int shape(const double *values, sim_shape *out) {
    *out = (sim_shape){
        .agents = 1,
        .obs_dtype = SIM_UINT8,
        .obs_dims = 1,
        .obs_shape = {(int32_t)values[PARAM_ITEMS]},
        .heads = 1,
        .head = {{.choices = 2}},
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    slowtail *world = calloc(1, sizeof *world);
    if (world == NULL) return NULL;
    world->quick_steps = (int32_t)values[PARAM_QUICK_STEPS];
    world->slow_steps = (int32_t)values[PARAM_SLOW_STEPS];
    world->items = (int32_t)values[PARAM_ITEMS];
    world->slow = values[PARAM_SLOW];
    double slow = world->slow * world->slow_steps, quick = (1.0 - world->slow) * world->quick_steps;
    world->slow_share = slow / (slow + quick);
    for (int32_t i = 0; i < world->items; i++) world->best_pay += best_mean_pay(world, i) / world->items;

    double least = least_value(values[PARAM_LONGEST], values[PARAM_TAIL]);
    world->tail = values[PARAM_TAIL];
    world->shortest_us = values[PARAM_MEAN] * values[PARAM_LONGEST] * least;
    world->reach = 1.0 - pow(least, world->tail);

    world->now.version = STATE_VERSION;
    rng_seed(&world->now.random, seed);
    world->now.mixed = seed;
    begin_episode(world);
    return world;
}

static int reset(void *self, const sim_io *io) {
    slowtail *world = self;
    begin_episode(world);
    write_obs(world, io->obs);
    return 0;
}

static int step(void *self, const sim_io *io) {
    slowtail *world = self;
    state *now = &world->now;
    int32_t tool = *(const int32_t *)io->actions;
    if (tool != 0 && tool != 1) return -1;
    now->mixed = work(now->mixed, now->rounds);
    now->steps++;
    io->rewards[0] = tool == now->slow ? (float)pay(world, now->item, tool) : 0.0f;
    now->earned += (double)io->rewards[0];
    now->missed += best_mean_pay(world, now->item) - mean_pay(world, now->item, tool);

    if (now->steps >= (now->slow ? world->slow_steps : world->quick_steps)) {
        io->terminated[0] = 1;
        io->statistics[STAT_SKILL] = (float)(1.0 - now->missed / (now->steps * world->best_pay));
        io->statistics[STAT_RETURN] = (float)now->earned;
        io->statistics[STAT_STEPS] = (float)now->steps;
        io->statistics[STAT_SLOW] = (float)now->slow;
        io->statistics[STAT_WORK] = (float)((double)now->rounds / ROUNDS_PER_MICROSECOND * now->steps);
        begin_episode(world); /* so that the first observation of the next job is written below */
    } else {
        next_item(world);
    }
    write_obs(world, io->obs);
    return 0;
}

static size_t state_bytes(const void *world) {
    (void)world;
    return sizeof(state);
}

static int save(const void *world, void *out) {
    memcpy(out, &((const slowtail *)world)->now, sizeof(state));
    return 0;
}

static int load(void *self, const void *saved) {
    slowtail *world = self;
    state loaded;
    memcpy(&loaded, saved, sizeof loaded);
    if (loaded.version != STATE_VERSION || loaded.item < 0 || loaded.item >= world->items) return -1;
    world->now = loaded;
    return 0;
}

/* ---- Pictures (optional) ---- */

static int render_text(const void *self, char *out, size_t capacity) {
    const slowtail *world = self;
    const state *now = &world->now;
    int length = snprintf(out, capacity, "%s job   step %d of %d   %.1f us a step   item %d of %d\n",
                          now->slow ? "slow" : "quick", now->steps,
                          now->slow ? world->slow_steps : world->quick_steps,
                          (double)now->rounds / ROUNDS_PER_MICROSECOND, now->item + 1, world->items);
    return (size_t)length < capacity ? length : -1;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "slowtail",
    .help = "jobs whose step times have a heavy tail; the slow ones are long, and dropping them shows",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = STAT_SKILL,
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
