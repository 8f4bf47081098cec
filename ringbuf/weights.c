/* The weights channel: one writer publishes versions, everybody reads, nobody waits for anybody. */
#include "channel.h"
#include "segment.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static hr_weights_words *words(const hr_weights *w)
{
    return (hr_weights_words *)((char *)w->base + w->words_offset);
}

static hr_list *list_of(const hr_weights *w, uint64_t version)
{
    return (hr_list *)((char *)w->base + w->lists_offset + version % w->buffers * w->list_stride_bytes);
}

static char *buffer_of(const hr_weights *w, uint64_t version)
{
    return (char *)w->base + w->data_offset + version % w->buffers * w->stride_bytes;
}

int hr_weights_geometry(uint64_t count, uint32_t buffers, uint64_t program_bytes, uint64_t snapshot_bytes,
                        uint32_t list_entries, hr_weights_fixed *fixed, uint64_t *total_bytes, char *error,
                        size_t capacity)
{
    const uint64_t most_bytes = 1ull << 40;
    if (buffers < 3 || buffers > HR_MAX_BUFFERS)
        return hr_fail(error, capacity, "weights channel: %u buffers, need 3 to %u", buffers, HR_MAX_BUFFERS);
    if (count == 0 || count > most_bytes / 4 || program_bytes > 128ull << 20 || snapshot_bytes > most_bytes)
        return hr_fail(
            error, capacity, "weights channel: %llu weights, program of %llu bytes, snapshot of %llu bytes",
            (unsigned long long)count, (unsigned long long)program_bytes, (unsigned long long)snapshot_bytes);
    uint64_t page = hr_page_bytes();
    hr_weights_fixed f = {.count = count,
                          .program_bytes = program_bytes,
                          .snapshot_bytes = snapshot_bytes,
                          .buffers = buffers,
                          .list_entries = list_entries};
    f.words_offset = hr_round_up(sizeof(hr_segment) + sizeof f + program_bytes, page);
    f.lists_offset = f.words_offset + sizeof(hr_weights_words);
    f.list_stride_bytes = hr_round_up(sizeof(hr_list) + list_entries * sizeof(hr_list_entry), HR_LINE_BYTES);
    f.data_offset = hr_round_up(f.lists_offset + buffers * f.list_stride_bytes, page);
    f.snapshot_offset = hr_round_up(count * sizeof(float), page);
    f.stride_bytes = f.snapshot_offset + hr_round_up(snapshot_bytes, page);
    *fixed = f;
    *total_bytes = f.data_offset + buffers * f.stride_bytes;
    return 0;
}

int hr_weights_format(int fd, const hr_weights_fixed *fixed, uint64_t total_bytes, const void *program,
                      const uint8_t run_id[16], int *huge, char *error, size_t capacity)
{
    size_t head_bytes = sizeof *fixed + fixed->program_bytes;
    char *head = malloc(head_bytes);
    if (head == NULL)
        return hr_fail(error, capacity, "weights channel: no memory for a header of %zu bytes", head_bytes);
    memcpy(head, fixed, sizeof *fixed);
    memcpy(head + sizeof *fixed, program, fixed->program_bytes);
    void *base = hr_segment_populate(fd, total_bytes, huge, error, capacity);
    if (base != NULL) {
        hr_weights_words *at = (hr_weights_words *)((char *)base + fixed->words_offset);
        atomic_init(&at->begin, HR_NONE);
        atomic_init(&at->published, HR_NONE);
        hr_segment_seal(base, HR_KIND_WEIGHTS, total_bytes, head, head_bytes, run_id);
        munmap(base, total_bytes);
    }
    free(head);
    return base == NULL ? -1 : 0;
}

