/* The books of a ring: what was offered, and where every sequence of it is. Private to ringbuf/.
 *
 * offered = committed + not_written; committed = consumed + dropped + in flight (READY, LEASED, BAD). Exact
 * when nobody writes (and the dead were swept); while somebody does, see `done` and `done_again`. */
#ifndef HEADRACE_BOOKS_H
#define HEADRACE_BOOKS_H

#include <stdint.h>

#include "layout.h"
#include "words.h"

typedef struct hr_books {
    uint64_t start, granted, head;
    uint64_t done;    /* read first */
    uint64_t offered; /* head - start */
    uint64_t
        done_again; /* read last: done <= offered <= done_again + slots, whoever is preempted in between */
    uint64_t not_written, committed, consumed;
    uint64_t overwritten, bad, rollback, shutdown, lag; /* dropped */
    uint64_t writing, ready, leased, set_aside;         /* slots by state; set_aside: BAD */
    uint64_t consumed_steps, in_flight_steps;           /* the same in valid agent-steps */
    uint64_t overwritten_steps, bad_steps, rollback_steps, shutdown_steps, lag_steps;
    uint64_t redelivered, epoch, owner, pid;
    uint64_t blocked_ns, first_commit_ns, last_commit_ns, lease_ns;
    uint64_t base_sequence, base_version;
} hr_books;

hr_books hr_ring_books(const hr_ring *r);

#endif
