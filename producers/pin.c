/* Pinning a process to one core. */
#include "pin.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

int pin_to_core(int core) {
    /* A machine may have more cores than the fixed cpu_set_t holds. */
    size_t bytes = CPU_ALLOC_SIZE(core + 1);
    cpu_set_t *set = CPU_ALLOC(core + 1);
    if (set == NULL) return 0;
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(core, bytes, set);
    int bound = sched_setaffinity(0, bytes, set) == 0;
    if (!bound) fprintf(stderr, "warning: cannot pin to core %d (%s); running unpinned\n", core, strerror(errno));
    CPU_FREE(set);
    return bound;
}
