/* The writing end of bench/ring.py: copies one buffer into slot after slot, with or without the ring's
 * protocol.
 *
 *     ring_producer memcpy|stream|single CONTROL_FD RING_FD CORE COUNT
 *
 * memcpy: COUNT copies into the slots in turn, no protocol. stream: COUNT slots as fast as the ring takes
 * them. single: COUNT slots, each after a nap of a millisecond, so that the reader is asleep. Prints the
 * seconds taken by the clock and by this process on its core. */
#include "../ringbuf/ring.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t second_ns = 1000000000ull;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / (double)second_ns;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    const char *mode = argv[1];
    const int core = atoi(argv[4]);
    const long count = atol(argv[5]);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET((size_t)core, &cores);
    char error[256];
    hr_control control;
    hr_ring ring;
    if (sched_setaffinity(0, sizeof cores, &cores) != 0 ||
        hr_control_attach(&control, atoi(argv[2]), 1, error, sizeof error) != 0 ||
        hr_ring_attach(&ring, atoi(argv[3]), &control, error, sizeof error) != 0) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    const size_t bytes = ring.plan.field[HR_OBS].bytes;
    unsigned char *source = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (source == NULL)
        return 1;
    memset(source, 7, bytes);
    unsigned char *first = hr_ring_field(&ring, HR_OBS);
    for (uint32_t slot = 0; slot < ring.slots; slot++) /* page tables are not what is measured */
        for (size_t at = 0; at < bytes; at += 4096)
            (void)*(volatile unsigned char *)(first + slot * ring.stride_bytes + at);

    const uint64_t begin_ns = hr_now_ns();
    const double begin_cpu = cpu_seconds();
    if (strcmp(mode, "memcpy") == 0) {
        for (long i = 0; i < count; i++)
            memcpy(first + (uint64_t)i % ring.slots * ring.stride_bytes, source, bytes);
    } else {
        const int naps = strcmp(mode, "single") == 0;
        const hr_facts facts = {.valid_steps = 1};
        for (long i = 0; i < count; i++) {
            if (naps)
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            while (hr_ring_claimable(&ring) != HR_CLAIMABLE)
                hr_ring_wait(&ring, second_ns);
            if (hr_ring_claim(&ring, 0) != 0)
                return 1;
            memcpy(hr_ring_field(&ring, HR_OBS), source, bytes);
            hr_ring_commit(&ring, &facts);
        }
    }
    printf("%.9f %.9f\n", (double)(hr_now_ns() - begin_ns) / (double)second_ns, cpu_seconds() - begin_cpu);
    free(source);
    return 0;
}
