/* The control block: creation, attaching, and what every process does with its own part of it. */
#include "layout.h"
#include "segment.h"
#include "table.h"
#include "wait.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

const char *const hr_phase_names[] = {
    "starting",    "step",        "policy",    "train",  "wait_credit", "wait_full", "wait_version",
    "wait_answer", "wait_owner",  "wait_data", "saving", "stopping",    NULL};
_Static_assert(sizeof hr_phase_names / sizeof *hr_phase_names == HR_PHASE_STOPPING + 2, "a name for each phase");

static hr_control_fixed geometry(uint64_t *total_bytes)
{
    hr_control_fixed f = {.processes = HR_MAX_PROCESSES,
                          .learners = HR_MAX_LEARNERS,
                          .counters = HR_COUNTERS,
                          .gauges = HR_GAUGES,
                          .process_bytes = sizeof(hr_process)};
    f.flags_offset = hr_round_up(sizeof(hr_segment) + sizeof f, hr_page_bytes());
    f.bells_offset = f.flags_offset + sizeof(hr_flags);
    f.table_offset = f.bells_offset + (HR_MAX_LEARNERS + HR_MAX_SERVERS) * sizeof(hr_bell);
    *total_bytes = hr_round_up(f.table_offset + HR_MAX_PROCESSES * sizeof(hr_process), hr_page_bytes());
    return f;
}

uint64_t hr_control_bytes(void)
{
    uint64_t total;
    geometry(&total);
    return total;
}

/* 0 where the kernel does not tell, which then agrees with itself. */
static uint64_t pid_namespace(void)
{
    struct stat facts;
    return stat("/proc/self/ns/pid", &facts) == 0 ? (uint64_t)facts.st_ino : 0;
}

int hr_control_format(int fd, const uint8_t run_id[16], const char *directory, char *error, size_t capacity)
{
    uint64_t total;
    int huge;
    hr_control_fixed f = geometry(&total);
    if (strlen(directory) >= sizeof f.directory || (directory[0] != '\0' && directory[0] != '/'))
        return hr_fail(error, capacity, "control block: the run directory needs an absolute path of at most "
                                        "%zu bytes, not '%s'",
                       sizeof f.directory - 1, directory);
    strcpy(f.directory, directory);
    f.pid_namespace = pid_namespace();
    void *base = hr_segment_populate(fd, total, &huge, error, capacity);
    if (base == NULL)
        return -1;
    const double none = __builtin_nan("");
    uint64_t none_bits;
    memcpy(&none_bits, &none, sizeof none_bits);
    hr_process *table = (hr_process *)((char *)base + f.table_offset);
    for (uint32_t p = 0; p < HR_MAX_PROCESSES; p++) {
        atomic_init(&table[p].core, -1);
        for (uint32_t g = 0; g < HR_GAUGES; g++)
            atomic_init(&table[p].gauge[g], none_bits);
    }
    hr_segment_seal(base, HR_KIND_CONTROL, total, &f, sizeof f, run_id);
    munmap(base, total);
    return 0;
}

int hr_control_attach(hr_control *c, int fd, uint32_t self, char *error, size_t capacity)
{
    hr_segment head;
    uint64_t total;
    hr_control_fixed expected = geometry(&total);
    hr_control_fixed *f = hr_segment_load(fd, HR_KIND_CONTROL, sizeof *f, &head, error, capacity);
    if (f == NULL)
        return -1;
    const size_t identity = offsetof(hr_control_fixed, pid_namespace);
    int same = memcmp(f, &expected, identity) == 0 && head.total_bytes == total &&
               memchr(f->directory, '\0', sizeof f->directory) != NULL;
    memcpy((char *)&expected + identity, (const char *)f + identity, sizeof expected - identity);
    free(f);
    if (!same)
        return hr_fail(error, capacity, "control block: geometry of another build: run make build");
    if (self >= HR_MAX_PROCESSES)
        return hr_fail(error, capacity, "control block: process %u of %d", self, HR_MAX_PROCESSES);
    void *base = hr_segment_map(fd, total, total, error, capacity);
    if (base == NULL)
        return -1;
    *c = (hr_control){.base = base,
                      .mapped_bytes = total,
                      .self = self,
                      .flags_offset = expected.flags_offset,
                      .bells_offset = expected.bells_offset,
                      .table_offset = expected.table_offset,
                      .created_unix_ns = head.created_unix_ns,
                      .pid_namespace = expected.pid_namespace};
    memcpy(c->run_id, head.run_id, 16);
    memcpy(c->boot_id, head.boot_id, 16);
    memcpy(c->directory, expected.directory, sizeof c->directory);
    return 0;
}

