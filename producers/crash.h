/* How a producer ends when its simulator is at fault: one line that lets the author reproduce it, the same in
 * the crash counters of the control block, and a backtrace where a signal was the end. */
#ifndef HEADRACE_CRASH_H
#define HEADRACE_CRASH_H

#include <stdint.h>

#include "../ringbuf/control.h"
#include "rollout_state.h"

/* From here on fatal signals (SEGV, BUS, FPE, ILL, ABRT) are reported before they kill, on a stack of their own,
 * and SIGUSR1 opens `log` again as standard output and error, if it can be opened (NULL: the signal is ignored).
 * Clears the crash counters of the process before. `log` must live on. */
void crash_install(hr_control *control, const char *log);

/* What the report speaks of from now on. */
void crash_watch(const rollout *r);

/* A fault that the producer found itself, in world `world` of the ring (-1: in none that can be named) at step
 * `step`; `what` reads on after the simulator's name. */
__attribute__((format(printf, 4, 5))) void crash_found(const rollout *r, int32_t world, uint64_t step,
                                                       const char *what, ...);

#endif
