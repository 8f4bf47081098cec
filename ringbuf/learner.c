/* The owner learner's side of a ring: look, lease, ack, drop, grant. */
#include "learner.h"
#include "wait.h"

uint64_t hr_ring_acting(const hr_ring *r)
{
    /* L1 pairs with A2 and A3 */
    return atomic_load_explicit(&hr_ring_lines(r)->acting, memory_order_seq_cst);
}

hr_seen hr_ring_look(const hr_ring *r, uint32_t i)
{
    hr_slot *slot = hr_ring_slot(r, i);
    /* C5 pairs with P2; the acquire in it also makes the header of a READY slot visible */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_seq_cst);
    for (;;) {
        hr_state state = hr_word_state(word);
        uint64_t version = HR_NONE;
        if (state == HR_READY || state == HR_LEASED || state == HR_BAD)
            version = atomic_load_explicit(&slot->oldest_version,
                                           memory_order_acquire); /* keeps the reload behind */
        /* Under drop_oldest the producer may have overwritten the slot in between: the version must be the
         * word's. */
        uint64_t again = atomic_load_explicit(&slot->word, memory_order_seq_cst); /* C5 */
        if (again == word)
            return (hr_seen){.word = word, .oldest_version = version};
        word = again;
    }
}

static int move(hr_ring *r, uint64_t sequence, uint64_t from, uint64_t to, memory_order order)
{
    return atomic_compare_exchange_strong_explicit(&hr_ring_slot(r, sequence)->word, &from, to, order,
                                                   memory_order_relaxed);
}

/* Our own LEASED(sequence), 0 if it is not. */
static uint64_t held(const hr_ring *r, uint64_t sequence)
{
    /* Only we leave LEASED, so relaxed shows what we stored. */
    uint64_t word = atomic_load_explicit(&hr_ring_slot(r, sequence)->word, memory_order_relaxed);
    return hr_word_state(word) == HR_LEASED && hr_word_sequence(word) == sequence &&
                   hr_word_owner(word) == r->control->self
               ? word
               : 0;
}

static hr_leased take(hr_ring *r, uint64_t sequence)
{
    /* C1 pairs with P2 and S1 */
    uint64_t word = atomic_load_explicit(&hr_ring_slot(r, sequence)->word, memory_order_relaxed);
    uint32_t deliveries = hr_word_deliveries(word);
    uint32_t next = deliveries < 7 ? deliveries + 1 : 7;
    if (hr_word_state(word) != HR_READY || hr_word_sequence(word) != sequence ||
        !move(r, sequence, word, hr_word(sequence, next, r->control->self, HR_LEASED),
              memory_order_acquire)) /* C1 */
        return HR_LEASE_LOST;
    return HR_LEASE_GOOD;
}

hr_leased hr_ring_lease(hr_ring *r, uint64_t sequence)
{
    if (take(r, sequence) != HR_LEASE_GOOD)
        return HR_LEASE_LOST;
    atomic_store_explicit(&hr_ring_lines(r)->lease_ns, hr_now_ns(), memory_order_relaxed); /* N1 */
    /* T0 pairs with these two; C1 has made them visible */
    if (atomic_load_explicit(hr_start_stamp(r, sequence), memory_order_relaxed) == sequence &&
        atomic_load_explicit(hr_end_stamp(r, sequence), memory_order_relaxed) == sequence)
        return HR_LEASE_GOOD;
    uint64_t word = held(r, sequence);
    /* C7 pairs with S1 */
    move(r, sequence, word, hr_word(sequence, hr_word_deliveries(word), 0, HR_BAD), memory_order_acq_rel);
    return HR_LEASE_TORN;
}

int hr_ring_examined(hr_ring *r, uint64_t sequence)
{
    uint64_t word = held(r, sequence);
    if (word == 0)
        return -1;
    /* C8 pairs with S1: the next sweep finds one delivery */
    return move(r, sequence, word, hr_word(sequence, 1, r->control->self, HR_LEASED), memory_order_acq_rel)
               ? 0
               : -1;
}

static int release(hr_ring *r, uint64_t sequence, uint64_t word, hr_count cause)
{
    hr_lines *lines = hr_ring_lines(r);
    hr_intent_begin(r, cause, sequence);
    /* C3 pairs with P1 (release: our reads of the payload are over); Dekker with P5 */
    if (!move(r, sequence, word, hr_word(sequence + r->slots, 0, 0, HR_FREE), memory_order_seq_cst)) {
        hr_intent_cancel(lines, cause);
        return -1;
    }
    hr_intent_done(lines, cause);
    hr_ring_notify_producer(r); /* C6 */
    return 0;
}

int hr_ring_ack(hr_ring *r, uint64_t sequence, hr_count cause)
{
    uint64_t word = held(r, sequence);
    return word == 0 ? -1 : release(r, sequence, word, cause);
}

int hr_ring_drop(hr_ring *r, uint64_t sequence, hr_count cause)
{
    uint64_t word = atomic_load_explicit(&hr_ring_slot(r, sequence)->word, memory_order_acquire); /* C1 */
    if (hr_word_state(word) != HR_READY || hr_word_sequence(word) != sequence)
        return -1;
    if (r->plan.full != HR_DROP_OLDEST)
        return release(r, sequence, word, cause);
    /* The producer may overwrite READY(s), after which the word would not tell whose drop it was: take it
     * first. */
    return take(r, sequence) == HR_LEASE_GOOD ? hr_ring_ack(r, sequence, cause) : -1;
}

void hr_ring_grant(hr_ring *r, uint64_t n)
{
    _Atomic uint64_t *granted = &hr_ring_lines(r)->granted;
    uint64_t now = atomic_load_explicit(granted, memory_order_relaxed);
    /* G1 pairs with P5; a CAS, since the supervisor lowers it meanwhile */
    while (!atomic_compare_exchange_weak_explicit(granted, &now, now + n, memory_order_seq_cst,
                                                  memory_order_relaxed))
        ;
    hr_ring_notify_producer(r); /* C6 */
}

void hr_ring_set_base(hr_ring *r, uint64_t sequence, uint64_t version)
{
    hr_lines *lines = hr_ring_lines(r);
    atomic_store_explicit(&lines->base_sequence, sequence, memory_order_relaxed); /* D1 */
    atomic_store_explicit(&lines->base_version, version, memory_order_release);   /* D1 pairs with D1 */
}

void hr_ring_notify_producer(hr_ring *r)
{
    hr_bell_notify(&hr_ring_lines(r)->bell); /* C6 pairs with P4 */
}
