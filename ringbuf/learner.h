/* The owner learner's side of a ring: look, lease, ack, drop, grant. Private to ringbuf/. */
#ifndef HEADRACE_LEARNER_H
#define HEADRACE_LEARNER_H

#include <stdint.h>

#include "layout.h"
#include "words.h"

/* The announced acting version or HR_NONE. Load it before the words of the ring. */
uint64_t hr_ring_acting(const hr_ring *r);

typedef struct hr_seen {
    uint64_t word;
    uint64_t oldest_version; /* of READY, LEASED and BAD; else HR_NONE */
} hr_seen;

/* The word of slot `i` (0 .. slots-1) with the acting version that belongs to it. */
hr_seen hr_ring_look(const hr_ring *r, uint32_t i);

typedef enum hr_leased {
    HR_LEASE_GOOD = 0,
    HR_LEASE_LOST, /* not READY(sequence) any more */
    HR_LEASE_TORN  /* a stamp was wrong: the slot is BAD now */
} hr_leased;

/* READY(s) -> LEASED(s), counting the delivery, then checks both stamps. */
hr_leased hr_ring_lease(hr_ring *r, uint64_t sequence);

/* LEASED(s) with three deliveries -> LEASED(s) with one, after its examination. 0, or -1: not ours. */
int hr_ring_examined(hr_ring *r, uint64_t sequence);

/* LEASED(s) -> FREE(s + N), counted as `cause` (HR_CONSUMED or a drop). 0, or -1: not ours, which is a bug.
 */
int hr_ring_ack(hr_ring *r, uint64_t sequence, hr_count cause);

/* READY(s) -> FREE(s + N), a drop counted as `cause`. 0, or -1: not READY(s) any more. */
int hr_ring_drop(hr_ring *r, uint64_t sequence, hr_count cause);

/* granted += n, and the producer's bell. */
void hr_ring_grant(hr_ring *r, uint64_t n);

/* Exact modes: `sequence` is the first of batch `version`. To be followed by a grant. What is written below
 * `sequence` under older grants is to be dropped; it is acted with some version published so far. */
void hr_ring_set_base(hr_ring *r, uint64_t sequence, uint64_t version);

/* Wakes the producer if it waits, e.g. after a publication. */
void hr_ring_notify_producer(hr_ring *r);

#endif
