/* The producer's work: step the worlds, run the policy, write trajectory slots in place.
 *
 * Data flow of one slot: wait for credit and room, announce the acting version, copy its weights, claim the slot,
 * then T times policy -> action row t -> simulators -> observation row t+1, then commit. Nothing is copied but the
 * first observation row, which is the last of the slot before. Where an inference server acts, rollout_served.c fills
 * the slot. */
#include "rollout.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ringbuf/guards.h"
#include "../ringbuf/state.h"
#include "../ringbuf/serving.h"
#include "crash.h"
#include "rollout_state.h"
#include "rollout_step.h"

/* Copies the newest weights if they are newer than those in hand. In async alone; never torn. */
static void pick_up_newest(rollout *r) {
    uint64_t published;
    uint64_t mark = hr_now_ns();
    while ((published = hr_weights_published(r->weights)) != r->loaded) {
        if (hr_weights_copy(r->weights, published, r->flat)) {
            hr_policy_load(r->policy, r->flat);
            r->loaded = published;
            hr_control_add(r->control, HR_P_pickups, 1);
            hr_control_add(r->control, HR_P_pickup_ns, hr_since(&mark));
            return;
        }
        hr_control_add(r->control, HR_P_pickup_retries, 1);
    }
}

/* Sleeps until a version other than `seen` is published. */
static outcome wait_published(rollout *r, uint64_t seen) {
    uint64_t mark = hr_now_ns();
    hr_control_pulse(r->control, HR_PHASE_WAIT_VERSION, r->step, mark);
    hr_ring_wait_published(r->ring, r->weights, seen, WAIT_SLICE_NS);
    hr_control_add(r->control, HR_P_wait_version_ns, hr_since(&mark));
    return hr_control_stop(r->control) == HR_RUN ? DONE : STOPPED;
}

/* Async: shows the acting version and, where this producer acts itself, takes weights that are at least as new. */
static outcome take_announced(rollout *r, uint64_t *version) {
    while (hr_weights_published(r->weights) == HR_NONE)
        if (wait_published(r, HR_NONE) == STOPPED) return STOPPED;
    for (;;) {
        *version = hr_ring_announce(r->ring, r->weights);
        if (r->loaded == *version || r->policy == NULL) return DONE;
        uint64_t mark = hr_now_ns();
        bool good = hr_weights_copy(r->weights, *version, r->flat);
        hr_control_add(r->control, HR_P_pickup_ns, hr_since(&mark));
        if (good) {
            hr_policy_load(r->policy, r->flat);
            r->loaded = *version;
            hr_control_add(r->control, HR_P_pickups, 1);
            return DONE;
        }
        hr_control_add(r->control, HR_P_pickup_retries, 1);
    }
}

/* The channel holds a version for as long as a slot may be due that it acts. */
static outcome left_channel(const rollout *r, uint64_t version) {
    fprintf(stderr, "version %llu left the weights channel before it was used: the channel has %u buffers, too few\n",
            (unsigned long long)version, r->weights->buffers);
    return FAILED;
}

/* Sync and lagged: waits for the one version this slot is due and, where this producer acts itself, takes it. */
static outcome take_exact(rollout *r, uint64_t *version) {
    *version = hr_ring_exact_version(r->ring);
    for (;;) {
        uint64_t published = hr_weights_published(r->weights);
        if (published != HR_NONE && published >= *version) break;
        if (wait_published(r, published) == STOPPED) return STOPPED;
    }
    if (r->loaded == *version || r->policy == NULL) return DONE;
    uint64_t mark = hr_now_ns();
    while (!hr_weights_copy(r->weights, *version, r->flat)) {
        /* A roll-back may have moved the base between the two loads that gave the version. */
        uint64_t stale = *version;
        *version = hr_ring_exact_version(r->ring);
        if (*version == stale) return left_channel(r, stale);
    }
    hr_policy_load(r->policy, r->flat);
    r->loaded = *version;
    hr_control_add(r->control, HR_P_pickups, 1);
    hr_control_add(r->control, HR_P_pickup_ns, hr_since(&mark));
    return DONE;
}

