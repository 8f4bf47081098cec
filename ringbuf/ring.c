/* The producer's side of a ring: claim, write in place, commit; or abort, or pass over. */
#include "channel.h"
#include "layout.h"
#include "segment.h"
#include "state.h"
#include "wait.h"
#include "words.h"

#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

int hr_ring_attach(hr_ring *r, int fd, hr_control *control, char *error, size_t capacity)
{
    if (hr_ring_map(r, fd, control, HR_ACCESS_PRODUCER, error, capacity) != 0)
        return -1;
    hr_lines *lines = hr_ring_lines(r);
    int swept = atomic_load_explicit(&lines->acting, memory_order_acquire) == HR_NONE && /* S1 */
                atomic_load_explicit(&lines->producer_intent.sequence, memory_order_acquire) ==
                    HR_NONE;                /* I1 */
    for (uint32_t i = 0; i < r->slots; i++) /* S1 */
        swept &= hr_word_state(atomic_load_explicit(&hr_ring_slot(r, i)->word, memory_order_acquire)) !=
                 HR_WRITING;
    if (!swept) {
        hr_ring_detach(r);
        return hr_fail(error, capacity, "ring %u: not swept since its last producer died", r->plan.ring);
    }
    r->sequence = hr_ring_head(r);
    atomic_store_explicit(&lines->head, r->sequence, memory_order_release);       /* P6 */
    atomic_store_explicit(&lines->pid, (uint64_t)getpid(), memory_order_relaxed); /* N1 */
    return 0;
}

uint64_t hr_ring_epoch(const hr_ring *r)
{
    return atomic_load_explicit(&hr_ring_lines(r)->epoch, memory_order_relaxed); /* S1: it changes in sweeps */
}

static hr_claimable waiting_for(const hr_ring *r, hr_claimable reason)
{
    /* P5 (owner) pairs with O1 */
    uint64_t owner = atomic_load_explicit(&hr_ring_lines(r)->owner, memory_order_seq_cst);
    return owner == HR_NONE ? HR_WAIT_OWNER : reason;
}

hr_claimable hr_ring_claimable(const hr_ring *r)
{
    uint64_t s = r->sequence;
    const int stopping = hr_control_stop(r->control) != HR_RUN; /* P5 (stop) pairs with F1 */
    if (stopping) {
        /* In the exact modes a version that was begun is finished, so that a run ends on a version's border.
         */
        uint64_t granted = atomic_load_explicit(&hr_ring_lines(r)->granted, memory_order_seq_cst); /* P5 */
        if (r->plan.mode != HR_EXACT || s >= granted)
            return HR_STOPPED;
    }
    if (hr_state_due(r)) /* P5 (request) */
        return HR_SAVE;
    if (s >= HR_SEQUENCE_END - 2ull * r->slots)
        return HR_EXHAUSTED;
    /* P5 (granted) pairs with G1 */
    if (r->plan.full == HR_BLOCK &&
        s >= atomic_load_explicit(&hr_ring_lines(r)->granted, memory_order_seq_cst))
        return waiting_for(r, HR_WAIT_CREDIT);
    /* P5 (word) pairs with C3 */
    uint64_t word = atomic_load_explicit(&hr_ring_slot(r, s)->word, memory_order_seq_cst);
    uint64_t q = hr_word_sequence(word);
    hr_state state = hr_word_state(word);
    if (state == HR_FREE &&
        (q == s || (q < s && r->plan.full != HR_BLOCK))) /* q < s: sequences passed over */
        return HR_CLAIMABLE;
    /* A ring may hold less than was granted ahead, and after a stop nobody need make room any more. */
    if (r->plan.full == HR_BLOCK)
        return stopping ? HR_STOPPED : waiting_for(r, HR_WAIT_FULL);
    return r->plan.full == HR_DROP_OLDEST && state == HR_READY && q < s ? HR_CLAIMABLE : HR_SKIP;
}

