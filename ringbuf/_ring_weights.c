/* The type Weights: the weights channel as writer, reader or supervisor sees it. */
#include "_ring.h"

#include <stdlib.h>
#include <string.h>

PyObject *weights_type;

static const char *const access_names[] = {"reader", "writer", "supervisor", NULL};

static PyObject *weights_attach(PyObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "role", "name", "close_fd", NULL};
    int fd, close_fd = 0;
    const char *role = "reader";
    PyObject *name = NULL;
    char error[ERROR_BYTES];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|sU$p", names, &fd, &role, &name, &close_fd))
        return NULL;
    int access = find_name(access_names, role, "role");
    hr_weights w;
    int result;
    if (access < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = hr_weights_map(&w, fd, (hr_weights_access)access, error, sizeof error);
    Py_END_ALLOW_THREADS
    if (result != 0)
        return fail(error);
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    WeightsObject *object = (WeightsObject *)allocate((PyTypeObject *)type, 0);
    if (object == NULL) {
        hr_weights_detach(&w);
        return NULL;
    }
    object->w = w;
    object->access = (hr_weights_access)access;
    if (segment_set(&object->segment, fd, name, close_fd) != 0) {
        Py_DECREF((PyObject *)object);
        return NULL;
    }
    return (PyObject *)object;
}

