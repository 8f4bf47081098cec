/* The method of Ring that a tap calls. */
#include "_ring.h"
#include "tap.h"

static const char *const failures[] = {NULL, "early", "hole", "missed"};

/* Total length of the pieces, or -1 with an error. */
static int64_t check_pieces(const hr_ring *r, const Py_buffer *pieces)
{
    const hr_piece *piece = pieces->buf;
    uint64_t payload = r->plan.payload_bytes, total = 0;
    if (pieces->len % (Py_ssize_t)sizeof *piece != 0) {
        PyErr_SetString(PyExc_ValueError, "pieces are pairs of uint64: offset and bytes");
        return -1;
    }
    for (Py_ssize_t i = 0; i < pieces->len / (Py_ssize_t)sizeof *piece; i++) {
        if (piece[i].offset > payload || piece[i].bytes > payload - piece[i].offset) {
            PyErr_Format(PyExc_ValueError, "piece %zd lies outside a payload of %llu bytes", i,
                         (unsigned long long)payload);
            return -1;
        }
        total += piece[i].bytes;
        if (total > HR_MAX_TAP_BYTES) {
            PyErr_SetString(PyExc_ValueError, "pieces of more bytes than a tap copies");
            return -1;
        }
    }
    return (int64_t)total;
}

static PyObject *facts_dict(const hr_tap_facts *f)
{
    PyObject *dict = PyDict_New();
    if (dict != NULL && (put(dict, "oldest_version", f->oldest_version) || put(dict, "newest_version", f->newest_version) ||
                         put(dict, "valid_steps", f->valid_steps) || put(dict, "episodes", f->episodes) ||
                         put(dict, "commit_ns", f->commit_ns) || put(dict, "epoch", f->epoch)))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *copy(RingObject *ring, uint64_t sequence, const Py_buffer *pieces, Py_buffer *out, Py_buffer *records)
{
    const hr_ring *r = &ring->r;
    hr_tap_facts facts;
    hr_tapped seen = hr_ring_tap_look(r, sequence); /* first: mostly there is nothing new, and many pieces */
    ring->last_failure = failures[seen];
    if (seen != HR_TAP_THERE)
        Py_RETURN_NONE;
    int64_t bytes = check_pieces(r, pieces);
    if (bytes < 0)
        return NULL;
    if (out->len < bytes || records->len < (Py_ssize_t)r->plan.field[HR_EPISODES].bytes) {
        PyErr_Format(PyExc_ValueError, "room for %zd bytes and %zd of records; needs %lld and %llu", out->len, records->len,
                     (long long)bytes, (unsigned long long)r->plan.field[HR_EPISODES].bytes);
        return NULL;
    }
    int whole;
    Py_BEGIN_ALLOW_THREADS
    whole = hr_ring_tap_copy(r, sequence, pieces->buf, (size_t)pieces->len / sizeof(hr_piece), out->buf, records->buf,
                             &facts);
    Py_END_ALLOW_THREADS
    if (whole)
        return facts_dict(&facts);
    ring->last_failure = failures[HR_TAP_MISSED];
    Py_RETURN_NONE;
}

PyObject *ring_tap(PyObject *self, PyObject *args)
{
    uint64_t sequence;
    Py_buffer pieces, out, records;
    RingObject *ring = ring_as(self, AS_TAP);
    if (ring == NULL || !PyArg_ParseTuple(args, "O&y*w*w*", to_u64, &sequence, &pieces, &out, &records))
        return NULL;
    ring->exports++; /* nobody unmaps it meanwhile */
    PyObject *result = copy(ring, sequence, &pieces, &out, &records);
    ring->exports--;
    PyBuffer_Release(&pieces);
    PyBuffer_Release(&out);
    PyBuffer_Release(&records);
    return result;
}
