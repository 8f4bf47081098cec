/* Module functions that size and fill the segments a supervisor creates, and the table of the plan's members.
 */
#include "_ring.h"
#include "geometry.h"
#include "table.h"

#include <string.h>

/* Python's `struct` formats; ringbuf/plan.py packs and unpacks by this table, so the struct is described
 * once. */
#define MEMBER(name, format) {#name, offsetof(hr_plan, name), format}
static const struct {
    const char *name;
    size_t offset;
    const char *format;
} plan_members[] = {
    MEMBER(abi, "I"),
    MEMBER(bytes, "I"),
    MEMBER(sim, "64s"),
    MEMBER(horizon, "I"),
    MEMBER(agents, "I"),
    MEMBER(worlds, "I"),
    MEMBER(world_agents, "I"),
    MEMBER(heads, "I"),
    MEMBER(logits, "I"),
    MEMBER(continuous, "I"),
    MEMBER(choices, "16i"),
    MEMBER(action_low, "16f"),
    MEMBER(action_high, "16f"),
    MEMBER(has_mask, "I"),
    MEMBER(groups, "I"),
    MEMBER(state_width, "I"),
    MEMBER(statistics, "I"),
    MEMBER(score, "I"),
    MEMBER(episode_bytes, "I"),
    MEMBER(payload_bytes, "Q"),
    MEMBER(packed_step_bytes, "Q"),
    MEMBER(unpacked_step_bytes, "Q"),
    MEMBER(field, "II8Q"),
    MEMBER(mode, "I"),
    MEMBER(full, "I"),
    MEMBER(pickup, "I"),
    MEMBER(lagged_versions, "I"),
    MEMBER(producers, "I"),
    MEMBER(batch_slots, "I"),
    MEMBER(ring, "I"),
    MEMBER(run_seed, "Q"),
    MEMBER(first_world, "Q"),
    MEMBER(first_agent, "Q"),
    MEMBER(start_sequence, "Q"),
    MEMBER(restart_base, "Q"),
    MEMBER(world_state_bytes, "Q"),
    MEMBER(state_bytes, "Q"),
    MEMBER(n_params, "I"),
    MEMBER(server, "I"),
    MEMBER(param, "64sd"),
};
_Static_assert(HR_MAX_HEADS == 16 && HR_NAME_BYTES == 64 && HR_MAX_DIMS == 6, "formats above");

static PyObject *plan_table(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    Py_ssize_t n = sizeof plan_members / sizeof *plan_members;
    PyObject *table = PyTuple_New(n);
    for (Py_ssize_t i = 0; table != NULL && i < n; i++) {
        PyObject *row = Py_BuildValue("(sns)", plan_members[i].name, (Py_ssize_t)plan_members[i].offset,
                                      plan_members[i].format);
        if (row == NULL || PyTuple_SetItem(table, i, row) != 0)
            Py_CLEAR(table);
    }
    return table;
}

static int to_plan(PyObject *value, void *out)
{
    char *bytes;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(value, &bytes, &n) != 0)
        return 0;
    if (n != sizeof(hr_plan)) {
        PyErr_Format(PyExc_ValueError, "a packed plan has %zu bytes, not %zd", sizeof(hr_plan), n);
        return 0;
    }
    memcpy(out, bytes, sizeof(hr_plan));
    return 1;
}

static int to_run_id(PyObject *value, void *out)
{
    char *bytes;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(value, &bytes, &n) != 0)
        return 0;
    if (n != 16) {
        PyErr_Format(PyExc_ValueError, "a run id has 16 bytes, not %zd", n);
        return 0;
    }
    memcpy(out, bytes, 16);
    return 1;
}

static PyObject *ring_bytes(PyObject *module, PyObject *args)
{
    hr_plan plan;
    uint32_t slots;
    uint64_t total;
    char error[ERROR_BYTES];
    (void)module;
    if (!PyArg_ParseTuple(args, "O&O&", to_plan, &plan, to_u32, &slots))
        return NULL;
    if (hr_plan_check(&plan, slots, error, sizeof error) != 0)
        return fail(error);
    hr_ring_geometry(&plan, slots, &total);
    return PyLong_FromUnsignedLongLong(total);
}

