/* Blows: who is hit, how hard, and what a fallen beast leaves. */
#include "realm.h"

static bool beats(int element, int other) {
    return element != NEUTRAL && other != NEUTRAL && other == element % (ELEMENTS - 1) + 1;
}

/* Half as much again for the element that beats the other, half for the other way round. */
static int damage(int base, int power, int guard, int element, int other) {
    int twice = 2 * (base + power - guard);
    if (beats(element, other)) twice += twice / 2;
    if (beats(other, element)) twice -= twice / 2;
    return twice < 2 ? 1 : twice / 2;
}

static void fall(realm *w, beast *b, int32_t slayer) {
    agent *a = &w->agent[slayer];
    life *l = &w->life[slayer];
    b->fallen = FALLEN_TURNS;
    b->animation = FALLEN;
    l->kills++;
    int gold = 1 + b->tier;
    w->s->minted += gold;
    count_gold(w, slayer, gold);
    uint32_t chance = rng_below(&w->s->random, 2 * SKILLS);
    if (chance < SKILLS && item_on(cell(w, b->tile)) == 0)
        leave(w, b->tile, item_of(PICK + (int)chance, b->tier));
    if (b->level < a->combat || a->combat >= w->set.levels) return;
    a->combat++;
    a->max_health++;
    a->levelled++;
    l->progressed = w->s->tick;
}

static void strike_beast(realm *w, int32_t i, beast *b) {
    agent *a = &w->agent[i];
    int guard = b->level + b->level / 2;
    int hurt = damage(BLOW, a->combat + a->attack, guard, a->element, b->element);
    hurt = hurt < b->health ? hurt : b->health;
    b->health -= (uint8_t)hurt;
    b->angry = 1;
    add(&a->dealt, hurt);
    a->in_combat = COMBAT_TICKS;
    if (b->health == 0) fall(w, b, i);
    show_beast(w, b);
}

/* The living beast that stands on a tile. */
static beast *beast_on(const realm *w, int32_t tile) {
    if (cell(w, tile)[PLANE_ENTITY] != BEAST) return NULL;
    beast *b = &w->beast[-1 - w->occupant[tile]];
    return b->fallen ? NULL : b;
}

/* The first in one direction that an arrow meets. */
static beast *aim(const realm *w, int32_t tile, int way) {
    for (int far = 0; far < SHOT; far++) {
        tile += w->step[way];
        if (cell(w, tile)[PLANE_GROUND] == STONE) return NULL;
        beast *b = beast_on(w, tile);
        if (b != NULL) return b;
    }
    return NULL;
}

/* Bare hands and tools reach the four tiles around, a blade the corners too, a bow along the four lines. The
 * agent's facing comes first, and turns to who is hit. */
void attack(realm *w, int32_t i) {
    agent *a = &w->agent[i];
    int hand = kind_of(a->hand);
    a->animation = hand == BOW ? SHOOT : STRIKE;
    for (int turn = 0; turn < WAYS; turn++) {
        int way = turn == 0 ? a->facing : (turn <= a->facing ? turn - 1 : turn);
        int32_t next = w->tile[i] + w->step[way];
        beast *b = hand == BOW ? aim(w, w->tile[i], way) : beast_on(w, next);
        if (b == NULL) continue;
        a->facing = (uint8_t)way;
        strike_beast(w, i, b);
        return;
    }
    for (int corner = 0; hand == BLADE && corner < WAYS; corner++) {
        int32_t there = w->tile[i] + w->step[corner & 1] + w->step[WEST + corner / 2];
        beast *b = beast_on(w, there);
        if (b == NULL) continue;
        strike_beast(w, i, b);
        return;
    }
}

/* Who was born in this tick cannot be hit yet: its first observation is still to come. A blow closes the
 * menu. */
void strike_agent(realm *w, beast *b, int32_t i, bool from_afar) {
    agent *a = &w->agent[i];
    b->animation = from_afar ? SHOOT : STRIKE;
    if (a->born || a->health == 0) return;
    int power = b->level + b->level / 2;
    int hurt = damage(BEAST_BLOW, power, a->combat + a->defence, b->element, a->element);
    hurt = hurt < a->health ? hurt : a->health;
    a->health -= (uint8_t)hurt;
    add(&a->taken, hurt);
    a->in_combat = COMBAT_TICKS;
    a->menu = MENU_NONE;
    a->choice = 0;
    show_agent(w, i);
}
