/* The slot words and the counts beside them: mapping, head, done, intents. */
#include "words.h"
#include "geometry.h"
#include "segment.h"
#include "state.h"
#include "wait.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int hr_ring_map(hr_ring *r, int fd, hr_control *control, hr_access access, char *error, size_t capacity)
{
    hr_segment head;
    uint64_t total;
    hr_ring_fixed *copy = hr_segment_load(fd, HR_KIND_RING, sizeof *copy, &head, error, capacity);
    if (copy == NULL)
        return -1;
    hr_ring_fixed f = *copy;
    free(copy);
    if (memcmp(head.run_id, control->run_id, 16) != 0)
        return hr_fail(error, capacity, "ring: belongs to another run than the control block");
    if (hr_plan_check(&f.plan, f.slots, error, capacity) != 0)
        return -1;
    hr_ring_fixed expected = hr_ring_geometry(&f.plan, f.slots, &total);
    if (head.total_bytes != total || f.lines_offset != expected.lines_offset ||
        f.headers_offset != expected.headers_offset || f.data_offset != expected.data_offset ||
        f.stride_bytes != expected.stride_bytes || f.state_offset != expected.state_offset ||
        f.serving_offset != expected.serving_offset)
        return hr_fail(error, capacity, "ring: geometry of another build: run make build");
    const int writes = access == HR_ACCESS_PRODUCER || access == HR_ACCESS_SERVER;
    const int reads = access == HR_ACCESS_MONITOR || access == HR_ACCESS_TAP;
    uint64_t bytes = writes || access == HR_ACCESS_LEARNER || access == HR_ACCESS_TAP ? total : f.data_offset;
    uint64_t writable = writes ? total : reads ? 0 : f.data_offset;
    void *base = hr_segment_map(fd, bytes, writable, error, capacity);
    if (base == NULL)
        return -1;
    *r = (hr_ring){.base = base,
                   .mapped_bytes = bytes,
                   .plan = f.plan,
                   .slots = f.slots,
                   .stride_bytes = f.stride_bytes,
                   .data_offset = f.data_offset,
                   .state_offset = f.state_offset,
                   .serving_offset = f.serving_offset,
                   .state_crc = hr_state_plan_crc(&f.plan),
                   .headers_offset = f.headers_offset,
                   .lines_offset = f.lines_offset,
                   .control = control};
    return 0;
}

void hr_ring_detach(hr_ring *r)
{
    if (r->base != NULL)
        munmap(r->base, r->mapped_bytes);
    r->base = NULL;
}

uint64_t hr_ring_head(const hr_ring *r)
{
    uint64_t head = r->plan.start_sequence;
    if (r->plan.full != HR_BLOCK) {
        /* P6 pairs with P6 */
        uint64_t hint = atomic_load_explicit(&hr_ring_lines(r)->head, memory_order_acquire);
        head = hint > head ? hint : head;
    }
    for (uint32_t i = 0; i < r->slots; i++) {
        /* P2, C3, S1 pair with this load */
        uint64_t word = atomic_load_explicit(&hr_ring_slot(r, i)->word, memory_order_acquire);
        uint64_t s = hr_word_sequence(word);
        hr_state state = hr_word_state(word);
        uint64_t next = state == HR_WRITING ? s
                        : state == HR_FREE  ? (s >= r->slots ? s - r->slots + 1 : 0)
                                            : s + 1;
        head = next > head ? next : head;
    }
    return head;
}

uint64_t hr_ring_done(const hr_ring *r)
{
    uint64_t done = 0;
    for (uint32_t i = 0; i < r->slots; i++) {
        /* P1, C3, S1 pair with this load */
        uint64_t word = atomic_load_explicit(&hr_ring_slot(r, i)->word, memory_order_acquire);
        done += (hr_word_sequence(word) - hr_first_sequence(r->plan.start_sequence, r->slots, i)) / r->slots;
    }
    return done;
}

_Atomic uint64_t *hr_count_at(hr_lines *lines, hr_count cause)
{
    switch (cause) {
    case HR_NOT_WRITTEN:
        return &lines->not_written;
    case HR_OVERWRITTEN:
        return &lines->overwritten;
    case HR_DROPPED_BAD:
        return &lines->dropped_bad;
    case HR_REDELIVERED:
        return &lines->redelivered;
    case HR_ROLLBACK:
        return &lines->dropped_rollback;
    case HR_SHUTDOWN:
        return &lines->dropped_shutdown;
    case HR_LAG:
        return &lines->dropped_lag;
    case HR_CONSUMED:
    case HR_COUNTS:
        break;
    }
    return &lines->consumed;
}

_Atomic uint64_t *hr_steps_at(hr_lines *lines, hr_count cause)
{
    switch (cause) {
    case HR_OVERWRITTEN:
        return &lines->overwritten_steps;
    case HR_DROPPED_BAD:
        return &lines->dropped_bad_steps;
    case HR_CONSUMED:
        return &lines->consumed_steps;
    case HR_ROLLBACK:
        return &lines->rollback_steps;
    case HR_SHUTDOWN:
        return &lines->shutdown_steps;
    case HR_LAG:
        return &lines->lag_steps;
    case HR_NOT_WRITTEN: /* never committed */
    case HR_REDELIVERED: /* still in flight */
    case HR_COUNTS:
        break;
    }
    return NULL;
}

static hr_intent_steps *steps_of(hr_lines *lines, hr_count cause)
{
    return cause <= HR_OVERWRITTEN   ? &lines->producer_steps
           : cause <= HR_REDELIVERED ? &lines->supervisor_steps
                                     : &lines->learner_steps;
}

