/* Things: where they grow, how they are taken, made, worn and left. */
#include "realm.h"

static const int8_t skill_of_kind[KINDS] = {
    [NOTHING] = -1, [HOOD] = -1, [COAT] = -1, [BOOTS] = -1, [BLADE] = -1, [BOW] = -1, [PICK] = -1,
    [SICKLE] = -1, [AXE] = -1, [FLAME_CHARM] = MINING, [LOAM_CHARM] = MINING, [TIDE_CHARM] = MINING,
    [GALE_CHARM] = MINING, [ORE] = MINING, [SHARD] = MINING, [WOOD] = LOGGING, [HERB] = FORAGING,
};

/* Where a kind likes to grow: beside this ground, or in this season; -1: does not matter. */
static const struct {
    int8_t beside, season;
} habitat[KINDS] = {
    [FLAME_CHARM] = {-1, SUMMER}, [LOAM_CHARM] = {-1, SPRING}, [TIDE_CHARM] = {-1, WINTER},
    [GALE_CHARM] = {-1, AUTUMN},  [ORE] = {STONE, -1},         [SHARD] = {STONE, -1},
    [WOOD] = {WATER, -1},         [HERB] = {WATER, -1},
};

enum { HEAD, BODY, FEET, HAND, NECK, PARTS };

/* The part of the body that wears a kind; PARTS: none. */
static int part_of(int kind) {
    if (kind >= HOOD && kind <= BOOTS) return HEAD + kind - HOOD;
    if (kind >= BLADE && kind <= AXE) return HAND;
    return kind >= FLAME_CHARM && kind <= GALE_CHARM ? NECK : PARTS;
}

static bool suits(const realm *w, int32_t tile, int kind) {
    const uint8_t *at = cell(w, tile);
    if (habitat[kind].season >= 0)
        return at[PLANE_SEASON] == habitat[kind].season && at[PLANE_GROUND] == GRASS;
    for (int way = 0; way < WAYS; way++)
        if (cell(w, tile + w->step[way])[PLANE_GROUND] == habitat[kind].beside) return true;
    return false;
}

/* A tile without a thing, if need be one where the kind is a stranger. */
static int32_t place_for(realm *w, int kind) {
    uint32_t lands = (uint32_t)w->s->lands, pick = 0;
    for (int tries = 0; tries < 100; tries++) {
        pick = rng_below(&w->s->random, lands);
        if (item_on(cell(w, w->land[pick])) == 0 && suits(w, w->land[pick], kind)) return w->land[pick];
    }
    while (item_on(cell(w, w->land[pick])) != 0) pick = pick + 1 < lands ? pick + 1 : 0;
    return w->land[pick];
}

/* Each tier is half as frequent as the one below. */
static int random_tier(realm *w) {
    uint32_t chance = rng_below(&w->s->random, (1u << TIERS) - 1);
    int tier = 0;
    for (uint32_t below = 1u << (TIERS - 1), sum = below; chance >= sum; tier++) sum += below >>= 1;
    return tier;
}

void scatter_resources(realm *w) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int32_t n = 0; n < w->set.grows[kind]; n++)
            put_item(cell(w, place_for(w, kind)), item_of(kind, random_tier(w)));
}

static event *front(queue *q, event *events) { return &events[q->first]; }

static void pop(queue *q) {
    q->first = q->first + 1 < q->room ? q->first + 1 : 0;
    q->count--;
}

static void push(queue *q, event *events, event what) {
    int32_t last = q->first + q->count < q->room ? q->first + q->count : q->first + q->count - q->room;
    events[last] = what;
    q->count++;
}

/* A resource whose tile is taken by something that was left there waits once more. */
static void grow(realm *w) {
    queue *q = &w->s->regrowth;
    while (q->count > 0 && front(q, w->regrowth)->due <= w->s->tick) {
        event due = *front(q, w->regrowth);
        pop(q);
        if (item_on(cell(w, due.tile)) == 0) {
            put_item(cell(w, due.tile), due.item);
        } else {
            due.due = w->s->tick + w->set.regrowth;
            push(q, w->regrowth, due);
        }
    }
}

/* Unless it was taken in the meantime: the mark tells it from what may lie there now. */
static void decay(realm *w, const event *one) {
    if (w->left[one->tile] != one->mark) return;
    w->left[one->tile] = 0;
    put_item(cell(w, one->tile), 0);
}

void change_ground(realm *w) {
    queue *q = &w->s->leavings;
    for (; q->count > 0 && front(q, w->leavings)->due <= w->s->tick; pop(q))
        decay(w, front(q, w->leavings));
    grow(w);
}

