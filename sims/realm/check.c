/* What must hold after every tick, looked up the slow way. Only in builds with REALM_CHECK. */
#include "realm.h"

#ifdef REALM_CHECK

#define HOLD(condition)                 \
    do {                                \
        if (!(condition)) return -__LINE__; \
    } while (0)

static int check_gold(const realm *w) {
    int64_t sum = 0;
    for (int32_t i = 0; i < w->set.agents; i++) {
        int32_t gold = w->life[i].gold;
        HOLD(gold >= 0);
        HOLD(w->agent[i].gold_seen == (gold < 127 ? gold : 127));
        sum += gold;
    }
    HOLD(sum == w->s->minted - w->s->sunk);
    return 0;
}

/* One entity a tile: each is where the map says it is, and the map shows no other. */
static int check_places(const realm *w) {
    int32_t shown = 0, crowd = 0;
    for (int32_t i = 0; i < w->set.agents; i++) {
        const uint8_t *at = cell(w, w->tile[i]);
        const agent *a = &w->agent[i];
        HOLD(w->occupant[w->tile[i]] == i + 1);
        HOLD(is_land(at) && at[PLANE_ENTITY] == AGENT);
        HOLD(at[PLANE_ELEMENT] == a->element && at[PLANE_DIRECTION] == a->facing);
        HOLD(at[PLANE_ANIMATION] == a->animation && at[PLANE_RANK] == a->combat / 4 + 3);
        HOLD(at[PLANE_HEALTH] == (a->health * 5 - 1) / a->max_health);
        HOLD(w->crowd[w->tile[i] / 8] >> (w->tile[i] % 8) & 1);
    }
    for (int32_t b = 0; b < w->set.beasts; b++) {
        const beast *one = &w->beast[b];
        const uint8_t *at = cell(w, one->tile);
        HOLD(w->occupant[one->tile] == -1 - b);
        HOLD(is_land(at) && at[PLANE_ENTITY] == BEAST && at[PLANE_RANK] == one->level / 4 + 3);
        HOLD(at[PLANE_ELEMENT] == one->element && at[PLANE_DIRECTION] == one->facing);
        HOLD(at[PLANE_ANIMATION] == one->animation);
        HOLD((one->health == 0) == (one->fallen > 0) && (one->animation == FALLEN) == (one->fallen > 0));
        HOLD(one->level >= 1 && one->level <= w->set.levels && one->health <= 20 + 2 * one->level);
    }
    for (int32_t t = 0; t < w->tiles; t++) {
        shown += cell(w, t)[PLANE_ENTITY] != NOBODY;
        crowd += w->crowd[t / 8] >> (t % 8) & 1;
        HOLD((w->occupant[t] != 0) == (cell(w, t)[PLANE_ENTITY] != NOBODY));
    }
    HOLD(shown == w->set.agents + w->set.beasts);
    HOLD(crowd == w->set.agents);
    return 0;
}

static int check_map(const realm *w) {
    static const uint8_t values[PLANES] = {SEASONS,  GROUNDS, KINDS,  TIERS,      ENTITIES,
                                           ELEMENTS, 64,      FIFTHS, ANIMATIONS, WAYS};
    int32_t grown = w->s->regrowth.count, left = 0;
    for (int32_t t = 0; t < w->tiles; t++) {
        const uint8_t *at = cell(w, t);
        for (int plane = 0; plane < PLANES; plane++) HOLD(at[plane] < values[plane]);
        if (at[PLANE_ENTITY] == NOBODY)
            for (int plane = PLANE_ENTITY; plane < PLANES; plane++) HOLD(at[plane] == 0);
        HOLD(at[PLANE_ITEM] != NOTHING || (at[PLANE_TIER] == 0 && w->left[t] == 0));
        HOLD(at[PLANE_ITEM] == NOTHING || is_land(at));
        grown += at[PLANE_ITEM] != NOTHING && w->left[t] == 0;
        left += w->left[t] != 0;
    }
    HOLD(grown == w->set.resources);
    HOLD(left <= w->s->leavings.count && w->s->leavings.count <= w->s->leavings.room);
    return 0;
}

