/* The type Ring: attaching, looking, and the table of what the three sides may do. */
#include "_ring.h"
#include "books.h"
#include "learner.h"
#include "serving.h"
#include "state.h"

#include <string.h>

PyObject *ring_type;
static PyTypeObject *observation_type;
static PyObject *state_strings; /* slot_state_names as a tuple */

static const char *const access_names[] = {"producer", "learner", "supervisor", "monitor", "server", "tap", NULL};

RingObject *ring_as(PyObject *self, unsigned allowed)
{
    RingObject *ring = (RingObject *)self;
    if (ring->r.base == NULL) {
        fail("the ring is closed");
        return NULL;
    }
    if (!(allowed >> ring->access & 1u)) {
        PyErr_Format(ring_error, "a ring attached as %s cannot do this", access_names[ring->access]);
        return NULL;
    }
    return ring;
}

static PyObject *ring_attach(PyObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "control", "role", "learner", "name", "close_fd", NULL};
    int fd, close_fd = 0;
    PyObject *control, *name = NULL;
    const char *role = "learner";
    uint32_t learner = 0;
    char error[ERROR_BYTES];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!|sO&U$p", names, &fd, (PyTypeObject *)control_type,
                                     &control, &role, to_u32, &learner, &name, &close_fd))
        return NULL;
    ControlObject *c = (ControlObject *)control;
    int access = find_name(access_names, role, "role");
    if (access < 0)
        return NULL;
    if (c->c.base == NULL)
        return fail("the control block is closed");
    hr_ring r;
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = access == HR_ACCESS_PRODUCER
                 ? hr_ring_attach(&r, fd, &c->c, error, sizeof error)
                 : hr_ring_map(&r, fd, &c->c, (hr_access)access, error, sizeof error);
    Py_END_ALLOW_THREADS
    if (result != 0)
        return fail(error);
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    RingObject *ring = (RingObject *)allocate((PyTypeObject *)type, 0);
    if (ring == NULL) {
        hr_ring_detach(&r);
        return NULL;
    }
    ring->r = r;
    ring->access = (hr_access)access;
    ring->learner = learner;
    ring->control = (ControlObject *)Py_NewRef(control);
    ring->next = c->rings;
    if (c->rings != NULL)
        c->rings->previous = ring;
    c->rings = ring;
    if (segment_set(&ring->segment, fd, name, close_fd) != 0) {
        Py_DECREF((PyObject *)ring);
        return NULL;
    }
    return (PyObject *)ring;
}

static void detach(RingObject *ring)
{
    if (ring->control == NULL)
        return;
    if (ring->previous != NULL)
        ring->previous->next = ring->next;
    else
        ring->control->rings = ring->next;
    if (ring->next != NULL)
        ring->next->previous = ring->previous;
    hr_ring_detach(&ring->r);
    Py_CLEAR(ring->control);
}