int hr_ring_wait(hr_ring *r, uint64_t slice_ns)
{
    hr_lines *lines = hr_ring_lines(r);
    uint64_t begin_ns = hr_now_ns();
    uint32_t seen = hr_bell_arm(&lines->bell); /* P4 */
    hr_claimable why = hr_ring_claimable(r);   /* P5 */
    if (why != HR_WAIT_CREDIT && why != HR_WAIT_FULL && why != HR_WAIT_OWNER)
        return 1;
    hr_woken woken = hr_bell_sleep(&lines->bell, seen, begin_ns + slice_ns);
    uint64_t blocked_ns = atomic_load_explicit(&lines->blocked_ns, memory_order_relaxed) + hr_now_ns() -
                          begin_ns;
    atomic_store_explicit(&lines->blocked_ns, blocked_ns, memory_order_relaxed); /* N1 */
    return woken != HR_TIMED_OUT;
}

int hr_ring_wait_published(hr_ring *r, const hr_weights *w, uint64_t seen_version, uint64_t slice_ns)
{
    hr_lines *lines = hr_ring_lines(r);
    uint32_t seen = hr_bell_arm(&lines->bell); /* P4 */
    /* P5 (published, stop) pairs with W1 and F1 */
    if (hr_weights_published(w) != seen_version || hr_control_stop(r->control) != HR_RUN)
        return 1;
    return hr_bell_sleep(&lines->bell, seen, hr_now_ns() + slice_ns) != HR_TIMED_OUT;
}

uint64_t hr_ring_announce(hr_ring *r, const hr_weights *w)
{
    hr_lines *lines = hr_ring_lines(r);
    uint64_t version = hr_weights_published(w);
    while (version != HR_NONE) {
        /* A2 pairs with L1 in hr_ring_acting(), Dekker with W1: a learner that has published a newer version
         * and then sees no acting version knows that we shall see the newer one here. */
        atomic_store_explicit(&lines->acting, version, memory_order_seq_cst);
        uint64_t again = hr_weights_published(w); /* A2, the reload */
        if (again == version)
            break;
        version = again;
    }
    return version;
}

uint64_t hr_ring_exact_version(const hr_ring *r)
{
    const hr_lines *lines = hr_ring_lines(r);
    /* D1 pairs with D1 in hr_ring_set_base(): a new version comes with its sequence. What the grant (G1, P5) let in
     * after a new base is not below it. A slot from before is dropped as soon as it is there, so that any version
     * will do which the learner has published already: the base's, old or new. What lies before a base belongs to
     * a policy that was abandoned, or to an earlier attempt whose weights are gone: the lag grows from 0 again. */
    uint64_t version = atomic_load_explicit(&lines->base_version, memory_order_acquire);
    uint64_t base = atomic_load_explicit(&lines->base_sequence, memory_order_relaxed); /* D1 */
    if (r->sequence < base)
        return version;
    uint64_t batch = version + (r->sequence - base) / (r->plan.batch_slots / r->plan.producers);
    return batch > version + r->plan.lagged_versions ? batch - r->plan.lagged_versions : version;
}

int hr_ring_claim(hr_ring *r, uint64_t version)
{
    uint64_t s = r->sequence;
    hr_lines *lines = hr_ring_lines(r);
    hr_slot *slot = hr_ring_slot(r, s);
    /* P1 pairs with C3 and S1: the last reader of this slot is done with it. */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    uint64_t writing = hr_word(s, 0, r->control->self, HR_WRITING);
    if (hr_word_state(word) == HR_FREE) {
        if (!atomic_compare_exchange_strong_explicit(&slot->word, &word, writing, memory_order_acquire,
                                                     memory_order_relaxed)) /* P1 */
            return -1;
    } else if (r->plan.full == HR_DROP_OLDEST && hr_word_state(word) == HR_READY &&
               hr_word_sequence(word) < s) {
        hr_intent_begin(r, HR_OVERWRITTEN, hr_word_sequence(word));
        if (!atomic_compare_exchange_strong_explicit(
                &slot->word, &word, writing, memory_order_acq_rel,
                memory_order_relaxed)) { /* P1; release for the intent, I1 */
            hr_intent_cancel(lines, HR_OVERWRITTEN);
            return -1;
        }
        hr_intent_done(lines, HR_OVERWRITTEN);
    } else {
        return -1;
    }
    /* T0 pairs with T3: who copies without a lease sees the new stamp if it saw a byte of the new payload. */
    atomic_store_explicit(hr_start_stamp(r, s), s, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);                                   /* T0f */
    atomic_store_explicit(&slot->oldest_version, version, memory_order_relaxed); /* carried by P2 */
    return 0;
}

