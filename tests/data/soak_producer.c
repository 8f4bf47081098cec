/* A producer without a simulator: fills slot after slot with what tells where it comes from.
 *
 *     soak_producer CONTROL_FD RING_FD WEIGHTS_FD PROCESS
 *
 * A payload is (ring, epoch, sequence) as uint64, then bytes that follow from these three. Weights of version v
 * are v all over; anything else is torn. Exits 0 at a stop, 70 when the sequence numbers are used up. */
#include "ringbuf/layout.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define SLICE_NS 5000000000ull /* so long that a missed wake-up is seen */

static void need(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "soak_producer: %s\n", what);
        exit(1);
    }
}

static uint64_t take(hr_ring *r, const hr_weights *w, float *copy)
{
    uint64_t version;
    do {
        version = hr_ring_announce(r, w);
        if (version == HR_NONE)
            hr_ring_wait_published(r, w, HR_NONE, SLICE_NS);
    } while (hr_control_stop(r->control) == HR_RUN && (version == HR_NONE || !hr_weights_copy(w, version, copy)));
    if (hr_control_stop(r->control) == HR_RUN)
        for (uint64_t i = 0; i < w->count; i++)
            need(copy[i] == (float)version, "torn weights");
    return version;
}

static void fill(const hr_ring *r)
{
    unsigned char *obs = hr_ring_field(r, HR_OBS);
    const uint64_t bytes = r->plan.field[HR_OBS].bytes;
    const uint64_t epoch = atomic_load(&hr_ring_lines(r)->epoch);
    const uint64_t head[3] = {r->plan.ring, epoch, r->sequence};
    const uint64_t first = head[0] * 7 + head[1] * 31 + head[2] * 131;
    memset(obs, 0xee, bytes);
    memcpy(obs, head, sizeof head);
    for (uint64_t i = sizeof head; i < bytes; i++)
        obs[i] = (unsigned char)(first + i);
}

int main(int argc, char **argv)
{
    static char error[512];
    hr_control control;
    hr_ring ring;
    hr_weights weights;
    need(argc == 5, "usage");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    need(hr_control_attach(&control, atoi(argv[1]), (uint32_t)atoi(argv[4]), error, sizeof error) == 0, error);
    need(hr_ring_attach(&ring, atoi(argv[2]), &control, error, sizeof error) == 0, error);
    need(hr_weights_attach(&weights, atoi(argv[3]), error, sizeof error) == 0, error);
    float *copy = malloc(weights.count * sizeof *copy);
    for (;;) {
        hr_claimable why = hr_ring_claimable(&ring);
        if (why == HR_STOPPED)
            return 0;
        if (why == HR_EXHAUSTED)
            return 70;
        if (why == HR_SKIP) {
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* a segment's steps */
            hr_ring_skip(&ring);
            continue;
        }
        if (why != HR_CLAIMABLE) {
            hr_ring_wait(&ring, SLICE_NS);
            continue;
        }
        uint64_t version = take(&ring, &weights, copy);
        if (version == HR_NONE || hr_ring_claim(&ring, version) != 0) {
            hr_ring_abort(&ring);
            continue;
        }
        fill(&ring);
        hr_ring_commit(&ring, &(hr_facts){.valid_steps = 16, .newest_version = version});
    }
}
