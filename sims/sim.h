/* The simulator ABI: everything that a simulator's author has to know.
 *
 * A simulator is one shared library, `sims/<name>/<name>.so`, that exports one function, `sim_entry`, which
 * returns a constant table: what the simulator is (parameters, statistics) and what it can do (create, reset,
 * step, destroy; optionally save, load and render). `sims/cartpole/cartpole.c` is the example to copy, and
 * `python -m sims.check NAME` tries the rules below on yours.
 *
 * A *world* is one instance. It holds one agent or many, which advance together: one call of `step` is one
 * tick of all of them. A producer steps many worlds. All arrays belong to the caller and point straight into
 * a trajectory slot in shared memory, so what `step` writes is where the learner reads it.
 *
 * Rules
 *  1. Write every byte of every observation (and mask) at every reset and step: the memory holds old data.
 *  2. Assume no alignment of `obs` beyond that of its element type.
 *  3. No global state, no libc rand(), no allocation, no system call and no printing in `step`. A world draws
 *     all its randomness from the seed that `create` was given (sims/rng.h has a small generator): same seed
 *     and same actions, same bytes.
 *  4. Report trouble by a negative return value; never exit, assert or loop for ever.
 *  5. Ends of episodes, for each agent on its own:
 *     - terminated (the task ended): set `terminated[i] = 1`, begin the agent's next episode at once and
 *       write its *first* observation.
 *     - truncated (a time limit or the like cut it short): set `truncated[i] = 1` and write the *final*
 *       observation of the old episode. At the next step ignore the agent's action, give reward 0 and no
 *       flags, begin the next episode and write its first observation. That step does not count as
 *       experience.
 *     - both at once counts as terminated.
 *     In either case fill row i of `statistics` in the call that sets the flag.
 *  6. Rewards are raw. Scaling and clipping are the learner's.
 */
#ifndef HEADRACE_SIM_H
#define HEADRACE_SIM_H

#include <stddef.h>
#include <stdint.h>

#define SIM_ABI 3u       /* raised whenever anything in this file changes its meaning or layout */
#define SIM_MAX_DIMS 4   /* dimensions of an observation */
#define SIM_MAX_HEADS 16 /* action heads of an agent */
#define SIM_MAX_PARAMS 64
#define SIM_MAX_PLANES 16 /* of the grid that an observation may begin with */
#define SIM_MAX_STATISTICS 16
#define SIM_CODES 128 /* values of a coded byte of an observation */

typedef enum sim_dtype { SIM_UINT8 = 1, SIM_INT8 = 2, SIM_INT32 = 3, SIM_FLOAT32 = 4 } sim_dtype;
typedef enum sim_kind { SIM_INT = 1, SIM_FLOAT = 2, SIM_BOOL = 3 } sim_kind;

/* One parameter that a user may set under `sim:` in run.yaml. Values travel as double. */
typedef struct sim_param {
    const char *name;
    const char *help; /* one line, with the unit */
    sim_kind kind;
    double value; /* default */
    double low, high; /* inclusive bounds */
} sim_param;

/* One figure of a finished episode, e.g. the score. */
typedef struct sim_statistic {
    const char *name;
    const char *help;
} sim_statistic;

/* One action head: `choices` > 0 is discrete with that many choices; 0 is continuous within [low, high].
 * The heads of one simulator are all discrete or all continuous. */
typedef struct sim_head {
    int32_t choices;
    float low, high;
} sim_head;

/* Sizes, which may depend on the parameters. `*out` arrives as zeros.
 *
 * The last part is optional: what the bytes of an observation of one dimension of uint8 mean, so that a policy
 * can encode them. First a grid of cells, each of some categories (0 to grid_values - 1); then codes; and what is
 * left are plain numbers. All zero: an observation of numbers. */
typedef struct sim_shape {
    int32_t agents; /* in one world */
    sim_dtype obs_dtype;
    int32_t obs_dims;
    int32_t obs_shape[SIM_MAX_DIMS];
    int32_t heads;
    sim_head head[SIM_MAX_HEADS];
    int32_t has_mask; /* 1: the simulator fills `mask` */

    int32_t grid_rows, grid_columns, grid_planes; /* the observation begins with [rows, columns, planes] bytes */
    int32_t grid_values[SIM_MAX_PLANES];          /* categories of each plane, 1 to 256 */
    int32_t coded; /* the next `coded` bytes are codes below SIM_CODES: embedded, and taken as numbers too */
} sim_shape;

/* The arrays of one world for one call, each contiguous and row-major. The caller clears rewards, terminated
 * and truncated before `step`, and sets every byte of `mask` to 1 before both. */
typedef struct sim_io {
    const void *actions; /* [agents, heads] int32 (discrete) or float32 (continuous); `reset` ignores it */
    void *obs;           /* [agents, *obs_shape] of obs_dtype */
    uint8_t *mask;       /* [agents, sum of choices] 1 = allowed, at least one a head; NULL unless has_mask */
    float *rewards;      /* [agents] */
    uint8_t *terminated; /* [agents] */
    uint8_t *truncated;  /* [agents] */
    float *statistics;   /* [agents, statistics] row i is read when agent i ends */
} sim_io;

typedef struct sim_api {
    uint32_t abi;   /* SIM_ABI */
    uint32_t bytes; /* sizeof(sim_api) */
    const char *name;
    const char *help; /* one line */
    const sim_param *params;
    int32_t n_params;
    const sim_statistic *statistics;
    int32_t n_statistics;
    int32_t score; /* index of the statistic that `stop.score` and `score` in status.json speak of */

    /* `params` holds n_params values, checked against the bounds, in the order of the table. */
    int (*shape)(const double *params, sim_shape *out);
    void *(*create)(const double *params, uint64_t seed); /* NULL: no memory */
    void (*destroy)(void *world);
    int (*reset)(void *world, const sim_io *io); /* begins an episode of every agent: obs, mask */
    int (*step)(void *world, const sim_io *io);

    /* Optional, NULL where absent. A saved state is flat, free of pointers, and includes the generator. */
    size_t (*state_bytes)(const void *world);
    int (*save)(const void *world, void *out);
    int (*load)(void *world, const void *state);

    /* Optional. `render_text` writes at most `capacity` bytes of UTF-8, the final NUL included, and returns
     * the length without it, or a negative value if that is too little. `render_rgb` writes [height, width,
     * 3] bytes, or only the size when `out` is NULL. */
    int (*render_text)(const void *world, char *out, size_t capacity);
    int (*render_rgb)(const void *world, uint8_t *out, int32_t *width, int32_t *height);

    /* Optional, for many agents: from now on pictures are of what is around this one; without it, or before it
     * is called, of the first. Nothing but pictures depends on it. */
    void (*follow)(void *world, int32_t agent);
} sim_api;

/* The one exported symbol. */
__attribute__((visibility("default"))) const sim_api *sim_entry(void);

#endif
