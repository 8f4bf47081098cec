/* Methods of Ring for its three sides: producer, owner learner, supervisor. */
#include "_ring.h"
#include "learner.h"
#include "state.h"
#include "sweep.h"

#include <string.h>

/* ---- producer ---- */

PyObject *ring_claimable(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    return ring == NULL ? NULL : PyUnicode_FromString(claimable_names[hr_ring_claimable(&ring->r)]);
}

static int to_slice(PyObject *seconds, uint64_t *slice_ns)
{
    uint64_t deadline_ns;
    if (to_deadline(seconds, &deadline_ns) != 0)
        return -1;
    uint64_t now_ns = hr_now_ns();
    *slice_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    return 0;
}

PyObject *ring_wait(PyObject *self, PyObject *args)
{
    PyObject *seconds;
    uint64_t slice_ns;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    if (ring == NULL || !PyArg_ParseTuple(args, "O", &seconds) || to_slice(seconds, &slice_ns) != 0)
        return NULL;
    int rung;
    Py_BEGIN_ALLOW_THREADS
    rung = hr_ring_wait(&ring->r, slice_ns);
    Py_END_ALLOW_THREADS
    return PyErr_CheckSignals() != 0 ? NULL : PyBool_FromLong(rung);
}

PyObject *ring_wait_published(PyObject *self, PyObject *args)
{
    PyObject *weights, *seen, *seconds;
    uint64_t slice_ns, version = HR_NONE;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    if (ring == NULL ||
        !PyArg_ParseTuple(args, "O!OO", (PyTypeObject *)weights_type, &weights, &seen, &seconds) ||
        (seen != Py_None && !to_u64(seen, &version)) || to_slice(seconds, &slice_ns) != 0)
        return NULL;
    int rung;
    Py_BEGIN_ALLOW_THREADS
    rung = hr_ring_wait_published(&ring->r, &((WeightsObject *)weights)->w, version, slice_ns);
    Py_END_ALLOW_THREADS
    return PyErr_CheckSignals() != 0 ? NULL : PyBool_FromLong(rung);
}

PyObject *ring_announce(PyObject *self, PyObject *args)
{
    PyObject *weights;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    if (ring == NULL || !PyArg_ParseTuple(args, "O!", (PyTypeObject *)weights_type, &weights))
        return NULL;
    return number_or_none(hr_ring_announce(&ring->r, &((WeightsObject *)weights)->w));
}

PyObject *ring_exact_version(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    return ring == NULL ? NULL : PyLong_FromUnsignedLongLong(hr_ring_exact_version(&ring->r));
}

PyObject *ring_claim(PyObject *self, PyObject *args)
{
    uint64_t version;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&", to_u64, &version))
        return NULL;
    return hr_ring_claim(&ring->r, version) == 0 ? claim_new(ring) : Py_NewRef(Py_None);
}

PyObject *ring_abort(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    if (ring == NULL)
        return NULL;
    if (ring->exports > 0) {
        PyErr_Format(PyExc_BufferError, "%zd views of the payload still live", ring->exports);
        return NULL;
    }
    hr_ring_abort(&ring->r);
    Py_RETURN_NONE;
}

PyObject *ring_skip(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_PRODUCER);
    if (ring == NULL)
        return NULL;
    if (ring->r.plan.full == HR_BLOCK)
        return fail("a ring that blocks passes over nothing");
    hr_ring_skip(&ring->r);
    Py_RETURN_NONE;
}

/* ---- owner learner ---- */

PyObject *ring_lease(PyObject *self, PyObject *args)
{
    uint64_t sequence;
    RingObject *ring = ring_as(self, AS_LEARNER);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&", to_u64, &sequence))
        return NULL;
    hr_leased leased = hr_ring_lease(&ring->r, sequence);
    ring->last_failure = leased == HR_LEASE_GOOD ? NULL : leased == HR_LEASE_LOST ? "lost" : "torn";
    return leased == HR_LEASE_GOOD ? lease_new(ring, sequence) : Py_NewRef(Py_None);
}

PyObject *ring_drop(PyObject *self, PyObject *args)
{
    uint64_t sequence;
    const char *reason;
    RingObject *ring = ring_as(self, AS_LEARNER | AS_SUPERVISOR);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&s", to_u64, &sequence, &reason))
        return NULL;
    int cause = find_name(drop_names, reason, "reason");
    if (cause < 0)
        return NULL;
    if (ring->access == HR_ACCESS_SUPERVISOR && cause == HR_DROPPED_BAD)
        return PyBool_FromLong(hr_ring_free_bad(&ring->r, sequence) == 0);
    if (cause != HR_ROLLBACK && cause != HR_SHUTDOWN && cause != HR_LAG) {
        PyErr_Format(PyExc_ValueError, "a drop for '%s' is not this side's to make", reason);
        return NULL;
    }
    /* O1: an owner is the only one who may take from READY */
    if (ring->access == HR_ACCESS_SUPERVISOR &&
        atomic_load_explicit(&hr_ring_lines(&ring->r)->owner, memory_order_seq_cst) != HR_NONE)
        return fail("the ring has an owner, who alone drops its slots");
    return PyBool_FromLong(hr_ring_drop(&ring->r, sequence, (hr_count)cause) == 0);
}

