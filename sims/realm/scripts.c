/* Scripted agents to compare a policy with: each sees one agent's observation and nothing else. */
#include "scripts.h"

#include <stdbool.h>
#include <stdlib.h>

enum { CELLS = VIEW_ROWS * VIEW_COLUMNS, MIDDLE = CELLS / 2, WAYS = 4, NO_WAY = -1 };
static const int step[WAYS] = {-VIEW_COLUMNS, VIEW_COLUMNS, -1, 1};

typedef struct sight {
    const uint8_t *grid, *self;
    uint32_t *random;
} sight;

/* Xorshift (Marsaglia 2003): a word of state is enough for a script. */
static uint32_t chance(const sight *s, uint32_t n) {
    uint32_t x = *s->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    *s->random = x;
    return (uint32_t)((uint64_t)x * n >> 32);
}

static const uint8_t *cell(const sight *s, int at) { return s->grid + at * PLANES; }
static int kind_of(int item) { return item == 0 ? NOTHING : 1 + (item - 1) / TIERS; }
static int tier_of(int item) { return item == 0 ? 0 : (item - 1) % TIERS; }
static int item_in(const sight *s, int slot) { return s->self[SELF_ITEM + slot]; }
static int state_of(const sight *s, int slot) { return s->self[SELF_SLOT + slot]; }
static bool is_tool(int kind) { return kind >= PICK && kind <= AXE; }
static bool is_weapon(int kind) { return kind == BLADE || kind == BOW; }

static bool is_free(const uint8_t *at) { return at[PLANE_GROUND] <= DIRT && at[PLANE_ENTITY] == NOBODY; }
static bool is_living_beast(const uint8_t *at) {
    return at[PLANE_ENTITY] == BEAST && at[PLANE_ANIMATION] != FALLEN;
}

/* The neighbour of a cell in a direction; NO_WAY outside of the window. */
static int neighbour(int at, int way) {
    int column = at % VIEW_COLUMNS, next = at + step[way];
    if (next < 0 || next >= CELLS || (way == 2 && column == 0) || (way == 3 && column == VIEW_COLUMNS - 1))
        return NO_WAY;
    return next;
}

typedef bool (*wish)(const sight *s, const uint8_t *at);

/* The first step of a shortest path to the nearest cell that is wished for, which need not be free itself;
 * NO_WAY if there is none. `*far` is its length in steps. */
static int way_to(const sight *s, wish wanted, int *far) {
    int8_t first[CELLS];
    uint8_t queue[CELLS], length[CELLS];
    int count = 0;
    memset(first, NO_WAY, sizeof first);
    first[MIDDLE] = WAYS;
    length[MIDDLE] = 0;
    queue[count++] = MIDDLE;
    int start = (int)chance(s, WAYS);
    for (int next = 0; next < count; next++) {
        for (int turn = 0; turn < WAYS; turn++) {
            int way = (start + turn) % WAYS, to = neighbour(queue[next], way);
            if (to == NO_WAY || first[to] != NO_WAY) continue;
            first[to] = (int8_t)(queue[next] == MIDDLE ? way : first[queue[next]]);
            length[to] = (uint8_t)(length[queue[next]] + 1);
            *far = length[to];
            if (wanted(s, cell(s, to))) return first[to];
            if (is_free(cell(s, to))) queue[count++] = (uint8_t)to;
        }
    }
    return NO_WAY;
}

/* On in the same direction as long as it goes, with a turn now and then. */
static int stray(const sight *s) {
    int ahead = s->self[SELF_FACING];
    if (chance(s, 16) != 0 && is_free(cell(s, MIDDLE + step[ahead]))) return ACT_WALK + ahead;
    return ACT_WALK + (int)chance(s, WAYS);
}

/* The first slot that holds a kind within bounds, in a state; NO_WAY: none. */
static int slot_with(const sight *s, int lowest, int highest, int state) {
    for (int slot = 0; slot < SLOTS; slot++) {
        int kind = kind_of(item_in(s, slot));
        if (kind >= lowest && kind <= highest && state_of(s, slot) == state) return slot;
    }
    return NO_WAY;
}

static int wander(const sight *s) {
    int tool = slot_with(s, PICK, AXE, CARRIED);
    if (s->self[SELF_HAND] == 0 && tool != NO_WAY) return ACT_KEY + tool;
    return stray(s);
}

static bool is_match(const sight *s, const uint8_t *at) {
    bool strong = 3 * s->self[SELF_HEALTH] > 2 * s->self[SELF_MAX_HEALTH];
    return is_living_beast(at) && at[PLANE_RANK] <= (strong ? 3 : 2);
}

static bool is_danger(const sight *s, const uint8_t *at) {
    bool weak = 3 * s->self[SELF_HEALTH] < s->self[SELF_MAX_HEALTH];
    return is_living_beast(at) && (at[PLANE_RANK] == RANKS - 1 || weak);
}

