/* A simulator's spec as JSON, for the supervisor. */
#ifndef HEADRACE_DESCRIBE_H
#define HEADRACE_DESCRIBE_H

#include "../sims/sim.h"

/* Prints one JSON object on standard output. 0, or the simulator's negative error. */
int describe(const sim_api *api, const double *values);

#endif