PyObject *ring_grant(PyObject *self, PyObject *args)
{
    uint64_t n = 1;
    RingObject *ring = ring_as(self, AS_LEARNER);
    if (ring == NULL || !PyArg_ParseTuple(args, "|O&", to_u64, &n))
        return NULL;
    hr_ring_grant(&ring->r, n);
    Py_RETURN_NONE;
}

PyObject *ring_set_base(PyObject *self, PyObject *args)
{
    uint64_t sequence, version;
    RingObject *ring = ring_as(self, AS_LEARNER);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&O&", to_u64, &sequence, to_u64, &version))
        return NULL;
    hr_ring_set_base(&ring->r, sequence, version);
    Py_RETURN_NONE;
}

PyObject *ring_ring_producer(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_LEARNER | AS_SUPERVISOR);
    if (ring == NULL)
        return NULL;
    hr_ring_notify_producer(&ring->r);
    Py_RETURN_NONE;
}

PyObject *ring_request_state(PyObject *self, PyObject *args)
{
    uint64_t sequence;
    RingObject *ring = ring_as(self, AS_LEARNER);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&", to_u64, &sequence))
        return NULL;
    if (ring->r.plan.state_bytes == 0)
        return fail("the ring keeps no state");
    hr_state_request(&ring->r, sequence);
    Py_RETURN_NONE;
}

PyObject *ring_state(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_LEARNER | AS_PRODUCER);
    PyObject *bytes = ring == NULL ? NULL
                                   : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)ring->r.plan.state_bytes);
    if (bytes != NULL && !hr_state_copy(&ring->r, PyBytes_AsString(bytes))) {
        Py_DECREF(bytes);
        return fail("the ring holds no complete state");
    }
    return bytes;
}

/* ---- supervisor ---- */

PyObject *ring_load_state(PyObject *self, PyObject *args)
{
    Py_buffer state;
    char error[ERROR_BYTES];
    RingObject *ring = ring_as(self, AS_SUPERVISOR);
    if (ring == NULL || !PyArg_ParseTuple(args, "y*", &state))
        return NULL;
    int result = hr_state_load(&ring->r, ring->segment.fd, state.buf, (size_t)state.len, error, sizeof error);
    PyBuffer_Release(&state);
    return result != 0 ? fail(error) : Py_NewRef(Py_None);
}

PyObject *ring_set_owner(PyObject *self, PyObject *args)
{
    PyObject *learner;
    uint64_t owner = HR_NONE;
    RingObject *ring = ring_as(self, AS_SUPERVISOR);
    if (ring == NULL || !PyArg_ParseTuple(args, "O", &learner) ||
        (learner != Py_None && !to_u64(learner, &owner)))
        return NULL;
    if (learner != Py_None && owner >= HR_MAX_LEARNERS) {
        PyErr_Format(PyExc_IndexError, "learner %R of %u", learner, HR_MAX_LEARNERS);
        return NULL;
    }
    hr_ring_set_owner(&ring->r, owner);
    Py_RETURN_NONE;
}

PyObject *ring_sweep_producer(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_SUPERVISOR);
    if (ring == NULL)
        return NULL;
    hr_sweep_producer(&ring->r);
    Py_RETURN_NONE;
}

/* Sequences of `ring` among entries (ring, sequence, ...); a PyMem array of *n, or NULL with an error. */
static uint64_t *listed_of(PyObject *entries, uint32_t ring, size_t *n)
{
    PyObject *list = PySequence_List(entries);
    if (list == NULL)
        return NULL;
    Py_ssize_t size = PyList_Size(list);
    uint64_t *out = PyMem_Malloc((size_t)(size + 1) * sizeof *out);
    *n = 0;
    for (Py_ssize_t i = 0; out != NULL && i < size; i++) {
        PyObject *entry = PyList_GetItem(list, i); /* borrowed */
        PyObject *number = PySequence_GetItem(entry, 0);
        PyObject *sequence = number == NULL ? NULL : PySequence_GetItem(entry, 1);
        uint64_t of, s;
        if (number == NULL || sequence == NULL || !to_u64(number, &of) || !to_u64(sequence, &s)) {
            PyMem_Free(out);
            out = NULL;
        } else if (of == ring) {
            out[(*n)++] = s;
        }
        Py_XDECREF(number);
        Py_XDECREF(sequence);
    }
    if (out == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    Py_DECREF(list);
    return out;
}

PyObject *ring_sweep_learner(PyObject *self, PyObject *args)
{
    PyObject *process, *entries;
    uint64_t index = HR_NONE;
    size_t n;
    int blameless = 0;
    RingObject *ring = ring_as(self, AS_SUPERVISOR);
    if (ring == NULL || !PyArg_ParseTuple(args, "OO|p", &process, &entries, &blameless) ||
        (process != Py_None && !to_u64(process, &index)))
        return NULL;
    uint64_t *listed = listed_of(entries, ring->r.plan.ring, &n);
    if (listed == NULL)
        return NULL;
    hr_sweep_learner(&ring->r, index, blameless, listed, n);
    PyMem_Free(listed);
    Py_RETURN_NONE;
}

PyObject *ring_lower_granted(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_SUPERVISOR);
    return ring == NULL ? NULL : PyBool_FromLong(hr_ring_lower_granted(&ring->r));
}