/* Whether an attack would meet a beast worth hitting. */
static bool in_reach(const sight *s) {
    int hand = kind_of(s->self[SELF_HAND]), reach = hand == BOW ? 4 : 1;
    for (int way = 0; way < WAYS; way++) {
        for (int far = 1, at = MIDDLE; far <= reach; far++) {
            at += step[way];
            if (cell(s, at)[PLANE_GROUND] == STONE) break;
            if (is_match(s, cell(s, at))) return true;
        }
    }
    for (int corner = 0; hand == BLADE && corner < WAYS; corner++)
        if (is_match(s, cell(s, MIDDLE + step[corner & 1] + step[2 + corner / 2]))) return true;
    return false;
}

/* Away from a danger that is `way`: on the opposite side, or aside. */
static int flee(const sight *s, int way) {
    int back = way ^ 1, aside = (way ^ 2) ^ (int)chance(s, 2);
    if (is_free(cell(s, MIDDLE + step[back]))) return ACT_RUN + back;
    if (is_free(cell(s, MIDDLE + step[aside]))) return ACT_RUN + aside;
    if (is_free(cell(s, MIDDLE + step[aside ^ 1]))) return ACT_RUN + (aside ^ 1);
    return ACT_ATTACK;
}

/* What a thing does for its part of the body, to compare two of them. */
static int worth(int item) {
    int kind = kind_of(item), tier = tier_of(item) + 1;
    return item == 0 ? 0 : kind == BLADE ? 6 * tier : kind == BOW ? 4 * tier : tier;
}

/* Things of one class stand in for one another: weapons, charms, else the kind itself. */
static int class_of(int item) {
    int kind = kind_of(item);
    return is_weapon(kind) ? BLADE : kind >= FLAME_CHARM && kind <= GALE_CHARM ? FLAME_CHARM : kind;
}

/* A slot with gear that is better than what is worn of its class; weapons or the rest. */
static int better_gear(const sight *s, bool weapons) {
    for (int slot = 0; slot < SLOTS; slot++) {
        int item = item_in(s, slot), kind = kind_of(item), best = 0;
        if (state_of(s, slot) != CARRIED || kind == NOTHING || kind > GALE_CHARM || is_tool(kind)) continue;
        if (is_weapon(kind) != weapons) continue;
        for (int other = 0; other < SLOTS; other++) {
            bool same = state_of(s, other) == WORN && class_of(item_in(s, other)) == class_of(item);
            if (same) best = worth(item_in(s, other));
        }
        if (worth(item) > best) return slot;
    }
    return NO_WAY;
}

/* A slot with something of which there is as good or better in another one. */
static int surplus(const sight *s) {
    for (int slot = 0; slot < SLOTS; slot++) {
        int item = item_in(s, slot), kind = kind_of(item);
        if (state_of(s, slot) != CARRIED || kind == NOTHING || kind > GALE_CHARM) continue;
        for (int other = 0; other < SLOTS; other++) {
            bool rival = other != slot && state_of(s, other) != ON_OFFER &&
                         class_of(item_in(s, other)) == class_of(item);
            if (rival && worth(item_in(s, other)) >= worth(item)) return slot;
        }
    }
    return NO_WAY;
}

static bool is_hurt(const sight *s) { return 2 * s->self[SELF_HEALTH] < s->self[SELF_MAX_HEALTH]; }

/* A key is only pressed where no menu would take it for its own. */
static int key(const sight *s, int slot) {
    return slot == NO_WAY || s->self[SELF_MENU] != MENU_NONE ? NO_WAY : ACT_KEY + slot;
}

/* What keeps an agent alive, the first thing for all that fight; NO_WAY: nothing is pressing. */
static int survive(const sight *s) {
    int far = 0, way = way_to(s, is_danger, &far);
    int herb = is_hurt(s) ? key(s, slot_with(s, HERB, HERB, CARRIED)) : NO_WAY;
    if (herb != NO_WAY) return herb;
    if (way != NO_WAY && far <= 4) return flee(s, way);
    if (!in_reach(s)) return NO_WAY;
    int weapon = key(s, better_gear(s, true));
    return weapon != NO_WAY ? weapon : ACT_ATTACK;
}

/* Attacks, or goes where it can. */
static int hunt(const sight *s) {
    int far = 0, way = way_to(s, is_match, &far);
    return way == NO_WAY ? NO_WAY : far == 1 ? ACT_ATTACK : ACT_WALK + way;
}

static int fight(const sight *s) {
    int action = survive(s);
    if (action == NO_WAY) action = key(s, better_gear(s, true));
    if (action == NO_WAY) action = key(s, better_gear(s, false));
    if (action == NO_WAY && is_hurt(s)) action = ACT_WAIT;
    if (action == NO_WAY) action = hunt(s);
    return action != NO_WAY ? action : stray(s);
}

static int skill_for(int kind) {
    return kind == HERB ? FORAGING : kind == WOOD ? LOGGING : kind >= FLAME_CHARM ? MINING : NO_WAY;
}

