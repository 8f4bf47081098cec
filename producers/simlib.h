/* Loading a simulator's shared library and its parameters. */
#ifndef HEADRACE_SIMLIB_H
#define HEADRACE_SIMLIB_H

#include <stddef.h>

#include "../sims/sim.h"

/* Loads the library at `path` and checks its ABI and table; NULL with one line in `error`. The library stays loaded. */
const sim_api *simlib_load(const char *path, char *error, size_t capacity);

/* Fills `values` [n_params] with the defaults. */
void simlib_defaults(const sim_api *api, double *values);

/* Sets the parameter `name` after checking kind and bounds. 0, or -1 with one line in `error`. */
int simlib_set(const sim_api *api, double *values, const char *name, double value, char *error, size_t capacity);

#endif
