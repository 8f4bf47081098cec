/* The tap: copies parts of a slot that it does not lease. */
#include "tap.h"

#include <string.h>

/* Does the word say that the payload is that of `sequence`, committed and not yet claimed again? FREE(s + N) is
 * what an ack leaves, and also what an aborted or dead writer of s + N does: the start stamp tells those apart. */
static int there(const hr_ring *r, uint64_t word, uint64_t sequence)
{
    hr_state state = hr_word_state(word);
    uint64_t s = hr_word_sequence(word);
    return ((state == HR_READY || state == HR_LEASED) && s == sequence) ||
           (state == HR_FREE && s == sequence + r->slots);
}

hr_tapped hr_ring_tap_look(const hr_ring *r, uint64_t sequence)
{
    /* P6 pairs with P6: before the word, so that a head beyond `sequence` comes with its commit, if there was one */
    uint64_t head = atomic_load_explicit(&hr_ring_lines(r)->head, memory_order_acquire);
    uint64_t word = atomic_load_explicit(&hr_ring_slot(r, sequence)->word, memory_order_acquire); /* T1 pairs with P2 */
    if (there(r, word, sequence))
        return HR_TAP_THERE;
    if (hr_word_sequence(word) > sequence || (hr_word_sequence(word) == sequence && hr_word_state(word) == HR_BAD))
        return HR_TAP_MISSED;
    return r->plan.full != HR_BLOCK && head > sequence ? HR_TAP_HOLE : HR_TAP_EARLY;
}

static uint64_t get(const _Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed); /* T2 */
}

int hr_ring_tap_copy(const hr_ring *r, uint64_t sequence, const hr_piece *piece, size_t pieces, void *out,
                     void *records, hr_tap_facts *facts)
{
    const hr_slot *slot = hr_ring_slot(r, sequence);
    const uint8_t *payload = hr_ring_payload(r, sequence);
    const hr_field *episodes = &r->plan.field[HR_EPISODES];
    /* T1 pairs with P2, or with C3 and S1 behind it: payload and header of `sequence` are visible */
    if (!there(r, atomic_load_explicit(&slot->word, memory_order_acquire), sequence))
        return 0;
    *facts = (hr_tap_facts){.oldest_version = get(&slot->oldest_version),
                            .newest_version = get(&slot->newest_version),
                            .valid_steps = get(&slot->valid_steps),
                            .episodes = get(&slot->episodes),
                            .commit_ns = get(&slot->commit_ns),
                            .epoch = get(&slot->epoch)};
    if (facts->episodes > episodes->shape[0]) /* sizes from shared memory are not used unchecked */
        facts->episodes = episodes->shape[0];
    /* T2: this races with the next writer, on purpose; what it overtook is thrown away below */
    uint8_t *to = out;
    for (size_t i = 0; i < pieces; i++) {
        memcpy(to, payload + piece[i].offset, piece[i].bytes);
        to += piece[i].bytes;
    }
    memcpy(records, payload + episodes->offset, facts->episodes * episodes->shape[1]);
    /* T3 pairs with T0f: had we seen a byte of a later payload, we should see its start stamp here. The word is for
     * payloads written past the caches, which a fence of the writer's does not hold behind its stamp: but nothing is
     * written before the claim (P1), which leaves WRITING there, and nothing gives the slot up before the stamp. */
    atomic_thread_fence(memory_order_acquire);
    return there(r, get(&slot->word), sequence) && get(hr_start_stamp(r, sequence)) == sequence &&
           get(hr_end_stamp(r, sequence)) == sequence;
}
