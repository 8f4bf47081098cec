/* The CPython extension: what its files share. Limited API of Python 3.11, so one build serves all later
 * versions. */
#ifndef HEADRACE_RING_PYTHON_H
#define HEADRACE_RING_PYTHON_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "channel.h"
#include "layout.h"
#include "words.h"

#define ERROR_BYTES 512

/* What every attached segment knows of its file. */
typedef struct Segment {
    int fd;
    int close_fd; /* created here: the descriptor dies with the object */
    PyObject *name;
} Segment;

typedef struct RingObject RingObject;

typedef struct ControlObject {
    PyObject_HEAD hr_control c;
    Segment segment;
    RingObject *rings; /* attached through this control block, for set_stop() to ring; borrowed */
} ControlObject;

struct RingObject {
    PyObject_HEAD hr_ring r;
    Segment segment;
    ControlObject *control;
    RingObject *next, *previous;
    hr_access access;
    uint64_t learner;
    PyObject *plan;           /* ringbuf.plan.Plan, made when first asked for */
    const char *last_failure; /* of lease() */
    Py_ssize_t exports;       /* views of the payload that live */
};

typedef struct WeightsObject {
    PyObject_HEAD hr_weights w;
    Segment segment;
    hr_weights_access access;
} WeightsObject;

extern PyObject *ring_error; /* ringbuf.errors.RingError */
extern PyObject *control_type, *ring_type, *lease_type, *claim_type, *weights_type;

/* Names of enums and counters, in C order; the arrays end with NULL. */
extern const char *const role_names[], *const state_names[], *const stop_names[];
extern const char *const slot_state_names[], *const drop_names[], *const claimable_names[];
extern const char *const producer_counter_names[], *const learner_counter_names[], *const server_counter_names[],
                                                       *const recorder_counter_names[],
                                                       *const learner_gauge_names[];

/* Index of `name`, or -1 with ValueError that lists the names. */
int find_name(const char *const *names, const char *name, const char *what);
PyObject *name_tuple(const char *const *names);

/* Sets RingError with the text; returns NULL. */
PyObject *fail(const char *text);

/* "O&" converters: an int in [0, 2^64) or [0, 2^32), else OverflowError or TypeError. */
int to_u64(PyObject *value, void *out);
int to_u32(PyObject *value, void *out);

/* None for HR_NONE, else the number. */
PyObject *number_or_none(uint64_t value);

/* dict[key] = number; -1 on error. */
int put(PyObject *dict, const char *key, uint64_t value);

/* `name` may be NULL: ''. -1 on error. */
int segment_set(Segment *segment, int fd, PyObject *name, int close_fd);
void segment_clear(Segment *segment);

/* Seconds as given to Python (None: for ever) to an absolute CLOCK_MONOTONIC time; -1 on error. */
int to_deadline(PyObject *seconds, uint64_t *deadline_ns);

/* A new Lease of a slot that is LEASED by us, or a new Claim of one that is WRITING by us. */
PyObject *lease_new(RingObject *ring, uint64_t sequence);
PyObject *claim_new(RingObject *ring);

/* Each adds its type or functions to the module; -1 on error. */
int add_control(PyObject *module);
int add_ring(PyObject *module);
int add_lease(PyObject *module);
int add_weights(PyObject *module);
int add_create(PyObject *module);

/* The object as a ring if it is attached in one of the `allowed` ways (bits 1 << hr_access), else NULL with
 * an error. */
RingObject *ring_as(PyObject *self, unsigned allowed);
#define AS_PRODUCER (1u << HR_ACCESS_PRODUCER)
#define AS_LEARNER (1u << HR_ACCESS_LEARNER)
#define AS_SUPERVISOR (1u << HR_ACCESS_SUPERVISOR)
#define AS_SERVER (1u << HR_ACCESS_SERVER)
#define AS_TAP (1u << HR_ACCESS_TAP)
#define AS_ANYBODY 63u

/* The control block of the object, or a process of it; NULL with an error. */
hr_control *control_mapped(PyObject *self);
hr_process *control_process_at(PyObject *self, uint32_t index);

/* Methods of Control that read and write counters; the table is in _ring_control.c. */
#define METHOD(name) PyObject *name(PyObject *self, PyObject *args)
METHOD(control_counters);
METHOD(control_gauges);
METHOD(control_bins);
METHOD(control_counter_add);
METHOD(control_counter_set);
METHOD(control_gauge_set);
METHOD(control_lag_add);
METHOD(control_age_add);
METHOD(control_pulse);
METHOD(control_request_stop);
METHOD(control_bell_ring);
METHOD(control_bell_value);

/* Methods of Ring by who calls them; the table is in _ring_ring.c. */
METHOD(ring_claimable);
METHOD(ring_wait);
METHOD(ring_wait_published);
METHOD(ring_announce);
METHOD(ring_exact_version);
METHOD(ring_claim);
METHOD(ring_abort);
METHOD(ring_skip);
METHOD(ring_lease);
METHOD(ring_drop);
METHOD(ring_grant);
METHOD(ring_set_base);
METHOD(ring_ring_producer);
METHOD(ring_set_owner);
METHOD(ring_sweep_producer);
METHOD(ring_sweep_learner);
METHOD(ring_lower_granted);
METHOD(ring_request_state);
METHOD(ring_state);
METHOD(ring_load_state);
METHOD(ring_ask);
METHOD(ring_answered);
METHOD(ring_wait_answer);
METHOD(ring_question);
METHOD(ring_answer);
METHOD(ring_serving_parts);
METHOD(ring_sweep_server);
METHOD(ring_tap);
#undef METHOD
PyObject *control_bell_wait(PyObject *self, PyObject *args, PyObject *kwargs);

#endif
