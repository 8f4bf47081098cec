/* What lies where in the three kinds of segment. Private to ringbuf/: others use ring.h, weights.h and
 * control.h.
 *
 * Every segment begins with an hr_segment and its ready line, then the immutable part (copied and checked at
 * attach), then lines that change, each of 128 bytes (two cache lines, since the prefetcher pulls pairs) and
 * with one writer. */
#ifndef HEADRACE_LAYOUT_H
#define HEADRACE_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "control.h"
#include "plan.h"
#include "ring.h"
#include "weights.h"

#define HR_LINE_BYTES 128u
#define HR_ALIGN 64u                   /* of every field of a slot */
#define HR_MAGIC 0x4543415244414548ull /* "HEADRACE" in memory */
#define HR_ENDIAN 0x01020304u
#define HR_ATTACHABLE 0x52454144594F4B21ull /* value of the ready word */
#define HR_MAX_SLOTS 65536u
#define HR_MAX_LEARNERS 64u
#define HR_MAX_SERVERS 64u
#define HR_MAX_BUFFERS 4096u

typedef enum hr_kind {
    HR_KIND_CONTROL = 1,
    HR_KIND_WEIGHTS = 2,
    HR_KIND_RING = 3
} hr_kind;

typedef struct hr_segment {
    uint64_t magic;
    uint32_t endian, abi;
    uint32_t kind, crc; /* crc32c of this struct with crc = 0, then of the immutable part */
    uint64_t total_bytes, fixed_bytes, page_bytes, created_unix_ns;
    uint8_t run_id[16], boot_id[16];
    uint8_t reserved[40];
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t ready; /* A1: HR_ATTACHABLE, stored last of all */
    uint8_t ready_pad[HR_LINE_BYTES - 8];
} hr_segment;
_Static_assert(offsetof(hr_segment, run_id) == 56 && offsetof(hr_segment, reserved) == 88, "segment header");
_Static_assert(offsetof(hr_segment, ready) == 128 && sizeof(hr_segment) == 256,
               "the immutable part is at 256");

/* An eventcount: a waiter reads `bell`, sets `waiting`, looks again at what it waits for, and sleeps on
 * `bell`. */
typedef struct hr_bell {
    _Alignas(HR_LINE_BYTES) _Atomic uint32_t bell;
    _Atomic uint32_t waiting;
    uint8_t pad[HR_LINE_BYTES - 8];
} hr_bell;
_Static_assert(sizeof(hr_bell) == HR_LINE_BYTES && offsetof(hr_bell, waiting) == 4, "bell");

/* ---- ring ---- */

typedef struct hr_ring_fixed {
    uint32_t slots, reserved;
    uint64_t lines_offset, headers_offset, data_offset, stride_bytes, state_offset, serving_offset;
    hr_plan plan;
} hr_ring_fixed;
_Static_assert(offsetof(hr_ring_fixed, plan) == 56, "ring header");
_Static_assert(sizeof(hr_field) == 72 && sizeof(hr_param) == 72, "plan tables");
_Static_assert(offsetof(hr_plan, sim) == 8 && offsetof(hr_plan, horizon) == 72 &&
                   offsetof(hr_plan, choices) == 100 && offsetof(hr_plan, has_mask) == 292 &&
                   offsetof(hr_plan, payload_bytes) == 320 && offsetof(hr_plan, field) == 344 &&
                   offsetof(hr_plan, mode) == 344 + 72 * HR_FIELDS && offsetof(hr_plan, server) == 1228 &&
                   offsetof(hr_plan, param) == 1232 &&
                   sizeof(hr_plan) == 1232 + 72 * HR_MAX_PARAMS,
               "plan");
_Static_assert(offsetof(hr_episode, statistics) == 20, "episode record");

/* What a writer is about to do to a word and a count: the count before, which count, then the sequence
 * (HR_NONE: nothing pending). A sweep finds out from the word whether it happened. */
typedef struct hr_intent {
    _Atomic uint64_t before, cause, sequence;
} hr_intent;

/* The same for the valid steps of the slot, which are counted beside the slots: the steps before, and the
 * slot's. Valid while the intent is pending. */
typedef struct hr_intent_steps {
    _Atomic uint64_t before, amount;
} hr_intent_steps;

/* Counts that stand beside words, by writer: producer, supervisor, learner. */
typedef enum hr_count {
    HR_NOT_WRITTEN = 0,
    HR_OVERWRITTEN, /* producer line */
    HR_DROPPED_BAD,
    HR_REDELIVERED, /* owner line */
    HR_CONSUMED,
    HR_ROLLBACK,
    HR_SHUTDOWN,
    HR_LAG, /* learner line */
    HR_COUNTS
} hr_count;

/* What a producer asks the inference server about one group of its agents (serving.h). */
typedef struct hr_request {
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t number; /* odd while the rest is written */
    _Atomic uint64_t life, epoch, sequence, t, step, version, noise_key, carried;
    uint64_t pad[7];
} hr_request;

typedef struct hr_reply { /* the server's */
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t word; /* number of the request << 1 | whether it was refused */
    uint64_t pad[15];
} hr_reply;

