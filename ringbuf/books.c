/* The books of a ring: what was offered, and where every sequence of it is. */
#include "books.h"

static uint64_t get(_Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_acquire); /* N1, I1 */
}

hr_books hr_ring_books(const hr_ring *r)
{
    hr_lines *lines = hr_ring_lines(r);
    hr_books b = {.start = r->plan.start_sequence, .done = hr_ring_done(r)};
    b.head = hr_ring_head(r);
    b.offered = b.head - b.start;
    b.done_again = hr_ring_done(r);
    for (uint32_t i = 0; i < r->slots; i++) {
        hr_slot *slot = hr_ring_slot(r, i);
        hr_state state = hr_word_state(get(&slot->word)); /* P2, C3, S1 */
        if (state == HR_READY || state == HR_LEASED || state == HR_BAD)
            b.in_flight_steps += get(&slot->valid_steps);
        b.writing += state == HR_WRITING;
        b.ready += state == HR_READY;
        b.leased += state == HR_LEASED;
        b.set_aside += state == HR_BAD;
    }
    b.not_written = get(&lines->not_written);
    b.committed = b.offered - b.not_written;
    b.consumed = get(&lines->consumed);
    b.overwritten = get(&lines->overwritten);
    b.bad = get(&lines->dropped_bad);
    b.rollback = get(&lines->dropped_rollback);
    b.shutdown = get(&lines->dropped_shutdown);
    b.lag = get(&lines->dropped_lag);
    b.consumed_steps = get(&lines->consumed_steps);
    b.overwritten_steps = get(&lines->overwritten_steps);
    b.bad_steps = get(&lines->dropped_bad_steps);
    b.rollback_steps = get(&lines->rollback_steps);
    b.shutdown_steps = get(&lines->shutdown_steps);
    b.lag_steps = get(&lines->lag_steps);
    b.redelivered = get(&lines->redelivered);
    b.granted = get(&lines->granted);
    b.epoch = get(&lines->epoch);
    b.owner = get(&lines->owner);
    b.pid = get(&lines->pid);
    b.blocked_ns = get(&lines->blocked_ns);
    b.first_commit_ns = get(&lines->first_commit_ns);
    b.last_commit_ns = get(&lines->last_commit_ns);
    b.lease_ns = get(&lines->lease_ns);
    b.base_sequence = get(&lines->base_sequence);
    b.base_version = get(&lines->base_version);
    return b;
}
