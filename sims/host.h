/* Hosting many worlds of one simulator: the caller's side of sim.h, in one implementation for producer,
 * evaluation and tests. Agents are numbered over all worlds: agent = world * agents of a world + row. All
 * arrays are rows of agents, [B, ...], contiguous, and belong to the caller.
 *
 * What the host adds to a simulator
 *  - clears rewards and flags, and allows every action, before a world is called;
 *  - `valid`: 0 for the step after a truncation, which only begins the next episode and is no experience.
 *    Reward and flags of such a row are cleared whatever the simulator wrote;
 *  - terminated wins over truncated; flags are 0 or 1;
 *  - keeps return (raw) and length (valid steps) of each agent; one record for each finished episode. */
#ifndef HEADRACE_HOST_H
#define HEADRACE_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "rng.h"
#include "sim.h"

#define HOST_API __attribute__((visibility("default")))

/* Errors of host_create: no memory (or `create` gave NULL); `shape` failed or breaks a limit of sim.h.
 * Everywhere else an error is the negative value that the simulator's own function returned. */
enum { HOST_MEMORY = -1, HOST_SHAPE = -2 };

/* Separate streams of seeds, so that no evaluation world repeats a training world. */
enum { HOST_TRAIN = 0, HOST_EVALUATE = 1 };

typedef struct sim_host {
    const sim_api *api;
    sim_shape shape;
    int32_t worlds;
    int32_t agents;   /* B: of all worlds */
    int32_t mask_row; /* sum of choices; 0 without a mask */
    size_t obs_row;   /* bytes of one agent's observation, then of its actions */
    size_t action_row;
    void **world;
    uint8_t *pending; /* [B] 1: truncated at the step before, so the next step is not valid */
    double *returns;  /* [B] of the episodes under way; a double, since a week of small rewards may add up */
    int32_t *lengths; /* [B] valid steps */
    float *statistics; /* [B, n_statistics] where worlds write them, until they are handed out */
    volatile int32_t inside; /* the world whose function is running, for a signal handler to name; -1: none */
    int32_t failed_world;    /* the one whose function returned the last error */
} sim_host;

/* The arrays of one step. */
typedef struct host_rows {
    const void *actions; /* [B, heads] int32 or float32 */
    void *obs;           /* [B, ...] what follows the step */
    uint8_t *mask;       /* [B, mask_row]; NULL without a mask */
    float *rewards;      /* [B] */
    uint8_t *terminated; /* [B] */
    uint8_t *truncated;  /* [B] */
    uint8_t *valid;      /* [B] */
} host_rows;

/* One finished episode; `statistics` follows, so a record has host_episode_bytes(). */
typedef struct host_episode {
    int32_t agent;
    int32_t length; /* valid steps */
    float value;    /* the return: raw rewards, undiscounted */
    float statistics[];
} host_episode;

static inline size_t host_episode_bytes(const sim_api *api) {
    return sizeof(host_episode) + (size_t)api->n_statistics * sizeof(float);
}

static inline size_t host_dtype_bytes(sim_dtype dtype) {
    return dtype == SIM_UINT8 || dtype == SIM_INT8 ? 1 : 4;
}

/* The seed of world `world` (numbered over the whole run, not the process) after `restart` restarts of it. It
 * does not depend on how worlds are spread over processes. */
static inline uint64_t sim_world_seed(uint64_t run_seed, uint64_t world, uint64_t restart, uint64_t domain) {
    uint64_t seed = rng_mix(run_seed ^ (domain * 0xa0761d6478bd642fu));
    seed = rng_mix(seed ^ (world * 0xe7037ed1a0b428dbu));
    return rng_mix(seed ^ (restart * 0x8ebc6af09c88c6e3u));
}

/* The seeds of `count` worlds from `first` on. */
HOST_API void host_world_seeds(uint64_t run_seed, uint64_t first, int32_t count, uint64_t restart,
                               uint64_t domain, uint64_t *out);

/* Whether a shape keeps the limits of sim.h. */
HOST_API int host_shape_fits(const sim_shape *s);

/* For callers that cannot read this header: sizeof(sim_host), and world `world` itself, e.g. to render it. */
HOST_API size_t host_bytes(void);
HOST_API void *host_world(const sim_host *h, int32_t world);

/* Builds `worlds` worlds; `params` as in sim.h, `seeds` [worlds]. 0, or an error, after which nothing is
 * held. */
HOST_API int host_create(sim_host *h, const sim_api *api, const double *params, int32_t worlds,
                         const uint64_t *seeds);
HOST_API void host_destroy(sim_host *h);

/* Begins an episode of every agent, forgets the episodes under way, and writes obs [B, ...] and mask. */
HOST_API int host_reset(sim_host *h, void *obs, uint8_t *mask);

/* Steps worlds first to first + count - 1; `rows` are those of all B agents, of which only these worlds' are
 * touched. Finished episodes go to `episodes`, which holds as many records as the worlds have agents. Returns
 * their number, or an error, after which the worlds must not be used further. */
HOST_API int host_step_range(sim_host *h, int32_t first, int32_t count, const host_rows *rows,
                             void *episodes);

/* The same for all worlds. */
HOST_API int host_step(sim_host *h, const host_rows *rows, void *episodes);

/* Steps all worlds `steps` times by actions laid down before, [steps, B, heads]. The other rows and the
 * records are those of one step and are overwritten. Returns the number of finished episodes, or an error. */
HOST_API int64_t host_play(sim_host *h, const host_rows *rows, int32_t steps, void *episodes);

/* Saved state of one world: the simulator's own, then the host's. 0 bytes if the simulator cannot save.
 * Observation and mask are not part of it: who wants to go on from a saved world saves their rows as well. */
HOST_API size_t host_state_bytes(const sim_host *h, int32_t world);
HOST_API int host_save(sim_host *h, int32_t world, void *out);
HOST_API int host_load(sim_host *h, int32_t world, const void *state);

#endif