typedef struct hr_lines {
    /* The producer's; `epoch` and, once the producer is dead, everything else is the sweep's. */
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t head; /* hint, but the truth about sequences passed over */
    _Atomic uint64_t acting;                       /* version announced, HR_NONE: none */
    _Atomic uint64_t not_written, overwritten;
    hr_intent producer_intent;
    _Atomic uint64_t blocked_ns, first_commit_ns, last_commit_ns;
    _Atomic uint64_t epoch; /* deaths of producers swept so far */
    _Atomic uint64_t pid;
    _Atomic uint64_t overwritten_steps;
    hr_intent_steps producer_steps;
    _Atomic uint64_t state_sequence; /* the complete state in the area goes on from here, HR_NONE: none */
    /* The supervisor's */
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t owner; /* number of the learner, HR_NONE: none */
    _Atomic uint64_t dropped_bad, redelivered;
    hr_intent supervisor_intent;
    _Atomic uint64_t dropped_bad_steps;
    hr_intent_steps supervisor_steps;
    _Atomic uint64_t state_load; /* 1: the next producer takes the state up; only that producer clears it */
    _Atomic uint64_t server_life; /* deaths of its inference server */
    uint64_t owner_pad[5];
    /* The owner learner's; `granted` by CAS only, since the supervisor lowers it */
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t granted; /* the producer may claim sequences below */
    _Atomic uint64_t consumed, dropped_rollback, dropped_shutdown, dropped_lag;
    hr_intent learner_intent;
    _Atomic uint64_t base_sequence, base_version; /* exact modes */
    _Atomic uint64_t lease_ns;                    /* time of the last lease */
    uint64_t learner_pad[5];
    hr_bell bell; /* the producer sleeps here */
    /* The owner learner's, continued */
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t consumed_steps;
    _Atomic uint64_t rollback_steps, shutdown_steps, lag_steps;
    hr_intent_steps learner_steps;
    _Atomic uint64_t state_request; /* the producer saves before it writes this sequence, HR_NONE: no request */
    uint64_t steps_pad[9];
    hr_request request[HR_MAX_GROUPS]; /* the producer's, by group */
    hr_reply reply[HR_MAX_GROUPS];     /* its server's */
} hr_lines;
_Static_assert(offsetof(hr_lines, producer_intent) == 32 && offsetof(hr_lines, pid) == 88, "producer line");
_Static_assert(offsetof(hr_lines, owner) == 128 && offsetof(hr_lines, supervisor_intent) == 152,
               "owner line");
_Static_assert(offsetof(hr_lines, granted) == 256 && offsetof(hr_lines, learner_intent) == 296 &&
                   offsetof(hr_lines, lease_ns) == 336,
               "learner line");
_Static_assert(offsetof(hr_lines, state_sequence) == 120 && offsetof(hr_lines, state_load) == 200 &&
                   offsetof(hr_lines, state_request) == 560,
               "saved state");
_Static_assert(offsetof(hr_lines, server_life) == 208 && offsetof(hr_lines, request) == 640 &&
                   offsetof(hr_lines, reply) == 896,
               "serving");
_Static_assert(offsetof(hr_lines, bell) == 384 && offsetof(hr_lines, consumed_steps) == 512 &&
                   sizeof(hr_lines) == 1152,
               "ring lines");

typedef struct hr_slot {
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t word; /* seq:45 | deliveries:3 | owner:12 | state:4 */
    _Atomic uint64_t oldest_version, newest_version;
    _Atomic uint64_t valid_steps, episodes;
    _Atomic uint64_t commit_ns, epoch;
    uint64_t pad[9];
} hr_slot;
_Static_assert(sizeof(hr_slot) == HR_LINE_BYTES && offsetof(hr_slot, epoch) == 48, "slot header");

#define HR_SEQUENCE_END (1ull << 45)

static inline uint64_t hr_word(uint64_t sequence, uint32_t deliveries, uint32_t owner, hr_state state)
{
    return sequence << 19 | (uint64_t)(deliveries & 7u) << 16 | (uint64_t)(owner & 0xfffu) << 4 |
           (uint64_t)state;
}
static inline uint64_t hr_word_sequence(uint64_t word)
{
    return word >> 19;
}
static inline uint32_t hr_word_deliveries(uint64_t word)
{
    return (uint32_t)(word >> 16) & 7u;
}
static inline uint32_t hr_word_owner(uint64_t word)
{
    return (uint32_t)(word >> 4) & 0xfffu;
}
static inline hr_state hr_word_state(uint64_t word)
{
    return (hr_state)(word & 15u);
}
_Static_assert(HR_MAX_PROCESSES <= 4096, "an index of the process table fits the word's owner");

/* The first sequence that lives in slot `i`. */
static inline uint64_t hr_first_sequence(uint64_t start, uint64_t slots, uint64_t i)
{
    return start + (i + slots - start % slots) % slots;
}