static void ring_dealloc(PyObject *self)
{
    RingObject *ring = (RingObject *)self;
    PyTypeObject *type = Py_TYPE(self);
    detach(ring);
    segment_clear(&ring->segment);
    Py_CLEAR(ring->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *ring_close(PyObject *self, PyObject *unused)
{
    RingObject *ring = (RingObject *)self;
    (void)unused;
    if (ring->exports > 0) {
        PyErr_Format(PyExc_BufferError, "%zd views of the ring's payload still live", ring->exports);
        return NULL;
    }
    detach(ring);
    PyObject *name = Py_NewRef(ring->segment.name);
    segment_clear(&ring->segment);
    ring->segment.name = name;
    Py_RETURN_NONE;
}

static PyObject *ring_observe(PyObject *self, PyObject *unused)
{
    (void)unused;
    RingObject *ring = ring_as(self, AS_ANYBODY);
    PyObject *observation = ring == NULL ? NULL : PyStructSequence_New(observation_type);
    if (observation == NULL)
        return NULL;
    hr_ring *r = &ring->r;
    PyObject *acting = number_or_none(hr_ring_acting(r)); /* L1: before the words */
    uint64_t granted = atomic_load_explicit(&hr_ring_lines(r)->granted, memory_order_seq_cst); /* G1 */
    PyObject *slots = PyTuple_New((Py_ssize_t)r->slots);
    for (uint32_t i = 0; slots != NULL && i < r->slots; i++) {
        hr_seen seen = hr_ring_look(r, i);
        PyObject *state = PyTuple_GetItem(state_strings, (Py_ssize_t)hr_word_state(seen.word)); /* borrowed */
        PyObject *slot = state == NULL
                             ? NULL
                             : Py_BuildValue("(OKIN)", state, (unsigned long long)hr_word_sequence(seen.word),
                                             (unsigned)hr_word_deliveries(seen.word),
                                             number_or_none(seen.oldest_version));
        if (slot == NULL || PyTuple_SetItem(slots, (Py_ssize_t)i, slot) != 0)
            Py_CLEAR(slots);
    }
    PyStructSequence_SetItem(observation, 0, acting);
    PyStructSequence_SetItem(observation, 1, PyLong_FromUnsignedLongLong(granted));
    PyStructSequence_SetItem(observation, 2, slots);
    if (PyErr_Occurred())
        Py_CLEAR(observation);
    return observation;
}

static PyObject *ring_books(PyObject *self, PyObject *unused)
{
    (void)unused;
    RingObject *ring = ring_as(self, AS_ANYBODY);
    PyObject *dict = ring == NULL ? NULL : PyDict_New();
    PyObject *dropped = dict == NULL ? NULL : PyDict_New();
    PyObject *steps = dropped == NULL ? NULL : PyDict_New();
    if (steps == NULL) {
        Py_XDECREF(dropped);
        Py_XDECREF(dict);
        return NULL;
    }
    hr_books b = hr_ring_books(&ring->r);
    PyObject *owner = number_or_none(b.owner);
    int bad = owner == NULL || PyDict_SetItemString(dict, "owner", owner) || put(dict, "start", b.start) ||
              put(dict, "granted", b.granted) || put(dict, "head", b.head) || put(dict, "done", b.done) ||
              put(dict, "offered", b.offered) || put(dict, "done_again", b.done_again) ||
              put(dict, "not_written", b.not_written) || put(dict, "committed", b.committed) ||
              put(dict, "consumed", b.consumed) || put(dropped, "overwritten", b.overwritten) ||
              put(dropped, "bad", b.bad) || put(dropped, "rollback", b.rollback) ||
              put(dropped, "shutdown", b.shutdown) || put(dropped, "lag", b.lag) ||
              PyDict_SetItemString(dict, "dropped", dropped) ||
              put(steps, "overwritten", b.overwritten_steps) || put(steps, "bad", b.bad_steps) ||
              put(steps, "rollback", b.rollback_steps) || put(steps, "shutdown", b.shutdown_steps) ||
              put(steps, "lag", b.lag_steps) || PyDict_SetItemString(dict, "dropped_steps", steps) ||
              put(dict, "consumed_steps", b.consumed_steps) ||
              put(dict, "in_flight_steps", b.in_flight_steps) ||
              put(dict, "in_flight", b.ready + b.leased + b.set_aside) || put(dict, "writing", b.writing) ||
              put(dict, "ready", b.ready) || put(dict, "leased", b.leased) || put(dict, "bad", b.set_aside) ||
              put(dict, "redelivered", b.redelivered) || put(dict, "epoch", b.epoch) ||
              put(dict, "pid", b.pid) || put(dict, "slots", ring->r.slots) ||
              put(dict, "dropping", ring->r.plan.full != HR_BLOCK) || put(dict, "blocked_ns", b.blocked_ns) ||
              put(dict, "first_commit_ns", b.first_commit_ns) ||
              put(dict, "last_commit_ns", b.last_commit_ns) || put(dict, "lease_ns", b.lease_ns) ||
              put(dict, "base_sequence", b.base_sequence) || put(dict, "base_version", b.base_version);
    Py_XDECREF(owner);
    Py_DECREF(dropped);
    Py_DECREF(steps);
    if (bad)
        Py_CLEAR(dict);
    return dict;
}

static PyObject *get_plan(PyObject *self, void *unused)
{
    RingObject *ring = (RingObject *)self;
    (void)unused;
    if (ring->plan == NULL) {
        PyObject *module = PyImport_ImportModule("ringbuf.plan");
        PyObject *type = module == NULL ? NULL : PyObject_GetAttrString(module, "Plan");
        ring->plan = type == NULL ? NULL
                                  : PyObject_CallMethod(type, "unpack", "y#", (const char *)&ring->r.plan,
                                                        (Py_ssize_t)sizeof ring->r.plan);
        Py_XDECREF(module);
        Py_XDECREF(type);
    }
    return Py_XNewRef(ring->plan);
}

static PyObject *get_number(PyObject *self, void *which)
{
    RingObject *ring = (RingObject *)self;
    switch ((intptr_t)which) {
    case 0:
        return PyLong_FromLong(ring->segment.fd);
    case 1:
        return PyLong_FromUnsignedLong(ring->r.slots);
    case 2:
        return PyLong_FromUnsignedLong(ring->r.plan.ring);
    case 3:
        return PyLong_FromUnsignedLongLong(ring->learner);
    default:
        return PyLong_FromUnsignedLongLong(ring->r.sequence);
    }
}

static PyObject *ring_slot_range(PyObject *self, PyObject *args)
{
    uint64_t sequence;
    RingObject *ring = ring_as(self, AS_ANYBODY);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&", to_u64, &sequence))
        return NULL;
    const hr_ring *r = &ring->r;
    return Py_BuildValue("(KK)", (unsigned long long)(r->data_offset + sequence % r->slots * r->stride_bytes),
                         (unsigned long long)r->plan.payload_bytes);
}

static PyObject *ring_header(PyObject *self, PyObject *args)
{
    uint64_t sequence;
    RingObject *ring = ring_as(self, AS_ANYBODY);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&", to_u64, &sequence))
        return NULL;
    hr_slot *slot = hr_ring_slot(&ring->r, sequence);
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_seq_cst); /* C5: the rest belongs to it */
    hr_state state = hr_word_state(word) <= HR_BAD ? hr_word_state(word) : 0;
    PyObject *dict = PyDict_New(), *name = PyTuple_GetItem(state_strings, (Py_ssize_t)state); /* borrowed */
    const struct {
        const char *name;
        _Atomic uint64_t *at;
    } rest[] = {{"oldest_version", &slot->oldest_version}, {"newest_version", &slot->newest_version},
                {"valid_steps", &slot->valid_steps},       {"episodes", &slot->episodes},
                {"commit_ns", &slot->commit_ns},           {"epoch", &slot->epoch}};
    int bad = dict == NULL || name == NULL || PyDict_SetItemString(dict, "state", name) != 0 ||
              put(dict, "sequence", hr_word_sequence(word)) != 0 ||
              put(dict, "deliveries", hr_word_deliveries(word)) != 0 || put(dict, "owner", hr_word_owner(word)) != 0;
    for (size_t i = 0; !bad && i < sizeof rest / sizeof *rest; i++) {
        PyObject *number = number_or_none(atomic_load_explicit(rest[i].at, memory_order_relaxed)); /* C5 */
        bad = number == NULL || PyDict_SetItemString(dict, rest[i].name, number) != 0;
        Py_XDECREF(number);
    }
    if (bad)
        Py_CLEAR(dict);
    return dict;
}

static PyObject *get_state_sequence(PyObject *self, void *unused)
{
    (void)unused;
    RingObject *ring = ring_as(self, AS_ANYBODY);
    return ring == NULL ? NULL : number_or_none(hr_state_sequence(&ring->r));
}

static PyObject *get_server_life(PyObject *self, void *unused)
{
    (void)unused;
    RingObject *ring = ring_as(self, AS_ANYBODY);
    return ring == NULL ? NULL : PyLong_FromUnsignedLongLong(hr_serving_life(&ring->r));
}

/* The slots and what lies behind them, for the server to write into: counted like the views of leases. */
static int ring_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    RingObject *ring = ring_as(self, AS_SERVER);
    view->obj = NULL;
    if (ring == NULL)
        return -1;
    hr_ring *r = &ring->r;
    if (PyBuffer_FillInfo(view, self, (char *)r->base + r->data_offset,
                          (Py_ssize_t)(r->mapped_bytes - r->data_offset), 0, flags) != 0)
        return -1;
    ring->exports++;
    return 0;
}

