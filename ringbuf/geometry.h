/* Sizes of a ring's segment and the check of its plan. Private to ringbuf/. */
#ifndef HEADRACE_GEOMETRY_H
#define HEADRACE_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

#define HR_MAX_PAYLOAD_BYTES (1ull << 40)

/* Is this a plan that a ring of `slots` slots can have? Sizes, shapes, offsets and rules are checked against
 * each other, since offsets from shared memory are used without further tests. 0, or -1 with one line in
 * `error`. */
int hr_plan_check(const hr_plan *p, uint32_t slots, char *error, size_t capacity);

/* Where everything lies; the plan must have been checked. */
hr_ring_fixed hr_ring_geometry(const hr_plan *p, uint32_t slots, uint64_t *total_bytes);

/* Fills a zeroed segment of the geometry's length. *huge: see hr_segment_populate(). 0, or -1 with one line.
 */
int hr_ring_format(int fd, const hr_plan *p, uint32_t slots, const uint8_t run_id[16], int *huge, char *error,
                   size_t capacity);

#endif
