/* The CPython extension: the module, its constants, and what its types share. */
#include "_ring.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

PyObject *ring_error;

#define X(name) #name,
const char *const producer_counter_names[] = {HR_PRODUCER_COUNTERS(X) NULL};
const char *const learner_counter_names[] = {HR_LEARNER_COUNTERS(X) NULL};
const char *const server_counter_names[] = {HR_SERVER_COUNTERS(X) NULL};
const char *const recorder_counter_names[] = {HR_RECORDER_COUNTERS(X) NULL};
const char *const learner_gauge_names[] = {HR_LEARNER_GAUGES(X) NULL};
#undef X
const char *const role_names[] = {"none",     "supervisor", "producer",  "learner", "server",
                                  "exporter", "recorder",   "evaluator", "sink",    NULL};
const char *const state_names[] = {"none",     "starting", "running", "backoff", "hung",
                                   "stopping", "exited",   "failed",  NULL};
const char *const stop_names[] = {"run", "signal", "steps", "seconds", "versions", "score", "failure", NULL};
const char *const slot_state_names[] = {"none", "free", "writing", "ready", "leased", "bad", NULL};
const char *const drop_names[] = {"not_written", "overwritten", "bad", "redelivered", "consumed",
                                  "rollback",    "shutdown",    "lag", NULL};
const char *const claimable_names[] = {"claimable", "wait_credit", "wait_full", "wait_owner",
                                       "skip",      "save",        "stopped",   "exhausted", NULL};
_Static_assert(sizeof role_names / sizeof *role_names == HR_SINK + 2, "a name for each role");
_Static_assert(sizeof state_names / sizeof *state_names == HR_FAILED + 2, "a name for each state");
_Static_assert(sizeof stop_names / sizeof *stop_names == HR_STOP_FAILURE + 2, "a name for each reason");
_Static_assert(sizeof slot_state_names / sizeof *slot_state_names == HR_BAD + 2,
               "a name for each slot state");
_Static_assert(sizeof drop_names / sizeof *drop_names == HR_COUNTS + 1, "a name for each count");
_Static_assert(sizeof claimable_names / sizeof *claimable_names == HR_EXHAUSTED + 2,
               "a name for each answer");

int find_name(const char *const *names, const char *name, const char *what)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    PyObject *all = name_tuple(names);
    if (all != NULL)
        PyErr_Format(PyExc_ValueError, "%s '%s' is none of %R", what, name, all);
    Py_XDECREF(all);
    return -1;
}

PyObject *name_tuple(const char *const *names)
{
    Py_ssize_t n = 0;
    while (names[n] != NULL)
        n++;
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) {
        PyObject *name = PyUnicode_InternFromString(names[i]);
        if (name == NULL || PyTuple_SetItem(tuple, i, name) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *fail(const char *text)
{
    PyErr_SetString(ring_error, text);
    return NULL;
}

int to_u64(PyObject *value, void *out)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (number == (unsigned long long)-1 && PyErr_Occurred())
        return 0;
    *(uint64_t *)out = number;
    return 1;
}

int to_u32(PyObject *value, void *out)
{
    uint64_t number;
    if (!to_u64(value, &number))
        return 0;
    if (number > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%R does not fit 32 bits", value);
        return 0;
    }
    *(uint32_t *)out = (uint32_t)number;
    return 1;
}

PyObject *number_or_none(uint64_t value)
{
    return value == HR_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(value);
}

int put(PyObject *dict, const char *key, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int result = number == NULL ? -1 : PyDict_SetItemString(dict, key, number);
    Py_XDECREF(number);
    return result;
}

int segment_set(Segment *segment, int fd, PyObject *name, int close_fd)
{
    segment->fd = fd;
    segment->close_fd = close_fd;
    segment->name = name != NULL ? Py_NewRef(name) : PyUnicode_FromString("");
    return segment->name == NULL ? -1 : 0;
}

void segment_clear(Segment *segment)
{
    if (segment->close_fd && segment->fd >= 0)
        close(segment->fd);
    segment->fd = -1;
    Py_CLEAR(segment->name);
}

int to_deadline(PyObject *seconds, uint64_t *deadline_ns)
{
    *deadline_ns = (uint64_t)INT64_MAX;
    if (seconds == Py_None)
        return 0;
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred())
        return -1;
    if (isnan(value)) {
        PyErr_SetString(PyExc_ValueError, "a timeout that is not a number");
        return -1;
    }
    if (value < 4e9) /* longer than a century is for ever */
        *deadline_ns = hr_now_ns() + (uint64_t)((value > 0 ? value : 0) * 1e9);
    return 0;
}

static int add_names(PyObject *module, const char *constant, const char *const *names)
{
    PyObject *tuple = name_tuple(names);
    int result = tuple == NULL ? -1 : PyModule_AddObjectRef(module, constant, tuple);
    Py_XDECREF(tuple);
    return result;
}

static int add_constants(PyObject *module)
{
    PyObject *none = PyLong_FromUnsignedLongLong(HR_NONE);
    int result = none == NULL ? -1 : PyModule_AddObjectRef(module, "NONE", none);
    Py_XDECREF(none);
    return result != 0 || PyModule_AddIntConstant(module, "ABI", HR_ABI) != 0 ||
                   PyModule_AddIntConstant(module, "LAG_BINS", HR_LAG_BINS) != 0 ||
                   PyModule_AddIntConstant(module, "AGE_BINS", HR_AGE_BINS) != 0 ||
                   PyModule_AddIntConstant(module, "MAX_PROCESSES", HR_MAX_PROCESSES) != 0 ||
                   PyModule_AddIntConstant(module, "MAX_LEARNERS", HR_MAX_LEARNERS) != 0 ||
                   PyModule_AddIntConstant(module, "MAX_SERVERS", HR_MAX_SERVERS) != 0 ||
                   PyModule_AddIntConstant(module, "MAX_GROUPS", HR_MAX_GROUPS) != 0 ||
                   add_names(module, "ROLES", role_names) != 0 ||
                   add_names(module, "STATES", state_names) != 0 ||
                   add_names(module, "PHASES", hr_phase_names) != 0 ||
                   add_names(module, "STOP_REASONS", stop_names) != 0 ||
                   add_names(module, "PRODUCER_COUNTERS", producer_counter_names) != 0 ||
                   add_names(module, "LEARNER_COUNTERS", learner_counter_names) != 0 ||
                   add_names(module, "SERVER_COUNTERS", server_counter_names) != 0 ||
                   add_names(module, "RECORDER_COUNTERS", recorder_counter_names) != 0 ||
                   add_names(module, "LEARNER_GAUGES", learner_gauge_names) != 0
               ? -1
               : 0;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "ringbuf._ring",
    .m_doc = "Shared-memory rings, weights channel and control block; see ringbuf/__init__.py.",
    .m_size = -1};

PyMODINIT_FUNC PyInit__ring(void);
PyMODINIT_FUNC PyInit__ring(void)
{
    PyObject *errors = PyImport_ImportModule("ringbuf.errors");
    if (errors == NULL)
        return NULL;
    ring_error = PyObject_GetAttrString(errors, "RingError");
    Py_DECREF(errors);
    PyObject *module = ring_error == NULL ? NULL : PyModule_Create(&definition);
    if (module != NULL && (add_constants(module) != 0 || add_control(module) != 0 || add_ring(module) != 0 ||
                           add_lease(module) != 0 || add_weights(module) != 0 || add_create(module) != 0))
        Py_CLEAR(module);
    return module;
}