static void ring_release_buffer(PyObject *self, Py_buffer *view)
{
    (void)view;
    ((RingObject *)self)->exports--;
}

static PyObject *get_outstanding(PyObject *self, void *unused)
{
    (void)unused;
    RingObject *ring = ring_as(self, AS_ANYBODY);
    if (ring == NULL)
        return NULL;
    hr_ring *r = &ring->r;
    uint64_t granted = atomic_load_explicit(&hr_ring_lines(r)->granted, memory_order_seq_cst); /* G1 */
    return PyLong_FromLongLong((long long)(granted - r->plan.start_sequence - hr_ring_done(r)));
}

static PyObject *get_text(PyObject *self, void *which)
{
    RingObject *ring = (RingObject *)self;
    if (which == NULL)
        return Py_NewRef(ring->segment.name);
    return ring->last_failure == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(ring->last_failure);
}

static PyMethodDef methods[] = {
    {"attach", (PyCFunction)(void (*)(void))ring_attach, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "attach(fd, control, role='learner', learner=0, name='', *, close_fd=False): role is producer, learner, "
     "supervisor, monitor, server or tap; supervisor and monitor do not map the payload. Of a server, memoryview(ring) "
     "is all that lies behind the headers, to be written to."},
    {"close", ring_close, METH_NOARGS, "Unmaps the ring; BufferError while a view of its payload lives."},
    {"observe", ring_observe, METH_NOARGS,
     "-> Observation(acting, granted, slots); slots: (state, sequence, deliveries, oldest acting version of "
     "ready, "
     "leased and bad). `acting` is read before the words, as the gate needs it."},
    {"books", ring_books, METH_NOARGS, "-> dict; ringbuf.books says which sums hold when"},
    {"lease", ring_lease, METH_VARARGS,
     "lease(sequence) -> Lease, or None: see last_failure ('lost': not ready any more; 'torn': set aside as "
     "bad)"},
    {"drop", ring_drop, METH_VARARGS,
     "drop(sequence, reason) -> bool: a ready slot is freed and counted. The owner learner gives lag, "
     "rollback or "
     "shutdown; the supervisor bad (for a slot set aside), and the others while the ring has no owner."},
    {"grant", ring_grant, METH_VARARGS, "grant(n=1): credit for n more sequences"},
    {"set_base", ring_set_base, METH_VARARGS,
     "set_base(sequence, version), exact modes: `sequence` is the first of batch `version`; grant "
     "afterwards"},
    {"ring_producer", ring_ring_producer, METH_NOARGS,
     "Wakes the producer if it waits, e.g. after a publication."},
    {"claimable", ring_claimable, METH_NOARGS,
     "-> 'claimable', 'wait_credit', 'wait_full', 'wait_owner', 'skip', 'stopped' or 'exhausted'"},
    {"wait", ring_wait, METH_VARARGS,
     "wait(seconds) -> bool: until claimable() may say something else; False: the time is over"},
    {"wait_published", ring_wait_published, METH_VARARGS,
     "wait_published(weights, seen, seconds) -> bool: until another version than `seen` (None: none) is "
     "published"},
    {"announce", ring_announce, METH_VARARGS,
     "announce(weights) -> version to act with at least, None before version 0"},
    {"exact_version", ring_exact_version, METH_NOARGS, "-> version that the next sequence is acted with"},
    {"claim", ring_claim, METH_VARARGS, "claim(version) -> Claim, or None: look at claimable() again"},
    {"abort", ring_abort, METH_NOARGS, "Gives up what was announced or claimed."},
    {"skip", ring_skip, METH_NOARGS, "Passes over the next sequence, counted as not written."},
    {"set_owner", ring_set_owner, METH_VARARGS, "set_owner(learner or None): rings both bells"},
    {"sweep_producer", ring_sweep_producer, METH_NOARGS,
     "After the producer's death was reaped; idempotent."},
    {"sweep_learner", ring_sweep_learner, METH_VARARGS,
     "sweep_learner(process index or None for any, listed, blameless=False): after the learner's death was "
     "reaped; idempotent. Blameless: it was ended because of another's, and its deliveries do not count. "
     "`listed` holds (ring, sequence, ...) of the published version; other rings' entries are passed over."},
    {"lower_granted_to_head", ring_lower_granted, METH_NOARGS,
     "-> bool: takes back the credit of a producer that does not run"},
    {"request_state", ring_request_state, METH_VARARGS,
     "request_state(sequence): the producer is to save its state before it writes `sequence`; its bell rings. "
     "RingError if the plan keeps no state."},
    {"state", ring_state, METH_NOARGS,
     "-> bytes: a copy of the saved state. RingError if there is no complete one, or it changed meanwhile."},
    {"load_state", ring_load_state, METH_VARARGS,
     "load_state(bytes): before the producer is started; it goes on from there. RingError if it is of another "
     "plan."},
    {"ask", ring_ask, METH_VARARGS,
     "ask(group, life, t, step, noise_key, version, carried=0) -> number: asks the server about one step of a group"},
    {"answered", ring_answered, METH_VARARGS,
     "answered(group, number, life) -> 'unanswered', 'answered', 'refused', 'server_died' or 'stopped'"},
    {"wait_answer", ring_wait_answer, METH_VARARGS,
     "wait_answer(group, number, life, seconds) -> bool: until answered() may say more; False: the time is over"},
    {"question", ring_question, METH_VARARGS,
     "question(group, life) -> (number, epoch, sequence, t, step, noise_key, version, carried) of a question that was "
     "put to this life of the server and is not answered, or None"},
    {"answer", ring_answer, METH_VARARGS,
     "answer(group, number, refused=False): what was asked is in the slot, or there is no answer; wakes the producer"},
    {"serving_parts", ring_serving_parts, METH_NOARGS,
     "serving_parts() -> (bytes from slot to slot, offset of reset_before [B] uint8, offset of the recurrent state "
     "[B, S] float32 behind the last slot), all in memoryview(ring)"},
    {"sweep_server", ring_sweep_server, METH_NOARGS,
     "After the death of the ring's inference server was reaped; may be repeated."},
    {"tap", ring_tap, METH_VARARGS,
     "tap(sequence, pieces, out, records) -> dict of the slot's header, or None: see last_failure ('early': not "
     "committed yet; 'hole': never will be; 'missed'). `pieces`, uint64 pairs (offset in the payload, bytes), are copied "
     "one behind the other to `out`, and the episodes' records to `records`, which has room for the whole field. Holds "
     "nobody up and writes nothing to the ring."},
    {"slot_range", ring_slot_range, METH_VARARGS,
     "slot_range(sequence) -> (offset, bytes) of that slot's payload within the segment's file"},
    {"header", ring_header, METH_VARARGS,
     "header(sequence) -> dict: what stands in the header of the slot where `sequence` lives; the sequence in it "
     "may be another"},
    {0}};