void hr_control_detach(hr_control *c)
{
    if (c->base != NULL)
        munmap(c->base, c->mapped_bytes);
    c->base = NULL;
}

hr_stop_reason hr_control_stop(const hr_control *c)
{
    /* F1 pairs with F1 in hr_control_set_stop(); between C4 / P4 and the sleep it is part of C5 / P5 */
    return (hr_stop_reason)atomic_load_explicit(&hr_control_flags(c)->stop, memory_order_seq_cst);
}

void hr_control_set_stop(hr_control *c, hr_stop_reason reason)
{
    /* F1 pairs with F1 in hr_control_stop() */
    atomic_store_explicit(&hr_control_flags(c)->stop, (uint32_t)reason, memory_order_seq_cst);
    hr_control_ring_all(c);
}

uint32_t hr_control_settings(const hr_control *c)
{
    /* F3 pairs with F3 in hr_control_announce_settings(): who sees the number sees the file */
    return atomic_load_explicit(&hr_control_flags(c)->settings, memory_order_seq_cst);
}

void hr_control_announce_settings(hr_control *c)
{
    /* F3 pairs with F3 in hr_control_settings(); between C4 and the sleep it is part of C5 */
    atomic_fetch_add_explicit(&hr_control_flags(c)->settings, 1, memory_order_seq_cst);
    hr_control_ring_all(c);
}

int hr_control_producers_gone(const hr_control *c)
{
    /* F2 pairs with F2 in hr_control_set_producers_gone() */
    return atomic_load_explicit(&hr_control_flags(c)->producers_gone, memory_order_seq_cst) != 0;
}

void hr_control_set_producers_gone(hr_control *c, int gone)
{
    /* F2 pairs with F2 in hr_control_producers_gone() */
    atomic_store_explicit(&hr_control_flags(c)->producers_gone, gone ? 1 : 0, memory_order_seq_cst);
    hr_control_ring_all(c);
}

void hr_control_ring_all(hr_control *c)
{
    for (uint64_t i = 0; i < HR_MAX_LEARNERS + HR_MAX_SERVERS; i++)
        hr_bell_ring(hr_control_bell(c, i));
}

/* The counters below have one writer, this process, so load and store need no read-modify-write; readers take
 * each value by itself, so relaxed is enough (N1 pairs with N1, all of them). */

void hr_control_set(hr_control *c, uint32_t counter, uint64_t value)
{
    atomic_store_explicit(&hr_control_process(c, c->self)->counter[counter], value, memory_order_relaxed);
}

void hr_control_add(hr_control *c, uint32_t counter, uint64_t n)
{
    _Atomic uint64_t *at = &hr_control_process(c, c->self)->counter[counter];
    atomic_store_explicit(at, atomic_load_explicit(at, memory_order_relaxed) + n,
                          memory_order_relaxed); /* N1 */
}

void hr_control_gauge(hr_control *c, uint32_t gauge, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    atomic_store_explicit(&hr_control_process(c, c->self)->gauge[gauge], bits, memory_order_relaxed); /* N1 */
}

void hr_control_pulse(hr_control *c, hr_phase phase, uint64_t progress, uint64_t now_ns)
{
    hr_process *p = hr_control_process(c, c->self);
    atomic_store_explicit(&p->phase, (uint64_t)phase, memory_order_relaxed); /* N1 */
    atomic_store_explicit(&p->progress, progress, memory_order_relaxed);     /* N1 */
    atomic_store_explicit(&p->heartbeat_ns, now_ns, memory_order_relaxed);   /* N1 */
}

void hr_control_reset_pulse(hr_control *c, uint32_t index)
{
    hr_process *p = hr_control_process(c, index);
    atomic_store_explicit(&p->phase, HR_PHASE_STARTING, memory_order_relaxed); /* N1: its writer is dead */
    atomic_store_explicit(&p->progress, 0, memory_order_relaxed);              /* N1 */
    atomic_store_explicit(&p->heartbeat_ns, 0, memory_order_relaxed);          /* N1 */
}
