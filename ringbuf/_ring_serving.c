/* Methods of Ring between a producer and its inference server. */
#include "_ring.h"
#include "serving.h"

static const char *const answered_names[] = {"unanswered", "answered", "refused", "server_died", "stopped", NULL};
_Static_assert(sizeof answered_names / sizeof *answered_names == HR_STOP_WAITING + 2, "a name for each");

/* The ring if a server acts for it and it has such a group, else NULL with an error. */
static RingObject *served(PyObject *self, unsigned allowed, uint32_t group)
{
    RingObject *ring = ring_as(self, allowed);
    if (ring == NULL)
        return NULL;
    if (ring->r.plan.server == 0) {
        fail("no inference server acts for this ring");
        return NULL;
    }
    if (group >= ring->r.plan.groups) {
        PyErr_Format(PyExc_IndexError, "group %u of %u", group, ring->r.plan.groups);
        return NULL;
    }
    return ring;
}

PyObject *ring_ask(PyObject *self, PyObject *args)
{
    uint32_t group;
    hr_question q = {0};
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&O&|O&", to_u32, &group, to_u64, &q.life, to_u64, &q.t, to_u64, &q.step,
                          to_u64, &q.noise_key, to_u64, &q.version, to_u64, &q.carried))
        return NULL;
    RingObject *ring = served(self, AS_PRODUCER, group);
    if (ring == NULL)
        return NULL;
    q.epoch = hr_ring_epoch(&ring->r);
    q.sequence = ring->r.sequence;
    return PyLong_FromUnsignedLongLong(hr_serving_ask(&ring->r, group, &q));
}

PyObject *ring_answered(PyObject *self, PyObject *args)
{
    uint32_t group;
    uint64_t number, life;
    if (!PyArg_ParseTuple(args, "O&O&O&", to_u32, &group, to_u64, &number, to_u64, &life))
        return NULL;
    RingObject *ring = served(self, AS_PRODUCER, group);
    return ring == NULL ? NULL
                        : PyUnicode_FromString(answered_names[hr_serving_look(&ring->r, group, number, life)]);
}

PyObject *ring_wait_answer(PyObject *self, PyObject *args)
{
    uint32_t group;
    uint64_t number, life, deadline_ns;
    PyObject *seconds;
    if (!PyArg_ParseTuple(args, "O&O&O&O", to_u32, &group, to_u64, &number, to_u64, &life, &seconds) ||
        to_deadline(seconds, &deadline_ns) != 0)
        return NULL;
    RingObject *ring = served(self, AS_PRODUCER, group);
    if (ring == NULL)
        return NULL;
    uint64_t now_ns = hr_now_ns();
    int rung;
    Py_BEGIN_ALLOW_THREADS
    rung = hr_serving_wait(&ring->r, group, number, life, deadline_ns > now_ns ? deadline_ns - now_ns : 0);
    Py_END_ALLOW_THREADS
    return PyErr_CheckSignals() != 0 ? NULL : PyBool_FromLong(rung);
}

PyObject *ring_question(PyObject *self, PyObject *args)
{
    uint32_t group;
    uint64_t life;
    hr_question q;
    if (!PyArg_ParseTuple(args, "O&O&", to_u32, &group, to_u64, &life))
        return NULL;
    RingObject *ring = served(self, AS_SERVER, group);
    if (ring == NULL)
        return NULL;
    if (!hr_serving_question(&ring->r, group, life, &q))
        return Py_NewRef(Py_None);
    return Py_BuildValue("(KKKKKKKK)", (unsigned long long)q.number, (unsigned long long)q.epoch,
                         (unsigned long long)q.sequence, (unsigned long long)q.t, (unsigned long long)q.step,
                         (unsigned long long)q.noise_key, (unsigned long long)q.version,
                         (unsigned long long)q.carried);
}

PyObject *ring_answer(PyObject *self, PyObject *args)
{
    uint32_t group;
    uint64_t number;
    int refused = 0;
    if (!PyArg_ParseTuple(args, "O&O&|p", to_u32, &group, to_u64, &number, &refused))
        return NULL;
    RingObject *ring = served(self, AS_SERVER, group);
    if (ring == NULL)
        return NULL;
    hr_serving_answer(&ring->r, group, number, refused);
    Py_RETURN_NONE;
}

PyObject *ring_serving_parts(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = served(self, AS_SERVER, 0);
    if (ring == NULL)
        return NULL;
    hr_ring *r = &ring->r;
    hr_serving_layout l = hr_serving_layout_of(&r->plan);
    unsigned long long from = r->serving_offset - r->data_offset;
    return Py_BuildValue("(KKK)", (unsigned long long)r->stride_bytes, from + l.reset_before, from + l.carry);
}

PyObject *ring_sweep_server(PyObject *self, PyObject *args)
{
    (void)args;
    RingObject *ring = ring_as(self, AS_SUPERVISOR);
    if (ring == NULL)
        return NULL;
    hr_sweep_server(&ring->r);
    Py_RETURN_NONE;
}
