/* Saving what a producer holds between two slots, and taking it up again: bit for bit as if never interrupted. */
#include "rollout_state.h"

#include <stdio.h>
#include <string.h>

#include "../ringbuf/state.h"

#define NOISE_STREAM 0x6e6f697365ull /* keeps action noise apart from world seeds */

void rollout_seed(rollout *r, uint64_t restart, uint64_t *seeds) {
    const hr_plan *plan = r->plan;
    r->restart = restart;
    r->noise_key = rng_mix(plan->run_seed ^ NOISE_STREAM ^ restart * 0x9e3779b97f4a7c15u);
    host_world_seeds(plan->run_seed, plan->first_world, (int32_t)plan->worlds, restart, HOST_TRAIN, seeds);
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes > 0) memcpy(to, from, bytes);
}

int rollout_save(rollout *r) {
    const hr_plan *plan = r->plan;
    hr_state_layout at = hr_state_layout_of(plan);
    for (uint32_t w = 0; w < plan->worlds; w++) {
        size_t bytes = host_state_bytes(&r->host, (int32_t)w);
        if (bytes == plan->world_state_bytes) continue;
        fprintf(stderr, "simulator %s: the state of world %llu has %zu bytes, and had %llu at the start of the run\n",
                plan->sim, (unsigned long long)(plan->first_world + w), bytes,
                (unsigned long long)plan->world_state_bytes);
        return -1;
    }
    unsigned char *area = hr_state_begin(r->ring);
    copy(area + at.obs, r->next_obs, r->row_bytes);
    copy(area + at.mask, r->next_mask, plan->has_mask ? r->mask_bytes : 0);
    copy(area + at.reset_before, r->reset_before, plan->agents);
    copy(area + at.recurrent, r->state, (size_t)plan->agents * plan->state_width * sizeof(float));
    for (uint32_t w = 0; w < plan->worlds; w++) {
        int error = host_save(&r->host, (int32_t)w, area + at.worlds + w * at.world_stride);
        if (error < 0) {
            fprintf(stderr, "simulator %s: world %llu cannot be saved (%d)\n", plan->sim,
                    (unsigned long long)(plan->first_world + w), error);
            return -1;
        }
    }
    hr_state_done(r->ring, r->step, r->restart);
    return 0;
}

int rollout_restore(rollout *r) {
    const hr_state_head *head = hr_state_pending(r->ring);
    if (head == NULL) return 0;
    const hr_plan *plan = r->plan;
    const unsigned char *area = (const unsigned char *)head;
    hr_state_layout at = hr_state_layout_of(plan);
    for (uint32_t w = 0; w < plan->worlds; w++) {
        int error = host_load(&r->host, (int32_t)w, area + at.worlds + w * at.world_stride);
        if (error < 0) {
            fprintf(stderr, "simulator %s: world %llu does not take up its saved state (%d)\n", plan->sim,
                    (unsigned long long)(plan->first_world + w), error);
            return -1;
        }
    }
    copy(r->first_obs, area + at.obs, r->row_bytes);
    copy(r->next_mask, area + at.mask, plan->has_mask ? r->mask_bytes : 0);
    copy(r->reset_before, area + at.reset_before, plan->agents);
    copy(r->state, area + at.recurrent, (size_t)plan->agents * plan->state_width * sizeof(float));
    r->step = head->step;
    r->carried = 1;
    hr_state_taken(r->ring);
    return 1;
}
