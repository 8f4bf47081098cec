/* Pendulum: swing a pendulum up and keep it there by a torque that is too weak to lift it. Continuous
 * actions.
 *
 * Equations, constants, integrator and rewards are those of Gymnasium's Pendulum-v1:
 *  - an episode begins with an angle uniform in [-pi, pi) and a speed uniform in [-1, 1);
 *  - the action is a torque within [-2, 2], held for 0.05 s, integrated by one semi-implicit Euler step in
 *    double precision; the speed is bounded to 8 rad/s;
 *  - a step costs angle^2 + 0.1 speed^2 + 0.001 torque^2, of the state before it, the angle within [-pi, pi);
 *  - never terminated; truncated after 200 steps.
 * The observation is cosine and sine of the angle, and the speed. SI units; upright is angle 0, and positive
 * angles lean to the left. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "sim.h"

#define MAX_SPEED 8.0
#define MAX_TORQUE 2.0f
#define STEP_SECONDS 0.05
#define MASS 1.0
#define LENGTH 1.0
#define START_SPEED 1.0

/* ---- What a user may set, and what is reported of a finished episode ---- */

enum { PARAM_MAX_STEPS, PARAM_GRAVITY };

static const sim_param params[] = {
    [PARAM_MAX_STEPS] = {"max_steps", "steps after which an episode is truncated", SIM_INT, 200, 1, 1e9},
    [PARAM_GRAVITY] = {"gravity", "acceleration of free fall, m/s^2", SIM_FLOAT, 10, 0, 100},
};

enum { STAT_RETURN };

static const sim_statistic statistics[] = {
    [STAT_RETURN] = {"return", "sum of the episode's rewards; a good policy's is about -150 on average"},
};

/* ---- The world: settings that `create` was given, and the state that `save` and `load` copy ---- */

enum { STATE_VERSION = 1 }; /* raised when `state` changes, so that `load` refuses an old one */

typedef struct state {
    uint32_t version;
    int32_t steps;    /* of this episode */
    int32_t pending;  /* 1: the last step was truncated, so the next one begins an episode */
    int32_t reserved; /* makes the padding explicit: every saved byte is defined */
    rng random;
    double angle, speed; /* the angle grows beyond a turn, as Gymnasium's does */
    double earned;       /* in this episode */
} state;

typedef struct pendulum {
    int32_t max_steps;
    double gravity;
    state now;
} pendulum;

/* ---- The task ---- */

/* Uniform in [-1, 1). */
static double uniform(rng *random) { return 2.0 * (double)rng_float(random) - 1.0; }

static void begin_episode(state *now) {
    now->steps = 0;
    now->pending = 0;
    now->earned = 0.0;
    now->angle = M_PI * uniform(&now->random);
    now->speed = START_SPEED * uniform(&now->random);
}

/* The same angle within [-pi, pi), by Python's modulo, which takes the sign of the divisor. */
static double within_a_turn(double angle) {
    double turn = fmod(angle + M_PI, 2.0 * M_PI);
    return (turn < 0.0 ? turn + 2.0 * M_PI : turn) - M_PI;
}

/* One step; returns the reward. Gymnasium's order of operations, and no fused multiply-add: near the upright
 * position a difference of one rounding grows. Torques are float32, as they are there. */
__attribute__((optimize("fp-contract=off"))) static double push(state *now, double gravity, float torque) {
    double angle = within_a_turn(now->angle), speed = now->speed;
    double cost = angle * angle + 0.1 * (speed * speed) + (double)(0.001f * (torque * torque));
    double pull = 3.0 * gravity / (2.0 * LENGTH) * sin(now->angle);
    double drive = (double)((float)(3.0 / (MASS * (LENGTH * LENGTH))) * torque);
    now->speed = fmin(fmax(speed + (pull + drive) * STEP_SECONDS, -MAX_SPEED), MAX_SPEED);
    now->angle += now->speed * STEP_SECONDS;
    return -cost;
}

