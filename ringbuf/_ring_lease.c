/* The types Lease (a slot to read) and Claim (a slot to write): the payload in place, by the buffer protocol.
 *
 * Both count the views that live, and give the slot away only when there are none: a view that survived would
 * show the next trajectory under the name of this one. */
#include "_ring.h"
#include "learner.h"

#include <string.h>

PyObject *lease_type, *claim_type;

typedef struct SlotObject { /* a Lease or a Claim */
    PyObject_HEAD RingObject *ring;
    uint64_t sequence;
    int held; /* still LEASED or WRITING by us */
    int writable;
    Py_ssize_t exports;
    uint32_t deliveries;
    uint64_t epoch, oldest_version, newest_version, valid_steps, episodes, commit_ns;
} SlotObject;

static SlotObject *allocate(PyObject *type, RingObject *ring, uint64_t sequence)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    SlotObject *object = (SlotObject *)alloc((PyTypeObject *)type, 0);
    if (object != NULL) {
        object->ring = (RingObject *)Py_NewRef((PyObject *)ring);
        object->sequence = sequence;
        object->held = 1;
    }
    return object;
}

static uint64_t get(_Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
} /* C1 */

PyObject *lease_new(RingObject *ring, uint64_t sequence)
{
    SlotObject *lease = allocate(lease_type, ring, sequence);
    if (lease == NULL)
        return NULL;
    hr_slot *slot = hr_ring_slot(&ring->r, sequence);
    lease->deliveries = hr_word_deliveries(get(&slot->word));
    lease->epoch = get(&slot->epoch);
    lease->oldest_version = get(&slot->oldest_version);
    lease->newest_version = get(&slot->newest_version);
    lease->valid_steps = get(&slot->valid_steps);
    lease->commit_ns = get(&slot->commit_ns);
    /* Sizes from shared memory are not used unchecked. */
    uint64_t most = ring->r.plan.field[HR_EPISODES].shape[0], episodes = get(&slot->episodes);
    lease->episodes = episodes < most ? episodes : most;
    return (PyObject *)lease;
}

PyObject *claim_new(RingObject *ring)
{
    SlotObject *claim = allocate(claim_type, ring, ring->r.sequence);
    if (claim != NULL) {
        claim->writable = 1;
        claim->oldest_version = get(&hr_ring_slot(&ring->r, claim->sequence)->oldest_version);
    }
    return (PyObject *)claim;
}

static void slot_dealloc(PyObject *self)
{
    SlotObject *object = (SlotObject *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF((PyObject *)object->ring);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* The object if its slot is ours (and, when it is about to be given away, nobody looks at it), else NULL. */
static SlotObject *held(PyObject *self, int giving_away)
{
    SlotObject *object = (SlotObject *)self;
    if (!object->held || object->ring->r.base == NULL) {
        fail("the slot has been given away");
        return NULL;
    }
    if (giving_away && object->exports > 0) {
        PyErr_Format(PyExc_BufferError, "%zd views of slot %llu of ring %u still live", object->exports,
                     (unsigned long long)object->sequence, (unsigned)object->ring->r.plan.ring);
        return NULL;
    }
    return object;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    SlotObject *object = (SlotObject *)self;
    view->obj = NULL;
    if (!object->held || object->ring->r.base == NULL) {
        PyErr_SetString(PyExc_BufferError, "the slot has been given away");
        return -1;
    }
    hr_ring *r = &object->ring->r;
    if (PyBuffer_FillInfo(view, self, hr_ring_payload(r, object->sequence), (Py_ssize_t)r->plan.payload_bytes,
                          !object->writable, flags) != 0)
        return -1;
    object->exports++;
    object->ring->exports++;
    return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view)
{
    (void)view;
    ((SlotObject *)self)->exports--;
    ((SlotObject *)self)->ring->exports--;
}

static PyObject *lease_ack(PyObject *self, PyObject *unused)
{
    (void)unused;
    SlotObject *lease = held(self, 1);
    if (lease == NULL)
        return NULL;
    lease->held = 0;
    if (hr_ring_ack(&lease->ring->r, lease->sequence, HR_CONSUMED) != 0)
        return fail("the slot is not leased by this process any more");
    Py_RETURN_NONE;
}

static PyObject *lease_drop(PyObject *self, PyObject *args)
{
    const char *reason;
    if (!PyArg_ParseTuple(args, "s", &reason))
        return NULL;
    int cause = find_name(drop_names, reason, "reason");
    if (cause < 0)
        return NULL;
    if (cause != HR_ROLLBACK && cause != HR_SHUTDOWN && cause != HR_LAG) {
        PyErr_Format(PyExc_ValueError, "a learner does not drop for '%s'", reason);
        return NULL;
    }
    SlotObject *lease = held(self, 1);
    if (lease == NULL)
        return NULL;
    lease->held = 0;
    if (hr_ring_ack(&lease->ring->r, lease->sequence, (hr_count)cause) != 0)
        return fail("the slot is not leased by this process any more");
    Py_RETURN_NONE;
}

static PyObject *lease_examined(PyObject *self, PyObject *unused)
{
    (void)unused;
    SlotObject *lease = held(self, 0);
    if (lease == NULL)
        return NULL;
    if (hr_ring_examined(&lease->ring->r, lease->sequence) != 0)
        return fail("the slot is not leased by this process any more");
    lease->deliveries = 1;
    Py_RETURN_NONE;
}

/* Views are made in Python, where numpy is imported when somebody asks for the first. */
static PyObject *in_python(const char *function, PyObject *self, PyObject *args)
{
    PyObject *module = PyImport_ImportModule("ringbuf.views");
    PyObject *callable = module == NULL ? NULL : PyObject_GetAttrString(module, function);
    PyObject *result = callable == NULL ? NULL : PyObject_CallFunctionObjArgs(callable, self, args, NULL);
    Py_XDECREF(module);
    Py_XDECREF(callable);
    return result;
}

static PyObject *slot_array(PyObject *self, PyObject *name)
{
    return in_python("field", self, name);
}

static PyObject *lease_episodes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return in_python("episodes", self, NULL);
}

static PyObject *claim_commit(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"valid_steps", "episodes", "newest_version", NULL};
    hr_facts facts = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&O&", names, to_u64, &facts.valid_steps, to_u64,
                                     &facts.episodes, to_u64, &facts.newest_version))
        return NULL;
    SlotObject *claim = held(self, 1);
    if (claim == NULL)
        return NULL;
    if (facts.newest_version < claim->oldest_version)
        facts.newest_version = claim->oldest_version;
    claim->held = 0;
    hr_ring_commit(&claim->ring->r, &facts);
    Py_RETURN_NONE;
}