static inline hr_lines *hr_ring_lines(const hr_ring *r)
{
    return (hr_lines *)((char *)r->base + r->lines_offset);
}
static inline hr_slot *hr_ring_slot(const hr_ring *r, uint64_t sequence)
{
    return (hr_slot *)((char *)r->base + r->headers_offset) + sequence % r->slots;
}
static inline uint8_t *hr_ring_payload(const hr_ring *r, uint64_t sequence)
{
    return (uint8_t *)r->base + r->data_offset + sequence % r->slots * r->stride_bytes;
}
/* The sequence is stamped into the first word of the payload and into the first of its last 64 bytes. */
static inline _Atomic uint64_t *hr_start_stamp(const hr_ring *r, uint64_t sequence)
{
    return (_Atomic uint64_t *)hr_ring_payload(r, sequence);
}
static inline _Atomic uint64_t *hr_end_stamp(const hr_ring *r, uint64_t sequence)
{
    return (_Atomic uint64_t *)(hr_ring_payload(r, sequence) + r->plan.payload_bytes - HR_ALIGN);
}

/* ---- weights channel ---- */

typedef struct hr_weights_fixed { /* the program's bytes follow */
    uint64_t count, program_bytes, snapshot_bytes;
    uint32_t buffers, list_entries;
    uint64_t words_offset, lists_offset, list_stride_bytes, data_offset, stride_bytes, snapshot_offset;
} hr_weights_fixed;
_Static_assert(sizeof(hr_weights_fixed) == 80, "weights header");

typedef struct hr_weights_words { /* the writer's */
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t begin;
    _Atomic uint64_t published;
    uint64_t pad[14];
} hr_weights_words;
_Static_assert(sizeof(hr_weights_words) == HR_LINE_BYTES && offsetof(hr_weights_words, published) == 8,
               "words");

typedef struct hr_list_entry {
    uint64_t sequence, epoch;
    uint32_t ring, reserved;
} hr_list_entry;

/* What made a version. Lists lie apart from the weights, so that the supervisor need not map those. */
typedef struct hr_list {
    _Alignas(HR_ALIGN) uint64_t version;
    uint64_t floor, snapshot_bytes, entries;
    uint64_t reserved[4];
    hr_list_entry entry[];
} hr_list;
_Static_assert(sizeof(hr_list_entry) == 24 && offsetof(hr_list, entry) == 64, "list");

/* ---- control block ---- */

typedef struct hr_control_fixed {
    uint32_t processes, learners, counters, gauges;
    uint64_t flags_offset, bells_offset, table_offset, process_bytes;
    uint64_t pid_namespace;
    char directory[HR_DIRECTORY_BYTES];
} hr_control_fixed;
_Static_assert(offsetof(hr_control_fixed, pid_namespace) == 48 && sizeof(hr_control_fixed) == 1080,
               "control header");

typedef struct hr_flags {                          /* the supervisor's */
    _Alignas(HR_LINE_BYTES) _Atomic uint32_t stop; /* hr_stop_reason */
    _Atomic uint32_t producers_gone;
    _Atomic uint32_t settings; /* how often they have been written again */
    uint8_t pad[HR_LINE_BYTES - 12];
} hr_flags;
_Static_assert(sizeof(hr_flags) == HR_LINE_BYTES, "flags");

typedef struct hr_process {
    /* The supervisor's */
    _Alignas(HR_LINE_BYTES) _Atomic uint32_t role;
    _Atomic uint32_t role_index;
    _Atomic uint32_t state;
    _Atomic int32_t core; /* -1: not pinned */
    _Atomic uint64_t pid, start_time, epoch;
    uint64_t identity_pad[11];
    /* The process' own */
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t heartbeat_ns;
    _Atomic uint64_t progress, phase;
    uint64_t pulse_pad[13];
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t counter[HR_COUNTERS];
    _Alignas(HR_LINE_BYTES) _Atomic uint64_t gauge[HR_GAUGES]; /* bits of a double */
} hr_process;
_Static_assert(offsetof(hr_process, pid) == 16 && offsetof(hr_process, heartbeat_ns) == 128 &&
                   offsetof(hr_process, counter) == 256 &&
                   offsetof(hr_process, gauge) == 256 + 8 * HR_COUNTERS &&
                   sizeof(hr_process) % HR_LINE_BYTES == 0,
               "process");
_Static_assert(HR_P_COUNT <= HR_COUNTERS && HR_S_COUNT <= HR_COUNTERS && HR_R_COUNT <= HR_COUNTERS && HR_L_COUNT + HR_LAG_BINS + HR_AGE_BINS <= HR_COUNTERS,
               "counters fit");

static inline hr_flags *hr_control_flags(const hr_control *c)
{
    return (hr_flags *)((char *)c->base + c->flags_offset);
}
static inline hr_bell *hr_control_bell(const hr_control *c, uint64_t learner)
{
    return (hr_bell *)((char *)c->base + c->bells_offset) + learner;
}
static inline hr_bell *hr_control_server_bell(const hr_control *c, uint64_t server)
{
    return hr_control_bell(c, HR_MAX_LEARNERS + server);
}
static inline hr_process *hr_control_process(const hr_control *c, uint32_t index)
{
    return (hr_process *)((char *)c->base + c->table_offset) + index;
}

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "atomics in shared memory are lock-free");

#endif
