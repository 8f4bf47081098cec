/* Saved state: what a producer needs to go on with its worlds as if nothing had happened. */
#include "state.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "layout.h"
#include "learner.h"
#include "segment.h"
#include "words.h"

hr_state_layout hr_state_layout_of(const hr_plan *p)
{
    hr_state_layout l = {0};
    if (p->world_state_bytes == 0)
        return l;
    l.world_stride = hr_round_up(p->world_state_bytes, 8);
    l.obs = sizeof(hr_state_head);
    l.mask = l.obs + hr_round_up(p->field[HR_OBS].bytes / (p->horizon + 1ull), HR_ALIGN);
    l.reset_before = l.mask + hr_round_up(p->has_mask ? (uint64_t)p->agents * p->logits : 0, HR_ALIGN);
    l.recurrent = l.reset_before + hr_round_up(p->agents, HR_ALIGN);
    l.worlds = l.recurrent + hr_round_up(4ull * p->agents * p->state_width, HR_ALIGN);
    l.bytes = l.worlds + hr_round_up(p->worlds * l.world_stride, HR_ALIGN);
    return l;
}

/* Two attempts of one run differ in where their rings begin and in the restarts before them, and in nothing
 * that the state depends on. */
uint32_t hr_state_plan_crc(const hr_plan *plan)
{
    if (plan->state_bytes == 0)
        return 0;
    hr_plan p = *plan;
    p.start_sequence = p.restart_base = 0;
    return hr_crc32c(0, &p, sizeof p);
}

static hr_state_head *area(const hr_ring *r)
{
    return (hr_state_head *)((char *)r->base + r->state_offset);
}

static void forget(hr_ring *r)
{
    /* Q2 pairs with Q2 in hr_state_copy(): who copied a byte of the new state sees that the old one is gone */
    atomic_store_explicit(&hr_ring_lines(r)->state_sequence, HR_NONE, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* Q2f */
}

void *hr_state_begin(hr_ring *r)
{
    forget(r);
    return area(r);
}

void hr_state_done(hr_ring *r, uint64_t step, uint64_t restart)
{
    *area(r) = (hr_state_head){.magic = HR_STATE_MAGIC,
                               .abi = HR_ABI,
                               .plan_crc = r->state_crc,
                               .bytes = r->plan.state_bytes,
                               .sequence = r->sequence,
                               .step = step,
                               .restart = restart};
    /* Q2 pairs with Q2 in hr_state_sequence() (release carries the area); Dekker with C4 */
    atomic_store_explicit(&hr_ring_lines(r)->state_sequence, r->sequence, memory_order_seq_cst);
    hr_ring_notify_owner(r); /* P3 pairs with C4 */
}

const hr_state_head *hr_state_pending(const hr_ring *r)
{
    /* Q3 pairs with Q3 in hr_state_load() */
    int flagged = r->plan.state_bytes != 0 &&
                  atomic_load_explicit(&hr_ring_lines(r)->state_load, memory_order_acquire) != 0;
    return flagged ? area(r) : NULL;
}

void hr_state_taken(hr_ring *r)
{
    atomic_store_explicit(&hr_ring_lines(r)->state_load, 0, memory_order_release); /* Q3: by then all is read */
}

int hr_state_due(const hr_ring *r)
{
    if (r->plan.state_bytes == 0)
        return 0;
    /* P5 (request): Q1 pairs with Q1 in hr_state_request() */
    uint64_t request = atomic_load_explicit(&hr_ring_lines(r)->state_request, memory_order_seq_cst);
    return request == r->sequence &&
           atomic_load_explicit(&hr_ring_lines(r)->state_sequence, memory_order_relaxed) != request; /* N1 */
}

void hr_state_request(hr_ring *r, uint64_t sequence)
{
    /* Q1 pairs with P5 in hr_state_due() */
    atomic_store_explicit(&hr_ring_lines(r)->state_request, sequence, memory_order_seq_cst);
    hr_ring_notify_producer(r); /* C6 */
}

uint64_t hr_state_sequence(const hr_ring *r)
{
    if (r->plan.state_bytes == 0)
        return HR_NONE;
    /* Q2 pairs with Q2 in hr_state_done(); part of C5 */
    return atomic_load_explicit(&hr_ring_lines(r)->state_sequence, memory_order_seq_cst);
}

int hr_state_copy(const hr_ring *r, void *out)
{
    uint64_t before = hr_state_sequence(r);
    if (before == HR_NONE)
        return 0;
    memcpy(out, area(r), r->plan.state_bytes);
    atomic_thread_fence(memory_order_acquire); /* Q2f pairs with Q2f */
    return atomic_load_explicit(&hr_ring_lines(r)->state_sequence, memory_order_relaxed) == before;
}

int hr_state_load(hr_ring *r, int fd, const void *state, size_t bytes, char *error, size_t capacity)
{
    hr_state_head head = {0};
    uint32_t ring = r->plan.ring;
    if (r->plan.state_bytes == 0)
        return hr_fail(error, capacity, "ring %u keeps no state", ring);
    if (bytes >= sizeof head)
        memcpy(&head, state, sizeof head);
    if (head.magic != HR_STATE_MAGIC || head.abi != HR_ABI)
        return hr_fail(error, capacity, "ring %u: the saved state is none of this version", ring);
    if (bytes != r->plan.state_bytes || head.bytes != bytes || head.plan_crc != r->state_crc)
        return hr_fail(error, capacity, "ring %u: the saved state is of another plan (%zu bytes, here %llu)", ring,
                       bytes, (unsigned long long)r->plan.state_bytes);
    head.sequence = r->plan.start_sequence;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)r->state_offset);
    if (at == MAP_FAILED)
        return hr_fail(error, capacity, "ring %u: cannot map the state: %s", ring, strerror(errno));
    hr_lines *lines = hr_ring_lines(r);
    atomic_store_explicit(&lines->state_load, 0, memory_order_relaxed); /* Q3: killed below, nothing is taken up */
    forget(r);
    memcpy(at, state, bytes);
    memcpy(at, &head, sizeof head);
    munmap(at, bytes);
    atomic_store_explicit(&lines->state_sequence, head.sequence, memory_order_seq_cst); /* Q2 */
    atomic_store_explicit(&lines->state_load, 1, memory_order_release); /* Q3 pairs with Q3 */
    return 0;
}