static PyObject *claim_abort(PyObject *self, PyObject *unused)
{
    (void)unused;
    SlotObject *claim = held(self, 1);
    if (claim == NULL)
        return NULL;
    claim->held = 0;
    hr_ring_abort(&claim->ring->r);
    Py_RETURN_NONE;
}

static PyObject *get_number(PyObject *self, void *offset)
{
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)self + (size_t)offset));
}

static PyObject *get_deliveries(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((SlotObject *)self)->deliveries);
}

static PyObject *get_ring(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((SlotObject *)self)->ring->r.plan.ring);
}

static PyObject *get_plan(PyObject *self, void *unused)
{
    (void)unused;
    return PyObject_GetAttrString((PyObject *)((SlotObject *)self)->ring, "plan");
}

#define AT(member) ((void *)offsetof(SlotObject, member))
static PyGetSetDef lease_attributes[] = {
    {"sequence", get_number, NULL, "Sequence number within the ring.", AT(sequence)},
    {"ring", get_ring, NULL, "Number of the ring.", NULL},
    {"plan", get_plan, NULL, "The ring's plan.", NULL},
    {"deliveries", get_deliveries, NULL, "How often the slot has been leased, this time included.", NULL},
    {"epoch", get_number, NULL, "Deaths of producers before the commit.", AT(epoch)},
    {"version", get_number, NULL, "Oldest version that acted.", AT(oldest_version)},
    {"newest_version", get_number, NULL, "Newest version that acted.", AT(newest_version)},
    {"valid_steps", get_number, NULL, "Agent-steps that count as experience.", AT(valid_steps)},
    {"episode_count", get_number, NULL, "Finished episodes in the slot.", AT(episodes)},
    {"commit_ns", get_number, NULL, "CLOCK_MONOTONIC time of the commit.", AT(commit_ns)},
    {0}};
static PyMethodDef lease_methods[] = {
    {"array", slot_array, METH_O,
     "array(field) -> read-only numpy view in place; None if the plan lacks the field"},
    {"episodes", lease_episodes, METH_NOARGS,
     "-> structured numpy copy: version, agent, length, ret, statistics [n], one record a finished episode"},
    {"ack", lease_ack, METH_NOARGS, "Consumed: frees the slot. BufferError while a view lives."},
    {"drop", lease_drop, METH_VARARGS,
     "drop(reason): freed and counted as lag, rollback or shutdown. BufferError..."},
    {"examined", lease_examined, METH_NOARGS,
     "The slot did no harm at its third delivery: it counts as the first."},
    {0}};
static PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, slot_dealloc},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {Py_tp_methods, lease_methods},
    {Py_tp_getset, lease_attributes},
    {Py_tp_doc, "A slot leased from a ring; its buffer is the payload, read-only."},
    {0}};
static PyType_Spec lease_spec = {"ringbuf._ring.Lease", sizeof(SlotObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, lease_slots};

static PyGetSetDef claim_attributes[] = {
    {"sequence", get_number, NULL, "Sequence number within the ring.", AT(sequence)},
    {"ring", get_ring, NULL, "Number of the ring.", NULL},
    {"plan", get_plan, NULL, "The ring's plan.", NULL},
    {"version", get_number, NULL, "Oldest version that acts.", AT(oldest_version)},
    {0}};
static PyMethodDef claim_methods[] = {
    {"array", slot_array, METH_O,
     "array(field) -> writable numpy view in place; None if the plan lacks the field"},
    {"commit", (PyCFunction)(void (*)(void))claim_commit, METH_VARARGS | METH_KEYWORDS,
     "commit(valid_steps, episodes=0, newest_version=the oldest). BufferError while a view lives."},
    {"abort", claim_abort, METH_NOARGS,
     "Gives the slot up; its sequence is written again. BufferError while a view lives."},
    {0}};
static PyType_Slot claim_slots[] = {
    {Py_tp_dealloc, slot_dealloc},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {Py_tp_methods, claim_methods},
    {Py_tp_getset, claim_attributes},
    {Py_tp_doc, "A slot claimed by a producer; its buffer is the payload, writable."},
    {0}};
static PyType_Spec claim_spec = {"ringbuf._ring.Claim", sizeof(SlotObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, claim_slots};

int add_lease(PyObject *module)
{
    lease_type = PyType_FromSpec(&lease_spec);
    claim_type = PyType_FromSpec(&claim_spec);
    return lease_type == NULL || claim_type == NULL ||
                   PyModule_AddObjectRef(module, "Lease", lease_type) != 0 ||
                   PyModule_AddObjectRef(module, "Claim", claim_type) != 0
               ? -1
               : 0;
}
