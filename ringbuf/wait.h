/* Sleeping and waking across processes: an eventcount on a futex. Private to ringbuf/.
 *
 *     seen = hr_bell_arm(bell);                  // read bell, then C4 / P4: waiting = 1
 *     if (what I wait for is not there)          // C5 / P5
 *         hr_bell_sleep(bell, seen, deadline);
 *
 * Whoever changes what others wait for stores it (seq_cst) and then calls hr_bell_notify(), which looks at
 * `waiting` (P3 / C6). `waiting` is a flag and not a count: a waiter that was killed leaves it set, which
 * costs one spare wake; a count would stay wrong for ever. Nobody spins: producers and learners share the
 * cores. */
#ifndef HEADRACE_WAIT_H
#define HEADRACE_WAIT_H

#include <stdint.h>

#include "layout.h"

typedef enum hr_woken {
    HR_TIMED_OUT = 0,
    HR_RUNG = 1,
    HR_INTERRUPTED = 2
} hr_woken;

/* Announces a waiter and returns what to compare the bell with. */
uint32_t hr_bell_arm(hr_bell *b);

/* Sleeps while the bell is at `seen`, until it rings, a signal handler has run, or the absolute
 * CLOCK_MONOTONIC time `deadline_ns` has come. */
hr_woken hr_bell_sleep(hr_bell *b, uint32_t seen, uint64_t deadline_ns);

/* Rings if somebody waits. One load when nobody does. */
void hr_bell_notify(hr_bell *b);

/* Rings in any case: the repair of a ringer that was killed half-way. */
void hr_bell_ring(hr_bell *b);

#endif
