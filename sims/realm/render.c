/* Pictures of a region of the realm, as text and as pixels. */
#include <stdio.h>

#include "realm.h"

/* The tile at a place of the picture; 0, which is sea, outside. */
static int32_t tile_in_picture(const realm *w, int32_t column, int32_t row) {
    const settings *set = &w->set;
    int32_t x = set->view_x, y = set->view_y;
    if (x < 0) x = w->tile[w->followed] % w->columns - COLUMN_MARGIN;
    if (y < 0) y = w->tile[w->followed] / w->columns - ROW_MARGIN;
    x += column - set->view_width / 2;
    y += row - set->view_height / 2;
    return x >= 0 && y >= 0 && x < set->width && y < set->height ? tile_at(w, x, y) : 0;
}

/* Agents by the way they face, beasts by tier, things by a letter that is small below tier 3. */
static const char *glyph(const realm *w, int32_t tile) {
    static const char *const ground[GROUNDS] = {".", ",", "▲", "~"};
    static const char *const agents[WAYS] = {"↑", "↓", "←", "→"};
    static const char *const beasts[TIERS] = {"1", "2", "3", "4", "5"};
    static const char *const things[KINDS] = {" ", "h", "c", "b", "s", "w", "p", "k", "x",
                                              "f", "l", "t", "g", "o", "d", "y", "e"};
    static const char *const fine_things[KINDS] = {" ", "H", "C", "B", "S", "W", "P", "K", "X",
                                                   "F", "L", "T", "G", "O", "D", "Y", "E"};
    const uint8_t *at = cell(w, tile);
    if (at[PLANE_ENTITY] == AGENT) return agents[at[PLANE_DIRECTION]];
    if (at[PLANE_ENTITY] == BEAST) {
        const beast *b = &w->beast[-1 - w->occupant[tile]];
        return b->fallen ? "†" : beasts[b->tier];
    }
    if (at[PLANE_ITEM] != NOTHING)
        return at[PLANE_TIER] < 2 ? things[at[PLANE_ITEM]] : fine_things[at[PLANE_ITEM]];
    return ground[at[PLANE_GROUND]];
}

/* Appends what fits and returns the length that all would have. */
static size_t append(char *out, size_t capacity, size_t length, const char *text) {
    size_t bytes = strlen(text);
    if (length + bytes < capacity) memcpy(out + length, text, bytes + 1);
    return length + bytes;
}

/* Writes the followed agent's figures and the region as UTF-8 with a final NUL; returns the length in bytes, or
 * -1 if it does not fit. */
int draw_text(const realm *w, char *out, size_t capacity) {
    const agent *a = &w->agent[w->followed];
    char head[160];
    (void)snprintf(head, sizeof head,
                   "tick %lld   agent %d: level %d, health %d of %d, mining %d, foraging %d, logging %d, "
                   "attack %d, defence %d, gold %d\n",
                   (long long)w->s->tick, w->followed, a->combat, a->health, a->max_health, a->skill[MINING],
                   a->skill[FORAGING], a->skill[LOGGING], a->attack, a->defence, w->life[w->followed].gold);
    size_t length = append(out, capacity, 0, head);
    for (int32_t row = 0; row < w->set.view_height; row++) {
        for (int32_t column = 0; column < w->set.view_width; column++)
            length = append(out, capacity, length, glyph(w, tile_in_picture(w, column, row)));
        length = append(out, capacity, length, "\n");
    }
    return length < capacity ? (int)length : -1;
}

typedef struct colour {
    uint8_t red, green, blue;
} colour;

static const colour ground_colour[SEASONS][GROUNDS] = {
    [SPRING] = {{104, 170, 84}, {146, 122, 86}, {120, 120, 124}, {52, 104, 168}},
    [SUMMER] = {{136, 168, 64}, {170, 140, 88}, {134, 128, 120}, {48, 116, 172}},
    [AUTUMN] = {{176, 132, 62}, {136, 104, 72}, {114, 108, 108}, {56, 92, 140}},
    [WINTER] = {{222, 228, 234}, {176, 166, 158}, {150, 156, 166}, {128, 164, 200}},
};

/* A pixel of a tile: a beast is a diamond in its element's colour, an agent a square, of another colour if it is the
 * one that is followed, a thing a small square. */
static colour pixel(const realm *w, int32_t tile, int x, int y) {
    static const colour elements[ELEMENTS] = {
        {96, 64, 96}, {216, 72, 40}, {120, 84, 40}, {40, 120, 216}, {200, 200, 120}};
    static const colour skin = {250, 240, 210}, followed = {255, 64, 160}, dark = {30, 26, 30}, thing = {244, 204, 60};
    const uint8_t *at = cell(w, tile);
    int from_middle_x = x < PIXELS / 2 ? PIXELS / 2 - 1 - x : x - PIXELS / 2;
    int from_middle_y = y < PIXELS / 2 ? PIXELS / 2 - 1 - y : y - PIXELS / 2;
    int far = from_middle_x > from_middle_y ? from_middle_x : from_middle_y;
    if (at[PLANE_ENTITY] == AGENT && far < 3) return far == 2 ? dark : tile == w->tile[w->followed] ? followed : skin;
    if (at[PLANE_ENTITY] == BEAST && from_middle_x + from_middle_y < 4)
        return at[PLANE_ANIMATION] == FALLEN ? dark : elements[at[PLANE_ELEMENT]];
    if (at[PLANE_ITEM] != NOTHING && far < 2) return thing;
    return ground_colour[at[PLANE_SEASON]][at[PLANE_GROUND]];
}

/* Writes [view_height * PIXELS, view_width * PIXELS, 3] bytes. */
void draw_rgb(const realm *w, uint8_t *out) {
    for (int32_t row = 0; row < w->set.view_height * PIXELS; row++) {
        for (int32_t column = 0; column < w->set.view_width * PIXELS; column++, out += 3) {
            int32_t tile = tile_in_picture(w, column / PIXELS, row / PIXELS);
            colour c = pixel(w, tile, column % PIXELS, row % PIXELS);
            memcpy(out, &c, sizeof c);
        }
    }
}
