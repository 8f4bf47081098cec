/* Methods of Control for a process' own counters, gauges and pulse, and for reading everybody's. */
#include "_ring.h"
#include "table.h"

#include <string.h>

/* N1 pairs with N1: every value below stands by itself. */
static uint64_t get(_Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

static const char *const *counter_names(const hr_process *p)
{
    static const char *const nothing[] = {NULL};
    uint32_t role = atomic_load_explicit(&p->role, memory_order_relaxed);
    return role == HR_PRODUCER  ? producer_counter_names
           : role == HR_LEARNER ? learner_counter_names
           : role == HR_SERVER  ? server_counter_names
           : role == HR_RECORDER ? recorder_counter_names
                                 : nothing;
}

PyObject *control_counters(PyObject *self, PyObject *args)
{
    uint32_t index;
    if (!PyArg_ParseTuple(args, "O&", to_u32, &index))
        return NULL;
    hr_process *p = control_process_at(self, index);
    PyObject *dict = p == NULL ? NULL : PyDict_New();
    const char *const *names = p == NULL ? NULL : counter_names(p);
    for (int i = 0; dict != NULL && names[i] != NULL; i++)
        if (put(dict, names[i], get(&p->counter[i])) != 0)
            Py_CLEAR(dict);
    return dict;
}

PyObject *control_gauges(PyObject *self, PyObject *args)
{
    uint32_t index;
    if (!PyArg_ParseTuple(args, "O&", to_u32, &index))
        return NULL;
    hr_process *p = control_process_at(self, index);
    PyObject *dict = p == NULL ? NULL : PyDict_New();
    int has = p != NULL && atomic_load_explicit(&p->role, memory_order_relaxed) == HR_LEARNER;
    for (int i = 0; dict != NULL && has && learner_gauge_names[i] != NULL; i++) {
        uint64_t bits = get(&p->gauge[i]);
        double value;
        memcpy(&value, &bits, sizeof value);
        PyObject *number = PyFloat_FromDouble(value);
        if (number == NULL || PyDict_SetItemString(dict, learner_gauge_names[i], number) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(number);
    }
    return dict;
}

static PyObject *numbers(_Atomic uint64_t *at, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(get(at + i));
        if (number == NULL || PyList_SetItem(list, i, number) != 0)
            Py_CLEAR(list);
    }
    return list;
}

PyObject *control_bins(PyObject *self, PyObject *args)
{
    uint32_t index;
    if (!PyArg_ParseTuple(args, "O&", to_u32, &index))
        return NULL;
    hr_process *p = control_process_at(self, index);
    if (p == NULL)
        return NULL;
    return Py_BuildValue("(NN)", numbers(&p->counter[HR_L_COUNT], HR_LAG_BINS),
                         numbers(&p->counter[HR_L_COUNT + HR_LAG_BINS], HR_AGE_BINS));
}

static int own_counter(PyObject *self, const char *name)
{
    hr_control *c = control_mapped(self);
    return c == NULL ? -1 : find_name(counter_names(hr_control_process(c, c->self)), name, "counter");
}

PyObject *control_counter_add(PyObject *self, PyObject *args)
{
    const char *name;
    uint64_t n = 1;
    if (!PyArg_ParseTuple(args, "s|O&", &name, to_u64, &n))
        return NULL;
    int counter = own_counter(self, name);
    if (counter < 0)
        return NULL;
    hr_control_add(control_mapped(self), (uint32_t)counter, n);
    Py_RETURN_NONE;
}

PyObject *control_counter_set(PyObject *self, PyObject *args)
{
    const char *name;
    uint64_t value;
    if (!PyArg_ParseTuple(args, "sO&", &name, to_u64, &value))
        return NULL;
    int counter = own_counter(self, name);
    if (counter < 0)
        return NULL;
    hr_control_set(control_mapped(self), (uint32_t)counter, value);
    Py_RETURN_NONE;
}

PyObject *control_gauge_set(PyObject *self, PyObject *args)
{
    const char *name;
    double value;
    if (!PyArg_ParseTuple(args, "sd", &name, &value))
        return NULL;
    hr_control *c = control_mapped(self);
    int gauge = c == NULL ? -1 : find_name(learner_gauge_names, name, "gauge");
    if (gauge < 0)
        return NULL;
    hr_control_gauge(c, (uint32_t)gauge, value);
    Py_RETURN_NONE;
}

static PyObject *bin_add(PyObject *self, PyObject *args, uint32_t first, uint32_t n_bins)
{
    uint64_t bin, n = 1;
    if (!PyArg_ParseTuple(args, "O&|O&", to_u64, &bin, to_u64, &n))
        return NULL;
    hr_control *c = control_mapped(self);
    if (c == NULL)
        return NULL;
    hr_control_add(c, first + (uint32_t)(bin < n_bins ? bin : n_bins - 1), n);
    Py_RETURN_NONE;
}

PyObject *control_lag_add(PyObject *self, PyObject *args)
{
    return bin_add(self, args, HR_L_COUNT, HR_LAG_BINS);
}

PyObject *control_age_add(PyObject *self, PyObject *args)
{
    return bin_add(self, args, HR_L_COUNT + HR_LAG_BINS, HR_AGE_BINS);
}

PyObject *control_pulse(PyObject *self, PyObject *args)
{
    const char *phase;
    uint64_t progress;
    if (!PyArg_ParseTuple(args, "sO&", &phase, to_u64, &progress))
        return NULL;
    hr_control *c = control_mapped(self);
    int number = c == NULL ? -1 : find_name(hr_phase_names, phase, "phase");
    if (number < 0)
        return NULL;
    hr_control_pulse(c, (hr_phase)number, progress, hr_now_ns());
    Py_RETURN_NONE;
}

PyObject *control_request_stop(PyObject *self, PyObject *args)
{
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    int reason = find_name(stop_names, name, "stop reason");
    if (reason < 0 || own_counter(self, "stop_request") < 0)
        return NULL;
    hr_control_set(control_mapped(self), HR_L_stop_request, (uint64_t)reason);
    Py_RETURN_NONE;
}
