/* The control block: process table, counters, bells and the run's flags, one segment a run.
 *
 * Identity fields of a process are the supervisor's to write, its pulse (heartbeat, progress, phase) and its
 * counters the process' own. Every writer has cache lines of its own. */
#ifndef HEADRACE_CONTROL_H
#define HEADRACE_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "counters.h"

#define HR_MAX_PROCESSES 512
#define HR_COUNTERS 512 /* uint64 of each process; a learner's lag and age bins follow its named counters */
#define HR_GAUGES 64    /* float64 of each process */
#define HR_DIRECTORY_BYTES 1024 /* of a path, its NUL included */

typedef enum hr_role {
    HR_SUPERVISOR = 1, HR_PRODUCER, HR_LEARNER, HR_SERVER, HR_EXPORTER, HR_RECORDER, HR_EVALUATOR, HR_SINK
} hr_role;

typedef enum hr_process_state {
    HR_STARTING = 1, HR_RUNNING, HR_BACKOFF, HR_HUNG, HR_STOPPING, HR_EXITED, HR_FAILED
} hr_process_state;

/* What a process is doing; `stalled` is judged in the first three only. Waits are named. */
typedef enum hr_phase {
    HR_PHASE_STARTING = 0, HR_PHASE_STEP, HR_PHASE_POLICY, HR_PHASE_TRAIN, HR_PHASE_WAIT_CREDIT,
    HR_PHASE_WAIT_FULL, HR_PHASE_WAIT_VERSION, HR_PHASE_WAIT_ANSWER, HR_PHASE_WAIT_OWNER, HR_PHASE_WAIT_DATA,
    HR_PHASE_SAVING, HR_PHASE_STOPPING
} hr_phase;

/* By number, as Python calls them; NULL behind the last. */
extern const char *const hr_phase_names[];

typedef enum hr_stop_reason {
    HR_RUN = 0, HR_STOP_SIGNAL, HR_STOP_STEPS, HR_STOP_SECONDS, HR_STOP_VERSIONS, HR_STOP_SCORE,
    HR_STOP_FAILURE
} hr_stop_reason;

#define X(name) HR_P_##name,
typedef enum hr_producer_counter { HR_PRODUCER_COUNTERS(X) HR_P_COUNT } hr_producer_counter;
#undef X
#define X(name) HR_L_##name,
typedef enum hr_learner_counter { HR_LEARNER_COUNTERS(X) HR_L_COUNT } hr_learner_counter;
#undef X
#define X(name) HR_S_##name,
typedef enum hr_server_counter { HR_SERVER_COUNTERS(X) HR_S_COUNT } hr_server_counter;
#undef X
#define X(name) HR_R_##name,
typedef enum hr_recorder_counter { HR_RECORDER_COUNTERS(X) HR_R_COUNT } hr_recorder_counter;
#undef X

typedef struct hr_control { /* one process' view */
    void *base;
    size_t mapped_bytes;
    uint32_t self; /* own index in the process table */
    uint64_t flags_offset, bells_offset, table_offset;
    uint8_t run_id[16], boot_id[16];
    uint64_t created_unix_ns;
    uint64_t pid_namespace;             /* inode of the creator's; pids mean something in it alone */
    char directory[HR_DIRECTORY_BYTES]; /* absolute path of the run directory; empty: the run has none */
} hr_control;

/* Maps the block read-write as process `self`. 0, or -1 with one line in `error`. */
int hr_control_attach(hr_control *c, int fd, uint32_t self, char *error, size_t capacity);
void hr_control_detach(hr_control *c);

/* HR_RUN, or why the run is to stop. */
hr_stop_reason hr_control_stop(const hr_control *c);

/* Own counters: relaxed store of value, and of old value + n. */
void hr_control_set(hr_control *c, uint32_t counter, uint64_t value);
void hr_control_add(hr_control *c, uint32_t counter, uint64_t n);

/* Own pulse: stores phase, progress and the time. Cheap enough for every step. */
void hr_control_pulse(hr_control *c, hr_phase phase, uint64_t progress, uint64_t now_ns);

#endif
