/* How do the steps of a plan become the rows of the table that one kernel walks? Without Python for each of them.
 *
 * kernels/persistent/table.py says what a row is; where this was not built, one_launch.py and that do the same.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { AXES = 3, LOCALS = 2, ROW = 512, SLOTS = 15 };

typedef struct {
    int32_t kernel, total, groups[AXES], group[AXES], slots, size, local_nbytes, local[LOCALS], none[3];
} header_t;

/* What a row is: those made for another one must not be used. */
#define LAYOUT "512 14i8x 2 15"

/* The walker that the rows are for. */
typedef struct {
    PyObject *kernels, *own, *places; /* By source, by kernel, and by the number of a buffer. */
    int group, space, lanes;
} walker_t;

/* The sizes along all axes; 0 where there are others. */
static int axes(PyObject *sizes, int64_t *axis) {
    Py_ssize_t count = PyTuple_Check(sizes) ? PyTuple_Size(sizes) : 0;
    if (count < 1 || count > AXES)
        return 0;
    for (Py_ssize_t i = 0; i < AXES; i++)
        axis[i] = i < count ? PyLong_AsLongLong(PyTuple_GetItem(sizes, i)) : 1;
    return PyErr_Occurred() == NULL;
}

/* The work-groups of a step; 0 where the walker cannot carry them out. */
static int divide(PyObject *grid, PyObject *group, const walker_t *walker, header_t *header) {
    int64_t wide[AXES], own[AXES] = {128, 1, 1}, size = 1, total = 1;
    if (!axes(grid, wide) || (group != Py_None && !axes(group, own)))
        return 0;
    while (group == Py_None && own[0] > 1 && wide[0] % own[0])
        own[0] = own[0] > 32 ? own[0] / 2 : 1;
    for (int i = 0; i < AXES; i++) {
        if (own[i] < 1 || own[i] > walker->group || wide[i] < 0 || wide[i] % own[i])
            return 0;
        int64_t groups = wide[i] / own[i];
        size *= own[i];
        if (groups > INT32_MAX || (total *= groups) > INT32_MAX)
            return 0;
        header->groups[i] = (int32_t)groups;
        header->group[i] = (int32_t)own[i];
    }
    header->size = (int32_t)size;
    header->total = (int32_t)total;
    return size <= walker->group && size % walker->lanes == 0;
}

/* Where the arguments in local memory begin, and how many groups have room; 0 where none has. */
static int divide_space(PyObject *local, int64_t own, const walker_t *walker, header_t *header) {
    Py_ssize_t count = PyTuple_Size(local);
    if (count < 0 || count > LOCALS)
        return 0;
    for (Py_ssize_t i = 0; i < LOCALS; i++) {
        header->local[i] = (int32_t)own;
        int64_t nbytes = i < count ? PyLong_AsLongLong(PyTuple_GetItem(local, i)) : 0;
        if (nbytes < 0 || nbytes > walker->space)
            return 0;
        own += (nbytes + 15) / 16 * 16;
    }
    header->local_nbytes = (int32_t)own;
    int64_t slots = walker->group / header->size, room = own ? walker->space / own : SLOTS;
    slots = slots < room ? slots : room;
    header->slots = (int32_t)(slots < SLOTS ? slots : SLOTS);
    return header->slots >= 1;
}

/* Where a buffer begins, or which of those it is that every launch brings; 0 where nobody has asked for that. */
static int find(PyObject *buffer, const walker_t *walker, int64_t *at) {
    if (PyLong_Check(buffer)) {
        PyObject *place = PyDict_GetItemWithError(walker->places, buffer);
        *at = place == NULL ? -1 : PyLong_AsLongLong(place);
    } else {
        PyObject *address = PyObject_GetAttrString(buffer, "address");
        *at = address == NULL ? -1 : PyLong_AsLongLong(address);
        Py_XDECREF(address);
    }
    return !PyErr_Occurred() && *at != -1;
}