static PyGetSetDef attributes[] = {
    {"plan", get_plan, NULL, "ringbuf.plan.Plan", NULL},
    {"fd", get_number, NULL, "The descriptor it was attached by.", NULL},
    {"slots", get_number, NULL, "Number of slots.", (void *)1},
    {"index", get_number, NULL, "Number of the ring, which is that of its producer.", (void *)2},
    {"learner", get_number, NULL, "Number of the learner given to attach().", (void *)3},
    {"sequence", get_number, NULL, "Producer: the next sequence to be written.", (void *)4},
    {"outstanding", get_outstanding, NULL, "granted - start - done, from the words.", NULL},
    {"state_sequence", get_state_sequence, NULL,
     "The sequence that the saved state goes on from; None: there is none, or it is being written.", NULL},
    {"server_life", get_server_life, NULL, "Deaths of the ring's inference server so far.", NULL},
    {"name", get_text, NULL, "Shared-memory name, '' if attached by descriptor only.", NULL},
    {"last_failure", get_text, NULL, "Of lease(): 'lost', 'torn' or None; of tap(): 'early', 'hole', 'missed' or None.", (void *)1},
    {0}};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_bf_getbuffer, ring_get_buffer},
    {Py_bf_releasebuffer, ring_release_buffer},
    {Py_tp_doc, "One ring: one producer, one owner learner, slots in shared memory."},
    {0}};
static PyType_Spec spec = {"ringbuf._ring.Ring", sizeof(RingObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

static PyStructSequence_Field observation_fields[] = {
    {"acting", "version announced, or None"},
    {"granted", "the producer may claim sequences below"},
    {"slots", "(state, sequence, deliveries, version) of each"},
    {0}};
static PyStructSequence_Desc observation_description = {"ringbuf._ring.Observation", "A ring at one look.",
                                                        observation_fields, 3};

int add_ring(PyObject *module)
{
    ring_type = PyType_FromSpec(&spec);
    observation_type = PyStructSequence_NewType(&observation_description);
    state_strings = name_tuple(slot_state_names);
    return ring_type == NULL || observation_type == NULL || state_strings == NULL ||
                   PyModule_AddObjectRef(module, "Ring", ring_type) != 0 ||
                   PyModule_AddObjectRef(module, "Observation", (PyObject *)observation_type) != 0
               ? -1
               : 0;
}
