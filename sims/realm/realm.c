/* The realm as a simulator: its parameters, its table, and the calls that the table names. */
#include "realm.h"

enum {
    PARAM_WIDTH,
    PARAM_HEIGHT,
    PARAM_AGENTS,
    PARAM_BEASTS,
    PARAM_ORE,
    PARAM_SHARD,
    PARAM_WOOD,
    PARAM_HERB,
    PARAM_CHARMS,
    PARAM_LEVELS,
    PARAM_REGROWTH,
    PARAM_DECAY,
    PARAM_PATIENCE,
    PARAM_LIFETIME,
    PARAM_REWARD_COMBAT,
    PARAM_REWARD_SKILL,
    PARAM_REWARD_GEAR,
    PARAM_REWARD_TRADE,
    PARAM_REWARD_DEATH,
    PARAM_VIEW_X,
    PARAM_VIEW_Y,
    PARAM_VIEW_WIDTH,
    PARAM_VIEW_HEIGHT,
};

static const sim_param params[] = {
    [PARAM_WIDTH] = {"width", "tiles from west to east", SIM_INT, 512, 32, 4096},
    [PARAM_HEIGHT] = {"height", "tiles from north to south", SIM_INT, 512, 32, 4096},
    [PARAM_AGENTS] = {"agents", "agents of one world; they and the beasts: at most one for 4 tiles", SIM_INT,
                      1024, 1, 65536},
    [PARAM_BEASTS] = {"beasts", "beasts; -1: one for 128 tiles", SIM_INT, -1, -1, 1e6},
    [PARAM_ORE] = {"ore", "places of ore; of all kinds: at most one for 4 tiles; -1: one for 128", SIM_INT, -1, -1,
                   1e6},
    [PARAM_SHARD] = {"shard", "places of shards; -1: one for 256 tiles", SIM_INT, -1, -1, 1e6},
    [PARAM_WOOD] = {"wood", "places of wood; -1: one for 256 tiles", SIM_INT, -1, -1, 1e6},
    [PARAM_HERB] = {"herb", "places of herbs; -1: one for 128 tiles", SIM_INT, -1, -1, 1e6},
    [PARAM_CHARMS] = {"charms", "places of each charm; -1: one for 512 tiles", SIM_INT, -1, -1, 1e6},
    [PARAM_LEVELS] = {"levels", "highest level of anything", SIM_INT, LEVELS, 1, LEVELS},
    [PARAM_REGROWTH] = {"regrowth", "ticks until a resource grows again", SIM_INT, 100, 1, 1e6},
    [PARAM_DECAY] = {"decay", "ticks until a thing left on the ground is gone", SIM_INT, 60, 1, 250},
    [PARAM_PATIENCE] = {"patience", "ticks without progress that truncate a life", SIM_INT, 500, 1, 1e9},
    [PARAM_LIFETIME] = {"lifetime", "ticks after which a life is truncated", SIM_INT, 2000, 1, 1e9},
    [PARAM_REWARD_COMBAT] = {"reward_combat", "reward of a combat level", SIM_FLOAT, 1, -1e3, 1e3},
    [PARAM_REWARD_SKILL] = {"reward_skill", "reward of a level in a profession", SIM_FLOAT, 1, -1e3, 1e3},
    [PARAM_REWARD_GEAR] = {"reward_gear", "reward of 6 points of attack and defence beyond the best so far",
                           SIM_FLOAT, 1, -1e3, 1e3},
    [PARAM_REWARD_TRADE] = {"reward_trade", "reward of a thing bought or sold", SIM_FLOAT, 0, -1e3, 1e3},
    [PARAM_REWARD_DEATH] = {"reward_death", "reward of dying, once", SIM_FLOAT, -1, -1e3, 1e3},
    [PARAM_VIEW_X] = {"view_x", "middle of pictures; -1: the first agent", SIM_INT, -1, -1, 4095},
    [PARAM_VIEW_Y] = {"view_y", "middle of pictures; -1: the first agent", SIM_INT, -1, -1, 4095},
    [PARAM_VIEW_WIDTH] = {"view_width", "width of pictures in tiles", SIM_INT, 64, 1, 512},
    [PARAM_VIEW_HEIGHT] = {"view_height", "height of pictures in tiles", SIM_INT, 32, 1, 512},
};

static const sim_statistic statistics[STATS] = {
    [STAT_PROGRESS] = {"progress", "levels gained in combat and professions, and a sixth of gear"},
    [STAT_COMBAT] = {"combat", "combat level, from 1"},
    [STAT_MINING] = {"mining", "level in mining, from 0"},
    [STAT_FORAGING] = {"foraging", "level in foraging, from 0"},
    [STAT_LOGGING] = {"logging", "level in logging, from 0"},
    [STAT_GEAR] = {"gear", "attack and defence of the best that was worn"},
    [STAT_KILLS] = {"kills", "beasts felled"},
    [STAT_HARVESTS] = {"harvests", "resources harvested"},
    [STAT_CRAFTED] = {"crafted", "things made"},
    [STAT_BOUGHT] = {"bought", "things bought"},
    [STAT_SOLD] = {"sold", "things sold"},
    [STAT_GOLD] = {"gold", "pieces of gold in hand"},
    [STAT_DIED] = {"died", "1: killed by a beast"},
};

