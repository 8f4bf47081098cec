/* The type Control: the control block as a process sees it. */
#include "_ring.h"
#include "table.h"
#include "wait.h"

#include <string.h>

PyObject *control_type;
static PyTypeObject *process_info_type;

static PyObject *control_attach(PyObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "self_index", "name", "close_fd", NULL};
    int fd, close_fd = 0;
    uint32_t self;
    PyObject *name = NULL;
    char error[ERROR_BYTES];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO&|U$p", names, &fd, to_u32, &self, &name, &close_fd))
        return NULL;
    hr_control c;
    if (hr_control_attach(&c, fd, self, error, sizeof error) != 0)
        return fail(error);
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    ControlObject *object = (ControlObject *)allocate((PyTypeObject *)type, 0);
    if (object == NULL) {
        hr_control_detach(&c);
        return NULL;
    }
    object->c = c;
    if (segment_set(&object->segment, fd, name, close_fd) != 0) {
        Py_DECREF((PyObject *)object);
        return NULL;
    }
    return (PyObject *)object;
}

static void control_dealloc(PyObject *self)
{
    ControlObject *object = (ControlObject *)self;
    PyTypeObject *type = Py_TYPE(self);
    hr_control_detach(&object->c);
    segment_clear(&object->segment);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

hr_control *control_mapped(PyObject *self)
{
    hr_control *c = &((ControlObject *)self)->c;
    if (c->base == NULL)
        fail("the control block is closed");
    return c->base == NULL ? NULL : c;
}

static PyObject *control_close(PyObject *self, PyObject *unused)
{
    ControlObject *object = (ControlObject *)self;
    (void)unused;
    if (object->rings != NULL)
        return fail("the control block cannot be closed while rings are attached to it");
    hr_control_detach(&object->c);
    if (object->segment.name != NULL) {
        PyObject *name = Py_NewRef(object->segment.name);
        segment_clear(&object->segment);
        object->segment.name = name;
    }
    Py_RETURN_NONE;
}

hr_process *control_process_at(PyObject *self, uint32_t index)
{
    hr_control *c = control_mapped(self);
    if (c == NULL)
        return NULL;
    if (index >= HR_MAX_PROCESSES) {
        PyErr_Format(PyExc_IndexError, "process %u of %d", index, HR_MAX_PROCESSES);
        return NULL;
    }
    return hr_control_process(c, index);
}

/* N1 pairs with N1: every value below stands by itself. */
static uint64_t get(_Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

static PyObject *set_process(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index", "role",  "role_index", "pid", "start_time",
                            "core",  "state", "epoch",      NULL};
    uint32_t index;
    const char *role = NULL, *state = NULL;
    PyObject *role_index = NULL, *pid = NULL, *start_time = NULL, *core = NULL, *epoch = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|$zOOOOzO", names, to_u32, &index, &role, &role_index,
                                     &pid, &start_time, &core, &state, &epoch))
        return NULL;
    hr_process *p = control_process_at(self, index);
    if (p == NULL)
        return NULL;
    int role_number = role == NULL ? 0 : find_name(role_names, role, "role");
    int state_number = state == NULL ? 0 : find_name(state_names, state, "state");
    uint32_t ordinal = 0;
    uint64_t pid_number = 0, start_number = 0, epoch_number = 0;
    long core_number = -1;
    if (role_number < 0 || state_number < 0 || (role_index && !to_u32(role_index, &ordinal)) ||
        (pid && !to_u64(pid, &pid_number)) || (start_time && !to_u64(start_time, &start_number)) ||
        (epoch && !to_u64(epoch, &epoch_number)))
        return NULL;
    if (core != NULL && core != Py_None && (core_number = PyLong_AsLong(core)) == -1 && PyErr_Occurred())
        return NULL;
    if (role_index)
        atomic_store_explicit(&p->role_index, ordinal, memory_order_relaxed);
    if (pid)
        atomic_store_explicit(&p->pid, pid_number, memory_order_relaxed);
    if (start_time)
        atomic_store_explicit(&p->start_time, start_number, memory_order_relaxed);
    if (core)
        atomic_store_explicit(&p->core, (int32_t)core_number, memory_order_relaxed);
    if (epoch)
        atomic_store_explicit(&p->epoch, epoch_number, memory_order_relaxed);
    if (role)
        atomic_store_explicit(&p->role, (uint32_t)role_number, memory_order_relaxed);
    if (state) /* G2 pairs with G2 in process(): who sees the new state sees the rest */
        atomic_store_explicit(&p->state, (uint32_t)state_number, memory_order_release);
    Py_RETURN_NONE;
}

static const char *name_of(const char *const *names, uint64_t number, uint64_t most)
{
    return names[number <= most ? number : 0];
}

