/* The supervisor's side of a ring: owner, sweeps after a death, slots set aside. Private to ringbuf/.
 *
 * A sweep is called after the dead process was reaped, and may be called again: every step is idempotent, so
 * a supervisor that dies half-way leaves nothing that its successor's sweep does not complete. */
#ifndef HEADRACE_SWEEP_H
#define HEADRACE_SWEEP_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"
#include "words.h"

#define HR_MAX_DELIVERIES 3u /* a slot whose learner died at this delivery is set aside */

/* Stores the owner (a learner's number, HR_NONE: none) and rings its bell and the ring's. */
void hr_ring_set_owner(hr_ring *r, uint64_t learner);

/* The ring's producer is dead: pending count settled, WRITING(s) -> FREE(s), acting version cleared, head
 * recomputed, bells rung, epoch + 1 if there was anything of that producer's life to end (its pid is
 * forgotten, so a second call adds nothing). */
void hr_sweep_producer(hr_ring *r);

/* The learner that was process `index` (HR_NONE: whichever) is dead. Its pending count is settled; LEASED(s)
 * with (ring, s) in `listed`, the list of the published version, becomes FREE(s + N), consumed; of the others
 * the third delivery becomes BAD, the rest READY; bells rung. `blameless`: it was ended because another
 * learner died, so its slots have had nothing to do with it: all become READY, and the delivery is not counted. */
void hr_sweep_learner(hr_ring *r, uint64_t index, int blameless, const uint64_t *listed, size_t n_listed);

/* BAD(s) -> FREE(s + N), counted as dropped; both bells. 0, or -1: not BAD(s). */
int hr_ring_free_bad(hr_ring *r, uint64_t sequence);

/* granted -> head, if it is above: takes back the credit of a producer that does not run. 1 if lowered. */
int hr_ring_lower_granted(hr_ring *r);

#endif
