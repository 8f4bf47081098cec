/* The slot words and the counts beside them, as producer, learner and sweep share them. Private to ringbuf/.
 */
#ifndef HEADRACE_WORDS_H
#define HEADRACE_WORDS_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

typedef enum hr_access {
    HR_ACCESS_PRODUCER,   /* everything read-write */
    HR_ACCESS_LEARNER,    /* headers read-write, payload read-only */
    HR_ACCESS_SUPERVISOR, /* headers read-write, payload not mapped */
    HR_ACCESS_MONITOR,    /* headers read-only, payload not mapped */
    HR_ACCESS_SERVER,     /* everything read-write */
    HR_ACCESS_TAP         /* everything read-only */
} hr_access;

/* Maps a ring and checks it; `sequence` is left 0. 0, or -1 with one line in `error`. */
int hr_ring_map(hr_ring *r, int fd, hr_control *control, hr_access access, char *error, size_t capacity);

/* The next sequence to be written, from the words: max(s + 1 over READY, LEASED and BAD; s over WRITING;
 * q - N + 1 over FREE; the start), and under a dropping policy from the header's head too, which alone knows
 * of sequences that were passed over. Exact when no producer runs. */
uint64_t hr_ring_head(const hr_ring *r);

/* Sequences that have left their slots: sum over slots of (sequence in the word - first of that slot) / N. */
uint64_t hr_ring_done(const hr_ring *r);

/* An update of a count beside a word: begin; change the word; done, or cancel if the change did not come
 * about. Killed anywhere in between, hr_settle() finds out which. */
void hr_intent_begin(const hr_ring *r, hr_count cause, uint64_t sequence);
void hr_intent_done(hr_lines *lines, hr_count cause);
void hr_intent_cancel(hr_lines *lines, hr_count cause);

/* Completes or forgets the pending intent of a writer that is dead (and whose words nobody has swept yet). */
void hr_settle(const hr_ring *r, hr_intent *intent);

/* The count itself, and that of the slots' valid steps (NULL: steps are not counted for this cause). */
_Atomic uint64_t *hr_count_at(hr_lines *lines, hr_count cause);
_Atomic uint64_t *hr_steps_at(hr_lines *lines, hr_count cause);

/* Rings the bell of the ring's owner if the owner waits. */
void hr_ring_notify_owner(const hr_ring *r);

#endif
