/* A slot whose actions come from the inference server: one group of worlds steps while the other waits for its.
 *
 * The server writes actions, log-probabilities, versions and the recurrent state into the slot; here are only the
 * worlds. A slot never goes on across a death of the server: it is given up, its worlds are kept, and what they show
 * is the first row of the next one. */
#include <string.h>

#include "../ringbuf/serving.h"
#include "rollout_step.h"

typedef struct group {
    uint32_t first, count; /* worlds */
    uint32_t t;            /* steps of the slot that it has behind it */
    uint64_t number;       /* of its question */
} group;

/* The slot under way, as its groups see it. */
typedef struct serving {
    rollout *r;
    const slot_rows *s;
    uint64_t life, version, epoch;
    uint32_t groups;
    group group[HR_MAX_GROUPS];
} serving;

static void ask(serving *v, uint32_t g) {
    rollout *r = v->r;
    const group *of = &v->group[g];
    uint32_t first = of->first * r->plan->world_agents, agents = of->count * r->plan->world_agents;
    memcpy(hr_serving_reset_before(r->ring) + first, r->reset_before + first, agents);
    v->group[g].number = hr_serving_ask(r->ring, g,
                                        &(hr_question){.life = v->life,
                                                       .epoch = v->epoch,
                                                       .sequence = r->ring->sequence,
                                                       .t = of->t,
                                                       .step = r->step + of->t,
                                                       .noise_key = r->noise_key,
                                                       .version = v->version,
                                                       .carried = r->carried});
}

static hr_answered await(serving *v, uint32_t g) {
    rollout *r = v->r;
    uint64_t mark = hr_now_ns();
    hr_answered answer = hr_serving_look(r->ring, g, v->group[g].number, v->life);
    if (answer != HR_UNANSWERED) return answer;
    do {
        hr_control_pulse(r->control, HR_PHASE_WAIT_ANSWER, r->step, hr_now_ns());
        hr_serving_wait(r->ring, g, v->group[g].number, v->life, WAIT_SLICE_NS);
        answer = hr_serving_look(r->ring, g, v->group[g].number, v->life);
    } while (answer == HR_UNANSWERED);
    hr_control_add(r->control, HR_P_wait_answer_ns, hr_since(&mark));
    return answer;
}

static outcome step_group(serving *v, uint32_t g, hr_facts *facts) {
    rollout *r = v->r;
    group *of = &v->group[g];
    uint64_t mark = hr_now_ns(), acted = (uint64_t)v->s->version[of->t * v->groups + g];
    hr_control_pulse(r->control, HR_PHASE_STEP, r->step + of->t, mark);
    if (acted > facts->newest_version) facts->newest_version = acted;
    outcome stepped = step_worlds(r, v->s, of->t, of->first, of->count, acted, facts);
    of->t++;
    hr_control_add(r->control, HR_P_sim_ns, hr_since(&mark));
    return stepped;
}

/* Takes what each group's worlds show out of the slot, which somebody may write again. Its groups may have come
 * further or less far by one step; the agents' step number goes on from the furthest, so that no noise is used
 * twice. */
static void keep_worlds(serving *v) {
    rollout *r = v->r;
    const hr_plan *plan = r->plan;
    size_t obs_bytes = r->row_bytes / plan->agents, mask_bytes = plan->logits;
    uint32_t furthest = 0;
    for (uint32_t g = 0; g < v->groups; g++) {
        const group *of = &v->group[g];
        size_t first = (size_t)of->first * plan->world_agents, agents = (size_t)of->count * plan->world_agents;
        memcpy(r->first_obs + first * obs_bytes, v->s->obs + r->row_bytes * of->t + first * obs_bytes, agents * obs_bytes);
        if (v->s->mask && of->t < plan->horizon) /* else it is there already */
            memcpy(r->next_mask + first * mask_bytes, v->s->mask + r->mask_bytes * of->t + first * mask_bytes,
                   agents * mask_bytes);
        if (of->t > furthest) furthest = of->t;
    }
    r->next_obs = r->first_obs;
    r->step += furthest;
}

/* The weights asked for are gone. Before the slot is given up every question must be answered: the server may be
 * writing what it was asked about. The worlds of answered groups step, as the recurrent state behind them has. */
static outcome refuse(serving *v, uint32_t refused, hr_facts *facts) {
    for (uint32_t g = 0; g < v->groups; g++) {
        if (g == refused || v->group[g].t == v->r->plan->horizon) continue;
        hr_answered answer = await(v, g);
        if (answer == HR_ANSWERED && step_group(v, g, facts) != DONE) return FAILED;
        if (answer == HR_SERVER_DIED) return GIVEN_UP;
        if (answer == HR_STOP_WAITING) return STOPPED;
    }
    return REFUSED;
}

/* One answer after the other, in turn. */
static outcome take_answers(serving *v, hr_facts *facts) {
    uint32_t horizon = v->r->plan->horizon, left = v->groups;
    for (uint32_t g = 0; left > 0; g = (g + 1) % v->groups) {
        if (v->group[g].t == horizon) continue;
        switch (await(v, g)) {
        case HR_SERVER_DIED: return GIVEN_UP;
        case HR_STOP_WAITING: return STOPPED;
        case HR_REFUSED: return refuse(v, g, facts);
        default: break;
        }
        if (v->r->plan->mode == HR_ASYNC && hr_control_stop(v->r->control) != HR_RUN) return STOPPED;
        if (step_group(v, g, facts) != DONE) return FAILED;
        if (v->group[g].t < horizon)
            ask(v, g);
        else
            left--;
    }
    return DONE;
}

outcome fill_served(rollout *r, const slot_rows *s, uint64_t version, hr_facts *facts) {
    const hr_plan *plan = r->plan;
    serving v = {.r = r, .s = s, .version = version, .groups = plan->groups, .life = hr_serving_life(r->ring),
                 .epoch = hr_ring_epoch(r->ring)};
    for (uint32_t g = 0; g < v.groups; g++) hr_serving_worlds(plan, g, &v.group[g].first, &v.group[g].count);
    for (uint32_t g = 0; g < v.groups; g++) ask(&v, g);
    outcome taken = take_answers(&v, facts);
    if (taken == DONE) {
        r->next_obs = s->obs + r->row_bytes * plan->horizon;
        r->step += plan->horizon;
        r->carried = 0;
        return DONE;
    }
    if (taken == FAILED) return FAILED;
    keep_worlds(&v);
    if (taken == GIVEN_UP) { /* and the state with its server */
        memset(hr_serving_carry(r->ring), 0, (size_t)plan->agents * plan->state_width * sizeof(float));
        r->carried = 0;
    }
    hr_control_add(r->control,
                   taken == STOPPED   ? HR_P_abandoned_steps_stop
                   : taken == REFUSED ? HR_P_abandoned_steps_version
                                      : HR_P_abandoned_steps_server,
                   facts->valid_steps);
    return taken;
}
