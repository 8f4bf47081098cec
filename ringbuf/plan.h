/* The plan: what one ring's slots look like and what its producer has to do, as one fixed C struct.
 *
 * The supervisor fills it before the ring becomes ready; it stands in the ring's immutable header and never
 * changes. Producer, learner and taps all read offsets, shapes and dtypes from here and from nowhere else. */
#ifndef HEADRACE_PLAN_H
#define HEADRACE_PLAN_H

#include <stdint.h>

#define HR_ABI 3u /* of every struct in shared memory and of every native part; raised with any change */
#define HR_NONE UINT64_MAX
#define HR_MAX_DIMS 6
#define HR_MAX_HEADS 16
#define HR_MAX_PARAMS 64
#define HR_NAME_BYTES 64
#define HR_GUARD_BYTES 64u
#define HR_MAX_GROUPS 2 /* of agents, whose actions come from an inference server */

typedef enum hr_dtype { HR_UINT8 = 1, HR_INT8 = 2, HR_INT32 = 3, HR_FLOAT32 = 4, HR_INT64 = 5 } hr_dtype;

/* The fields of a slot, in this order in memory, each 64-byte aligned, time-major. Between two of them lie
 * HR_GUARD_BYTES or more that belong to nobody (guards.h). T = horizon, B = agents, G = groups, S = state_width. */
typedef enum hr_field_id {
    HR_OBS = 0,    /* [T+1, B, *obs_shape]: row T is the bootstrap observation */
    HR_ACTION,     /* [T, B, heads] int32 or float32 */
    HR_LOGPROB,    /* [T, B] float32, summed over heads */
    HR_MASK,       /* [T, B, logits] uint8; only with action masks */
    HR_REWARD,     /* [T, B] float32, raw */
    HR_TERMINATED, /* [T, B] uint8 */
    HR_TRUNCATED,  /* [T, B] uint8 */
    HR_VALID,      /* [T, B] uint8 */
    HR_VERSION,    /* [T, G] int64: the weights that acted */
    HR_STATE0,     /* [B, S] float32; only with a recurrent policy */
    HR_EPISODES,   /* [T*B, record] uint8: hr_episode records, their number in the slot header */
    HR_FIELDS
} hr_field_id;

typedef struct hr_field {
    uint32_t dtype; /* hr_dtype; 0: the field is absent */
    uint32_t dims;
    uint64_t shape[HR_MAX_DIMS];
    uint64_t offset; /* bytes from the start of the slot's payload */
    uint64_t bytes;
} hr_field;

/* A finished episode, followed by `statistics` floats; the whole padded to 8 bytes. */
typedef struct hr_episode {
    int64_t version; /* of the weights that took the last step */
    int32_t agent;   /* row in this ring's slots */
    int32_t length;  /* valid steps */
    float ret;       /* undiscounted raw return */
    float statistics[];
} hr_episode;

typedef enum hr_full { HR_BLOCK = 0, HR_DROP_OLDEST = 1, HR_DROP_NEWEST = 2 } hr_full;
typedef enum hr_pickup { HR_PICKUP_STEP = 0, HR_PICKUP_SLOT = 1 } hr_pickup;
typedef enum hr_mode {
    HR_ASYNC = 0, /* grants, announced acting version, gate */
    HR_EXACT = 1  /* sync and lagged: sequence s is acted with exactly version max(base version, batch(s) - lag) */
} hr_mode;

typedef struct hr_param {
    char name[HR_NAME_BYTES];
    double value;
} hr_param;

typedef struct hr_plan {
    uint32_t abi;   /* HR_ABI */
    uint32_t bytes; /* sizeof(hr_plan) */
    char sim[HR_NAME_BYTES];

    /* Sizes */
    uint32_t horizon, agents, worlds, world_agents; /* agents = worlds * world_agents */
    uint32_t heads, logits;                         /* logits: sum of choices; continuous: heads */
    uint32_t continuous;                            /* 1: float32 actions */
    int32_t choices[HR_MAX_HEADS];                  /* discrete heads */
    float action_low[HR_MAX_HEADS], action_high[HR_MAX_HEADS];
    uint32_t has_mask, groups, state_width, statistics, score, episode_bytes;
    uint64_t payload_bytes; /* of a whole slot, stamps included */
    uint64_t packed_step_bytes, unpacked_step_bytes; /* of one agent-step, for the two byte counts */
    hr_field field[HR_FIELDS];

    /* Rules */
    uint32_t mode, full, pickup;
    uint32_t lagged_versions; /* HR_EXACT: K_lag */
    uint32_t producers, batch_slots;

    /* Identity and randomness */
    uint32_t ring;        /* 0 .. producers-1 */
    uint64_t run_seed;
    uint64_t first_world; /* global index of this ring's world 0 */
    uint64_t first_agent; /* global index of this ring's agent 0 */
    uint64_t start_sequence;
    uint64_t restart_base; /* deaths of producers before this ring; its epoch is added to it */

    /* Saved state (state.h); 0: none is kept */
    uint64_t world_state_bytes; /* of one world, the host's part included (sims/host.h) */
    uint64_t state_bytes;       /* of the whole area */

    uint32_t n_params;
    uint32_t server; /* number of the inference server that acts for this ring, + 1; 0: its producer does */
    hr_param param[HR_MAX_PARAMS];
} hr_plan;

#endif