static hr_intent *intent_of(hr_lines *lines, hr_count cause)
{
    return cause <= HR_OVERWRITTEN   ? &lines->producer_intent
           : cause <= HR_REDELIVERED ? &lines->supervisor_intent
                                     : &lines->learner_intent;
}

/* I1: one writer at a time; the sweep reads after that writer's death was reaped, which orders all it stored.
 * The releases keep the compiler from reordering stores among which a kill may fall. */

/* The count of steps after the change, if the slot's steps are added or not. */
static void store_steps(hr_lines *lines, hr_count cause, int add)
{
    _Atomic uint64_t *steps = hr_steps_at(lines, cause);
    if (steps == NULL)
        return;
    hr_intent_steps *pending = steps_of(lines, cause);
    uint64_t before = atomic_load_explicit(&pending->before, memory_order_relaxed);
    uint64_t amount = atomic_load_explicit(&pending->amount, memory_order_relaxed);
    atomic_store_explicit(steps, before + (add ? amount : 0), memory_order_release); /* I1, N1 */
}

void hr_intent_begin(const hr_ring *r, hr_count cause, uint64_t sequence)
{
    hr_lines *lines = hr_ring_lines(r);
    hr_intent *intent = intent_of(lines, cause);
    _Atomic uint64_t *steps = hr_steps_at(lines, cause);
    if (steps != NULL) {
        hr_intent_steps *pending = steps_of(lines, cause);
        uint64_t valid = atomic_load_explicit(&hr_ring_slot(r, sequence)->valid_steps, memory_order_relaxed);
        atomic_store_explicit(&pending->before, atomic_load_explicit(steps, memory_order_relaxed),
                              memory_order_relaxed);                          /* I1 */
        atomic_store_explicit(&pending->amount, valid, memory_order_relaxed); /* I1; carried to us by P2 */
    }
    uint64_t before = atomic_load_explicit(hr_count_at(lines, cause), memory_order_relaxed);
    atomic_store_explicit(&intent->before, before, memory_order_relaxed);         /* I1 */
    atomic_store_explicit(&intent->cause, (uint64_t)cause, memory_order_relaxed); /* I1 */
    atomic_store_explicit(&intent->sequence, sequence, memory_order_release); /* I1 pairs with hr_settle() */
}

void hr_intent_done(hr_lines *lines, hr_count cause)
{
    hr_intent *intent = intent_of(lines, cause);
    uint64_t before = atomic_load_explicit(&intent->before, memory_order_relaxed);
    atomic_store_explicit(hr_count_at(lines, cause), before + 1, memory_order_release); /* I1, N1 */
    store_steps(lines, cause, 1);
    atomic_store_explicit(&intent->sequence, HR_NONE, memory_order_release);            /* I1 */
}

void hr_intent_cancel(hr_lines *lines, hr_count cause)
{
    atomic_store_explicit(&intent_of(lines, cause)->sequence, HR_NONE, memory_order_release); /* I1 */
}

/* Did the change that the intent announces come about? Read from the word, before anything else changes it.
 */
static int came_about(const hr_ring *r, hr_count cause, uint64_t sequence)
{
    hr_lines *lines = hr_ring_lines(r);
    uint64_t word = atomic_load_explicit(&hr_ring_slot(r, sequence)->word, memory_order_acquire); /* S1 */
    switch (cause) {
    case HR_NOT_WRITTEN: /* passing over a sequence changes no word, only the head */
        return atomic_load_explicit(&lines->head, memory_order_acquire) > sequence; /* P6 */
    case HR_OVERWRITTEN: /* a learner may have won the slot and acked it since: then it is FREE and not ours
                          */
        return hr_word_state(word) == HR_WRITING && hr_word_sequence(word) > sequence;
    case HR_REDELIVERED: /* the move keeps the sequence, but nothing else takes a dead learner's LEASED away
                          */
        return hr_word_state(word) != HR_LEASED || hr_word_sequence(word) != sequence;
    case HR_DROPPED_BAD:
    case HR_CONSUMED:
    case HR_ROLLBACK:
    case HR_SHUTDOWN:
    case HR_LAG:
    case HR_COUNTS:
        break;
    }
    return hr_word_sequence(word) > sequence;
}

void hr_settle(const hr_ring *r, hr_intent *intent)
{
    /* I1 pairs with hr_intent_begin(): the other two are valid once this is not NONE */
    uint64_t sequence = atomic_load_explicit(&intent->sequence, memory_order_acquire);
    if (sequence == HR_NONE)
        return;
    uint64_t before = atomic_load_explicit(&intent->before, memory_order_relaxed);
    uint64_t cause = atomic_load_explicit(&intent->cause, memory_order_relaxed);
    if (cause < HR_COUNTS) {
        int happened = came_about(r, (hr_count)cause, sequence);
        atomic_store_explicit(hr_count_at(hr_ring_lines(r), (hr_count)cause), before + (happened ? 1 : 0),
                              memory_order_release); /* I1 */
        store_steps(hr_ring_lines(r), (hr_count)cause, happened);
    }
    atomic_store_explicit(&intent->sequence, HR_NONE, memory_order_release); /* I1 */
}

void hr_ring_notify_owner(const hr_ring *r)
{
    /* O1 pairs with O1 in hr_ring_set_owner(): a wake sent to the old owner's bell is repaired by the ring
     * that follows the store. */
    uint64_t owner = atomic_load_explicit(&hr_ring_lines(r)->owner, memory_order_seq_cst);
    if (owner < HR_MAX_LEARNERS)
        hr_bell_notify(hr_control_bell(r->control, owner));
}
