/* Saved state: what a producer needs to go on with its worlds as if nothing had happened, in the ring's segment
 * behind the slots.
 *
 * The producer writes it between two slots, when the learner asks (hr_ring_claimable() says HR_SAVE) and at a
 * stop in the exact modes. A supervisor that takes up an interrupted run lays a state there before it starts
 * the producer. The area has one writer at a time: the supervisor while no producer lives, else the producer. */
#ifndef HEADRACE_STATE_H
#define HEADRACE_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "plan.h"
#include "ring.h"

#define HR_STATE_MAGIC 0x5354415445ull

typedef struct hr_state_head {
    uint64_t magic;
    uint32_t abi, plan_crc; /* plan_crc: of all in the plan that may not differ between two attempts */
    uint64_t bytes;         /* of the area */
    uint64_t sequence;      /* the slot that comes next */
    uint64_t step;          /* of every agent of the ring */
    uint64_t restart;       /* that the worlds and the action noise were seeded with */
    uint64_t reserved[2];
} hr_state_head;
_Static_assert(sizeof(hr_state_head) == 64, "state header");

/* Where the parts lie, in bytes from the start of the area; each 64-byte aligned. B agents, W worlds. */
typedef struct hr_state_layout {
    uint64_t obs;          /* [B, ...] observations to act on, as a row of HR_OBS */
    uint64_t mask;         /* [B, logits] of those; nothing without masks */
    uint64_t reset_before; /* [B] uint8 */
    uint64_t recurrent;    /* [B, S] float32 */
    uint64_t worlds;       /* [W] of world_stride bytes, as host_save() wrote them */
    uint64_t world_stride;
    uint64_t bytes;
} hr_state_layout;

/* All 0 where the plan keeps no state; the plan's sizes must have been checked. */
hr_state_layout hr_state_layout_of(const hr_plan *plan);

/* What a saved state must bear to be of this plan; 0 where it keeps none. */
uint32_t hr_state_plan_crc(const hr_plan *plan);

/* ---- producer ---- */

/* Forgets the state that lies in the area and returns the area, to be filled behind its header. */
void *hr_state_begin(hr_ring *r);

/* The area is filled: the state goes on from r->sequence. Wakes the learner. (Q2) */
void hr_state_done(hr_ring *r, uint64_t step, uint64_t restart);

/* The state that this producer has to take up, or NULL: it begins with a reset. */
const hr_state_head *hr_state_pending(const hr_ring *r);

/* It has been taken up. */
void hr_state_taken(hr_ring *r);

/* Is the state of `sequence` asked for, and not there yet? (Q1) */
int hr_state_due(const hr_ring *r);

/* ---- others ---- */

/* Learner: asks for the state before `sequence` is written, and rings the producer. (Q1) */
void hr_state_request(hr_ring *r, uint64_t sequence);

/* The sequence from which the complete state in the area goes on; HR_NONE: there is none, or it is being
 * written. (Q2) */
uint64_t hr_state_sequence(const hr_ring *r);

/* Copies the area to `out` [plan.state_bytes]; 1, or 0 if there is no complete state or it changed meanwhile.
 * For those who map the payload. */
int hr_state_copy(const hr_ring *r, void *out);

/* Supervisor, while no producer lives: lays a saved state into the area, to go on from the ring's start. `fd`
 * is the segment's. 0, or -1 with one line in `error` if it does not fit the plan. */
int hr_state_load(hr_ring *r, int fd, const void *state, size_t bytes, char *error, size_t capacity);

#endif