uint8_t *hr_ring_claimed(const hr_ring *r)
{
    return hr_ring_payload(r, r->sequence);
}

void *hr_ring_field(const hr_ring *r, hr_field_id id)
{
    const hr_field *f = &r->plan.field[id];
    return f->dtype == 0 ? NULL : hr_ring_payload(r, r->sequence) + f->offset;
}

static void clear_acting(hr_ring *r)
{
    /* A3 pairs with L1: after P2 and before P3, so that a learner which saw slot and acting version and went
     * to sleep is woken. */
    atomic_store_explicit(&hr_ring_lines(r)->acting, HR_NONE, memory_order_seq_cst);
    hr_ring_notify_owner(r); /* P3 pairs with C4 */
}

static void advance(hr_ring *r)
{
    r->sequence++;
    atomic_store_explicit(&hr_ring_lines(r)->head, r->sequence, memory_order_release); /* P6 pairs with P6 */
}

void hr_ring_commit(hr_ring *r, const hr_facts *facts)
{
    uint64_t s = r->sequence;
    hr_lines *lines = hr_ring_lines(r);
    hr_slot *slot = hr_ring_slot(r, s);
    uint64_t now_ns = hr_now_ns();
    atomic_store_explicit(hr_end_stamp(r, s), s, memory_order_relaxed); /* T0 */
    /* The slot header, carried by P2 */
    atomic_store_explicit(&slot->newest_version, facts->newest_version, memory_order_relaxed);
    atomic_store_explicit(&slot->valid_steps, facts->valid_steps, memory_order_relaxed);
    atomic_store_explicit(&slot->episodes, facts->episodes, memory_order_relaxed);
    atomic_store_explicit(&slot->commit_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&slot->epoch, atomic_load_explicit(&lines->epoch, memory_order_relaxed),
                          memory_order_relaxed);
    if (atomic_load_explicit(&lines->first_commit_ns, memory_order_relaxed) == 0)
        atomic_store_explicit(&lines->first_commit_ns, now_ns, memory_order_relaxed); /* N1 */
    atomic_store_explicit(&lines->last_commit_ns, now_ns, memory_order_relaxed);      /* N1 */
#if defined(__x86_64__)
    _mm_sfence(); /* a simulator may have written with non-temporal stores, which no release orders */
#endif
    /* P2 pairs with C1 and T1 (release carries payload and header); Dekker with C5 */
    atomic_store_explicit(&slot->word, hr_word(s, 0, 0, HR_READY), memory_order_seq_cst);
    clear_acting(r);
    advance(r);
}

void hr_ring_abort(hr_ring *r)
{
    uint64_t s = r->sequence;
    hr_slot *slot = hr_ring_slot(r, s);
    /* Only we leave WRITING, so what we see is ours or none. */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    if (word == hr_word(s, 0, r->control->self, HR_WRITING))
        /* P7 pairs with P1 of our successor and with C5 */
        atomic_store_explicit(&slot->word, hr_word(s, 0, 0, HR_FREE), memory_order_seq_cst);
    clear_acting(r);
}

void hr_ring_skip(hr_ring *r)
{
    hr_lines *lines = hr_ring_lines(r);
    hr_intent_begin(r, HR_NOT_WRITTEN, r->sequence);
    advance(r); /* what the intent is about */
    hr_intent_done(lines, HR_NOT_WRITTEN);
}
