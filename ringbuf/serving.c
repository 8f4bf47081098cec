/* Asking an inference server for actions, and answering. docs/architecture.md, "The inference server". */
#include "serving.h"
#include "layout.h"
#include "segment.h"
#include "wait.h"

hr_serving_layout hr_serving_layout_of(const hr_plan *p)
{
    hr_serving_layout l = {0};
    if (p->server == 0)
        return l;
    l.carry = hr_round_up(p->agents, HR_ALIGN);
    l.bytes = l.carry + hr_round_up((uint64_t)p->agents * p->state_width * sizeof(float), HR_ALIGN);
    return l;
}

uint8_t *hr_serving_reset_before(const hr_ring *r)
{
    return (uint8_t *)r->base + r->serving_offset + hr_serving_layout_of(&r->plan).reset_before;
}

float *hr_serving_carry(const hr_ring *r)
{
    return (float *)((char *)r->base + r->serving_offset + hr_serving_layout_of(&r->plan).carry);
}

void hr_serving_worlds(const hr_plan *p, uint32_t group, uint32_t *first, uint32_t *count)
{
    *count = p->worlds / p->groups;
    *first = *count * group;
}

static hr_request *request_of(const hr_ring *r, uint32_t group)
{
    return &hr_ring_lines(r)->request[group];
}

static uint64_t reply_of(const hr_ring *r, uint32_t group)
{
    return atomic_load_explicit(&hr_ring_lines(r)->reply[group].word, memory_order_seq_cst); /* V2 */
}

static void notify_server(const hr_ring *r)
{
    hr_bell_notify(hr_control_server_bell(r->control, r->plan.server - 1)); /* V3 pairs with V4 */
}

uint64_t hr_serving_life(const hr_ring *r)
{
    /* V6 pairs with V6 in hr_sweep_server(); between V4 and the sleep it is part of V5 */
    return atomic_load_explicit(&hr_ring_lines(r)->server_life, memory_order_seq_cst);
}

uint64_t hr_serving_ask(hr_ring *r, uint32_t group, const hr_question *q)
{
    hr_request *to = request_of(r, group);
    /* A producer that was killed while it wrote has left an odd number. */
    uint64_t number = atomic_load_explicit(&to->number, memory_order_relaxed) | 1u;
    atomic_store_explicit(&to->number, number, memory_order_relaxed); /* V0 */
    atomic_thread_fence(memory_order_release); /* V0f pairs with V1f: who sees a field sees the odd number */
    atomic_store_explicit(&to->life, q->life, memory_order_relaxed); /* V0, to the end */
    atomic_store_explicit(&to->epoch, q->epoch, memory_order_relaxed);
    atomic_store_explicit(&to->sequence, q->sequence, memory_order_relaxed);
    atomic_store_explicit(&to->t, q->t, memory_order_relaxed);
    atomic_store_explicit(&to->step, q->step, memory_order_relaxed);
    atomic_store_explicit(&to->version, q->version, memory_order_relaxed);
    atomic_store_explicit(&to->noise_key, q->noise_key, memory_order_relaxed);
    atomic_store_explicit(&to->carried, q->carried, memory_order_relaxed);
    /* V1 pairs with V1 in hr_serving_question(): carries the observations; with V5 as store and load across */
    atomic_store_explicit(&to->number, number + 1, memory_order_seq_cst);
    notify_server(r);
    return number + 1;
}

hr_answered hr_serving_look(const hr_ring *r, uint32_t group, uint64_t number, uint64_t life)
{
    uint64_t word = reply_of(r, group); /* V2 pairs with V2 in hr_serving_answer(): carries the actions */
    if (word >> 1 == number)
        return word & 1 ? HR_REFUSED : HR_ANSWERED;
    if (hr_serving_life(r) != life)
        return HR_SERVER_DIED;
    /* In the exact modes a version that was begun is finished. */
    if (r->plan.mode == HR_ASYNC && hr_control_stop(r->control) != HR_RUN) /* V5 (stop) pairs with F1 */
        return HR_STOP_WAITING;
    return HR_UNANSWERED;
}

int hr_serving_wait(hr_ring *r, uint32_t group, uint64_t number, uint64_t life, uint64_t slice_ns)
{
    hr_bell *bell = &hr_ring_lines(r)->bell;
    uint32_t seen = hr_bell_arm(bell); /* V4 */
    if (hr_serving_look(r, group, number, life) != HR_UNANSWERED) /* V5 */
        return 1;
    return hr_bell_sleep(bell, seen, hr_now_ns() + slice_ns) != HR_TIMED_OUT;
}

int hr_serving_question(const hr_ring *r, uint32_t group, uint64_t life, hr_question *q)
{
    hr_request *from = request_of(r, group);
    uint64_t number = atomic_load_explicit(&from->number, memory_order_seq_cst); /* V1; after V4 part of V5 */
    if (number % 2 != 0 || reply_of(r, group) >> 1 == number)
        return 0;
    *q = (hr_question){.number = number,
                       .life = atomic_load_explicit(&from->life, memory_order_relaxed), /* V0, to the end */
                       .epoch = atomic_load_explicit(&from->epoch, memory_order_relaxed),
                       .sequence = atomic_load_explicit(&from->sequence, memory_order_relaxed),
                       .t = atomic_load_explicit(&from->t, memory_order_relaxed),
                       .step = atomic_load_explicit(&from->step, memory_order_relaxed),
                       .noise_key = atomic_load_explicit(&from->noise_key, memory_order_relaxed),
                       .version = atomic_load_explicit(&from->version, memory_order_relaxed),
                       .carried = atomic_load_explicit(&from->carried, memory_order_relaxed)};
    atomic_thread_fence(memory_order_acquire); /* V1f pairs with V0f */
    return atomic_load_explicit(&from->number, memory_order_relaxed) == number /* V0 */ && q->life == life &&
           q->t < r->plan.horizon;
}

void hr_serving_answer(hr_ring *r, uint32_t group, uint64_t number, int refused)
{
    hr_lines *lines = hr_ring_lines(r);
    /* V2 pairs with V2 in hr_serving_look() */
    atomic_store_explicit(&lines->reply[group].word, number << 1 | (refused ? 1u : 0u), memory_order_seq_cst);
    hr_bell_notify(&lines->bell); /* V3 pairs with V4 */
}

void hr_sweep_server(hr_ring *r)
{
    /* V6: from now on nobody waits for an answer of the dead one, and no answer of the next is taken for its. */
    atomic_fetch_add_explicit(&hr_ring_lines(r)->server_life, 1, memory_order_seq_cst);
    /* In any case: it may have taken the flag of a sleeper whom it did not wake any more. */
    hr_bell_ring(&hr_ring_lines(r)->bell);
}
