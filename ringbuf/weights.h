/* The weights channel: one writer (learner 0) publishes versions, everybody reads, nobody waits for anybody.
 *
 * One segment: an immutable header with the policy program (opaque bytes here, producers/program.py writes
 * them and producers/policy.c reads them), the words `begin` and `published`, and B >= 3 buffers. A buffer
 * holds the flat float32 weights in the program's order and, for the learner's own use, the hot snapshot
 * (opaque bytes), `floor`, and the list of slots that made the version.
 *
 * W0 begin := v (relaxed), release fence, fill buffer v mod B, W1 published := v (seq_cst).
 * R1 v := published (acquire), copy buffer v mod B, acquire fence, R2 begin (relaxed): good if begin < v + B.
 */
#ifndef HEADRACE_WEIGHTS_H
#define HEADRACE_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct hr_weights { /* one process' view */
    void *base;
    size_t mapped_bytes;
    uint32_t buffers;
    uint64_t count;        /* float32 values of one version */
    const void *program;   /* in the immutable header */
    uint64_t program_bytes;
    uint32_t list_entries;   /* room for the list of a version */
    uint64_t snapshot_bytes; /* room for the hot snapshot of a version */
    uint64_t words_offset, lists_offset, list_stride_bytes, data_offset, stride_bytes, snapshot_offset;
    uint8_t run_id[16];
} hr_weights;

/* Maps the channel read-only and checks it. 0, or -1 with one line in `error`. */
int hr_weights_attach(hr_weights *w, int fd, char *error, size_t capacity);
void hr_weights_detach(hr_weights *w);

/* The newest complete version, HR_NONE before version 0; seq_cst, so it may stand between store and reload of
 * `acting` (A2 in ring.h). */
uint64_t hr_weights_published(const hr_weights *w);

/* Copies `version`, which must be or have been published, to `out` [count] float32.
 * 1: good; 0: overtaken by newer versions while copying, `out` is garbage. */
int hr_weights_copy(const hr_weights *w, uint64_t version, float *out);

#endif
