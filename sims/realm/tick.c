/* One tick: the ground, the agents, the beasts, then what it meant for each agent. */
#include "realm.h"

/* A new set of things, beasts and agents on the same map. */
void populate(realm *w) {
    state *s = w->s;
    for (int32_t t = 0; t < w->tiles; t++) memset(cell(w, t) + PLANE_ITEM, 0, PLANES - PLANE_ITEM);
    memset(w->occupant, 0, (size_t)w->tiles * sizeof *w->occupant);
    memset(w->crowd, 0, (size_t)w->tiles / 8);
    memset(w->left, 0, (size_t)w->tiles);
    s->regrowth.count = s->leavings.count = 0;
    s->minted = s->sunk = 0;
    open_market(w);
    scatter_resources(w);
    draw_tiers(w);
    for (int32_t b = 0; b < w->set.beasts; b++) raise_beast(w, b);
    for (int32_t i = 0; i < w->set.agents; i++) be_born(w, i);
}

static int32_t levels_gained(const agent *a) {
    int32_t sum = a->combat - 1;
    for (int skill = 0; skill < SKILLS; skill++) sum += a->skill[skill];
    return sum;
}

static void write_statistics(const realm *w, int32_t i, bool died, float *out) {
    const agent *a = &w->agent[i];
    const life *l = &w->life[i];
    out[STAT_PROGRESS] = (float)levels_gained(a) + (float)a->record / GEAR_POINTS;
    out[STAT_COMBAT] = a->combat;
    out[STAT_MINING] = a->skill[MINING];
    out[STAT_FORAGING] = a->skill[FORAGING];
    out[STAT_LOGGING] = a->skill[LOGGING];
    out[STAT_GEAR] = a->record;
    out[STAT_KILLS] = (float)l->kills;
    out[STAT_HARVESTS] = (float)l->harvests;
    out[STAT_CRAFTED] = (float)l->crafted;
    out[STAT_BOUGHT] = (float)l->bought;
    out[STAT_SOLD] = (float)l->sold;
    out[STAT_GOLD] = (float)l->gold;
    out[STAT_DIED] = died;
}

static void clear_news(const realm *w) {
    for (int32_t i = 0; i < w->set.agents; i++)
        memset((uint8_t *)&w->agent[i] + CODED_BYTES, 0, PLAIN_BYTES);
}

/* Sixteenths of a limit: below 16 up to the limit itself. */
static uint8_t share(int64_t passed, double per_tick) { return (uint8_t)((double)passed * per_tick); }

static void settle(realm *w, int32_t i, const sim_io *io) {
    const settings *set = &w->set;
    agent *a = &w->agent[i];
    int64_t age = w->s->tick - w->life[i].born, idle = w->s->tick - w->life[i].progressed;
    bool died = a->health == 0, expired = age >= set->lifetime || idle >= set->patience;
    io->rewards[i] = set->reward_combat * a->levelled + set->reward_skill * a->skilled +
                     set->reward_gear * a->geared / GEAR_POINTS +
                     set->reward_trade * (float)(a->sold + a->bought) + set->reward_death * died;
    if (died || expired) write_statistics(w, i, died, io->statistics + (size_t)i * STATS);
    io->terminated[i] = died;
    io->truncated[i] = !died && expired;
    a->pending = !died && expired;
    if (died) {
        pass_away(w, i);
        be_born(w, i);
        age = idle = 0;
    }
    a->age = share(age, w->age_share);
    a->idle = share(idle, w->idle_share);
}

/* The prices that an agent at the market asks to see; last of all, since others may still buy. */
static void show_prices(const realm *w, agent *a) {
    for (int tier = 0; tier < TIERS; tier++)
        a->price[tier] = a->menu == MENU_TIER ? (uint8_t)cheapest(w, item_of(a->choice, tier)) : 0;
}

/* Whose turn comes first is left to chance: they are taken from a random one on, upwards or downwards. */
static void live_all(realm *w, const int32_t *actions) {
    int32_t n = w->set.agents, i = (int32_t)rng_below(&w->s->random, (uint32_t)n);
    bool up = rng_below(&w->s->random, 2) == 1;
    for (int32_t turn = 0; turn < n; turn++) {
        if (w->agent[i].pending) {
            pass_away(w, i);
            be_born(w, i);
        } else {
            live_on(w, i, actions[i]);
        }
        i = up ? (i + 1 < n ? i + 1 : 0) : (i > 0 ? i - 1 : n - 1);
    }
}

/* A beast has a turn every second tick. */
static void turn_all(realm *w) {
    int32_t first = (int32_t)(w->s->tick & 1), n = (w->set.beasts + 1 - first) / 2;
    bool up = rng_below(&w->s->random, 2) == 1;
    for (int32_t turn = 0; turn < n; turn++) take_turn(w, first + 2 * (up ? turn : n - 1 - turn));
}

int tick(realm *w, const sim_io *io) {
    const int32_t *actions = io->actions;
    for (int32_t i = 0; i < w->set.agents; i++)
        if (actions[i] < 0 || actions[i] >= ACTIONS) return -1;
    w->s->tick++;
    clear_news(w);
    change_ground(w);
    live_all(w, actions);
    turn_all(w);
    for (int32_t i = 0; i < w->set.agents; i++) settle(w, i, io);
    for (int32_t i = 0; i < w->set.agents; i++) show_prices(w, &w->agent[i]);
    return 0;
}