static void write_obs(const state *now, float *obs) {
    obs[0] = (float)cos(now->angle);
    obs[1] = (float)sin(now->angle);
    obs[2] = (float)now->speed;
}

/* ---- The ABI: see sim.h for what each function owes ---- */

static int shape(const double *values, sim_shape *out) {
    (void)values; /* no parameter changes a size */
    *out = (sim_shape){
        .agents = 1,
        .obs_dtype = SIM_FLOAT32,
        .obs_dims = 1,
        .obs_shape = {3},
        .heads = 1,
        .head = {{.low = -MAX_TORQUE, .high = MAX_TORQUE}},
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    pendulum *world = calloc(1, sizeof *world);
    if (world == NULL) return NULL;
    world->max_steps = (int32_t)values[PARAM_MAX_STEPS];
    world->gravity = values[PARAM_GRAVITY];
    world->now.version = STATE_VERSION;
    rng_seed(&world->now.random, seed);
    begin_episode(&world->now);
    return world;
}

static int reset(void *world, const sim_io *io) {
    state *now = &((pendulum *)world)->now;
    begin_episode(now);
    write_obs(now, io->obs);
    return 0;
}

static int step(void *self, const sim_io *io) {
    pendulum *world = self;
    state *now = &world->now;
    if (now->pending) return reset(world, io); /* after a truncation: no action, reward or flags */

    float torque = *(const float *)io->actions;
    if (isnan(torque)) return -1;
    double reward = push(now, world->gravity, fminf(fmaxf(torque, -MAX_TORQUE), MAX_TORQUE));
    now->steps++;
    now->earned += reward;
    io->rewards[0] = (float)reward;
    if (now->steps >= world->max_steps) {
        io->truncated[0] = 1;
        io->statistics[STAT_RETURN] = (float)now->earned;
        now->pending = 1; /* the final observation is written below, the first one at the next step */
    }
    write_obs(now, io->obs);
    return 0;
}

static size_t state_bytes(const void *world) {
    (void)world;
    return sizeof(state);
}

static int save(const void *world, void *out) {
    memcpy(out, &((const pendulum *)world)->now, sizeof(state));
    return 0;
}

static int load(void *world, const void *saved) {
    state loaded;
    memcpy(&loaded, saved, sizeof loaded);
    if (loaded.version != STATE_VERSION) return -1;
    ((pendulum *)world)->now = loaded;
    return 0;
}

/* ---- Pictures (optional) ---- */

/* The rod in a field of characters, which are about twice as high as wide; the axle is in the middle. */
enum { TEXT_RADIUS = 5, TEXT_HEIGHT = 2 * TEXT_RADIUS + 1, TEXT_WIDTH = 4 * TEXT_RADIUS + 1 };

static int render_text(const void *world, char *out, size_t capacity) {
    const state *now = &((const pendulum *)world)->now;
    char field[TEXT_HEIGHT][TEXT_WIDTH + 1];
    memset(field, ' ', sizeof field);
    for (int row = 0; row < TEXT_HEIGHT; row++) field[row][TEXT_WIDTH] = '\n';
    for (int r = 0; r <= TEXT_RADIUS; r++) {
        int row = TEXT_RADIUS - (int)lround(r * cos(now->angle));
        int column = 2 * TEXT_RADIUS - (int)lround(2.0 * r * sin(now->angle));
        field[row][column] = r == 0 ? '+' : r == TEXT_RADIUS ? 'O' : '*';
    }
    int length = snprintf(out, capacity, "step %d   angle %+.0f degrees   speed %+.1f rad/s\n%.*s",
                          now->steps, within_a_turn(now->angle) * 180.0 / M_PI, now->speed,
                          (int)sizeof field, field[0]);
    return (size_t)length < capacity ? length : -1;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "pendulum",
    .help = "swing a pendulum up by a weak torque (Gymnasium's Pendulum-v1)",
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
