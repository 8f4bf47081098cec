/* The supervisor's side of a ring: owner, sweeps after a death, slots set aside. */
#include "sweep.h"
#include "wait.h"

static void ring_all(hr_ring *r)
{
    /* In any case: the dead may have taken the flag of a sleeper whom they did not wake any more. */
    uint64_t owner = atomic_load_explicit(&hr_ring_lines(r)->owner, memory_order_seq_cst); /* O1 */
    hr_bell_ring(&hr_ring_lines(r)->bell);
    if (owner < HR_MAX_LEARNERS)
        hr_bell_ring(hr_control_bell(r->control, owner));
    if (r->plan.server != 0)
        hr_bell_ring(hr_control_server_bell(r->control, r->plan.server - 1));
}

void hr_ring_set_owner(hr_ring *r, uint64_t learner)
{
    /* O1 pairs with P3's load of the owner in hr_ring_notify_owner() and with P5 */
    atomic_store_explicit(&hr_ring_lines(r)->owner, learner, memory_order_seq_cst);
    ring_all(r);
}

static int move(hr_slot *slot, uint64_t from, uint64_t to)
{
    /* S1 pairs with P1 and C1 */
    return atomic_compare_exchange_strong_explicit(&slot->word, &from, to, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static int counted_move(hr_ring *r, hr_slot *slot, uint64_t from, uint64_t to, hr_count cause)
{
    hr_lines *lines = hr_ring_lines(r);
    hr_intent_begin(r, cause, hr_word_sequence(from));
    int moved = move(slot, from, to);
    if (moved)
        hr_intent_done(lines, cause);
    else
        hr_intent_cancel(lines, cause);
    return moved;
}

void hr_sweep_producer(hr_ring *r)
{
    hr_lines *lines = hr_ring_lines(r);
    /* Before the words change: WRITING is what tells that an overwrite came about. */
    hr_settle(r, &lines->producer_intent);
    for (uint32_t i = 0; i < r->slots; i++) {
        hr_slot *slot = hr_ring_slot(r, i);
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire); /* S1 */
        if (hr_word_state(word) == HR_WRITING)
            move(slot, word, hr_word(hr_word_sequence(word), 0, 0, HR_FREE));
    }
    atomic_store_explicit(&lines->head, hr_ring_head(r), memory_order_release); /* P6 */
    atomic_store_explicit(&lines->acting, HR_NONE, memory_order_seq_cst);       /* A3 pairs with L1 */
    ring_all(r);
    if (atomic_load_explicit(&lines->pid, memory_order_acquire) !=
        0) { /* S1: once a death, or more often if */
        atomic_fetch_add_explicit(&lines->epoch, 1,
                                  memory_order_acq_rel); /* killed here, which does no harm */
        atomic_store_explicit(&lines->pid, 0, memory_order_release);
    }
}

static int is_listed(uint64_t sequence, const uint64_t *listed, size_t n_listed)
{
    for (size_t i = 0; i < n_listed; i++)
        if (listed[i] == sequence)
            return 1;
    return 0;
}

void hr_sweep_learner(hr_ring *r, uint64_t index, int blameless, const uint64_t *listed, size_t n_listed)
{
    hr_lines *lines = hr_ring_lines(r);
    hr_settle(r, &lines->learner_intent);
    hr_settle(r, &lines->supervisor_intent); /* of a supervisor that died in this function */
    for (uint32_t i = 0; i < r->slots; i++) {
        hr_slot *slot = hr_ring_slot(r, i);
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire); /* S1 */
        uint64_t s = hr_word_sequence(word);
        uint32_t deliveries = hr_word_deliveries(word);
        if (hr_word_state(word) != HR_LEASED || (index != HR_NONE && hr_word_owner(word) != index))
            continue;
        if (is_listed(s, listed, n_listed)) { /* trained, published, and killed before the ack */
            counted_move(r, slot, word, hr_word(s + r->slots, 0, 0, HR_FREE), HR_CONSUMED);
        } else if (deliveries >= HR_MAX_DELIVERIES && !blameless) {
            move(slot, word, hr_word(s, deliveries, 0, HR_BAD));
        } else {
            uint32_t held = blameless && deliveries > 0 ? deliveries - 1 : deliveries;
            counted_move(r, slot, word, hr_word(s, held, 0, HR_READY), HR_REDELIVERED);
        }
    }
    ring_all(r);
}

int hr_ring_free_bad(hr_ring *r, uint64_t sequence)
{
    hr_lines *lines = hr_ring_lines(r);
    hr_slot *slot = hr_ring_slot(r, sequence);
    hr_settle(r, &lines->supervisor_intent);
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire); /* C7, S1 */
    if (hr_word_state(word) != HR_BAD || hr_word_sequence(word) != sequence)
        return -1;
    int moved = counted_move(r, slot, word, hr_word(sequence + r->slots, 0, 0, HR_FREE), HR_DROPPED_BAD);
    ring_all(r);
    return moved ? 0 : -1;
}

int hr_ring_lower_granted(hr_ring *r)
{
    _Atomic uint64_t *granted = &hr_ring_lines(r)->granted;
    uint64_t head = hr_ring_head(r);
    uint64_t now = atomic_load_explicit(granted, memory_order_relaxed);
    do {
        if (now <= head)
            return 0;
        /* G1 pairs with P5; a CAS, since the learner grants meanwhile */
    } while (!atomic_compare_exchange_weak_explicit(granted, &now, head, memory_order_seq_cst,
                                                    memory_order_relaxed));
    ring_all(r);
    return 1;
}
