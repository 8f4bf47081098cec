/* A producer and a learner as threads on one mapping, for the race detector; slots are checked byte by byte.
 *
 *     race CONTROL_FD RING_FD TURNS
 *
 * One mapping, since the detector does not see that two mappings are the same memory; and no bells, which
 * would order what the words themselves have to order. */
#include "ringbuf/learner.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hr_control producer_control, learner_control;
static hr_ring producer, learner;
static uint64_t turns;

static void *produce(void *unused)
{
    (void)unused;
    for (uint64_t turn = 0; turn < turns; turn++) {
        while (hr_ring_claimable(&producer) != HR_CLAIMABLE)
            sched_yield();
        if (hr_ring_claim(&producer, 0) != 0)
            abort();
        memset(hr_ring_field(&producer, HR_OBS), (int)(turn & 255), producer.plan.field[HR_OBS].bytes);
        hr_ring_commit(&producer, &(hr_facts){.valid_steps = turn});
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char error[512] = "";
    if (argc != 4 || hr_control_attach(&producer_control, atoi(argv[1]), 100, error, sizeof error) != 0 ||
        hr_ring_attach(&producer, atoi(argv[2]), &producer_control, error, sizeof error) != 0) {
        fprintf(stderr, "race: %s\n", error);
        return 2;
    }
    turns = strtoull(argv[3], NULL, 10);
    learner_control = producer_control;
    learner_control.self = 1;
    learner = producer;
    learner.control = &learner_control;
    hr_ring_grant(&learner, turns);
    pthread_t thread;
    if (pthread_create(&thread, NULL, produce, NULL) != 0)
        return 2;
    for (uint64_t turn = 0; turn < turns; turn++) {
        while (hr_word_state(hr_ring_look(&learner, (uint32_t)(turn % learner.slots)).word) != HR_READY)
            sched_yield();
        if (hr_ring_lease(&learner, turn) != HR_LEASE_GOOD)
            return 3;
        const unsigned char *obs = hr_ring_payload(&learner, turn) + learner.plan.field[HR_OBS].offset;
        for (uint64_t i = 0; i < learner.plan.field[HR_OBS].bytes; i++)
            if (obs[i] != (turn & 255))
                return 4;
        if (hr_ring_ack(&learner, turn, HR_CONSUMED) != 0)
            return 5;
    }
    pthread_join(thread, NULL);
    return 0;
}
