/* How are the launches of a plan by recipe put together? From their tables of places, without Python for each number.
 *
 * step_table.py makes the tables; where this was not built, recipe.py does the same.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What a table holds for a step, behind which are the places of each kind: of the beginnings of its tensors, of the
 * offsets in them, of its sizes, its grid and its local memory. `chosen` is the place of the number that chooses its
 * kernel, or less than 0. */
typedef struct {
    int32_t chosen, buffers, ints, axes, local;
} head_t;

typedef struct {
    PyObject *objects; /* a tuple of them, */
    int64_t *numbers;  /* which they are */
    Py_ssize_t count;
} row_t;

static int open_row(PyObject *objects, row_t *row) {
    row->objects = objects;
    row->count = PyTuple_Size(objects);
    row->numbers = PyMem_Malloc((size_t)(row->count + 1) * sizeof(int64_t));
    if (row->numbers == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < row->count; i++) {
        row->numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(objects, i));
        if (row->numbers[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

/* Whether all of those places are there. */
static int all_within(const int32_t *place, int32_t places, const row_t *row) {
    for (int32_t i = 0; i < places; i++)
        if (place[i] < 0 || place[i] >= row->count)
            return 0;
    return 1;
}

/* Whether what is at those places is the same in both. */
static int all_same(const int32_t *place, int32_t places, const row_t *row, const row_t *other) {
    for (int32_t i = 0; i < places; i++)
        if (row->numbers[place[i]] != other->numbers[place[i]])
            return 0;
    return 1;
}

/* The row of a step, NULL where there is none or it is made of what is not there. */
static const head_t *row_of(const int32_t *table, Py_ssize_t size, Py_ssize_t step, const row_t *numbers,
                            const row_t *base) {
    Py_ssize_t start = table[step], room = size - start - (Py_ssize_t)(sizeof(head_t) / 4);
    const head_t *head = (const head_t *)(table + start);
    if (start < 0 || room < 0 || head->buffers < 0 || head->ints < 0 || head->axes < 0 || head->local < 0 ||
        2 * (Py_ssize_t)head->buffers + head->ints + head->axes + head->local > room || head->chosen >= numbers->count)
        return NULL;
    const int32_t *place = (const int32_t *)(head + 1);
    int32_t others = head->buffers + head->ints + head->axes + head->local;
    return all_within(place, head->buffers, base) && all_within(place + head->buffers, others, numbers) ? head : NULL;
}

/* Whether a step is made of the same numbers as before. */
static int stays(const head_t *head, const row_t *numbers, const row_t *base, const row_t *earlier,
                 const row_t *earlier_base) {
    const int32_t *place = (const int32_t *)(head + 1);
    int32_t others = head->buffers + head->ints + head->axes + head->local;
    return (head->chosen < 0 || numbers->numbers[head->chosen] == earlier->numbers[head->chosen]) &&
           all_same(place, head->buffers, base, earlier_base) &&
           all_same(place + head->buffers, others, numbers, earlier);
}

/* The objects at those places. */
static PyObject *picked(const int32_t *place, int32_t places, const row_t *row) {
    PyObject *found = PyTuple_New(places);
    for (int32_t i = 0; found != NULL && i < places; i++)
        PyTuple_SetItem(found, i, Py_NewRef(PyTuple_GetItem(row->objects, place[i])));
    return found;
}

/* The argument record, as record.py packs it: 64 bits for each offset, 32 for each size. */
static PyObject *packed(const head_t *head, const int32_t *place, const row_t *numbers, const row_t *base) {
    size_t offsets = head->buffers > 1 ? (size_t)head->buffers : 1, sizes = head->ints > 1 ? (size_t)head->ints : 1;
    size_t nbytes = 8 * offsets + 4 * (sizes + sizes % 2);
    PyObject *record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    char *at = record == NULL ? NULL : PyBytes_AsString(record);
    if (at == NULL)
        return NULL;
    memset(at, 0, nbytes);
    for (int32_t i = 0; i < head->buffers; i++) {
        int64_t offset = base->numbers[place[i]] + numbers->numbers[place[head->buffers + i]];
        memcpy(at + 8 * i, &offset, 8);
    }
    place += 2 * head->buffers;
    at += 8 * offsets;
    for (int32_t i = 0; i < head->ints; i++) {
        int64_t size = numbers->numbers[place[i]];
        int32_t stored = (int32_t)size;
        if (stored != size) {
            Py_DECREF(record);
            PyErr_Format(PyExc_OverflowError, "a size of %lld does not fit 32 bits", (long long)size);
            return NULL;
        }
        memcpy(at + 4 * i, &stored, 4);
    }
    return record;
}

/* One step: what `fixed` says, a tuple of node, kernel, buffers, group, varying and more, and what is made of numbers.
 * Where a number chooses the kernel, that is what is asked for it. */
static PyObject *made(PyObject *make, PyObject *type, PyObject *fixed, const head_t *head, const row_t *numbers,
                      const row_t *base) {
    const int32_t *place = (const int32_t *)(head + 1), *sizes = place + 2 * head->buffers;
    const int32_t *grid = sizes + head->ints, *local = grid + head->axes;
    PyObject *node = PyTuple_GetItem(fixed, 0), *kernel = PyTuple_GetItem(fixed, 1), *step = NULL;
    PyObject *buffers = PyTuple_GetItem(fixed, 2), *group = PyTuple_GetItem(fixed, 3);
    PyObject *varying = PyTuple_GetItem(fixed, 4);
    if (varying == NULL)
        return NULL;
    if (head->chosen < 0)
        Py_INCREF(kernel);
    else
        kernel = PyObject_CallFunctionObjArgs(kernel, PyTuple_GetItem(numbers->objects, head->chosen), NULL);
    PyObject *record = packed(head, place, numbers, base), *wide = picked(grid, head->axes, numbers);
    PyObject *own = picked(local, head->local, numbers), *ints = picked(sizes, head->ints, numbers);
    if (kernel != NULL && record != NULL && wide != NULL && own != NULL && ints != NULL) {
        PyObject *fields = PyTuple_Pack(10, node, kernel, buffers, record, wide, group, own, Py_None, ints, varying);
        if (fields != NULL)
            step = PyObject_CallFunctionObjArgs(make, type, fields, NULL);
        Py_XDECREF(fields);
    }
    Py_XDECREF(kernel);
    Py_XDECREF(record);
    Py_XDECREF(wide);
    Py_XDECREF(own);
    Py_XDECREF(ints);
    return step;
}

PyDoc_STRVAR(fill_doc, "fill(steps, begin, end, type, fixed, table, numbers, base, before, /)\n--\n\n"
                       "Put steps, of a type that is a tuple, into a list in which those are that were made before.\n\n"
                       "before are the numbers and the base of these; those made of the same ones stay. None: make all.\n"
                       "Returns how many have stayed.");

static PyObject *fill(PyObject *module, PyObject *arguments) {
    PyObject *steps, *type, *fixed, *numbers, *base, *before, *before_numbers, *before_base, *answer = NULL;
    Py_ssize_t begin, end, stayed = 0;
    Py_buffer table;
    if (!PyArg_ParseTuple(arguments, "O!nnOO!y*O!O!O:fill", &PyList_Type, &steps, &begin, &end, &type, &PyTuple_Type,
                          &fixed, &table, &PyTuple_Type, &numbers, &PyTuple_Type, &base, &before))
        return NULL;
    row_t row = {0}, bases = {0}, earlier = {0}, earlier_bases = {0};
    PyObject *make = PyObject_GetAttrString((PyObject *)&PyTuple_Type, "__new__");
    if (make == NULL || !open_row(numbers, &row) || !open_row(base, &bases))
        goto end;
    if (before != Py_None) {
        if (!PyArg_ParseTuple(before, "O!O!", &PyTuple_Type, &before_numbers, &PyTuple_Type, &before_base) ||
            !open_row(before_numbers, &earlier) || !open_row(before_base, &earlier_bases))
            goto end;
        if (earlier.count != row.count || earlier_bases.count != bases.count) {
            PyErr_SetString(PyExc_ValueError, "what was made before is of another recipe");
            goto end;
        }
    }
    Py_ssize_t size = table.len / 4, count = PyTuple_Size(fixed);
    if (begin < 0 || end > count || count > size || PyList_Size(steps) != count) {
        PyErr_SetString(PyExc_ValueError, "there are no such steps");
        goto end;
    }
    for (Py_ssize_t i = begin; i < end; i++) {
        const head_t *head = row_of(table.buf, size, i, &row, &bases);
        if (head == NULL) {
            PyErr_SetString(PyExc_ValueError, "a step is made of a number that is not there");
            goto end;
        }
        if (before != Py_None && stays(head, &row, &bases, &earlier, &earlier_bases)) {
            stayed++;
            continue;
        }
        PyObject *step = made(make, type, PyTuple_GetItem(fixed, i), head, &row, &bases);
        if (step == NULL || PyList_SetItem(steps, i, step) < 0)
            goto end;
    }
    answer = PyLong_FromSsize_t(stayed);
end:
    Py_XDECREF(make);
    PyMem_Free(row.numbers);
    PyMem_Free(bases.numbers);
    PyMem_Free(earlier.numbers);
    PyMem_Free(earlier_bases.numbers);
    PyBuffer_Release(&table);
    return answer;
}

static PyMethodDef methods[] = {{"fill", fill, METH_VARARGS, fill_doc}, {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_steps",
    .m_doc = "Steps of plans by recipe.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__steps(void) { return PyModuleDef_Init(&definition); }