/* The first reward that is not finite, as an index into [T, B]; `count` if all are. */
static size_t first_not_finite(const float *reward, size_t count) {
    uint32_t bits, found = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, reward + i, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    if (!found) return count;
    size_t i = 0;
    while (isfinite(reward[i])) i++;
    return i;
}

/* A simulator that breaks its contract is found here, before anybody learns from what it wrote. */
static outcome check_segment(const rollout *r, const unsigned char *payload) {
    const hr_plan *plan = r->plan;
    hr_field_id broken = hr_guards_broken(plan, payload);
    if (broken < HR_FIELDS) {
        /* The rows of the last world end where the guard begins. */
        unsigned long long first = plan->first_world;
        crash_found(r, (int32_t)plan->worlds - 1, r->step - 1,
                    "wrote past its rows of %s within %u steps; of the worlds %llu to %llu the nearest is",
                    hr_field_names[broken], plan->horizon, first, first + plan->worlds - 1);
        return FAILED;
    }
    const float *reward = (const float *)(payload + plan->field[HR_REWARD].offset);
    size_t count = (size_t)plan->horizon * plan->agents, bad = first_not_finite(reward, count);
    if (bad < count) {
        crash_found(r, (int32_t)(bad % plan->agents / plan->world_agents), r->step - plan->horizon + bad / plan->agents,
                    "gave the reward %f", (double)reward[bad]);
        return FAILED;
    }
    return DONE;
}

/* Steps one segment of `horizon` steps into `payload`, which is that of the claimed slot or scratch memory, and acts
 * itself. */
static outcome fill(rollout *r, unsigned char *payload, hr_facts *facts) {
    const hr_plan *plan = r->plan;
    slot_rows s = slot_rows_of(r, payload);
    uint32_t agents = plan->agents, horizon = plan->horizon;

    uint64_t mark = hr_now_ns(), policy_ns = 0, sim_ns = 0;
    if (s.state0) {
        for (uint32_t i = 0; i < agents; i++)
            if (r->reset_before[i]) memset(r->state + (size_t)i * plan->state_width, 0, plan->state_width * sizeof(float));
        memset(r->reset_before, 0, agents);
        memcpy(s.state0, r->state, (size_t)agents * plan->state_width * sizeof(float));
    }
    for (uint32_t t = 0; t < horizon; t++) {
        if (plan->mode == HR_ASYNC) {
            if (hr_control_stop(r->control) != HR_RUN) {
                hr_control_add(r->control, HR_P_abandoned_steps_stop, facts->valid_steps);
                return STOPPED;
            }
            if (plan->pickup == HR_PICKUP_STEP && t > 0) {
                pick_up_newest(r);
                mark = hr_now_ns();
            }
        }
        hr_control_pulse(r->control, HR_PHASE_POLICY, r->step, mark);
        s.version[t] = (int64_t)r->loaded;
        hr_policy_act(r->policy, s.obs + r->row_bytes * t, s.mask ? s.mask + r->mask_bytes * t : NULL, r->state,
                      r->reset_before, r->noise_key, plan->first_agent, r->step, 0, s.action + r->action_bytes * t,
                      s.logprob + (size_t)t * agents);
        policy_ns += hr_since(&mark);
        hr_control_pulse(r->control, HR_PHASE_STEP, r->step, mark);
        if (step_worlds(r, &s, t, 0, plan->worlds, r->loaded, facts) != DONE) return FAILED;
        sim_ns += hr_since(&mark);
        r->step++;
    }
    r->next_obs = s.obs + r->row_bytes * horizon;
    facts->newest_version = r->loaded;
    hr_control_add(r->control, HR_P_policy_ns, policy_ns);
    hr_control_add(r->control, HR_P_sim_ns, sim_ns);
    return DONE;
}

/* One segment, whoever acts, and a look at what the simulator wrote. */
static outcome write_segment(rollout *r, unsigned char *payload, uint64_t version, hr_facts *facts) {
    const hr_plan *plan = r->plan;
    uint64_t mark = hr_now_ns(), check_ns;
    hr_guards_write(plan, payload);
    check_ns = hr_since(&mark);
    slot_rows s = slot_rows_of(r, payload);
    memmove(s.obs, r->next_obs, r->row_bytes);
    if (s.mask) memcpy(s.mask, r->next_mask, r->mask_bytes);
    *facts = (hr_facts){.newest_version = version};
    outcome filled = plan->server != 0 ? fill_served(r, &s, version, facts) : fill(r, payload, facts);
    if (filled != DONE) return filled;
    mark = hr_now_ns();
    outcome checked = check_segment(r, payload);
    hr_control_add(r->control, HR_P_check_ns, check_ns + hr_since(&mark));
    return checked;
}

