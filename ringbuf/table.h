/* The control block as the supervisor and Python see it: creation, flags, gauges. Private to ringbuf/. */
#ifndef HEADRACE_TABLE_H
#define HEADRACE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "control.h"

#define X(name) HR_G_##name,
typedef enum hr_learner_gauge {
    HR_LEARNER_GAUGES(X) HR_G_COUNT
} hr_learner_gauge;
#undef X
_Static_assert(HR_G_COUNT <= HR_GAUGES, "gauges fit");

uint64_t hr_control_bytes(void);

/* Fills a zeroed segment of hr_control_bytes(); `directory` is the run directory's absolute path, or empty.
 * 0, or -1 with one line in `error`. */
int hr_control_format(int fd, const uint8_t run_id[16], const char *directory, char *error, size_t capacity);

/* Stores the flag and rings every learner and server; the rings' own bells are the caller's to ring. */
void hr_control_set_stop(hr_control *c, hr_stop_reason reason);
void hr_control_set_producers_gone(hr_control *c, int gone);
int hr_control_producers_gone(const hr_control *c);

/* How often the settings in the run directory have been written again; announcing rings every learner and server. */
uint32_t hr_control_settings(const hr_control *c);
void hr_control_announce_settings(hr_control *c);

/* The pulse of a process as before its first beat. For the supervisor, between reaping it and spawning the
 * next. */
void hr_control_reset_pulse(hr_control *c, uint32_t index);

void hr_control_ring_all(hr_control *c);
void hr_control_gauge(hr_control *c, uint32_t gauge, double value);

#endif
