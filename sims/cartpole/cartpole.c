/* CartPole: balance a pole on a cart by pushing the cart. The example to copy for a new simulator.
 *
 * Source: Barto, Sutton, Anderson 1983, "Neuronlike adaptive elements that can solve difficult learning
 * control problems", with the equations of Florian 2007, "Correct equations for the dynamics of the cart-pole
 * system". Constants, integrator, limits and rewards are those of Gymnasium's CartPole-v1:
 *  - an episode begins with all four state variables uniform in [-0.05, 0.05);
 *  - action 0 pushes left and 1 right, for 0.02 s, integrated by one explicit Euler step in double precision;
 *  - every step earns 1, the last included;
 *  - terminated when the cart is more than 2.4 m from the middle or the pole more than 12 degrees from
 *    upright; truncated after 500 steps.
 * SI units; positive is right, and positive angles lean to the right. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "sim.h"

#define GRAVITY 9.8
#define CART_MASS 1.0
#define POLE_MASS 0.1
#define TOTAL_MASS (CART_MASS + POLE_MASS)
#define HALF_POLE 0.5 /* half the pole's length */
#define FORCE 10.0
#define STEP_SECONDS 0.02
#define POSITION_LIMIT 2.4
#define ANGLE_LIMIT (12.0 * M_PI / 180.0)
#define START_LIMIT 0.05

/* ---- What a user may set, and what is reported of a finished episode ---- */

enum { PARAM_MAX_STEPS };

static const sim_param params[] = {
    [PARAM_MAX_STEPS] = {"max_steps", "steps after which an episode is truncated", SIM_INT, 500, 1, 1e9},
};

enum { STAT_STEPS };

static const sim_statistic statistics[] = {
    [STAT_STEPS] = {"steps", "steps that the pole stayed up"},
};

/* ---- The world: settings that `create` was given, and the state that `save` and `load` copy ---- */

enum { POSITION, VELOCITY, ANGLE, ANGULAR_VELOCITY, VARIABLES };
enum { STATE_VERSION = 1 }; /* raised when `state` changes, so that `load` refuses an old one */

typedef struct state {
    uint32_t version;
    int32_t steps;    /* of this episode */
    int32_t pending;  /* 1: the last step was truncated, so the next one begins an episode */
    int32_t reserved; /* makes the padding explicit: every saved byte is defined */
    rng random;
    double s[VARIABLES];
} state;

typedef struct cartpole {
    int32_t max_steps;
    state now;
} cartpole;

/* ---- The task ---- */

static void begin_episode(state *now) {
    now->steps = 0;
    now->pending = 0;
    for (int i = 0; i < VARIABLES; i++)
        now->s[i] = START_LIMIT * (2.0 * (double)rng_float(&now->random) - 1.0);
}

/* One explicit Euler step. Gymnasium's order of operations, and no fused multiply-add: an unstable system
 * doubles a difference of one rounding every nine steps, so only the very same roundings stay together over
 * an episode. */
__attribute__((optimize("fp-contract=off"))) static void push(double *s, double force) {
    double sine = sin(s[ANGLE]), cosine = cos(s[ANGLE]), turn = s[ANGULAR_VELOCITY];
    double pull = (force + POLE_MASS * HALF_POLE * (turn * turn) * sine) / TOTAL_MASS;
    double inertia = HALF_POLE * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS);
    double angular_acceleration = (GRAVITY * sine - cosine * pull) / inertia;
    double acceleration = pull - POLE_MASS * HALF_POLE * angular_acceleration * cosine / TOTAL_MASS;
    s[POSITION] += STEP_SECONDS * s[VELOCITY];
    s[VELOCITY] += STEP_SECONDS * acceleration;
    s[ANGLE] += STEP_SECONDS * s[ANGULAR_VELOCITY];
    s[ANGULAR_VELOCITY] += STEP_SECONDS * angular_acceleration;
}

static int has_failed(const double *s) {
    return fabs(s[POSITION]) > POSITION_LIMIT || fabs(s[ANGLE]) > ANGLE_LIMIT;
}

static void write_obs(const state *now, float *obs) {
    for (int i = 0; i < VARIABLES; i++) obs[i] = (float)now->s[i];
}

/* ---- The ABI: see sim.h for what each function owes ---- */

