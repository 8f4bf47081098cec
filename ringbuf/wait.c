/* Sleeping and waking across processes: an eventcount on a futex. */
#include "wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint32_t hr_bell_arm(hr_bell *b)
{
    /* B1 pairs with B2: whoever rings after this load moves the bell away from `seen`, and the futex will not
     * sleep. */
    uint32_t seen = atomic_load_explicit(&b->bell, memory_order_seq_cst);
    /* C4 / P4 pairs with P3 / C6 in hr_bell_notify() */
    atomic_store_explicit(&b->waiting, 1, memory_order_seq_cst);
    return seen;
}

hr_woken hr_bell_sleep(hr_bell *b, uint32_t seen, uint64_t deadline_ns)
{
    struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / 1000000000ull),
                                .tv_nsec = (long)(deadline_ns % 1000000000ull)};
    /* Never FUTEX_PRIVATE_FLAG: the waker is another process. The kernel's comparison is the last look (B2).
     */
    long result = syscall(SYS_futex, &b->bell, FUTEX_WAIT_BITSET, seen, &deadline, NULL,
                          FUTEX_BITSET_MATCH_ANY);
    if (result == 0 || errno == EAGAIN)
        return HR_RUNG;
    return errno == EINTR ? HR_INTERRUPTED : HR_TIMED_OUT;
}

void hr_bell_ring(hr_bell *b)
{
    /* B2 pairs with B1 */
    atomic_fetch_add_explicit(&b->bell, 1, memory_order_seq_cst);
    syscall(SYS_futex, &b->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void hr_bell_notify(hr_bell *b)
{
    /* P3 / C6 pairs with C4 / P4 in hr_bell_arm(): either we see the waiter, or its second look sees our
     * store. */
    if (atomic_load_explicit(&b->waiting, memory_order_seq_cst) == 0)
        return;
    /* Of several ringers one takes the flag and makes the system call. */
    if (atomic_exchange_explicit(&b->waiting, 0, memory_order_seq_cst) == 1)
        hr_bell_ring(b);
}