/* On a tile without a thing. When more lies around than fits the queue, the oldest decays early. */
void leave(realm *w, int32_t tile, int item) {
    queue *q = &w->s->leavings;
    if (q->count == q->room) {
        decay(w, front(q, w->leavings));
        pop(q);
    }
    uint8_t mark = (uint8_t)(1 + w->s->tick % 255); /* none lies longer than `decay` allows: 250 ticks */
    push(q, w->leavings, (event){.due = w->s->tick + w->set.decay, .tile = tile, .mark = mark});
    w->left[tile] = mark;
    put_item(cell(w, tile), item);
}

/* SLOTS: none. */
int empty_slot(const agent *a) {
    int slot = 0;
    while (slot < SLOTS && a->item[slot] != 0) slot++;
    return slot;
}

/* Takes what lies under an agent: what was left there freely, what grows with the tool of its profession, of
 * at least the same tier, in hand. */
void pick_up(realm *w, int32_t i) {
    agent *a = &w->agent[i];
    int32_t tile = w->tile[i];
    uint8_t *at = cell(w, tile);
    int item = item_on(at), slot = empty_slot(a);
    if (item == 0 || slot == SLOTS) return;
    if (w->left[tile] == 0) {
        int skill = skill_of_kind[kind_of(item)], tier = tier_of(item);
        if (kind_of(a->hand) != PICK + skill || tier_of(a->hand) < tier) return;
        push(&w->s->regrowth, w->regrowth,
             (event){.due = w->s->tick + w->set.regrowth, .tile = tile, .item = (uint8_t)item});
        w->life[i].harvests++;
        if (a->skill[skill] < SKILL_LEVELS * (tier + 1) && a->skill[skill] < w->set.levels) {
            a->skill[skill]++;
            a->skilled++;
            w->life[i].progressed = w->s->tick;
        }
    }
    w->left[tile] = 0;
    put_item(at, 0);
    a->item[slot] = (uint8_t)item;
    a->found++;
}

/* What the worn things make of an agent: attack, defence, element, hand. */
void reckon_gear(agent *a) {
    a->attack = a->defence = a->hand = 0;
    a->element = NEUTRAL;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (a->slot[slot] != WORN) continue;
        int kind = kind_of(a->item[slot]), points = tier_of(a->item[slot]) + 1;
        switch (part_of(kind)) {
        case HAND:
            a->hand = a->item[slot];
            if (kind == BLADE) a->attack += (uint8_t)(BLADE_POINTS * points);
            if (kind == BOW) a->attack += (uint8_t)(BOW_POINTS * points);
            break;
        case NECK:
            a->element = (uint8_t)(FLAME + kind - FLAME_CHARM);
            a->attack += (uint8_t)points;
            a->defence += (uint8_t)points;
            break;
        default:
            a->defence += (uint8_t)(ARMOUR_POINTS * points);
        }
    }
}

void take_off(realm *w, int32_t i, int slot) {
    agent *a = &w->agent[i];
    if (a->slot[slot] != WORN) return;
    a->slot[slot] = CARRIED;
    reckon_gear(a);
}

/* In place of what the same part wears. The best gear of a life so far pays once. */
static void put_on(realm *w, int32_t i, int slot) {
    agent *a = &w->agent[i];
    int part = part_of(kind_of(a->item[slot]));
    for (int other = 0; other < SLOTS; other++)
        if (a->slot[other] == WORN && part_of(kind_of(a->item[other])) == part) a->slot[other] = CARRIED;
    a->slot[slot] = WORN;
    reckon_gear(a);
    int total = a->attack + a->defence;
    if (total <= a->record) return;
    a->geared += (uint8_t)(total - a->record);
    a->record = (uint8_t)total;
    w->life[i].progressed = w->s->tick;
}

static void eat(agent *a, int tier) {
    int room = a->max_health - a->health, gain = HERB_HEALTH * (tier + 2);
    gain = gain < room ? gain : room;
    a->health += (uint8_t)gain;
    add(&a->healed, gain);
}

/* Wear or take off, make something of a raw thing, eat, or take back what is on offer. */
void use(realm *w, int32_t i, int slot) {
    agent *a = &w->agent[i];
    int item = a->item[slot], kind = kind_of(item), tier = tier_of(item);
    if (item == 0) return;
    a->animation = HANDLE;
    if (a->slot[slot] == ON_OFFER) {
        withdraw(w, i, slot);
    } else if (a->slot[slot] == WORN) {
        take_off(w, i, slot);
    } else if (part_of(kind) != PARTS) {
        put_on(w, i, slot);
    } else if (kind == HERB) {
        eat(a, tier);
        a->item[slot] = 0;
    } else {
        int made = kind == ORE ? HOOD + (int)rng_below(&w->s->random, 3) : kind == SHARD ? BLADE : BOW;
        a->item[slot] = item_of(made, tier);
        w->life[i].crafted++;
    }
}
