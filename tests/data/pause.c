/* Linked into a producer by tests/test_staleness.py with --wrap=hr_weights_published: every third look at the
 * published version is followed by a pause. One of those looks stands between loading a version and announcing it,
 * which is where a producer may be overtaken by publications. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "weights.h"

uint64_t __real_hr_weights_published(const hr_weights *w);
uint64_t __wrap_hr_weights_published(const hr_weights *w);

uint64_t __wrap_hr_weights_published(const hr_weights *w)
{
    static uint64_t state;
    uint64_t version = __real_hr_weights_published(w);
    if (state == 0)
        state = (uint64_t)getpid();
    state = state * 6364136223846793005u + 1442695040888963407u;
    if ((state >> 33) % 3 == 0) {
        struct timespec pause = {.tv_nsec = (long)((state >> 40) % 30) * 1000000};
        nanosleep(&pause, NULL);
    }
    return version;
}