static PyObject *process(PyObject *self, PyObject *args)
{
    uint32_t index;
    if (!PyArg_ParseTuple(args, "O&", to_u32, &index))
        return NULL;
    hr_process *p = control_process_at(self, index);
    PyObject *info = p == NULL ? NULL : PyStructSequence_New(process_info_type);
    if (info == NULL)
        return NULL;
    uint32_t state = atomic_load_explicit(&p->state, memory_order_acquire); /* G2 */
    int32_t core = atomic_load_explicit(&p->core, memory_order_relaxed);
    PyObject *items[] = {
        PyUnicode_FromString(
            name_of(role_names, atomic_load_explicit(&p->role, memory_order_relaxed), HR_SINK)),
        PyLong_FromUnsignedLong(atomic_load_explicit(&p->role_index, memory_order_relaxed)),
        PyLong_FromUnsignedLongLong(get(&p->pid)),
        PyLong_FromUnsignedLongLong(get(&p->start_time)),
        PyLong_FromUnsignedLongLong(get(&p->epoch)),
        PyUnicode_FromString(name_of(state_names, state, HR_FAILED)),
        core < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(core),
        PyLong_FromUnsignedLongLong(get(&p->heartbeat_ns)),
        PyUnicode_FromString(name_of(hr_phase_names, get(&p->phase), HR_PHASE_STOPPING)),
        PyLong_FromUnsignedLongLong(get(&p->progress)),
    };
    for (Py_ssize_t i = 0; i < (Py_ssize_t)(sizeof items / sizeof *items); i++)
        PyStructSequence_SetItem(info, i, items[i]);
    if (PyErr_Occurred())
        Py_CLEAR(info);
    return info;
}

static PyObject *get_stop(PyObject *self, void *unused)
{
    (void)unused;
    hr_control *c = control_mapped(self);
    if (c == NULL)
        return NULL;
    hr_stop_reason reason = hr_control_stop(c);
    return reason == HR_RUN ? Py_NewRef(Py_None)
                            : PyUnicode_FromString(name_of(stop_names, reason, HR_STOP_FAILURE));
}

static PyObject *set_stop(PyObject *self, PyObject *args)
{
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    hr_control *c = control_mapped(self);
    int reason = c == NULL ? -1 : find_name(stop_names, name, "stop reason");
    if (reason < 0)
        return NULL;
    hr_control_set_stop(c, (hr_stop_reason)reason);
    for (RingObject *ring = ((ControlObject *)self)->rings; ring != NULL; ring = ring->next)
        if (ring->access != HR_ACCESS_MONITOR)
            hr_bell_ring(&hr_ring_lines(&ring->r)->bell);
    Py_RETURN_NONE;
}

static PyObject *get_producers_gone(PyObject *self, void *unused)
{
    (void)unused;
    hr_control *c = control_mapped(self);
    return c == NULL ? NULL : PyBool_FromLong(hr_control_producers_gone(c));
}

static PyObject *set_producers_gone(PyObject *self, PyObject *args)
{
    int gone = 1;
    if (!PyArg_ParseTuple(args, "|p", &gone))
        return NULL;
    hr_control *c = control_mapped(self);
    if (c == NULL)
        return NULL;
    hr_control_set_producers_gone(c, gone);
    Py_RETURN_NONE;
}

static PyObject *get_settings(PyObject *self, void *unused)
{
    (void)unused;
    hr_control *c = control_mapped(self);
    return c == NULL ? NULL : PyLong_FromUnsignedLong(hr_control_settings(c));
}

static PyObject *announce_settings(PyObject *self, PyObject *unused)
{
    (void)unused;
    hr_control *c = control_mapped(self);
    if (c == NULL)
        return NULL;
    hr_control_announce_settings(c);
    Py_RETURN_NONE;
}

static PyObject *reset_pulse(PyObject *self, PyObject *args)
{
    uint32_t index;
    if (!PyArg_ParseTuple(args, "O&", to_u32, &index) || control_process_at(self, index) == NULL)
        return NULL;
    hr_control_reset_pulse(control_mapped(self), index);
    Py_RETURN_NONE;
}

static PyObject *get_number(PyObject *self, void *which)
{
    ControlObject *object = (ControlObject *)self;
    return PyLong_FromLong(which == NULL ? object->segment.fd : (long)object->c.self);
}

static PyObject *get_directory(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_DecodeFSDefault(((ControlObject *)self)->c.directory);
}

static PyObject *get_pid_namespace(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((ControlObject *)self)->c.pid_namespace);
}

static PyObject *get_name(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((ControlObject *)self)->segment.name);
}

static PyObject *get_created(PyObject *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble((double)((ControlObject *)self)->c.created_unix_ns * 1e-9);
}