static void count_committed(rollout *r, const hr_facts *facts) {
    const hr_plan *plan = r->plan;
    uint64_t rows = (uint64_t)plan->horizon * plan->agents;
    hr_control *c = r->control;
    hr_control_add(c, HR_P_steps, facts->valid_steps);
    hr_control_add(c, HR_P_invalid_steps, rows - facts->valid_steps);
    hr_control_add(c, HR_P_slots, 1);
    hr_control_add(c, HR_P_episodes, facts->episodes);
    hr_control_add(c, HR_P_bytes_packed, rows * plan->packed_step_bytes);
    hr_control_add(c, HR_P_bytes_unpacked, rows * plan->unpacked_step_bytes);
}

/* One segment that a dropping policy has no room for: the worlds go on, the ring gets a hole. */
static outcome step_without_room(rollout *r) {
    if (r->scratch == NULL) r->scratch = aligned_alloc(64, (r->plan->payload_bytes + 63) / 64 * 64);
    if (r->scratch == NULL) {
        fprintf(stderr, "no memory for a scratch slot of %llu bytes\n", (unsigned long long)r->plan->payload_bytes);
        return FAILED;
    }
    hr_facts facts;
    while (hr_weights_published(r->weights) == HR_NONE)
        if (wait_published(r, HR_NONE) == STOPPED) return STOPPED;
    pick_up_newest(r);
    outcome done = write_segment(r, r->scratch, r->loaded, &facts);
    if (done == DONE) {
        /* The scratch payload is used again, so its last row moves out of the way of its first. */
        memcpy(r->first_obs, r->next_obs, r->row_bytes);
        r->next_obs = r->first_obs;
        hr_ring_skip(r->ring);
    }
    return done;
}

static outcome produce_slot(rollout *r) {
    uint64_t version;
    bool exact = r->plan->mode == HR_EXACT;
    outcome taken = exact ? take_exact(r, &version) : take_announced(r, &version);
    if (taken != DONE) {
        hr_ring_abort(r->ring);
        return taken;
    }
    if (hr_ring_claim(r->ring, version) != 0) {
        hr_ring_abort(r->ring); /* a lease won the slot meanwhile; the announcement is withdrawn */
        return DONE;
    }
    hr_facts facts;
    outcome filled = write_segment(r, hr_ring_claimed(r->ring), version, &facts);
    if (filled != DONE) hr_ring_abort(r->ring);
    if (filled == REFUSED) return exact && hr_ring_exact_version(r->ring) == version ? left_channel(r, version) : DONE;
    if (filled != DONE) return filled == GIVEN_UP ? DONE : filled;
    hr_ring_commit(r->ring, &facts);
    count_committed(r, &facts);
    return DONE;
}

static void wait_for_room(rollout *r, hr_claimable why) {
    hr_phase phase = why == HR_WAIT_CREDIT ? HR_PHASE_WAIT_CREDIT : why == HR_WAIT_FULL ? HR_PHASE_WAIT_FULL : HR_PHASE_WAIT_OWNER;
    uint32_t counter = why == HR_WAIT_CREDIT ? HR_P_wait_credit_ns
                       : why == HR_WAIT_FULL ? HR_P_wait_ring_full_ns
                                             : HR_P_wait_owner_ns;
    uint64_t mark = hr_now_ns();
    hr_control_pulse(r->control, phase, r->step, mark);
    hr_ring_wait(r->ring, WAIT_SLICE_NS);
    hr_control_add(r->control, counter, hr_since(&mark));
}

/* The next producer of this ring, or of this run, goes on from here. */
static outcome save(rollout *r) {
    hr_control_pulse(r->control, HR_PHASE_SAVING, r->step, hr_now_ns());
    return rollout_save(r) == 0 ? DONE : FAILED;
}

