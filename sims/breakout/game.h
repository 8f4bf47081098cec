/* Breakout: 6 x 18 bricks, two walls, five balls, 864 points, after the arcade game of 1976.
 *
 * Rules. Length is in units (the field is 144 x 138, a brick 8 x 6, the ball 4 x 4), time in frames, y down.
 *  - A brick of the rows from the top is worth 7, 7, 4, 4, 1, 1 points: 432 a wall. The second wall appears
 *    when the ball meets the paddle (or is served anew) after the first is cleared. The game ends
 *    (terminated) when the fifth ball is lost or the second wall is cleared; after `max_steps` steps it is
 *    cut short (truncated).
 *  - A ball is served by itself, downwards, from a random place under the wall in a random direction. It is
 *    lost when it passes the paddle's upper edge without meeting the paddle.
 *  - The sine of the angle (from the vertical) off the paddle is 0.85 at the paddle's end, 0 in its middle
 *    and linear between; the direction of arrival plays no part.
 *  - The ball's speed rises at its 4th and 12th meeting with the paddle and when it first hits one of the two
 *    middle rows and one of the two upper rows: 1.2, 1.5, 1.8, 2.1, 2.4 units a frame. The paddle (16 wide, 2
 *    units a frame) shrinks to half when the ball hits the ceiling. A new ball undoes both.
 *  - Every brick that the ball hits vanishes, so an endless loop needs the paddle: from the 9th meeting with
 *    the paddle in a row without a brick between, a random part is added to the angle. No policy can cycle
 *    for ever.
 *
 * Motion is continuous: `fly` goes from contact to contact along straight lines, so nothing tunnels at any
 * speed and a step that meets nothing costs two multiplications. `frameskip` is only the length of a step in
 * frames. */
#ifndef HEADRACE_BREAKOUT_GAME_H
#define HEADRACE_BREAKOUT_GAME_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "rng.h"

enum { ROWS = 6, COLUMNS = 18, BRICKS = ROWS * COLUMNS, WALLS = 2, BALLS = 5, SCORE_MAX = 864 };
enum { BRICK_WORDS = (BRICKS + 15) / 16, LOOP_HITS = 8, STATE_VERSION = 1 };
enum { STAY, LEFT, RIGHT, ACTIONS };

#define WIDTH 144.0f
#define HEIGHT 138.0f
#define BRICK_WIDTH 8.0f
#define BRICK_HEIGHT 6.0f
#define BRICKS_TOP 18.0f
#define BRICKS_BOTTOM (BRICKS_TOP + ROWS * BRICK_HEIGHT)
#define RADIUS 2.0f /* half the side of the square ball */
#define PADDLE_Y 132.0f
#define PADDLE_HALF 8.0f
#define PADDLE_SPEED 2.0f
#define SERVE_Y 66.0f
#define SERVE_SINE 0.7f
#define BOUNCE_SINE 0.85f
#define LOOP_SINE 0.3f
#define SPEED_MAX 2.4f
/* How far an edge may be past a grid line and count as not yet past it: far above rounding. */
#define SLACK 1e-3f

static const float speeds[] = {1.2f, 1.5f, 1.8f, 2.1f, SPEED_MAX};
static const uint8_t row_points[ROWS] = {7, 7, 4, 4, 1, 1};

/* Reasons for a rise in speed, one bit each; their number is the speed level. */
enum { FAST_HITS_4 = 1, FAST_HITS_12 = 2, FAST_MIDDLE = 4, FAST_UPPER = 8 };

/* All that a saved state holds. */
typedef struct game {
    uint32_t version;
    int32_t steps; /* of this episode */
    rng random;
    float x, y, vx, vy; /* centre of the ball; units a frame */
    float paddle, half; /* centre and half the width of the paddle */
    int32_t score, paddle_hits;
    int32_t ball_hits;            /* meetings of this ball with the paddle */
    int32_t hits_without_brick;   /* the latest meetings with the paddle, no brick between them */
    uint16_t bricks[BRICK_WORDS]; /* bit i of the whole: brick i = row * 18 + column stands */
    uint8_t standing;             /* bricks of this wall */
    uint8_t wall;                 /* 0, then 1 */
    uint8_t balls;                /* left, the one in play included */
    uint8_t fast;
    uint8_t pending; /* the last step was truncated: the next one begins an episode */
} game;

