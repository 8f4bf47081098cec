/* The ring: one shared-memory segment, one producer, one owner learner, N slots in place.
 *
 * word = seq:45 | deliveries:3 | owner:12 | state:4 is the only truth about a slot. docs/architecture.md has
 * the table of states and who may leave each; every atomic operation bears its label and its partner.
 *
 * This header is what a producer uses. One segment at a time:
 *
 *     while ((why = hr_ring_claimable(ring)) != HR_CLAIMABLE)  // credit, room, owner
 *         hr_ring_wait(ring, slice_ns);                        // on the ring's bell; see HR_SKIP, HR_STOPPED
 *     version = hr_ring_announce(ring, weights);               // A2; then copy weights of it or newer
 *     hr_ring_claim(ring, version);                            // P1 and start stamp
 *     ... write the payload through hr_ring_field() ...
 *     hr_ring_commit(ring, &facts);                            // P2, A3, P3
 */
#ifndef HEADRACE_RING_H
#define HEADRACE_RING_H

#include <stddef.h>
#include <stdint.h>

#include "control.h"
#include "plan.h"
#include "weights.h"

typedef enum hr_state { HR_FREE = 1, HR_WRITING = 2, HR_READY = 3, HR_LEASED = 4, HR_BAD = 5 } hr_state;

typedef enum hr_claimable {
    HR_CLAIMABLE = 0,
    HR_WAIT_CREDIT, /* s >= granted (never under a dropping policy) */
    HR_WAIT_FULL,   /* the slot of s is not FREE(s) and the policy is block */
    HR_WAIT_OWNER,  /* as the two above, while the ring has no owner */
    HR_SKIP,        /* drop_newest, or drop_oldest on a leased slot: step one segment into a scratch slot,
                       then hr_ring_skip() */
    HR_SAVE,        /* the learner wants the state as it is now: state.h */
    HR_STOPPED,     /* the stop flag is set */
    HR_EXHAUSTED    /* sequence numbers are used up (2^45 - 2N) */
} hr_claimable;

/* What a producer says of a slot when it commits it. */
typedef struct hr_facts {
    uint64_t valid_steps;
    uint64_t episodes;        /* records in HR_EPISODES */
    uint64_t newest_version;  /* of its steps; the oldest is the announced one */
} hr_facts;

typedef struct hr_ring { /* one process' view */
    void *base;
    size_t mapped_bytes;
    hr_plan plan; /* private copy, checked */
    uint32_t slots;
    uint64_t stride_bytes, data_offset, headers_offset, lines_offset, state_offset, serving_offset;
    uint64_t sequence;  /* next to write */
    uint32_t state_crc; /* of the plan, as a saved state bears it */
    hr_control *control;
} hr_ring;

/* Maps the ring read-write for its producer, checks header, plan and size, and rebuilds `sequence` from the
 * words. Waits up to a second for the header's ready word. 0, or -1 with one line in `error`. */
int hr_ring_attach(hr_ring *r, int fd, hr_control *control, char *error, size_t capacity);
void hr_ring_detach(hr_ring *r);

/* Deaths of producers of this ring so far. */
uint64_t hr_ring_epoch(const hr_ring *r);

/* May `sequence` be claimed now? Loads only. */
hr_claimable hr_ring_claimable(const hr_ring *r);

/* Sleeps on the ring's bell until something of hr_ring_claimable's changes, or `slice_ns` pass. (P4, P5)
 * 1, or 0 if the slice passed without a ring. */
int hr_ring_wait(hr_ring *r, uint64_t slice_ns);

/* Sleeps likewise until weights->published != `seen`, the stop flag is set, or `slice_ns` pass. */
int hr_ring_wait_published(hr_ring *r, const hr_weights *w, uint64_t seen, uint64_t slice_ns);

/* Async: shows the acting version and returns it (A2; shows again until `published` has not moved). The
 * weights must be of that version or a newer one; when the copy was overtaken, announce again. HR_NONE, and
 * nothing shown, before version 0 exists. */
uint64_t hr_ring_announce(hr_ring *r, const hr_weights *w);

/* Exact modes: the one version that `sequence` has to be acted with, from the learner's base line. No
 * announcement. */
uint64_t hr_ring_exact_version(const hr_ring *r);

/* FREE(s) -> WRITING(s) (or READY(s-N) -> WRITING(s) under drop_oldest), then the start stamp. `version` goes
 * into the slot header as the oldest acting version. 0, or -1 if the slot was taken away in between
 * (drop_oldest: a lease won): look at hr_ring_claimable again. */
int hr_ring_claim(hr_ring *r, uint64_t version);

/* The payload of the claimed slot, laid out as the plan says. */
uint8_t *hr_ring_claimed(const hr_ring *r);

/* Where field `id` of the claimed slot lies; NULL if absent. The payload is undefined until written. */
void *hr_ring_field(const hr_ring *r, hr_field_id id);

/* WRITING -> READY, acting cleared, learner's bell looked at; sequence advances. */
void hr_ring_commit(hr_ring *r, const hr_facts *facts);

/* WRITING -> FREE(s) and acting cleared (also legal before the claim: acting only), learner's bell rung. */
void hr_ring_abort(hr_ring *r);

/* Under a dropping policy: passes over `sequence` without writing it, counted as not written. */
void hr_ring_skip(hr_ring *r);

/* Absolute CLOCK_MONOTONIC nanoseconds. */
uint64_t hr_now_ns(void);

#endif
