/* The rows of the slot under way, and one step of some of a producer's worlds. Shared by the files of the rollout. */
#ifndef HEADRACE_ROLLOUT_STEP_H
#define HEADRACE_ROLLOUT_STEP_H

#include "rollout_state.h"

#define WAIT_SLICE_NS 100000000ull

typedef enum outcome {
    DONE,
    STOPPED,
    FAILED,
    GIVEN_UP, /* the inference server died; the worlds go on in another slot */
    REFUSED   /* the same, since the weights that the slot is due are gone */
} outcome;

/* Where the fields of a slot lie; NULL: the plan lacks it. Shapes as in plan.h. */
typedef struct slot_rows {
    unsigned char *obs, *action, *records;
    uint8_t *mask, *terminated, *truncated, *valid;
    float *logprob, *reward, *state0;
    int64_t *version;
} slot_rows;

/* Of the claimed slot, or of the scratch payload of a segment that is not written. */
slot_rows slot_rows_of(const rollout *r, unsigned char *payload);

/* Steps worlds first to first + count - 1 by their actions of row t; writes rows t and t + 1 of theirs and adds the
 * episodes that ended, acted last by `version`, to the records. DONE, or FAILED with a line on standard error. */
outcome step_worlds(rollout *r, const slot_rows *s, uint32_t t, uint32_t first, uint32_t count, uint64_t version,
                    hr_facts *facts);

/* Fills the slot by the actions of the inference server, which has weights of `version` (exact modes) or newer ones.
 * What was given up is counted, and next_obs and next_mask are what is to be acted on. */
outcome fill_served(rollout *r, const slot_rows *s, uint64_t version, hr_facts *facts);

/* Nanoseconds since *mark, which becomes now. */
static inline uint64_t hr_since(uint64_t *mark) {
    uint64_t now = hr_now_ns(), passed = now - *mark;
    *mark = now;
    return passed;
}

#endif