int hr_weights_map(hr_weights *w, int fd, hr_weights_access access, char *error, size_t capacity)
{
    hr_segment head;
    hr_weights_fixed expected;
    uint64_t total;
    hr_weights_fixed *f = hr_segment_load(fd, HR_KIND_WEIGHTS, sizeof *f, &head, error, capacity);
    if (f == NULL)
        return -1;
    hr_weights_fixed copy = *f;
    free(f);
    if (hr_weights_geometry(copy.count, copy.buffers, copy.program_bytes, copy.snapshot_bytes,
                            copy.list_entries, &expected, &total, error, capacity) != 0)
        return -1;
    if (memcmp(&copy, &expected, sizeof copy) != 0 || head.total_bytes != total ||
        head.fixed_bytes != sizeof copy + copy.program_bytes)
        return hr_fail(error, capacity, "weights channel: geometry of another build: run make build");
    uint64_t bytes = access == HR_WEIGHTS_LISTS ? copy.data_offset : total;
    void *base = hr_segment_map(fd, bytes, access == HR_WEIGHTS_WRITE ? bytes : 0, error, capacity);
    if (base == NULL)
        return -1;
    *w = (hr_weights){.base = base,
                      .mapped_bytes = bytes,
                      .buffers = copy.buffers,
                      .count = copy.count,
                      .program = (char *)base + sizeof(hr_segment) + sizeof copy,
                      .program_bytes = copy.program_bytes,
                      .list_entries = copy.list_entries,
                      .snapshot_bytes = copy.snapshot_bytes,
                      .words_offset = copy.words_offset,
                      .lists_offset = copy.lists_offset,
                      .list_stride_bytes = copy.list_stride_bytes,
                      .data_offset = copy.data_offset,
                      .stride_bytes = copy.stride_bytes,
                      .snapshot_offset = copy.snapshot_offset};
    memcpy(w->run_id, head.run_id, 16);
    return 0;
}

int hr_weights_attach(hr_weights *w, int fd, char *error, size_t capacity)
{
    return hr_weights_map(w, fd, HR_WEIGHTS_READ, error, capacity);
}

void hr_weights_detach(hr_weights *w)
{
    if (w->base != NULL)
        munmap(w->base, w->mapped_bytes);
    w->base = NULL;
}

uint64_t hr_weights_published(const hr_weights *w)
{
    /* R1 (and the reload of A2) pairs with W1 */
    return atomic_load_explicit(&words(w)->published, memory_order_seq_cst);
}

/* Copying from a buffer while its writer may have come round to it again is formally a race, and meant: what
 * was copied counts only if R2 finds that no later version had begun to overwrite it. */
int hr_weights_still(const hr_weights *w, uint64_t version)
{
    /* R1f pairs with W0f: if a copied byte came from a later version, the load below sees that version begun.
     */
    atomic_thread_fence(memory_order_acquire);
    uint64_t begin = atomic_load_explicit(&words(w)->begin, memory_order_relaxed); /* R2 pairs with W0 */
    return begin != HR_NONE && begin < version + w->buffers;
}

int hr_weights_copy(const hr_weights *w, uint64_t version, float *out)
{
    uint64_t held = list_of(w, version)->version;
    memcpy(out, buffer_of(w, version), w->count * sizeof(float));
    return hr_weights_still(w, version) && held == version;
}

const hr_list *hr_weights_list(const hr_weights *w, uint64_t version)
{
    return list_of(w, version);
}

const void *hr_weights_snapshot(const hr_weights *w, uint64_t version)
{
    return buffer_of(w, version) + w->snapshot_offset;
}

void hr_weights_publish(hr_weights *w, uint64_t version, const float *weights, const void *snapshot,
                        uint64_t snapshot_bytes, const hr_list_entry *entries, uint64_t n_entries,
                        uint64_t floor)
{
    /* W0 pairs with R2 */
    atomic_store_explicit(&words(w)->begin, version, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* W0f pairs with R1f */
    hr_list *list = list_of(w, version);
    list->version = version;
    list->floor = floor;
    list->snapshot_bytes = snapshot_bytes;
    list->entries = n_entries;
    memcpy(list->entry, entries, n_entries * sizeof *entries);
    memcpy(buffer_of(w, version), weights, w->count * sizeof(float));
    memcpy(buffer_of(w, version) + w->snapshot_offset, snapshot, snapshot_bytes);
    /* W1 pairs with R1; Dekker with A2 in hr_ring_announce() */
    atomic_store_explicit(&words(w)->published, version, memory_order_seq_cst);
}