static int shape(const double *values, sim_shape *out) {
    (void)values; /* no parameter changes a size */
    *out = (sim_shape){
        .agents = 1,
        .obs_dtype = SIM_FLOAT32,
        .obs_dims = 1,
        .obs_shape = {VARIABLES},
        .heads = 1,
        .head = {{.choices = 2}},
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    cartpole *world = calloc(1, sizeof *world);
    if (world == NULL) return NULL;
    world->max_steps = (int32_t)values[PARAM_MAX_STEPS];
    world->now.version = STATE_VERSION;
    rng_seed(&world->now.random, seed);
    begin_episode(&world->now);
    return world;
}

static int reset(void *world, const sim_io *io) {
    state *now = &((cartpole *)world)->now;
    begin_episode(now);
    write_obs(now, io->obs);
    return 0;
}

static int step(void *world, const sim_io *io) {
    state *now = &((cartpole *)world)->now;
    if (now->pending) return reset(world, io); /* after a truncation: no action, reward or flags */

    int32_t action = *(const int32_t *)io->actions;
    if (action != 0 && action != 1) return -1;
    push(now->s, action == 1 ? FORCE : -FORCE);
    now->steps++;
    io->rewards[0] = 1.0f;

    int failed = has_failed(now->s);
    int timed_out = now->steps >= ((cartpole *)world)->max_steps;
    if (failed || timed_out) io->statistics[STAT_STEPS] = (float)now->steps;
    if (failed) {
        io->terminated[0] = 1;
        begin_episode(now); /* so that the first observation of the next episode is written below */
    } else if (timed_out) {
        io->truncated[0] = 1;
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
    memcpy(out, &((const cartpole *)world)->now, sizeof(state));
    return 0;
}

static int load(void *world, const void *saved) {
    state loaded;
    memcpy(&loaded, saved, sizeof loaded);
    if (loaded.version != STATE_VERSION) return -1;
    ((cartpole *)world)->now = loaded;
    return 0;
}

/* ---- Pictures (optional) ---- */

/* The pole in a field of characters: a character is 0.08 m wide and 0.16 m high, about as in a terminal. */
enum { TEXT_WIDTH = 61, TEXT_HEIGHT = 8 };

static int render_text(const void *world, char *out, size_t capacity) {
    const state *now = &((const cartpole *)world)->now;
    char field[TEXT_HEIGHT][TEXT_WIDTH + 1];
    memset(field, ' ', sizeof field);
    int cart = (int)lround(now->s[POSITION] / 0.08) + TEXT_WIDTH / 2;
    double top = 2.0 * HALF_POLE * cos(now->s[ANGLE]);
    for (int row = 0; row < TEXT_HEIGHT; row++) {
        field[row][TEXT_WIDTH] = '\0';
        double height = 0.16 * (TEXT_HEIGHT - 1 - row);
        int column = cart + (int)lround(height * tan(now->s[ANGLE]) / 0.08);
        if (height > 0.0 && height <= top && column >= 0 && column < TEXT_WIDTH) field[row][column] = '|';
    }
    for (int column = cart - 2; column <= cart + 2; column++)
        if (column >= 0 && column < TEXT_WIDTH) field[TEXT_HEIGHT - 1][column] = '=';

    char frame[(TEXT_HEIGHT + 2) * (TEXT_WIDTH + 2) + 64];
    int length = snprintf(frame, sizeof frame, "step %d   position %+.2f m   angle %+.1f degrees\n",
                          now->steps, now->s[POSITION], now->s[ANGLE] * 180.0 / M_PI);
    for (int row = 0; row < TEXT_HEIGHT; row++)
        length += snprintf(frame + length, sizeof frame - (size_t)length, "%s\n", field[row]);
    memset(frame + length, '-', TEXT_WIDTH);
    length += TEXT_WIDTH;
    frame[length++] = '\n';
    if ((size_t)length + 1 > capacity) return -1;
    memcpy(out, frame, (size_t)length);
    out[length] = '\0';
    return length;
}

/* 100 pixels a metre; the cart's axle is 80 pixels above the lower edge. */
enum { PICTURE_WIDTH = 480, PICTURE_HEIGHT = 220, AXLE_HEIGHT = 80 };

static const uint8_t *colour(const state *now, int row, int column) {
    static const uint8_t white[3] = {255, 255, 255}, black[3] = {0, 0, 0}, brown[3] = {190, 140, 90};
    double x = (column + 0.5) / 100.0 - POSITION_LIMIT - now->s[POSITION]; /* metres from the axle */
    double y = (PICTURE_HEIGHT - AXLE_HEIGHT - row - 0.5) / 100.0;
    double along = x * sin(now->s[ANGLE]) + y * cos(now->s[ANGLE]);
    double across = x * cos(now->s[ANGLE]) - y * sin(now->s[ANGLE]);
    if (along >= 0.0 && along <= 2.0 * HALF_POLE && fabs(across) < 0.04) return brown;
    if (fabs(x) < 0.2 && fabs(y) < 0.12) return black;
    return row == PICTURE_HEIGHT - AXLE_HEIGHT + 12 ? black : white;
}

static int render_rgb(const void *world, uint8_t *out, int32_t *width, int32_t *height) {
    *width = PICTURE_WIDTH;
    *height = PICTURE_HEIGHT;
    if (out == NULL) return 0;
    for (int row = 0; row < PICTURE_HEIGHT; row++)
        for (int column = 0; column < PICTURE_WIDTH; column++, out += 3)
            memcpy(out, colour(&((const cartpole *)world)->now, row, column), 3);
    return 0;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "cartpole",
    .help = "balance a pole on a cart (Gymnasium's CartPole-v1)",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = STAT_STEPS,
    .shape = shape,
    .create = create,
    .destroy = free,
    .reset = reset,
    .step = step,
    .state_bytes = state_bytes,
    .save = save,
    .load = load,
    .render_text = render_text,
    .render_rgb = render_rgb,
};

const sim_api *sim_entry(void) { return &api; }