static int check_agents(const realm *w) {
    for (int32_t i = 0; i < w->set.agents; i++) {
        const agent *a = &w->agent[i];
        HOLD(a->health > 0 && a->health <= a->max_health && a->max_health == 80 + a->combat);
        HOLD(a->combat >= 1 && a->combat <= w->set.levels);
        for (int skill = 0; skill < SKILLS; skill++) HOLD(a->skill[skill] <= w->set.levels);
        for (int slot = 0; slot < SLOTS; slot++) {
            HOLD(a->item[slot] < ITEMS && a->slot[slot] <= ON_OFFER);
            HOLD(a->item[slot] != 0 || a->slot[slot] == CARRIED);
            HOLD((a->slot[slot] == ON_OFFER) == (w->asked[i * SLOTS + slot] > 0));
        }
        agent again = *a;
        reckon_gear(&again);
        HOLD(memcmp(&again, a, sizeof again) == 0);
        HOLD(a->attack + a->defence <= a->record);
        HOLD(a->menu <= MENU_DROP && (a->in_combat == 0 || a->menu == MENU_NONE || a->menu == MENU_DROP));
    }
    return 0;
}

/* Every offer is in the list of its item and price, once. */
static int check_market(const realm *w) {
    int32_t listed = 0, offered = 0;
    for (int item = 0; item < ITEMS; item++) {
        for (int price = 1; price <= PRICES; price++) {
            int32_t before = -1, one = w->s->first[item][price - 1];
            HOLD((one >= 0) == (w->s->prices[item] >> (price - 1) & 1));
            for (; one >= 0; before = one, one = w->after[one], listed++) {
                HOLD(listed < w->set.agents * SLOTS && w->before[one] == before);
                HOLD(w->agent[one / SLOTS].item[one % SLOTS] == item && w->asked[one] == price);
            }
            HOLD(w->s->last[item][price - 1] == before);
        }
    }
    for (int32_t one = 0; one < w->set.agents * SLOTS; one++) offered += w->asked[one] > 0;
    HOLD(listed == offered);
    return 0;
}

/* The window of agent i, from the entities themselves and not from what the map shows of them. */
static int check_window(const realm *w, int32_t i, const uint8_t *obs) {
    int32_t own = w->agent[i].combat / 4;
    for (int32_t row = 0; row < VIEW_ROWS; row++) {
        for (int32_t column = 0; column < VIEW_COLUMNS; column++, obs += PLANES) {
            int32_t t = w->tile[i] + (row - 5) * w->columns + column - 7, who = w->occupant[t], seen = 0;
            int32_t level = who > 0 ? w->agent[who - 1].combat : who < 0 ? w->beast[-1 - who].level : 0;
            if (who != 0) seen = level / 4 - own + 2;
            HOLD(obs[PLANE_RANK] == (seen < 0 ? 0 : seen > 4 ? 4 : seen));
            HOLD(memcmp(obs, cell(w, t), PLANE_RANK) == 0);
            HOLD(memcmp(obs + PLANE_HEALTH, cell(w, t) + PLANE_HEALTH, PLANES - PLANE_HEALTH) == 0);
        }
    }
    return 0;
}

static int check_observations(const realm *w, const uint8_t *obs) {
    for (int32_t i = 0; i < w->set.agents; i++, obs += OBS_BYTES) {
        int line = check_window(w, i, obs);
        if (line < 0) return line;
        HOLD(memcmp(obs + GRID_BYTES, &w->agent[i], SELF_BYTES) == 0);
        for (int byte = 0; byte < SELF_BYTES; byte++) HOLD(obs[GRID_BYTES + byte] < SIM_CODES);
        for (int tier = 0; tier < TIERS; tier++) HOLD(obs[GRID_BYTES + SELF_PRICE + tier] <= PRICES);
        HOLD(obs[GRID_BYTES + SELF_AGE] < 16 && obs[GRID_BYTES + SELF_IDLE] < 16);
    }
    return 0;
}

int broken_invariant(const realm *w, const uint8_t *obs) {
    int line = check_gold(w);
    if (line == 0) line = check_places(w);
    if (line == 0) line = check_map(w);
    if (line == 0) line = check_agents(w);
    if (line == 0) line = check_market(w);
    if (line == 0) line = check_observations(w, obs);
    return line;
}

#endif