/* fminf and fmaxf care for NaN, which makes them calls. */
static float min(float a, float b) { return a < b ? a : b; }
static float max(float a, float b) { return a > b ? a : b; }

static bool stands(const game *g, int row, int column) {
    if (row < 0 || row >= ROWS) return false;
    int i = row * COLUMNS + column;
    return (g->bricks[i >> 4] >> (i & 15)) & 1;
}

static void build_wall(game *g) {
    memset(g->bricks, 0xff, sizeof g->bricks);
    g->bricks[BRICK_WORDS - 1] = (1u << (BRICKS % 16)) - 1u;
    g->standing = BRICKS;
}

static void renew_wall_if_cleared(game *g) {
    if (g->standing == 0 && g->wall + 1 < WALLS) {
        g->wall++;
        build_wall(g);
    }
}

static int level(const game *g) { return __builtin_popcount(g->fast); }

static void aim(game *g, float sine, float down) {
    float speed = speeds[level(g)];
    g->vx = speed * sine;
    g->vy = down * speed * sqrtf(1.0f - sine * sine);
}

static float within_field(float paddle, float half) { return min(max(paddle, half), WIDTH - half); }

static void serve(game *g) {
    g->fast = 0;
    g->ball_hits = 0;
    g->hits_without_brick = 0;
    g->half = PADDLE_HALF;
    g->paddle = within_field(g->paddle, g->half);
    g->x = WIDTH * (0.25f + 0.5f * rng_float(&g->random));
    g->y = SERVE_Y;
    aim(g, SERVE_SINE * (2.0f * rng_float(&g->random) - 1.0f), 1.0f);
    renew_wall_if_cleared(g);
}

static void begin_episode(game *g) {
    g->steps = 0;
    g->score = 0;
    g->paddle_hits = 0;
    g->wall = 0;
    g->balls = BALLS;
    g->pending = 0;
    g->paddle = 0.5f * WIDTH;
    build_wall(g);
    serve(g);
}

static void quicken(game *g, int reason) {
    if (g->fast & reason) return;
    float before = speeds[level(g)];
    g->fast |= (uint8_t)reason;
    float ratio = speeds[level(g)] / before;
    g->vx *= ratio;
    g->vy *= ratio;
}

static void hit_brick(game *g, int row, int column) {
    int i = row * COLUMNS + column;
    g->bricks[i >> 4] &= (uint16_t)~(1u << (i & 15));
    g->standing--;
    g->score += row_points[row];
    g->hits_without_brick = 0;
    if (row < 4) quicken(g, row < 2 ? FAST_UPPER : FAST_MIDDLE);
}

/* The ball's lower edge is on the paddle's upper edge. False: it missed, and the ball is lost. */
static bool meet_paddle(game *g, float paddle) {
    float reach = g->half + RADIUS, offset = g->x - paddle;
    if (fabsf(offset) > reach) return false;
    g->y = PADDLE_Y - RADIUS;
    g->paddle_hits++;
    g->ball_hits++;
    g->hits_without_brick++;
    renew_wall_if_cleared(g);
    if (g->ball_hits == 4) quicken(g, FAST_HITS_4);
    if (g->ball_hits == 12) quicken(g, FAST_HITS_12);
    float sine = BOUNCE_SINE * offset / reach;
    if (g->hits_without_brick > LOOP_HITS) {
        sine += LOOP_SINE * (2.0f * rng_float(&g->random) - 1.0f);
        sine = min(max(sine, -BOUNCE_SINE), BOUNCE_SINE);
    }
    aim(g, sine, -1.0f);
    return true;
}

/* Grid cells. Rows are -1 above the wall, 0 to 5 in it and 6 below it. Slack narrows the ball, so an edge
 * that has just met a line counts as on this side of it. */
static int column_of(float x) { return (int)floorf(x * (1.0f / BRICK_WIDTH)); }

static int row_of(float y) {
    float row = floorf((y - BRICKS_TOP) * (1.0f / BRICK_HEIGHT));
    return (int)min(max(row, -1.0f), (float)ROWS);
}

