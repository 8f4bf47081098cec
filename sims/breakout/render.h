/* Pictures of a game of Breakout, as text and as pixels. */
#ifndef HEADRACE_BREAKOUT_RENDER_H
#define HEADRACE_BREAKOUT_RENDER_H

#include <stdio.h>

#include "game.h"

/* A character stands for 4 x 6 units: half a brick. */
enum { CELL_WIDTH = 4, CELL_HEIGHT = 6, TEXT_COLUMNS = 36, TEXT_ROWS = 23 };
_Static_assert(TEXT_COLUMNS * CELL_WIDTH == (int)WIDTH, "the whole field's width");
_Static_assert(TEXT_ROWS * CELL_HEIGHT == (int)HEIGHT, "the whole field's height");

/* A pixel stands for half a unit. */
enum { SCALE = 2, PICTURE_WIDTH = (int)WIDTH * SCALE, PICTURE_HEIGHT = (int)HEIGHT * SCALE };

static const char *glyph(const game *g, int text_row, int text_column) {
    if (text_row == (int)(g->y / CELL_HEIGHT) && text_column == (int)(g->x / CELL_WIDTH)) return "●";
    float x = ((float)text_column + 0.5f) * CELL_WIDTH, y = ((float)text_row + 0.5f) * CELL_HEIGHT;
    if (y > PADDLE_Y) return fabsf(x - g->paddle) < g->half ? "▀" : " ";
    int row = row_of(y), column = column_of(x);
    if (!stands(g, row, column)) return " ";
    static const char *const bricks[ROWS / 2][2] = {{"█", "▉"}, {"▓", "▓"}, {"░", "░"}};
    return bricks[row / 2][text_column % 2];
}

static char *append(char *at, const char *text) {
    while (*text != '\0') *at++ = *text++;
    return at;
}

static char *append_line(char *at) {
    for (int i = 0; i < TEXT_COLUMNS; i++) at = append(at, "─");
    return at;
}

/* Writes one frame of UTF-8 with a final NUL; returns its length in bytes, or -1 if it does not fit. */
static int draw_text(const game *g, char *out, size_t capacity) {
    char frame[(TEXT_ROWS + 3) * (TEXT_COLUMNS + 3) * 3];
    char *at = frame;
    at += snprintf(frame, sizeof frame, "score %d of %d   ball %d of %d   wall %d of %d\n",
                   g->score, SCORE_MAX, BALLS - g->balls + 1, BALLS, g->wall + 1, WALLS);
    at = append(append_line(append(at, "┌")), "┐\n");
    for (int row = 0; row < TEXT_ROWS; row++) {
        at = append(at, "│");
        for (int column = 0; column < TEXT_COLUMNS; column++) at = append(at, glyph(g, row, column));
        at = append(at, "│\n");
    }
    at = append(append_line(append(at, "└")), "┘\n");
    size_t length = (size_t)(at - frame);
    if (length + 1 > capacity) return -1;
    memcpy(out, frame, length);
    out[length] = '\0';
    return (int)length;
}

static const uint8_t *colour(const game *g, float x, float y) {
    static const uint8_t black[3] = {12, 12, 16}, white[3] = {236, 236, 236}, blue[3] = {72, 144, 220};
    static const uint8_t bricks[ROWS / 2][3] = {{200, 60, 60}, {210, 130, 50}, {200, 190, 70}};
    if (fabsf(x - g->x) < RADIUS && fabsf(y - g->y) < RADIUS) return white;
    if (y > PADDLE_Y) return fabsf(x - g->paddle) < g->half && y < PADDLE_Y + 3.0f ? blue : black;
    int row = row_of(y);
    if (!stands(g, row, column_of(x))) return black;
    /* Half a unit of each brick is left black on two sides, as a joint. */
    bool joint = x - BRICK_WIDTH * floorf(x / BRICK_WIDTH) < 0.5f ||
                 y - BRICKS_TOP - BRICK_HEIGHT * (float)row < 0.5f;
    return joint ? black : bricks[row / 2];
}

/* Writes [PICTURE_HEIGHT, PICTURE_WIDTH, 3] bytes. */
static void draw_rgb(const game *g, uint8_t *out) {
    for (int i = 0; i < PICTURE_HEIGHT; i++) {
        for (int j = 0; j < PICTURE_WIDTH; j++) {
            memcpy(out, colour(g, ((float)j + 0.5f) / SCALE, ((float)i + 0.5f) / SCALE), 3);
            out += 3;
        }
    }
}

#endif