/* Write a row; returns for how many groups there is something to do, 0 where there is no such row. */
static int64_t put(PyObject *step, PyObject *launch, const walker_t *walker, char *row) {
    PyObject *source = PyTuple_GetItem(step, 1), *buffers = PyTuple_GetItem(launch, 1);
    PyObject *record = PyTuple_GetItem(launch, 2), *local = PyTuple_GetItem(launch, 5);
    if (source == NULL || local == NULL || !PyTuple_Check(buffers) || !PyTuple_Check(local) || !PyBytes_Check(record))
        return 0;
    header_t header = {0};
    PyObject *kernel = PyDict_GetItemWithError(walker->kernels, source);
    if (kernel == NULL || !divide(PyTuple_GetItem(launch, 3), PyTuple_GetItem(launch, 4), walker, &header))
        return 0;
    header.kernel = (int32_t)PyLong_AsLong(kernel);
    PyObject *own = PyTuple_GetItem(walker->own, header.kernel);
    if (own == NULL || !divide_space(local, PyLong_AsLongLong(own), walker, &header))
        return 0;
    Py_ssize_t count = PyTuple_Size(buffers), nbytes = PyBytes_Size(record);
    if ((Py_ssize_t)sizeof header + 8 * count + nbytes > ROW)
        return 0;
    memcpy(row, &header, sizeof header);
    row += sizeof header;
    for (Py_ssize_t i = 0; i < count; i++, row += 8) {
        int64_t at;
        if (!find(PyTuple_GetItem(buffers, i), walker, &at))
            return 0;
        memcpy(row, &at, 8);
    }
    memcpy(row, PyBytes_AsString(record), (size_t)nbytes);
    return header.total > 0 ? ((int64_t)header.total + header.slots - 1) / header.slots : -1;
}

PyDoc_STRVAR(rows_doc, "rows(steps, launches, kernels, own, places, group, space, lanes, /)\n--\n\n"
                       "Return the table of a plan's steps, and for how many groups each has something to do.\n\n"
                       "None where a step has no row, or nobody has asked yet where one of its buffers begins.");

static PyObject *rows(PyObject *module, PyObject *arguments) {
    PyObject *steps, *launches;
    walker_t walker;
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!O!iii:rows", &PyTuple_Type, &steps, &PyTuple_Type, &launches,
                          &PyDict_Type, &walker.kernels, &PyTuple_Type, &walker.own, &PyDict_Type, &walker.places,
                          &walker.group, &walker.space, &walker.lanes))
        return NULL;
    Py_ssize_t count = PyTuple_Size(launches);
    if (count != PyTuple_Size(steps) || walker.lanes < 1) {
        PyErr_SetString(PyExc_ValueError, "these are no launches of those steps");
        return NULL;
    }
    PyObject *table = PyBytes_FromStringAndSize(NULL, count * ROW), *wanted = PyTuple_New(count), *answer = NULL;
    char *row = table == NULL ? NULL : PyBytes_AsString(table);
    if (row == NULL || wanted == NULL)
        goto end;
    memset(row, 0, (size_t)(count * ROW));
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t groups = put(PyTuple_GetItem(steps, i), PyTuple_GetItem(launches, i), &walker, row + i * ROW);
        if (groups == 0) {
            if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_AttributeError))
                goto end;
            PyErr_Clear();
            answer = Py_NewRef(Py_None);
            goto end;
        }
        PyTuple_SetItem(wanted, i, PyLong_FromLongLong(groups < 0 ? 0 : groups));
    }
    answer = PyTuple_Pack(2, table, wanted);
end:
    Py_XDECREF(table);
    Py_XDECREF(wanted);
    return answer;
}

static PyMethodDef methods[] = {{"rows", rows, METH_VARARGS, rows_doc}, {NULL, NULL, 0, NULL}};

static int execute(PyObject *module) { return PyModule_AddStringConstant(module, "LAYOUT", LAYOUT); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_rows",
    .m_doc = "Rows of the table that one launch walks.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&definition); }
