/* Methods of Control for a learner or a server that sleeps, and for who wakes it. Bell i is that of learner i; behind
 * those of the learners stand the servers'. */
#include "_ring.h"
#include "wait.h"

static hr_bell *bell_at(PyObject *self, uint32_t learner)
{
    hr_control *c = control_mapped(self);
    if (c == NULL)
        return NULL;
    if (learner >= HR_MAX_LEARNERS + HR_MAX_SERVERS) {
        PyErr_Format(PyExc_IndexError, "bell %u of %u", learner, HR_MAX_LEARNERS + HR_MAX_SERVERS);
        return NULL;
    }
    return hr_control_bell(c, learner);
}

PyObject *control_bell_ring(PyObject *self, PyObject *args)
{
    uint32_t learner;
    if (!PyArg_ParseTuple(args, "O&", to_u32, &learner))
        return NULL;
    hr_bell *bell = bell_at(self, learner);
    if (bell == NULL)
        return NULL;
    hr_bell_ring(bell);
    Py_RETURN_NONE;
}

PyObject *control_bell_value(PyObject *self, PyObject *args)
{
    uint32_t learner;
    if (!PyArg_ParseTuple(args, "O&", to_u32, &learner))
        return NULL;
    hr_bell *bell = bell_at(self, learner);
    return bell == NULL ? NULL : PyLong_FromUnsignedLong(hr_bell_arm(bell));
}

PyObject *control_bell_wait(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"learner", "seen", "timeout", "deadline_ns", NULL};
    uint32_t learner, seen;
    uint64_t deadline_ns;
    PyObject *timeout = Py_None, *deadline = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&|O$O", names, to_u32, &learner, to_u32, &seen,
                                     &timeout, &deadline))
        return NULL;
    hr_bell *bell = bell_at(self, learner);
    if (bell == NULL || to_deadline(timeout, &deadline_ns) != 0)
        return NULL;
    if (deadline != NULL && deadline != Py_None && !to_u64(deadline, &deadline_ns))
        return NULL;
    for (;;) {
        hr_woken woken;
        Py_BEGIN_ALLOW_THREADS
        woken = hr_bell_sleep(bell, seen, deadline_ns);
        Py_END_ALLOW_THREADS
        /* A woken futex may be a spurious one: the bell itself decides. B1 pairs with B2. */
        if (atomic_load_explicit(&bell->bell, memory_order_seq_cst) != seen)
            Py_RETURN_TRUE;
        if (woken == HR_TIMED_OUT)
            Py_RETURN_FALSE;
        if (PyErr_CheckSignals() != 0)
            return NULL;
    }
}
