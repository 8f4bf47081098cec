/* Guards: memory between the fields of a slot that belongs to nobody, filled with a pattern before a segment is
 * stepped and looked at after it. A simulator that writes past its rows breaks the pattern before it breaks a
 * neighbour's data unseen. */
#ifndef HEADRACE_GUARDS_H
#define HEADRACE_GUARDS_H

#include <stdint.h>

#include "plan.h"

/* By hr_field_id, as Python calls them. */
extern const char *const hr_field_names[HR_FIELDS];

/* Fills all guards of a payload. */
void hr_guards_write(const hr_plan *plan, uint8_t *payload);

/* The first field whose guard is broken (the one behind it, or, for the first field, before it), or HR_FIELDS:
 * all are whole. */
hr_field_id hr_guards_broken(const hr_plan *plan, const uint8_t *payload);

#endif
