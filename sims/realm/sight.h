/* What an agent sees and does, in numbers: observation bytes, categories and actions. For the world and for
 * the scripted agents, which know nothing else. docs/realm.md has the tables. */
#ifndef HEADRACE_REALM_SIGHT_H
#define HEADRACE_REALM_SIGHT_H

enum { VIEW_ROWS = 11, VIEW_COLUMNS = 15, CODED_BYTES = 47, PLAIN_BYTES = 10 };

enum {
    PLANE_SEASON,
    PLANE_GROUND,
    PLANE_ITEM,
    PLANE_TIER,
    PLANE_ENTITY,
    PLANE_ELEMENT,
    PLANE_RANK,
    PLANE_HEALTH,
    PLANE_ANIMATION,
    PLANE_DIRECTION,
    PLANES,
};

enum {
    VIEW_ROW_BYTES = VIEW_COLUMNS * PLANES,
    GRID_BYTES = VIEW_ROWS * VIEW_ROW_BYTES,
    SELF_BYTES = CODED_BYTES + PLAIN_BYTES,
    OBS_BYTES = GRID_BYTES + SELF_BYTES,
};

enum { SPRING, SUMMER, AUTUMN, WINTER, SEASONS };
enum { GRASS, DIRT, STONE, WATER, GROUNDS };
enum { NOBODY, AGENT, BEAST, ENTITIES };
enum { NEUTRAL, FLAME, LOAM, TIDE, GALE, ELEMENTS }; /* each beats the next, the last the first */
enum { RANKS = 5, FIFTHS = 5, TIERS = 5, SLOTS = 12, PRICES = 12 };
enum { STILL, WALK, RUN, STRIKE, SHOOT, HANDLE, FALLEN, ANIMATIONS };

/* Things. The charms follow the elements, the tools the professions; charms and the last four grow. */
enum {
    NOTHING,
    HOOD,
    COAT,
    BOOTS,
    BLADE,
    BOW,
    PICK,
    SICKLE,
    AXE,
    FLAME_CHARM,
    LOAM_CHARM,
    TIDE_CHARM,
    GALE_CHARM,
    ORE,
    SHARD,
    WOOD,
    HERB,
    KINDS,
};
enum { ITEMS = 1 + (KINDS - 1) * TIERS, GEAR_KINDS = GALE_CHARM };

enum { MINING, FORAGING, LOGGING, SKILLS };
enum { CARRIED, WORN, ON_OFFER };

/* Bytes after the grid. */
enum {
    SELF_COMBAT,
    SELF_SKILL,
    SELF_ELEMENT = SELF_SKILL + SKILLS,
    SELF_FACING,
    SELF_ANIMATION,
    SELF_HEALTH,
    SELF_MAX_HEALTH,
    SELF_MENU,
    SELF_CHOICE,
    SELF_GOLD,
    SELF_IN_COMBAT,
    SELF_HAND,
    SELF_PRICE,
    SELF_ITEM = SELF_PRICE + TIERS,
    SELF_SLOT = SELF_ITEM + SLOTS,
    SELF_ATTACK = SELF_SLOT + SLOTS,
    SELF_DEFENCE,
    SELF_IDLE,
    SELF_AGE,
};

enum { MENU_NONE, MENU_GEAR, MENU_GOODS, MENU_TIER, MENU_SELL, MENU_PRICE, MENU_DROP };

enum {
    ACT_WALK = 0, /* and the three after it: north, south, west, east */
    ACT_WAIT = 4,
    ACT_ATTACK = 5,
    ACT_BUY_GOODS = 6,
    ACT_DROP = 7,
    ACT_KEY = 8, /* the first of twelve keys */
    ACT_BUY_GEAR = 20,
    ACT_SELL = 21,
    ACT_RUN = 22, /* and the three after it */
    ACTIONS = 26,
};

#endif