/* The best tool of a profession that is in hand or carried; NO_WAY: none. */
static int best_tool(const sight *s, int skill) {
    int best = NO_WAY;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (kind_of(item_in(s, slot)) != PICK + skill || state_of(s, slot) == ON_OFFER) continue;
        if (best == NO_WAY || item_in(s, slot) > item_in(s, best)) best = slot;
    }
    return best;
}

/* Something that lies or grows there and that this agent can take. */
static bool can_take(const sight *s, const uint8_t *at) {
    int kind = at[PLANE_ITEM], skill = skill_for(kind);
    if (kind == NOTHING || at[PLANE_ENTITY] != NOBODY) return false;
    if (skill == NO_WAY) return true;
    int tool = best_tool(s, skill);
    return tool != NO_WAY && tier_of(item_in(s, tool)) >= at[PLANE_TIER];
}

/* Goes to what it can take, with the right tool in hand by the time it is there. */
static int gather(const sight *s) {
    int far = 0, way = way_to(s, can_take, &far);
    if (way == NO_WAY) return NO_WAY;
    int skill = skill_for(cell(s, MIDDLE + step[way])[PLANE_ITEM]);
    if (far > 1 || skill == NO_WAY) return ACT_WALK + way;
    int tool = best_tool(s, skill);
    return state_of(s, tool) == WORN ? ACT_WALK + way : ACT_KEY + tool;
}

/* What to look for at the market: a tool or a piece of armour that is lacking; NOTHING: has all. */
static int lacking(const sight *s) {
    static const uint8_t wanted[] = {PICK, SICKLE, AXE, BLADE, HOOD, COAT, BOOTS};
    int from = (int)chance(s, sizeof wanted);
    for (size_t n = 0; n < sizeof wanted; n++) {
        int kind = wanted[((size_t)from + n) % sizeof wanted];
        bool has = slot_with(s, kind, kind, CARRIED) != NO_WAY || slot_with(s, kind, kind, WORN) != NO_WAY;
        if (!has) return kind;
    }
    return NOTHING;
}

/* The next key of the menu that is open. */
static int at_market(const sight *s) {
    int choice = s->self[SELF_CHOICE], slot = surplus(s);
    switch (s->self[SELF_MENU]) {
    case MENU_GEAR: {
        int kind = lacking(s);
        return kind == NOTHING ? NO_WAY : ACT_KEY + kind - HOOD;
    }
    case MENU_TIER:
        for (int tier = TIERS - 1; tier >= 0; tier--) {
            int price = s->self[SELF_PRICE + tier];
            if (price > 0 && price <= s->self[SELF_GOLD]) return ACT_KEY + tier;
        }
        return NO_WAY;
    case MENU_SELL:
    case MENU_DROP:
        return slot == NO_WAY ? NO_WAY : ACT_KEY + slot;
    case MENU_PRICE:
        return ACT_KEY + tier_of(item_in(s, choice - 1)) * 2;
    default:
        return NO_WAY;
    }
}

/* Opens a menu where there is something to do at it. */
static int go_to_market(const sight *s) {
    int empty = 0, slot = surplus(s);
    for (int n = 0; n < SLOTS; n++) empty += item_in(s, n) == 0;
    if (slot != NO_WAY && empty == 0) return ACT_DROP;
    if (s->self[SELF_IN_COMBAT] > 0) return NO_WAY;
    if (slot != NO_WAY) return ACT_SELL;
    bool can_buy = empty > 0 && s->self[SELF_GOLD] > 0 && lacking(s) != NOTHING;
    return can_buy && chance(s, 16) == 0 ? ACT_BUY_GEAR : NO_WAY;
}

static int trade(const sight *s) {
    int action = survive(s);
    if (action == NO_WAY && s->self[SELF_MENU] != MENU_NONE) action = at_market(s);
    if (action == NO_WAY) action = key(s, slot_with(s, ORE, WOOD, CARRIED));
    if (action == NO_WAY) action = key(s, better_gear(s, false));
    if (action == NO_WAY) action = go_to_market(s);
    if (action == NO_WAY) action = gather(s);
    if (action == NO_WAY && is_hurt(s)) action = ACT_WAIT;
    if (action == NO_WAY) action = hunt(s);
    return action != NO_WAY ? action : stray(s);
}

int realm_script(int kind, const uint8_t *obs, size_t agents, uint32_t *state, int32_t *actions) {
    static int (*const scripts[SCRIPTS])(const sight *) = {
        [SCRIPT_WANDER] = wander, [SCRIPT_FIGHT] = fight, [SCRIPT_TRADE] = trade};
    if (kind < 0 || kind >= SCRIPTS) return -1;
    for (size_t i = 0; i < agents; i++, obs += OBS_BYTES) {
        if (state[i] == 0) state[i] = 0x9e3779b9u; /* from which xorshift would never come away */
        sight s = {.grid = obs, .self = obs + GRID_BYTES, .random = &state[i]};
        actions[i] = scripts[kind](&s);
    }
    return 0;
}
