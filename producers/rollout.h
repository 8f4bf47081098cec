/* The producer's work: step the worlds, run the policy, write trajectory slots in place. */
#ifndef HEADRACE_ROLLOUT_H
#define HEADRACE_ROLLOUT_H

#include "../ringbuf/ring.h"
#include "../sims/sim.h"

/* Streams slots until the run's stop flag is set. The process' exit code (0, 69, 70); trouble is named on
 * standard error. */
int rollout_run(const sim_api *api, const double *params, hr_control *control, hr_ring *ring, const hr_weights *weights);

#endif