static void weights_dealloc(PyObject *self)
{
    WeightsObject *object = (WeightsObject *)self;
    PyTypeObject *type = Py_TYPE(self);
    hr_weights_detach(&object->w);
    segment_clear(&object->segment);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *weights_close(PyObject *self, PyObject *unused)
{
    WeightsObject *object = (WeightsObject *)self;
    (void)unused;
    hr_weights_detach(&object->w);
    PyObject *name = Py_NewRef(object->segment.name);
    segment_clear(&object->segment);
    object->segment.name = name;
    Py_RETURN_NONE;
}

static hr_weights *mapped(PyObject *self, int with_data)
{
    WeightsObject *object = (WeightsObject *)self;
    if (object->w.base == NULL) {
        fail("the weights channel is closed");
        return NULL;
    }
    if (with_data && object->access == HR_WEIGHTS_LISTS) {
        fail("the supervisor does not map the weights");
        return NULL;
    }
    return &object->w;
}

/* Entries (ring, sequence, epoch) to a PyMem array of *n. */
static hr_list_entry *to_entries(PyObject *consumed, uint64_t *n)
{
    PyObject *list = PySequence_List(consumed);
    if (list == NULL)
        return NULL;
    Py_ssize_t size = PyList_Size(list);
    hr_list_entry *out = PyMem_Calloc((size_t)size + 1, sizeof *out);
    for (Py_ssize_t i = 0; out != NULL && i < size; i++) {
        PyObject *entry = PySequence_Tuple(PyList_GetItem(list, i)); /* the item is borrowed */
        int good = entry != NULL && PyArg_ParseTuple(entry, "O&O&O&", to_u32, &out[i].ring, to_u64,
                                                     &out[i].sequence, to_u64, &out[i].epoch);
        Py_XDECREF(entry);
        if (!good) {
            PyMem_Free(out);
            out = NULL;
        }
    }
    *n = (uint64_t)size;
    if (out == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    Py_DECREF(list);
    return out;
}

static int is_float32(const Py_buffer *view)
{
    return view->itemsize == 4 && view->format != NULL &&
           (strcmp(view->format, "f") == 0 || strcmp(view->format, "<f") == 0 ||
            strcmp(view->format, "=f") == 0);
}

static PyObject *publish(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"version", "weights", "snapshot", "consumed", "floor", NULL};
    uint64_t version, floor = 0, n_entries;
    PyObject *weights, *consumed = NULL;
    Py_buffer snapshot = {0};
    hr_weights *w = mapped(self, 1);
    if (w == NULL)
        return NULL;
    if (((WeightsObject *)self)->access != HR_WEIGHTS_WRITE)
        return fail("only the writer publishes");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O|$y*OO&", names, to_u64, &version, &weights, &snapshot,
                                     &consumed, to_u64, &floor))
        return NULL;
    PyObject *result = NULL, *nothing = PyTuple_New(0);
    hr_list_entry *entries = nothing == NULL ? NULL
                                             : to_entries(consumed != NULL ? consumed : nothing, &n_entries);
    Py_buffer view;
    if (entries != NULL && PyObject_GetBuffer(weights, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
        uint64_t published = hr_weights_published(w);
        if (!is_float32(&view) || (uint64_t)view.len != w->count * 4)
            PyErr_Format(PyExc_ValueError, "need %llu float32, got %zd bytes of format '%s'",
                         (unsigned long long)w->count, view.len, view.format != NULL ? view.format : "B");
        else if (n_entries > w->list_entries || (uint64_t)snapshot.len > w->snapshot_bytes)
            PyErr_Format(PyExc_ValueError, "room for %u slots and a snapshot of %llu bytes, got %llu and %zd",
                         w->list_entries, (unsigned long long)w->snapshot_bytes,
                         (unsigned long long)n_entries, snapshot.len);
        else if (version >= (uint64_t)INT64_MAX || (published != HR_NONE && version <= published))
            PyErr_Format(PyExc_ValueError, "version %llu, but %lld is published", (unsigned long long)version,
                         (long long)published);
        else {
            Py_BEGIN_ALLOW_THREADS
            hr_weights_publish(w, version, view.buf, snapshot.len > 0 ? snapshot.buf : "",
                               (uint64_t)snapshot.len, entries, n_entries, floor);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyBuffer_Release(&view);
    }
    PyMem_Free(entries);
    Py_XDECREF(nothing);
    if (snapshot.obj != NULL)
        PyBuffer_Release(&snapshot);
    return result;
}

static PyObject *copy_into(PyObject *self, PyObject *args)
{
    uint64_t version;
    Py_buffer out;
    hr_weights *w = mapped(self, 1);
    if (w == NULL || !PyArg_ParseTuple(args, "O&w*", to_u64, &version, &out))
        return NULL;
    PyObject *result = NULL;
    if ((uint64_t)out.len != w->count * 4) {
        PyErr_Format(PyExc_ValueError, "need room for %llu float32, got %zd bytes",
                     (unsigned long long)w->count, out.len);
    } else {
        int good;
        Py_BEGIN_ALLOW_THREADS
        good = hr_weights_copy(w, version, out.buf);
        Py_END_ALLOW_THREADS
        result = PyBool_FromLong(good);
    }
    PyBuffer_Release(&out);
    return result;
}

static PyObject *read_weights(PyObject *self, PyObject *args)
{
    PyObject *version = Py_None;
    if (!PyArg_ParseTuple(args, "|O", &version) || mapped(self, 1) == NULL)
        return NULL;
    PyObject *module = PyImport_ImportModule("ringbuf.views");
    PyObject *result = module == NULL ? NULL : PyObject_CallMethod(module, "weights", "OO", self, version);
    Py_XDECREF(module);
    return result;
}

/* A private copy of the newest version's list block, complete; NULL with an error. */
static hr_list *copy_list(const hr_weights *w)
{
    hr_list *copy = aligned_alloc(HR_ALIGN, w->list_stride_bytes);
    if (copy == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (;;) {
        uint64_t version = hr_weights_published(w);
        if (version == HR_NONE) {
            free(copy);
            fail("no version has been published yet");
            return NULL;
        }
        memcpy(copy, hr_weights_list(w, version), w->list_stride_bytes);
        if (hr_weights_still(w, version) && copy->version == version)
            return copy;
        if (PyErr_CheckSignals() != 0) {
            free(copy);
            return NULL;
        }
    }
}

static PyObject *consumed_list(PyObject *self, PyObject *unused)
{
    (void)unused;
    hr_weights *w = mapped(self, 0);
    hr_list *list = w == NULL ? NULL : copy_list(w);
    if (list == NULL)
        return NULL;
    uint64_t n = list->entries < w->list_entries ? list->entries : w->list_entries;
    PyObject *result = PyList_New((Py_ssize_t)n);
    for (uint64_t i = 0; result != NULL && i < n; i++) {
        hr_list_entry *e = &list->entry[i];
        PyObject *entry = Py_BuildValue("(IKK)", e->ring, (unsigned long long)e->sequence,
                                        (unsigned long long)e->epoch);
        if (entry == NULL || PyList_SetItem(result, (Py_ssize_t)i, entry) != 0)
            Py_CLEAR(result);
    }
    free(list);
    return result;
}

static PyObject *get_floor(PyObject *self, void *unused)
{
    (void)unused;
    hr_weights *w = mapped(self, 0);
    hr_list *list = w == NULL ? NULL : copy_list(w);
    PyObject *result = list == NULL ? NULL : PyLong_FromUnsignedLongLong(list->floor);
    free(list);
    return result;
}

static PyObject *snapshot_of(PyObject *self, PyObject *unused)
{
    (void)unused;
    hr_weights *w = mapped(self, 1);
    if (w == NULL)
        return NULL;
    for (;;) {
        hr_list *list = copy_list(w);
        if (list == NULL)
            return NULL;
        uint64_t version = list->version;
        uint64_t bytes = list->snapshot_bytes < w->snapshot_bytes ? list->snapshot_bytes : w->snapshot_bytes;
        free(list);
        PyObject *copy = PyBytes_FromStringAndSize(hr_weights_snapshot(w, version), (Py_ssize_t)bytes);
        if (copy == NULL || hr_weights_still(w, version))
            return copy;
        Py_DECREF(copy);
    }
}

static PyObject *get_published(PyObject *self, void *unused)
{
    (void)unused;
    hr_weights *w = mapped(self, 0);
    return w == NULL ? NULL : number_or_none(hr_weights_published(w));
}

static PyObject *get_program(PyObject *self, void *unused)
{
    (void)unused;
    hr_weights *w = mapped(self, 0);
    return w == NULL ? NULL : PyBytes_FromStringAndSize(w->program, (Py_ssize_t)w->program_bytes);
}

static PyObject *get_number(PyObject *self, void *which)
{
    WeightsObject *object = (WeightsObject *)self;
    switch ((intptr_t)which) {
    case 0:
        return PyLong_FromUnsignedLongLong(object->w.count);
    case 1:
        return PyLong_FromUnsignedLong(object->w.buffers);
    case 2:
        return PyLong_FromUnsignedLongLong(object->w.snapshot_bytes);
    case 3:
        return PyLong_FromUnsignedLong(object->w.list_entries);
    default:
        return PyLong_FromLong(object->segment.fd);
    }
}

static PyObject *get_name(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((WeightsObject *)self)->segment.name);
}

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef methods[] = {
    {"attach", KEYWORDS(weights_attach), METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "attach(fd, role='reader', name='', *, close_fd=False): role is reader, writer or supervisor; the last "
     "maps the "
     "lists only."},
    {"close", weights_close, METH_NOARGS, "Unmaps the channel."},
    {"publish", KEYWORDS(publish), METH_VARARGS | METH_KEYWORDS,
     "publish(version, weights, *, snapshot=b'', consumed=(), floor=0): `weights` is a contiguous float32 "
     "buffer of "
     "`count`, `consumed` the (ring, sequence, epoch) of the slots that made the version. Then ring the "
     "producers."},
    {"read", read_weights, METH_VARARGS,
     "read(version=None) -> (version, float32 numpy copy): the newest, or that one; RingError if it is not "
     "there yet "
     "or any more"},
    {"copy_into", copy_into, METH_VARARGS,
     "copy_into(version, buffer) -> bool; False: overtaken by newer versions, the buffer is garbage"},
    {"consumed_list", consumed_list, METH_NOARGS,
     "-> [(ring, sequence, epoch)] that made the newest version"},
    {"snapshot", snapshot_of, METH_NOARGS, "-> bytes of the newest version's hot snapshot"},
    {0}};
static PyGetSetDef attributes[] = {
    {"published", get_published, NULL, "The newest complete version, None before version 0.", NULL},
    {"program", get_program, NULL, "The encoded policy program.", NULL},
    {"floor", get_floor, NULL, "Of the newest version: slots acted by older weights than this are dropped.",
     NULL},
    {"count", get_number, NULL, "float32 values of one version.", NULL},
    {"buffers", get_number, NULL, "Versions held at once.", (void *)1},
    {"snapshot_bytes", get_number, NULL, "Room for a hot snapshot.", (void *)2},
    {"list_entries", get_number, NULL, "Room for the slots of a batch.", (void *)3},
    {"fd", get_number, NULL, "The descriptor it was attached by.", (void *)4},
    {"name", get_name, NULL, "Shared-memory name, '' if attached by descriptor only.", NULL},
    {0}};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, weights_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_doc, "The weights channel: versions of the weights, one writer, many readers."},
    {0}};
static PyType_Spec spec = {"ringbuf._ring.Weights", sizeof(WeightsObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int add_weights(PyObject *module)
{
    weights_type = PyType_FromSpec(&spec);
    return weights_type == NULL || PyModule_AddObjectRef(module, "Weights", weights_type) != 0 ? -1 : 0;
}