/* The number given, or one for so many tiles. */
static int32_t number(const double *values, int which, int32_t tiles_for_one) {
    if (values[which] >= 0) return (int32_t)values[which];
    return (int32_t)(values[PARAM_WIDTH] * values[PARAM_HEIGHT] / tiles_for_one);
}

static settings settings_of(const double *values) {
    settings set = {
        .width = (int32_t)values[PARAM_WIDTH],
        .height = (int32_t)values[PARAM_HEIGHT],
        .agents = (int32_t)values[PARAM_AGENTS],
        .beasts = number(values, PARAM_BEASTS, 128),
        .levels = (int32_t)values[PARAM_LEVELS],
        .grows = {[ORE] = number(values, PARAM_ORE, 128),
                  [SHARD] = number(values, PARAM_SHARD, 256),
                  [WOOD] = number(values, PARAM_WOOD, 256),
                  [HERB] = number(values, PARAM_HERB, 128)},
        .regrowth = (int32_t)values[PARAM_REGROWTH],
        .decay = (int32_t)values[PARAM_DECAY],
        .patience = (int32_t)values[PARAM_PATIENCE],
        .lifetime = (int32_t)values[PARAM_LIFETIME],
        .reward_combat = (float)values[PARAM_REWARD_COMBAT],
        .reward_skill = (float)values[PARAM_REWARD_SKILL],
        .reward_gear = (float)values[PARAM_REWARD_GEAR],
        .reward_trade = (float)values[PARAM_REWARD_TRADE],
        .reward_death = (float)values[PARAM_REWARD_DEATH],
        .view_x = (int32_t)values[PARAM_VIEW_X],
        .view_y = (int32_t)values[PARAM_VIEW_Y],
        .view_width = (int32_t)values[PARAM_VIEW_WIDTH],
        .view_height = (int32_t)values[PARAM_VIEW_HEIGHT],
    };
    for (int kind = FLAME_CHARM; kind <= GALE_CHARM; kind++)
        set.grows[kind] = number(values, PARAM_CHARMS, 512);
    for (int kind = 0; kind < KINDS; kind++) set.resources += set.grows[kind];
    return set;
}

/* At least half of the map is land. Half of that must be left free of entities, and half of things, so that a
 * place is always found, and found soon. */
static int shape(const double *values, sim_shape *out) {
    const settings set = settings_of(values);
    int32_t quarter = set.width * set.height / 4;
    if (set.agents + set.beasts > quarter || set.resources > quarter) return -1;
    *out = (sim_shape){
        .agents = set.agents,
        .obs_dtype = SIM_UINT8,
        .obs_dims = 1,
        .obs_shape = {OBS_BYTES},
        .heads = 1,
        .head = {{.choices = ACTIONS}},
        .grid_rows = VIEW_ROWS,
        .grid_columns = VIEW_COLUMNS,
        .grid_planes = PLANES,
        .grid_values = {SEASONS, GROUNDS, KINDS, TIERS, ENTITIES, ELEMENTS, RANKS, FIFTHS, ANIMATIONS, WAYS},
        .coded = CODED_BYTES,
    };
    return 0;
}

static void *create(const double *values, uint64_t seed) {
    const settings set = settings_of(values);
    return realm_create(&set, seed);
}

static void destroy(void *world) { realm_destroy(world); }

static int reset(void *world, const sim_io *io) {
    populate(world);
    observe(world, io->obs);
    return 0;
}

static int step(void *world, const sim_io *io) {
    int error = tick(world, io);
    if (error < 0) return error;
    observe(world, io->obs);
#ifdef REALM_CHECK
    return broken_invariant(world, io->obs);
#else
    return 0;
#endif
}

static size_t state_bytes(const void *world) { return ((const realm *)world)->bytes; }

static int save(const void *world, void *out) {
    const realm *w = world;
    memcpy(out, w->block, w->bytes);
    return 0;
}

static int load(void *world, const void *saved) { return realm_load(world, saved); }

static void follow(void *world, int32_t which) { ((realm *)world)->followed = which; }

static int render_text(const void *world, char *out, size_t capacity) {
    return draw_text(world, out, capacity);
}

static int render_rgb(const void *world, uint8_t *out, int32_t *width, int32_t *height) {
    const realm *w = world;
    *width = w->set.view_width * PIXELS;
    *height = w->set.view_height * PIXELS;
    if (out != NULL) draw_rgb(w, out);
    return 0;
}

static const sim_api api = {
    .abi = SIM_ABI,
    .bytes = sizeof(sim_api),
    .name = "realm",
    .help = "a world of many agents: harvest, fight, wear, trade",
    .params = params,
    .n_params = sizeof params / sizeof *params,
    .statistics = statistics,
    .n_statistics = STATS,
    .score = STAT_PROGRESS,
    .shape = shape,
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .step = step,
    .state_bytes = state_bytes,
    .save = save,
    .load = load,
    .render_text = render_text,
    .render_rgb = render_rgb,
    .follow = follow,
};

const sim_api *sim_entry(void) { return &api; }

/* Writes the observations [agents, OBS_BYTES] of a world as it is, for measuring what they cost alone. */
__attribute__((visibility("default"))) void realm_observe(const void *world, uint8_t *obs);
void realm_observe(const void *world, uint8_t *obs) { observe(world, obs); }
