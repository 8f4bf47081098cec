/* The ring under the address and undefined-behaviour sanitizers.
 *
 *     sanitized threads CONTROL_FD RING_FD WEIGHTS_FD TURNS
 *     sanitized attach CONTROL_FD RING_FD WEIGHTS_FD TURNS
 *
 * threads: producer, learner and supervisor at work on one mapping until TURNS slots are through; some are
 * given up, dropped or torn. attach: TURNS times a few bytes of each segment's header are damaged, in half of
 * the cases with the checksum made good again; what attaches all the same is used. Damage is put right again. */
#include "ringbuf/books.h"
#include "ringbuf/channel.h"
#include "ringbuf/learner.h"
#include "ringbuf/segment.h"
#include "ringbuf/sweep.h"
#include "ringbuf/table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define SLICE_NS 100000000ull

static char error[512];
static int control_fd, ring_fd, weights_fd;
static uint64_t turns;

static void need(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "sanitized: %s %s\n", what, error);
        exit(1);
    }
}

/* ---- threads ---- */

static hr_control controls[3]; /* producer, learner, supervisor */
static hr_ring rings[3];
static hr_weights channel;

static void *produce(void *unused)
{
    hr_ring *r = &rings[0];
    float *copy = malloc(channel.count * sizeof *copy);
    (void)unused;
    for (uint64_t turn = 0;; turn++) {
        hr_claimable why = hr_ring_claimable(r);
        if (why == HR_STOPPED)
            break;
        if (why != HR_CLAIMABLE) {
            hr_ring_wait(r, SLICE_NS);
            continue;
        }
        while (!hr_weights_copy(&channel, hr_ring_announce(r, &channel), copy))
            ;
        need(hr_ring_claim(r, 0) == 0, "claim");
        memset(hr_ring_field(r, HR_OBS), (int)(r->sequence & 255), r->plan.field[HR_OBS].bytes);
        if (turn % 7 == 3)
            hr_ring_abort(r);
        else
            hr_ring_commit(r, &(hr_facts){.valid_steps = 16});
    }
    free(copy);
    return NULL;
}

static void *supervise(void *unused)
{
    hr_ring *r = &rings[2];
    (void)unused;
    while (hr_control_stop(r->control) == HR_RUN) {
        hr_books books = hr_ring_books(r);
        need(books.done <= books.offered, "books");
        for (uint32_t i = 0; i < r->slots; i++) {
            hr_seen seen = hr_ring_look(r, i);
            if (hr_word_state(seen.word) == HR_BAD)
                hr_ring_free_bad(r, hr_word_sequence(seen.word));
        }
        hr_sweep_learner(r, 77, 0, NULL, 0); /* of somebody who holds nothing */
        hr_ring_lower_granted(r);
        hr_control_pulse(r->control, HR_PHASE_STEP, books.head, hr_now_ns());
    }
    return NULL;
}

static void learn(void)
{
    hr_ring *r = &rings[1];
    float *weights = calloc(channel.count, sizeof *weights);
    uint64_t version = 0;
    while (hr_ring_done(r) < turns) {
        uint64_t granted = atomic_load(&hr_ring_lines(r)->granted);
        if (granted < hr_ring_done(r) + r->slots)
            hr_ring_grant(r, 1);
        for (uint32_t i = 0; i < r->slots; i++) {
            hr_seen seen = hr_ring_look(r, i);
            uint64_t s = hr_word_sequence(seen.word);
            if (hr_word_state(seen.word) != HR_READY)
                continue;
            if (s % 11 == 5) {
                need(hr_ring_drop(r, s, HR_LAG) == 0, "drop");
                continue;
            }
            if (s % 13 == 6)
                atomic_store(hr_end_stamp(r, s), s + 1);
            if (hr_ring_lease(r, s) != HR_LEASE_GOOD)
                continue;
            const unsigned char *obs = hr_ring_payload(r, s) + r->plan.field[HR_OBS].offset;
            for (uint64_t at = 0; at < r->plan.field[HR_OBS].bytes; at++)
                need(obs[at] == (s & 255), "payload");
            hr_weights_publish(&channel, ++version, weights, "snapshot", 8,
                               &(hr_list_entry){.sequence = s}, 1, 0);
            need(hr_ring_ack(r, s, HR_CONSUMED) == 0, "ack");
        }
        uint32_t bell = hr_bell_arm(hr_control_bell(r->control, 0));
        hr_bell_sleep(hr_control_bell(r->control, 0), bell, hr_now_ns() + SLICE_NS / 100);
    }
    free(weights);
}

