/* One step of some of a producer's worlds, from the action rows of a slot into its other rows. */
#include "rollout_step.h"

#include <string.h>

#include "crash.h"

static void *field(const rollout *r, unsigned char *payload, hr_field_id id) {
    return r->plan->field[id].dtype == 0 ? NULL : payload + r->plan->field[id].offset;
}

slot_rows slot_rows_of(const rollout *r, unsigned char *payload) {
    return (slot_rows){
        .obs = field(r, payload, HR_OBS),
        .action = field(r, payload, HR_ACTION),
        .records = field(r, payload, HR_EPISODES),
        .mask = field(r, payload, HR_MASK),
        .terminated = field(r, payload, HR_TERMINATED),
        .truncated = field(r, payload, HR_TRUNCATED),
        .valid = field(r, payload, HR_VALID),
        .logprob = field(r, payload, HR_LOGPROB),
        .reward = field(r, payload, HR_REWARD),
        .state0 = field(r, payload, HR_STATE0),
        .version = field(r, payload, HR_VERSION),
    };
}

/* What the simulator gets of continuous actions: the sample, clipped to the bounds. */
static const void *actions_for_simulator(rollout *r, const void *actions, uint32_t begin, uint32_t end) {
    if (!r->plan->continuous) return actions;
    const float *sample = actions;
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t h = 0; h < r->plan->heads; h++) {
            float x = sample[i * r->plan->heads + h], low = r->plan->action_low[h], high = r->plan->action_high[h];
            r->clipped[i * r->plan->heads + h] = x < low ? low : x > high ? high : x;
        }
    return r->clipped;
}

/* Appends the episodes that ended in one step to the slot's records. */
static uint64_t record_episodes(const rollout *r, unsigned char *records, uint64_t count, int ended, uint64_t version) {
    for (int i = 0; i < ended; i++) {
        const host_episode *from = (const host_episode *)(r->ended + (size_t)i * host_episode_bytes(r->host.api));
        hr_episode *to = (hr_episode *)(records + (count + (uint64_t)i) * r->plan->episode_bytes);
        *to = (hr_episode){.version = (int64_t)version, .agent = from->agent, .length = from->length, .ret = from->value};
        memcpy(to->statistics, from->statistics, r->plan->statistics * sizeof(float));
    }
    return count + (uint64_t)ended;
}

outcome step_worlds(rollout *r, const slot_rows *s, uint32_t t, uint32_t first, uint32_t count, uint64_t version,
                    hr_facts *facts) {
    const hr_plan *plan = r->plan;
    uint32_t begin = first * plan->world_agents, end = begin + count * plan->world_agents;
    size_t row = (size_t)t * plan->agents;
    /* The mask of row T belongs to the next slot's first step. */
    uint8_t *mask_after = s->mask && t + 1 < plan->horizon ? s->mask + r->mask_bytes * (t + 1) : r->next_mask;
    host_rows rows = {
        .actions = actions_for_simulator(r, s->action + r->action_bytes * t, begin, end),
        .obs = s->obs + r->row_bytes * (t + 1),
        .mask = s->mask ? mask_after : NULL,
        .rewards = s->reward + row,
        .terminated = s->terminated + row,
        .truncated = s->truncated + row,
        .valid = s->valid + row,
    };
    int ended = host_step_range(&r->host, (int32_t)first, (int32_t)count, &rows, r->ended);
    if (ended < 0) {
        crash_found(r, r->host.failed_world, r->step, "returned the error %d", ended);
        return FAILED;
    }
    facts->episodes = record_episodes(r, s->records, facts->episodes, ended, version);
    const uint8_t *terminated = rows.terminated, *valid = rows.valid;
    uint32_t valid_agents = 0;
    for (uint32_t i = begin; i < end; i++) {
        valid_agents += valid[i];
        r->reset_before[i] = (uint8_t)(terminated[i] | (valid[i] ^ 1u));
    }
    facts->valid_steps += valid_agents;
    return DONE;
}