static int left_column(const game *g) { return column_of(g->x - (RADIUS - SLACK)); }
static int right_column(const game *g) { return column_of(g->x + (RADIUS - SLACK)); }
static int upper_row(const game *g) { return row_of(g->y - (RADIUS - SLACK)); }
static int lower_row(const game *g) { return row_of(g->y + (RADIUS - SLACK)); }

/* The column and row of the ball's leading edges. They are exact: an edge is in a cell once its border was
 * passed and found free, whatever rounding says about the coordinate. So no brick is entered unseen. */
typedef struct front {
    int column, row;
} front;

static int front_column(const game *g) { return g->vx > 0.0f ? right_column(g) : left_column(g); }
static int front_row(const game *g) { return g->vy > 0.0f ? lower_row(g) : upper_row(g); }

/* The leading vertical edge is on the border of the next column. */
static void cross_column(game *g, front *f) {
    int next = f->column + (g->vx > 0.0f ? 1 : -1);
    if (next < 0 || next >= COLUMNS) {
        g->x = next < 0 ? RADIUS : WIDTH - RADIUS;
    } else {
        /* Of two bricks side by side, the one level with the ball's centre is hit. */
        int trailing = g->vy > 0.0f ? upper_row(g) : lower_row(g), centre = row_of(g->y);
        int other = centre == f->row ? trailing : f->row;
        int row = stands(g, centre, next) ? centre : other;
        if (!stands(g, row, next)) {
            f->column = next;
            return;
        }
        hit_brick(g, row, next);
    }
    g->vx = -g->vx;
    f->column = front_column(g);
}

/* The leading horizontal edge is on the border of the next row, or on the ceiling. */
static void cross_row(game *g, front *f) {
    int next = f->row + (g->vy > 0.0f ? 1 : -1);
    if (next < -1) {
        g->y = RADIUS;
        g->half = 0.5f * PADDLE_HALF;
    } else {
        int trailing = g->vx > 0.0f ? left_column(g) : right_column(g), centre = column_of(g->x);
        int other = centre == f->column ? trailing : f->column;
        int column = stands(g, next, centre) ? centre : other;
        if (!stands(g, next, column)) {
            f->row = next;
            return;
        }
        hit_brick(g, next, column);
    }
    g->vy = -g->vy;
    f->row = front_row(g);
}

static bool game_is_won(const game *g) { return g->standing == 0 && g->wall + 1 == WALLS; }

/* Moves the ball for `frames` from contact to contact, while the paddle drifts at `drift` units a frame. Ends
 * early when the game is won or the ball is lost; a lost ball is replaced while there are more. */
static void fly(game *g, float frames, float drift) {
    float left = frames;
    front f = {front_column(g), front_row(g)};
    while (!game_is_won(g)) {
        float to_column = INFINITY, to_row;
        if (g->vx > 0.0f) to_column = ((float)(f.column + 1) * BRICK_WIDTH - (g->x + RADIUS)) / g->vx;
        if (g->vx < 0.0f) to_column = ((float)f.column * BRICK_WIDTH - (g->x - RADIUS)) / g->vx;
        bool at_paddle = g->vy > 0.0f && f.row == ROWS;
        if (at_paddle) {
            to_row = (PADDLE_Y - (g->y + RADIUS)) / g->vy;
        } else if (g->vy > 0.0f) {
            to_row = (BRICKS_TOP + (float)(f.row + 1) * BRICK_HEIGHT - (g->y + RADIUS)) / g->vy;
        } else {
            float line = f.row < 0 ? 0.0f : BRICKS_TOP + (float)f.row * BRICK_HEIGHT;
            to_row = (line - (g->y - RADIUS)) / g->vy;
        }
        float t = max(min(to_column, to_row), 0.0f);
        if (t >= left) t = left;
        g->x += g->vx * t;
        g->y += g->vy * t;
        left -= t;
        if (left <= 0.0f) return;
        if (to_column < to_row) {
            cross_column(g, &f);
        } else if (!at_paddle) {
            cross_row(g, &f);
        } else if (meet_paddle(g, within_field(g->paddle + drift * (frames - left), g->half))) {
            f = (front){front_column(g), front_row(g)};
        } else {
            if (--g->balls > 0) serve(g);
            return;
        }
    }
}

#endif