static int threads(void)
{
    pthread_t producer, supervisor;
    need(hr_control_attach(&controls[0], control_fd, 100, error, sizeof error) == 0, "control");
    need(hr_ring_attach(&rings[0], ring_fd, &controls[0], error, sizeof error) == 0, "ring");
    need(hr_weights_map(&channel, weights_fd, HR_WEIGHTS_WRITE, error, sizeof error) == 0, "weights");
    for (uint32_t i = 1; i < 3; i++) {
        controls[i] = controls[0];
        controls[i].self = i;
        rings[i] = rings[0];
        rings[i].control = &controls[i];
    }
    float *first = calloc(channel.count, sizeof *first);
    hr_weights_publish(&channel, 0, first, "", 0, &(hr_list_entry){0}, 0, 0);
    free(first);
    need(pthread_create(&producer, NULL, produce, NULL) == 0, "thread");
    need(pthread_create(&supervisor, NULL, supervise, NULL) == 0, "thread");
    learn();
    hr_control_set_stop(&controls[2], HR_STOP_SIGNAL);
    hr_bell_ring(&hr_ring_lines(&rings[2])->bell);
    pthread_join(producer, NULL);
    pthread_join(supervisor, NULL);
    hr_sweep_producer(&rings[2]);
    hr_ring_detach(&rings[0]);
    hr_weights_detach(&channel);
    hr_control_detach(&controls[0]);
    return 0;
}

/* ---- attach ---- */

static uint64_t random_state = 88172645463325252ull;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

static void use_ring(hr_access access)
{
    hr_control control;
    hr_ring ring;
    if (hr_control_attach(&control, control_fd, 3, error, sizeof error) != 0)
        return;
    if (hr_ring_map(&ring, ring_fd, &control, access, error, sizeof error) == 0) {
        hr_ring_books(&ring);
        ring.sequence = hr_ring_head(&ring);
        hr_ring_claimable(&ring);
        for (uint32_t i = 0; i < ring.slots; i++)
            hr_ring_look(&ring, i);
        if (access == HR_ACCESS_PRODUCER || access == HR_ACCESS_LEARNER)
            for (int id = 0; id < HR_FIELDS; id++) {
                const volatile char *at = hr_ring_field(&ring, (hr_field_id)id);
                if (at != NULL && ring.plan.field[id].bytes > 0)
                    (void)(at[0] + at[ring.plan.field[id].bytes - 1]);
            }
        hr_ring_detach(&ring);
    }
    hr_control_detach(&control);
}

static void use_weights(hr_weights_access access)
{
    hr_weights weights;
    if (hr_weights_map(&weights, weights_fd, access, error, sizeof error) != 0)
        return;
    for (uint64_t version = 0; version < weights.buffers; version++) {
        (void)*(const volatile uint64_t *)&hr_weights_list(&weights, version)->entry[weights.list_entries - 1];
        if (access != HR_WEIGHTS_LISTS) {
            float *copy = malloc(weights.count * sizeof *copy);
            if (copy != NULL)
                hr_weights_copy(&weights, version, copy);
            free(copy);
        }
    }
    hr_weights_detach(&weights);
}

static void use(void)
{
    use_ring(HR_ACCESS_PRODUCER);
    use_ring(HR_ACCESS_LEARNER);
    use_ring(HR_ACCESS_SUPERVISOR);
    use_ring(HR_ACCESS_MONITOR);
    use_weights(HR_WEIGHTS_READ);
    use_weights(HR_WEIGHTS_LISTS);
}

static void make_good(unsigned char *base, size_t length)
{
    hr_segment *head = (hr_segment *)base;
    if (head->fixed_bytes > length - sizeof *head)
        return;
    head->crc = 0;
    uint32_t crc = hr_crc32c(0, base, offsetof(hr_segment, ready));
    head->crc = hr_crc32c(crc, base + sizeof *head, head->fixed_bytes);
}

static void damage(unsigned char *base, size_t header, size_t length)
{
    static const uint64_t odd[] = {0, 1, 63, 4095, 65536, 1ull << 31, 1ull << 32, 1ull << 45, 1ull << 63, ~0ull};
    for (uint64_t i = draw(3) + 1; i > 0; i--) {
        size_t at = draw(header);
        if (at >= offsetof(hr_segment, ready) && at < sizeof(hr_segment))
            continue; /* would be waited for */
        if (draw(2) == 0)
            base[at] = (unsigned char)draw(256);
        else
            memcpy(base + at / 8 * 8, &odd[draw(sizeof odd / sizeof *odd)], draw(2) ? 8 : 4);
    }
    if (draw(2) == 0)
        make_good(base, length);
}

static int attach(void)
{
    const int fds[] = {control_fd, ring_fd, weights_fd};
    use(); /* undamaged */
    for (int kind = 0; kind < 3; kind++) {
        struct stat facts;
        need(fstat(fds[kind], &facts) == 0, "fstat");
        size_t length = (size_t)facts.st_size;
        unsigned char *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fds[kind], 0);
        need(base != MAP_FAILED, "mmap");
        size_t header = sizeof(hr_segment) + ((hr_segment *)base)->fixed_bytes;
        unsigned char *saved = malloc(header);
        memcpy(saved, base, header);
        for (uint64_t turn = 0; turn < turns; turn++) {
            damage(base, header, length);
            use();
            memcpy(base, saved, header);
        }
        free(saved);
        munmap(base, length);
    }
    return 0;
}

int main(int argc, char **argv)
{
    need(argc == 6, "usage");
    control_fd = atoi(argv[2]);
    ring_fd = atoi(argv[3]);
    weights_fd = atoi(argv[4]);
    turns = strtoull(argv[5], NULL, 10);
    return strcmp(argv[1], "threads") == 0 ? threads() : attach();
}
