/* Breakout as a simulator: parameters, observation and statistics of the game in game.h. */
#include <stdlib.h>
#include <string.h>

#include "game.h"
#include "render.h"
#include "sim.h"

enum { SCALARS = 10 };

typedef struct breakout {
    float frames; /* a step */
    int32_t max_steps;
    game g;
} breakout;

_Static_assert(sizeof(breakout) <= 128, "a world should stay within two cache lines");

/* Sixteen flags at once: GCC's vector types become the widest registers of the machine, where a plain loop
 * over bits is vectorized across words and costs eight times as much (measured with GCC 12, AVX-512). */
typedef uint32_t lanes __attribute__((vector_size(64)));
static const lanes lane_bit = {1u << 0, 1u << 1, 1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
                               1u << 8, 1u << 9, 1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15};
#define FLOAT_ONE 0x3f800000u

static void write_obs(const game *g, float *obs) {
    const float scalars[SCALARS] = {
        g->paddle * (2.0f / WIDTH) - 1.0f,
        g->x * (2.0f / WIDTH) - 1.0f,
        g->y * (2.0f / HEIGHT) - 1.0f,
        g->vx * (1.0f / SPEED_MAX),
        g->vy * (1.0f / SPEED_MAX),
        g->half * (1.0f / PADDLE_HALF),
        (float)level(g) * 0.25f,
        (float)g->balls * (1.0f / BALLS),
        (float)g->score * (1.0f / SCORE_MAX),
        (float)g->wall,
    };
    memcpy(obs, scalars, sizeof scalars);
    for (int word = 0; word < BRICK_WORDS; word++) {
        lanes flags = (lanes)((g->bricks[word] & lane_bit) != 0) & FLOAT_ONE;
        size_t n = word < BRICKS / 16 ? 16 : BRICKS % 16;
        memcpy(obs + SCALARS + word * 16, &flags, n * sizeof *obs);
    }
}

enum { PARAM_FRAMESKIP, PARAM_MAX_STEPS };

static const sim_param params[] = {
    [PARAM_FRAMESKIP] = {"frameskip", "frames that one step lasts", SIM_INT, 4, 1, 16},
    [PARAM_MAX_STEPS] = {"max_steps", "steps after which an episode is truncated", SIM_INT, 20000, 1, 1e9},
};

enum { STAT_SCORE, STAT_BRICKS, STAT_WALLS, STAT_BALLS_LOST, STAT_PADDLE_HITS };

static const sim_statistic statistics[] = {
    [STAT_SCORE] = {"score", "points, of 864"},
    [STAT_BRICKS] = {"bricks", "bricks hit, of 216"},
    [STAT_WALLS] = {"walls", "walls cleared, of 2"},
    [STAT_BALLS_LOST] = {"balls_lost", "balls lost, of 5"},
    [STAT_PADDLE_HITS] = {"paddle_hits", "meetings of ball and paddle"},
};

static void write_statistics(const game *g, float *out) {
    out[STAT_SCORE] = (float)g->score;
    out[STAT_BRICKS] = (float)(g->wall * BRICKS + BRICKS - g->standing);
    out[STAT_WALLS] = (float)(g->wall + (g->standing == 0));
    out[STAT_BALLS_LOST] = (float)(BALLS - g->balls);
    out[STAT_PADDLE_HITS] = (float)g->paddle_hits;
}

static int shape(const double *values, sim_shape *out) {
    (void)values;
    *out = (sim_shape){
        .agents = 1,
        .obs_dtype = SIM_FLOAT32,
        .obs_dims = 1,
        .obs_shape = {SCALARS + BRICKS},
        .heads = 1,
        .head = {{.choices = ACTIONS}},
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    breakout *b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    b->frames = (float)values[PARAM_FRAMESKIP];
    b->max_steps = (int32_t)values[PARAM_MAX_STEPS];
    b->g.version = STATE_VERSION;
    rng_seed(&b->g.random, seed);
    begin_episode(&b->g);
    return b;
}

static int reset(void *world, const sim_io *io) {
    breakout *b = world;
    begin_episode(&b->g);
    write_obs(&b->g, io->obs);
    return 0;
}

static int step(void *world, const sim_io *io) {
    breakout *b = world;
    game *g = &b->g;
    if (g->pending) return reset(world, io);
    int32_t action = *(const int32_t *)io->actions;
    if (action < 0 || action >= ACTIONS) return -1;
    float drift = PADDLE_SPEED * (float)((action == RIGHT) - (action == LEFT));
    int32_t score = g->score;
    float x = g->x + g->vx * b->frames, y = g->y + g->vy * b->frames;
    bool meets_nothing = x > RADIUS && x < WIDTH - RADIUS && min(y, g->y) > BRICKS_BOTTOM + RADIUS &&
                         y < PADDLE_Y - RADIUS;
    if (meets_nothing) {
        g->x = x;
        g->y = y;
    } else {
        fly(g, b->frames, drift);
    }
    g->paddle = within_field(g->paddle + drift * b->frames, g->half);
    g->steps++;
    *io->rewards = (float)(g->score - score);
    if (game_is_won(g) || g->balls == 0) {
        *io->terminated = 1;
        write_statistics(g, io->statistics);
        begin_episode(g);
    } else if (g->steps >= b->max_steps) {
        *io->truncated = 1;
        write_statistics(g, io->statistics);
        g->pending = 1;
    }
    write_obs(g, io->obs);
    return 0;
}

static size_t state_bytes(const void *world) {
    (void)world;
    return sizeof(game);
}

static int save(const void *world, void *out) {
    memcpy(out, &((const breakout *)world)->g, sizeof(game));
    return 0;
}

static int load(void *world, const void *state) {
    uint32_t version;
    memcpy(&version, state, sizeof version);
    if (version != STATE_VERSION) return -1;
    memcpy(&((breakout *)world)->g, state, sizeof(game));
    return 0;
}

static int render_text(const void *world, char *out, size_t capacity) {
    return draw_text(&((const breakout *)world)->g, out, capacity);
}

static int render_rgb(const void *world, uint8_t *out, int32_t *width, int32_t *height) {
    *width = PICTURE_WIDTH;
    *height = PICTURE_HEIGHT;
    if (out != NULL) draw_rgb(&((const breakout *)world)->g, out);
    return 0;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "breakout",
    .help = "the arcade game: clear two walls of 108 bricks with five balls",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = sizeof statistics / sizeof *statistics,
    .score = STAT_SCORE,
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
