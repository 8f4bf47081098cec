/* Loading a simulator's shared library and its parameters. */
#include "simlib.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const sim_api *simlib_load(const char *path, char *error, size_t capacity) {
    /* Lazy: a simulator may leave the symbols of a renderer undefined that a producer never calls. */
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(error, capacity, "cannot load the simulator: %s (built with `make build`)", dlerror());
        return NULL;
    }
    /* A pointer to data may not be cast to one to a function in ISO C; POSIX gives this form. */
    const sim_api *(*entry)(void);
    *(void **)&entry = dlsym(library, "sim_entry");
    if (entry == NULL) {
        snprintf(error, capacity, "%s is not a simulator: it exports no sim_entry (see sims/sim.h)", path);
        return NULL;
    }
    const sim_api *api = entry();
    if (api == NULL || api->abi != SIM_ABI || api->bytes != sizeof(sim_api)) {
        snprintf(error, capacity, "%s was built for simulator ABI %u, this producer needs %u: run `make build`", path,
                 api == NULL ? 0 : api->abi, SIM_ABI);
        return NULL;
    }
    if (api->n_params < 0 || api->n_params > SIM_MAX_PARAMS || api->n_statistics < 1 ||
        api->n_statistics > SIM_MAX_STATISTICS || api->score < 0 || api->score >= api->n_statistics ||
        api->shape == NULL || api->create == NULL || api->destroy == NULL || api->reset == NULL ||
        api->step == NULL) {
        snprintf(error, capacity, "%s: its table breaks the rules of sims/sim.h (python -m sims.check names them)", path);
        return NULL;
    }
    return api;
}

void simlib_defaults(const sim_api *api, double *values) {
    for (int i = 0; i < api->n_params; i++) values[i] = api->params[i].value;
}

int simlib_set(const sim_api *api, double *values, const char *name, double value, char *error, size_t capacity) {
    for (int i = 0; i < api->n_params; i++) {
        const sim_param *p = &api->params[i];
        if (strcmp(p->name, name) != 0) continue;
        if (!(value >= p->low && value <= p->high) || (p->kind != SIM_FLOAT && value != floor(value))) {
            snprintf(error, capacity, "%s.%s is %.17g; it must be %s from %.17g to %.17g", api->name, name, value,
                     p->kind == SIM_FLOAT ? "a number" : "a whole number", p->low, p->high);
            return -1;
        }
        values[i] = value;
        return 0;
    }
    snprintf(error, capacity, "the simulator %s has no parameter %s", api->name, name);
    return -1;
}
