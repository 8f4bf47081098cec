/* What a producer holds while it streams, and taking all of it up again. Shared by the files of the rollout. */
#ifndef HEADRACE_ROLLOUT_STATE_H
#define HEADRACE_ROLLOUT_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "../ringbuf/ring.h"
#include "../sims/host.h"
#include "policy.h"

typedef struct rollout {
    const hr_plan *plan;
    hr_control *control;
    hr_ring *ring;
    const hr_weights *weights;
    hr_policy *policy; /* NULL: an inference server acts */
    sim_host host;

    float *flat;     /* weights as copied from the channel */
    uint64_t loaded; /* their version; HR_NONE: none yet */

    size_t row_bytes, mask_bytes, action_bytes; /* of one step of all agents */
    unsigned char *next_obs;   /* observation to act on: row T of the slot before, or `first_obs` */
    unsigned char *first_obs;  /* [B, obs] from the worlds' first reset, or from a saved state */
    uint8_t *next_mask;        /* [B, logits] of that observation */
    float *state;              /* [B, S] recurrent state; an inference server's as it was behind the last slot */
    uint8_t *reset_before;     /* [B] zero the state before the next step */
    float *clipped;            /* [B, heads] continuous actions as the simulator gets them */
    unsigned char *scratch;    /* one payload for segments that are stepped and not written; NULL until needed */
    unsigned char *ended;      /* [B] host_episode records of one step */
    uint64_t restart;          /* of the worlds: deaths of producers before their seeds were drawn */
    uint64_t noise_key;
    uint64_t carried;          /* 1: `state` is from a saved state, and an inference server does not know it yet */
    uint64_t step;             /* of every agent of this ring since its worlds' seeds were drawn */
} rollout;

/* Draws worlds' seeds and the noise key anew for `restart`; `seeds` [worlds]. */
void rollout_seed(rollout *r, uint64_t restart, uint64_t *seeds);

/* Between two slots: writes everything that the next slot depends on into the ring's state area. 0, or -1 with a
 * line on standard error. */
int rollout_save(rollout *r);

/* Takes up the saved state that lies in the area, if the supervisor has laid one there. 1: taken up; 0: there is
 * none, begin with a reset; -1 with a line on standard error. */
int rollout_restore(rollout *r);

#endif