static PyObject *get_id(PyObject *self, void *which)
{
    const hr_control *c = &((ControlObject *)self)->c;
    return PyBytes_FromStringAndSize((const char *)(which == NULL ? c->run_id : c->boot_id), 16);
}

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef methods[] = {
    {"attach", KEYWORDS(control_attach), METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "attach(fd, self_index, name='', *, close_fd=False): maps the block as process `self_index`."},
    {"close", control_close, METH_NOARGS,
     "Unmaps the block, and closes the descriptor if it was created here."},
    {"set_process", KEYWORDS(set_process), METH_VARARGS | METH_KEYWORDS,
     "Supervisor: sets what is given of role, role_index, pid, start_time, core (None: not pinned), state, "
     "epoch."},
    {"process", process, METH_VARARGS, "process(index) -> ProcessInfo"},
    {"counters", control_counters, METH_VARARGS, "counters(index) -> dict by the names of the process' role"},
    {"gauges", control_gauges, METH_VARARGS, "gauges(index) -> dict; NaN: no value yet"},
    {"bins", control_bins, METH_VARARGS, "bins(index) -> (lag bins, age bins) of a learner"},
    {"counter_add", control_counter_add, METH_VARARGS, "counter_add(name, n=1) to an own counter"},
    {"counter_set", control_counter_set, METH_VARARGS, "counter_set(name, value) of an own counter"},
    {"gauge_set", control_gauge_set, METH_VARARGS, "gauge_set(name, value) of an own gauge"},
    {"lag_add", control_lag_add, METH_VARARGS, "lag_add(versions, n=1): n steps of that lag"},
    {"age_add", control_age_add, METH_VARARGS, "age_add(bin, n=1): n slots with an age below 2^bin ms"},
    {"pulse", control_pulse, METH_VARARGS, "pulse(phase, progress): heartbeat"},
    {"set_stop", set_stop, METH_VARARGS,
     "set_stop(reason): stores the flag, rings every learner and every ring attached through this object."},
    {"announce_settings", announce_settings, METH_NOARGS,
     "Supervisor: the resolved settings were written again; rings the learners."},
    {"reset_pulse", reset_pulse, METH_VARARGS,
     "reset_pulse(index): phase, progress and heartbeat as of a process that has not begun."},
    {"request_stop", control_request_stop, METH_VARARGS,
     "Learner: request_stop(reason), for the supervisor to see."},
    {"set_producers_gone", set_producers_gone, METH_VARARGS,
     "set_producers_gone(gone=True): all producers are reaped and swept; rings the learners. False: there will "
     "be others."},
    {"bell_ring", control_bell_ring, METH_VARARGS, "bell_ring(learner)"},
    {"bell_value", control_bell_value, METH_VARARGS,
     "bell_value(learner): announces that the learner is about to wait, and returns what to give to "
     "bell_wait(). "
     "Look at the rings after this call, never only before it."},
    {"bell_wait", KEYWORDS(control_bell_wait), METH_VARARGS | METH_KEYWORDS,
     "bell_wait(learner, seen, timeout=None, *, deadline_ns=None): sleeps while the bell is at `seen`. True: "
     "it rang; "
     "False: the time (seconds, or absolute CLOCK_MONOTONIC nanoseconds) is over. Signal handlers run "
     "meanwhile."},
    {0}};
static PyGetSetDef attributes[] = {
    {"stop", get_stop, NULL, "Why the run is to stop, or None.", NULL},
    {"producers_gone", get_producers_gone, NULL, "All producers are reaped and swept.", NULL},
    {"created_unix", get_created, NULL, "When the block was created, Unix seconds.", NULL},
    {"run_id", get_id, NULL, "16 bytes.", NULL},
    {"boot_id", get_id, NULL, "16 bytes: the kernel's, of the boot in which the block was created.", (void *)1},
    {"directory", get_directory, NULL, "The run directory's absolute path; '' if the run has none.", NULL},
    {"pid_namespace", get_pid_namespace, NULL, "Inode of the creator's, in which the table's pids count.", NULL},
    {"settings", get_settings, NULL, "How often announce_settings() was called.", NULL},
    {"fd", get_number, NULL, "The descriptor it was attached by.", NULL},
    {"self_index", get_number, NULL, "Own index in the process table.", (void *)1},
    {"name", get_name, NULL, "Shared-memory name, '' if attached by descriptor only.", NULL},
    {0}};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, control_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_doc, "The control block: process table, counters, bells and flags of a run."},
    {0}};
static PyType_Spec spec = {"ringbuf._ring.Control", sizeof(ControlObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

static PyStructSequence_Field info_fields[] = {{"role", NULL},
                                               {"role_index", NULL},
                                               {"pid", NULL},
                                               {"start_time", NULL},
                                               {"epoch", NULL},
                                               {"state", NULL},
                                               {"core", "None: not pinned"},
                                               {"heartbeat_ns", NULL},
                                               {"phase", NULL},
                                               {"progress", NULL},
                                               {0}};
static PyStructSequence_Desc info_description = {"ringbuf._ring.ProcessInfo", "One row of the process table.",
                                                 info_fields, 10};

int add_control(PyObject *module)
{
    control_type = PyType_FromSpec(&spec);
    process_info_type = PyStructSequence_NewType(&info_description);
    return control_type == NULL || process_info_type == NULL ||
                   PyModule_AddObjectRef(module, "Control", control_type) != 0 ||
                   PyModule_AddObjectRef(module, "ProcessInfo", (PyObject *)process_info_type) != 0
               ? -1
               : 0;
}
