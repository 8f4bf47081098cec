/* The weights channel as its writer and Python see it: creation, publishing, hot snapshot and lists. Private
 * to ringbuf/. */
#ifndef HEADRACE_CHANNEL_H
#define HEADRACE_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

typedef enum hr_weights_access {
    HR_WEIGHTS_READ,  /* everything, read-only */
    HR_WEIGHTS_WRITE, /* everything, read-write */
    HR_WEIGHTS_LISTS  /* words and lists only, read-only: the supervisor's */
} hr_weights_access;

/* Sizes and offsets of a channel; 0, or -1 with one line in `error`. */
int hr_weights_geometry(uint64_t count, uint32_t buffers, uint64_t program_bytes, uint64_t snapshot_bytes,
                        uint32_t list_entries, hr_weights_fixed *fixed, uint64_t *total_bytes, char *error,
                        size_t capacity);

/* Fills a zeroed segment of *total_bytes. 0, or -1 with one line in `error`. */
int hr_weights_format(int fd, const hr_weights_fixed *fixed, uint64_t total_bytes, const void *program,
                      const uint8_t run_id[16], int *huge, char *error, size_t capacity);

int hr_weights_map(hr_weights *w, int fd, hr_weights_access access, char *error, size_t capacity);

/* W0, the buffer, W1. `version` is above all published before, `weights` is [count] float32; `floor` as in
 * docs/architecture.md. Sizes were checked by the caller. */
void hr_weights_publish(hr_weights *w, uint64_t version, const float *weights, const void *snapshot,
                        uint64_t snapshot_bytes, const hr_list_entry *entries, uint64_t n_entries,
                        uint64_t floor);

/* The list block of `version`; its contents count only if hr_weights_still() says so after they were copied.
 */
const hr_list *hr_weights_list(const hr_weights *w, uint64_t version);
const void *hr_weights_snapshot(const hr_weights *w, uint64_t version);
int hr_weights_still(const hr_weights *w, uint64_t version);

#endif
