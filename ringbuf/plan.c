/* Checking a plan, and the geometry of the segment that holds its slots. */
#include "geometry.h"
#include "segment.h"
#include "serving.h"
#include "state.h"

#include <string.h>
#include <sys/mman.h>

static uint64_t dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case HR_UINT8:
    case HR_INT8:
        return 1;
    case HR_INT32:
    case HR_FLOAT32:
        return 4;
    case HR_INT64:
        return 8;
    default:
        return 0;
    }
}

/* Every factor is bounded before it is multiplied, since the numbers come from another process. */
static int check_field(const hr_plan *p, uint32_t id, uint64_t *end, char *error, size_t capacity)
{
    const hr_field *f = &p->field[id];
    if (f->dtype == 0)
        return 0;
    uint64_t bytes = dtype_bytes(f->dtype);
    if (bytes == 0 || f->dims == 0 || f->dims > HR_MAX_DIMS)
        return hr_fail(error, capacity, "plan: field %u has dtype %u and %u dimensions", id, f->dtype,
                       f->dims);
    for (uint32_t d = 0; d < f->dims; d++) {
        if (f->shape[d] > HR_MAX_PAYLOAD_BYTES)
            return hr_fail(error, capacity, "plan: field %u, dimension %u is too large", id, d);
        bytes *= f->shape[d];
        if (bytes > HR_MAX_PAYLOAD_BYTES)
            return hr_fail(error, capacity, "plan: field %u is larger than %llu bytes", id,
                           HR_MAX_PAYLOAD_BYTES);
    }
    if (bytes != f->bytes || f->offset % HR_ALIGN != 0 || f->offset < *end ||
        f->offset + f->bytes + HR_GUARD_BYTES > p->payload_bytes - HR_ALIGN)
        return hr_fail(error, capacity, "plan: field %u lies at %llu with %llu bytes, which cannot be", id,
                       (unsigned long long)f->offset, (unsigned long long)f->bytes);
    *end = f->offset + f->bytes + HR_GUARD_BYTES;
    return 0;
}

static int time_major(const hr_plan *p, uint32_t id, uint64_t rows, uint64_t columns)
{
    const hr_field *f = &p->field[id];
    return f->dims >= 2 && f->shape[0] == rows && f->shape[1] == columns;
}

int hr_plan_check(const hr_plan *p, uint32_t slots, char *error, size_t capacity)
{
    if (p->abi != HR_ABI || p->bytes != sizeof *p)
        return hr_fail(error, capacity,
                       "plan: ABI %u with %u bytes, but this program has ABI %u with %zu: run make build",
                       p->abi, p->bytes, HR_ABI, sizeof *p);
    if (slots == 0 || slots > HR_MAX_SLOTS)
        return hr_fail(error, capacity, "ring: %u slots, need 1 to %u", slots, HR_MAX_SLOTS);
    if (p->horizon == 0 || p->agents == 0 || p->worlds == 0 ||
        (uint64_t)p->worlds * p->world_agents != p->agents || p->groups == 0 || p->groups > p->worlds)
        return hr_fail(error, capacity, "plan: horizon %u, %u agents in %u worlds of %u, %u groups",
                       p->horizon, p->agents, p->worlds, p->world_agents, p->groups);
    if (p->heads == 0 || p->heads > HR_MAX_HEADS || p->logits < p->heads || p->n_params > HR_MAX_PARAMS ||
        p->score >= (p->statistics ? p->statistics : 1))
        return hr_fail(error, capacity, "plan: %u heads, %u logits, %u parameters, statistic %u of %u",
                       p->heads, p->logits, p->n_params, p->score, p->statistics);
    if (p->mode > HR_EXACT || p->full > HR_DROP_NEWEST || p->pickup > HR_PICKUP_SLOT ||
        (p->mode == HR_EXACT && p->full != HR_BLOCK))
        return hr_fail(error, capacity, "plan: mode %u, full %u, pickup %u", p->mode, p->full, p->pickup);
    if (p->producers == 0 || p->ring >= p->producers || p->batch_slots == 0 ||
        (p->mode == HR_EXACT && p->batch_slots % p->producers != 0))
        return hr_fail(error, capacity, "plan: ring %u of %u producers, batches of %u slots", p->ring,
                       p->producers, p->batch_slots);
    if (p->server > HR_MAX_SERVERS || p->groups > HR_MAX_GROUPS ||
        p->worlds % p->groups != 0 || (p->server ? p->full != HR_BLOCK : p->groups != 1))
        return hr_fail(error, capacity, "plan: server %u, %u groups, full %u", p->server, p->groups, p->full);
    if (p->start_sequence > HR_SEQUENCE_END - 2ull * slots)
        return hr_fail(error, capacity, "plan: start sequence %llu is past the last one",
                       (unsigned long long)p->start_sequence);
    uint64_t record = hr_round_up(offsetof(hr_episode, statistics) + 4ull * p->statistics, 8);
    if (p->payload_bytes > HR_MAX_PAYLOAD_BYTES || p->payload_bytes < 2 * HR_ALIGN ||
        p->payload_bytes % HR_ALIGN != 0 || p->episode_bytes != record)
        return hr_fail(error, capacity, "plan: payload of %llu bytes, episode records of %u",
                       (unsigned long long)p->payload_bytes, p->episode_bytes);
    uint64_t end = HR_ALIGN;
    for (uint32_t id = 0; id < HR_FIELDS; id++) /* in their order, each behind the guard of the last */
        if (check_field(p, id, &end, error, capacity) != 0)
            return -1;
    uint64_t t = p->horizon, b = p->agents;
    static const uint32_t always[] = {HR_ACTION,     HR_LOGPROB,   HR_REWARD,
                                      HR_TERMINATED, HR_TRUNCATED, HR_VALID};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!time_major(p, always[i], t, b))
            return hr_fail(error, capacity, "plan: field %u is not [%llu, %llu, ...]", always[i],
                           (unsigned long long)t, (unsigned long long)b);
    if (!time_major(p, HR_OBS, t + 1, b) || !time_major(p, HR_VERSION, t, p->groups) ||
        !time_major(p, HR_EPISODES, t * b, record) || (p->has_mask != 0) != (p->field[HR_MASK].dtype != 0) ||
        (p->has_mask && !time_major(p, HR_MASK, t, b)) ||
        (p->state_width != 0) != (p->field[HR_STATE0].dtype != 0) ||
        (p->state_width && !time_major(p, HR_STATE0, b, p->state_width)))
        return hr_fail(error, capacity, "plan: a field does not have the shape that its slot needs");
    if ((p->world_state_bytes > 0 && p->mode != HR_EXACT) || p->world_state_bytes > HR_MAX_PAYLOAD_BYTES ||
        p->state_bytes != hr_state_layout_of(p).bytes)
        return hr_fail(error, capacity, "plan: saved state of %llu bytes, %llu a world",
                       (unsigned long long)p->state_bytes, (unsigned long long)p->world_state_bytes);
    return 0;
}

