/* The tap: copies parts of a slot that it does not lease, from memory that is mapped read-only. Private to ringbuf/.
 *
 * A tap holds nothing and writes nothing, so producer and learner cannot even tell that there is one. It may be
 * overtaken at any byte; what it looks at after the copy tells whether that can have happened. */
#ifndef HEADRACE_TAP_H
#define HEADRACE_TAP_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

#define HR_MAX_TAP_BYTES (1ull << 40)

typedef struct hr_piece { /* of a slot's payload */
    uint64_t offset, bytes;
} hr_piece;

typedef struct hr_tap_facts { /* of the slot's header */
    uint64_t oldest_version, newest_version, valid_steps, episodes, commit_ns, epoch;
} hr_tap_facts;

typedef enum hr_tapped {
    HR_TAP_THERE = 0,
    HR_TAP_EARLY, /* not committed yet */
    HR_TAP_HOLE,  /* passed over by the producer: there will be none */
    HR_TAP_MISSED /* gone, or set aside */
} hr_tapped;

/* Where slot `sequence` is in its life. */
hr_tapped hr_ring_tap_look(const hr_ring *r, uint64_t sequence);

/* Copies the pieces one behind the other to `out`, and the records of finished episodes to `records`, which has
 * room for the whole field. The pieces must lie within the payload. 1, or 0 if the slot is not there, or was not
 * there all the time: then nothing that was copied means anything. */
int hr_ring_tap_copy(const hr_ring *r, uint64_t sequence, const hr_piece *piece, size_t pieces, void *out,
                     void *records, hr_tap_facts *facts);

#endif
