/* Guards: memory between the fields of a slot that belongs to nobody. */
#include "guards.h"

#include <string.h>

#include "layout.h"

#define LONGEST (HR_GUARD_BYTES + HR_ALIGN)

/* No value that a simulator is likely to write by mistake: neither 0, 1 nor 255, and no common float. */
static const uint8_t pattern[LONGEST] = {[0 ... LONGEST - 1] = 0xB5};

const char *const hr_field_names[HR_FIELDS] = {"obs",       "action", "logprob", "mask",   "reward",  "terminated",
                                              "truncated", "valid",  "version", "state0", "episodes"};

/* The guard behind a field; it begins with what aligning the next field leaves over. */
static uint64_t behind(const hr_field *f, uint64_t *bytes)
{
    uint64_t end = f->offset + f->bytes;
    *bytes = (HR_ALIGN - end % HR_ALIGN) % HR_ALIGN + HR_GUARD_BYTES;
    return end;
}

/* The first line of the payload holds a stamp and, behind it, the guard before the first field. */
static const uint64_t first_guard = sizeof(uint64_t), first_guard_bytes = HR_ALIGN - sizeof(uint64_t);

void hr_guards_write(const hr_plan *plan, uint8_t *payload)
{
    memcpy(payload + first_guard, pattern, first_guard_bytes);
    for (int id = 0; id < HR_FIELDS; id++) {
        uint64_t bytes, at = behind(&plan->field[id], &bytes);
        if (plan->field[id].dtype != 0)
            memcpy(payload + at, pattern, bytes);
    }
}

hr_field_id hr_guards_broken(const hr_plan *plan, const uint8_t *payload)
{
    if (memcmp(payload + first_guard, pattern, first_guard_bytes) != 0)
        return HR_OBS;
    for (int id = 0; id < HR_FIELDS; id++) {
        uint64_t bytes, at = behind(&plan->field[id], &bytes);
        if (plan->field[id].dtype != 0 && memcmp(payload + at, pattern, bytes) != 0)
            return (hr_field_id)id;
    }
    return HR_FIELDS;
}