/* In the exact modes a stop falls between two slots, so the run can be taken up from there. */
static int stop(rollout *r) {
    hr_control_pulse(r->control, HR_PHASE_STOPPING, r->step, hr_now_ns());
    return r->plan->state_bytes == 0 || save(r) == DONE ? 0 : 70;
}

static int stream(rollout *r) {
    for (;;) {
        hr_claimable why = hr_ring_claimable(r->ring);
        outcome done = DONE;
        switch (why) {
        case HR_CLAIMABLE: done = produce_slot(r); break;
        case HR_SKIP: done = step_without_room(r); break;
        case HR_WAIT_CREDIT:
        case HR_WAIT_FULL:
        case HR_WAIT_OWNER: wait_for_room(r, why); break;
        case HR_SAVE: done = save(r); break;
        case HR_STOPPED: return stop(r);
        case HR_EXHAUSTED:
            fprintf(stderr, "ring %u has used up its sequence numbers (2^45); start a new run\n", r->plan->ring);
            return 70;
        }
        if (done == STOPPED) return stop(r);
        if (done == FAILED) return 70;
    }
}

static size_t dtype_bytes(uint32_t dtype) {
    switch (dtype) {
    case HR_UINT8:
    case HR_INT8: return 1;
    case HR_INT32:
    case HR_FLOAT32: return 4;
    default: return 8;
    }
}

int rollout_run(const sim_api *api, const double *params, hr_control *control, hr_ring *ring, const hr_weights *weights) {
    const hr_plan *plan = &ring->plan;
    char error[512] = "";
    size_t agents = plan->agents;
    static rollout r; /* a signal handler looks at it until the process has ended */
    r = (rollout){.plan = plan, .control = control, .ring = ring, .weights = weights, .loaded = HR_NONE, .host.inside = -1};
    const hr_field *obs = &plan->field[HR_OBS];
    r.row_bytes = dtype_bytes(obs->dtype) * agents;
    for (uint32_t d = 2; d < obs->dims; d++) r.row_bytes *= obs->shape[d];
    r.mask_bytes = agents * plan->logits;
    r.action_bytes = agents * plan->heads * 4;

    r.flat = malloc(weights->count * sizeof(float));
    /* Worlds write into these two as well; what goes a little past them is to be found in a slot, and not to break
     * the heap before. */
    r.first_obs = malloc(r.row_bytes + HR_GUARD_BYTES);
    r.next_mask = malloc(r.mask_bytes + HR_GUARD_BYTES);
    r.state = plan->server != 0 ? hr_serving_carry(ring) : calloc(agents * plan->state_width + 1, sizeof(float));
    r.reset_before = calloc(agents, 1);
    r.clipped = malloc(r.action_bytes);
    r.ended = malloc(agents * host_episode_bytes(api));
    uint64_t *seeds = malloc(plan->worlds * sizeof *seeds);
    if (!seeds || !r.flat || !r.first_obs || !r.next_mask || !r.state || !r.reset_before || !r.clipped || !r.ended) {
        fprintf(stderr, "no memory for %zu agents\n", agents);
        return 69;
    }
    if (plan->server == 0) r.policy = hr_policy_create(weights->program, weights->program_bytes, plan->agents, error, sizeof error);
    if (plan->server == 0 && r.policy == NULL) {
        fprintf(stderr, "the policy program cannot be run: %s\n", error);
        return 70;
    }
    crash_watch(&r);
    const hr_state_head *saved = hr_state_pending(ring);
    rollout_seed(&r, saved != NULL ? saved->restart : plan->restart_base + hr_ring_epoch(ring), seeds);
    int status = host_create(&r.host, api, params, (int32_t)plan->worlds, seeds);
    free(seeds);
    if (status < 0) {
        fprintf(stderr, "simulator %s: cannot create %u worlds (%d)\n", plan->sim, plan->worlds, status);
        return status == HOST_MEMORY ? 69 : 70;
    }
    r.next_obs = r.first_obs;
    int restored = rollout_restore(&r);
    if (restored != 0) return restored < 0 ? 70 : stream(&r);
    status = host_reset(&r.host, r.first_obs, plan->has_mask ? r.next_mask : NULL);
    if (status < 0) {
        crash_found(&r, r.host.failed_world, 0, "returned the error %d at reset", status);
        return 70;
    }
    return stream(&r);
}