hr_ring_fixed hr_ring_geometry(const hr_plan *p, uint32_t slots, uint64_t *total_bytes)
{
    uint64_t page = hr_page_bytes();
    hr_ring_fixed f = {.slots = slots, .plan = *p};
    f.lines_offset = hr_round_up(sizeof(hr_segment) + sizeof f, page);
    f.headers_offset = f.lines_offset + sizeof(hr_lines);
    f.data_offset = hr_round_up(f.headers_offset + slots * sizeof(hr_slot), page);
    f.stride_bytes = hr_round_up(p->payload_bytes, page);
    f.state_offset = f.data_offset + slots * f.stride_bytes;
    f.serving_offset = f.state_offset + hr_round_up(p->state_bytes, page);
    *total_bytes = f.serving_offset + hr_round_up(hr_serving_layout_of(p).bytes, page);
    return f;
}

int hr_ring_format(int fd, const hr_plan *p, uint32_t slots, const uint8_t run_id[16], int *huge, char *error,
                   size_t capacity)
{
    if (hr_plan_check(p, slots, error, capacity) != 0)
        return -1;
    uint64_t total, start = p->start_sequence;
    hr_ring_fixed f = hr_ring_geometry(p, slots, &total);
    char *base = hr_segment_populate(fd, total, huge, error, capacity);
    if (base == NULL)
        return -1;
    hr_lines *lines = (hr_lines *)(base + f.lines_offset);
    atomic_init(&lines->head, start);
    atomic_init(&lines->acting, HR_NONE);
    atomic_init(&lines->owner, HR_NONE);
    atomic_init(&lines->granted, start);
    atomic_init(&lines->base_sequence, start);
    atomic_init(&lines->producer_intent.sequence, HR_NONE);
    atomic_init(&lines->supervisor_intent.sequence, HR_NONE);
    atomic_init(&lines->learner_intent.sequence, HR_NONE);
    atomic_init(&lines->state_sequence, HR_NONE);
    atomic_init(&lines->state_request, HR_NONE);
    hr_slot *headers = (hr_slot *)(base + f.headers_offset);
    for (uint32_t i = 0; i < slots; i++) {
        atomic_init(&headers[i].word, hr_word(hr_first_sequence(start, slots, i), 0, 0, HR_FREE));
        atomic_init(&headers[i].oldest_version, HR_NONE);
        atomic_init(&headers[i].newest_version, HR_NONE);
    }
    hr_segment_seal(base, HR_KIND_RING, total, &f, sizeof f, run_id);
    munmap(base, total);
    return 0;
}