static PyObject *format_ring(PyObject *module, PyObject *args)
{
    int fd, huge = 0, result;
    hr_plan plan;
    uint32_t slots;
    uint8_t run_id[16];
    char error[ERROR_BYTES];
    (void)module;
    if (!PyArg_ParseTuple(args, "iO&O&O&", &fd, to_plan, &plan, to_u32, &slots, to_run_id, run_id))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = hr_ring_format(fd, &plan, slots, run_id, &huge, error, sizeof error);
    Py_END_ALLOW_THREADS
    return result != 0 ? fail(error) : PyBool_FromLong(huge);
}

static PyObject *weights_bytes(PyObject *module, PyObject *args)
{
    uint64_t count, program_bytes, snapshot_bytes, total;
    uint32_t buffers, list_entries;
    hr_weights_fixed fixed;
    char error[ERROR_BYTES];
    (void)module;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&", to_u64, &count, to_u32, &buffers, to_u64, &program_bytes,
                          to_u64, &snapshot_bytes, to_u32, &list_entries))
        return NULL;
    if (hr_weights_geometry(count, buffers, program_bytes, snapshot_bytes, list_entries, &fixed, &total,
                            error, sizeof error) != 0)
        return fail(error);
    return PyLong_FromUnsignedLongLong(total);
}

static PyObject *format_weights(PyObject *module, PyObject *args)
{
    int fd, huge = 0, result = -1;
    uint64_t count, snapshot_bytes, total;
    uint32_t buffers, list_entries;
    uint8_t run_id[16];
    const char *program;
    Py_ssize_t program_bytes;
    hr_weights_fixed fixed;
    char error[ERROR_BYTES];
    (void)module;
    if (!PyArg_ParseTuple(args, "iO&O&y#O&O&O&", &fd, to_u64, &count, to_u32, &buffers, &program,
                          &program_bytes, to_u64, &snapshot_bytes, to_u32, &list_entries, to_run_id, run_id))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (hr_weights_geometry(count, buffers, (uint64_t)program_bytes, snapshot_bytes, list_entries, &fixed,
                            &total, error, sizeof error) == 0)
        result = hr_weights_format(fd, &fixed, total, program, run_id, &huge, error, sizeof error);
    Py_END_ALLOW_THREADS
    return result != 0 ? fail(error) : PyBool_FromLong(huge);
}

static PyObject *control_bytes(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromUnsignedLongLong(hr_control_bytes());
}

static PyObject *format_control(PyObject *module, PyObject *args)
{
    int fd;
    uint8_t run_id[16];
    const char *directory;
    char error[ERROR_BYTES];
    (void)module;
    if (!PyArg_ParseTuple(args, "iO&s", &fd, to_run_id, run_id, &directory))
        return NULL;
    return hr_control_format(fd, run_id, directory, error, sizeof error) != 0 ? fail(error) : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"plan_table", plan_table, METH_NOARGS,
     "Members of hr_plan as (name, offset in bytes, format of Python's struct module)."},
    {"ring_bytes", ring_bytes, METH_VARARGS, "Length of a ring's segment; (packed plan, slots)."},
    {"format_ring", format_ring, METH_VARARGS,
     "Fills a zeroed segment; (fd, packed plan, slots, run id). True if it lies in huge pages."},
    {"weights_bytes", weights_bytes, METH_VARARGS,
     "Length of a channel's segment; (count, buffers, program bytes, snapshot bytes, list entries)."},
    {"format_weights", format_weights, METH_VARARGS,
     "Fills a zeroed segment; (fd, count, buffers, program, snapshot bytes, list entries, run id)."},
    {"control_bytes", control_bytes, METH_NOARGS, "Length of a control block."},
    {"format_control", format_control, METH_VARARGS, "Fills a zeroed segment; (fd, run id, directory)."},
    {0}};

int add_create(PyObject *module)
{
    return PyModule_AddIntConstant(module, "PLAN_BYTES", sizeof(hr_plan)) != 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
