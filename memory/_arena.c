/* Where do tensors lie whose lifetimes are known? As `Lifetimes.place` of arena.py says it, without objects in between.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int64_t nbytes;
    int32_t first, number;
} tensor_t;

typedef struct {
    int64_t begin, end;
} range_t;

/* The largest first; of equal ones that which is needed first. */
static int by_size(const void *one, const void *other) {
    const tensor_t *a = one, *b = other;
    if (a->nbytes != b->nbytes)
        return a->nbytes < b->nbytes ? 1 : -1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static int by_begin(const void *one, const void *other) {
    const range_t *a = one, *b = other;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* The lowest offset from which so many bytes are free beside what is taken. */
static int64_t lowest(int64_t nbytes, range_t *taken, size_t count) {
    int64_t offset = 0;
    qsort(taken, count, sizeof(range_t), by_begin);
    for (size_t i = 0; i < count && taken[i].begin - offset < nbytes; i++)
        if (taken[i].end > offset)
            offset = taken[i].end;
    return offset;
}

/* Place the tensors in their order; returns the bytes of all. `beside` holds for each tensor, from `starts` on, those that
 * are needed at the same time. */
static int64_t place_all(const tensor_t *tensors, size_t count, const int32_t *starts, const int32_t *beside,
                         range_t *placed, range_t *taken) {
    int64_t total = 0;
    for (size_t i = 0; i < count && tensors[i].nbytes > 0; i++) {
        size_t found = 0, number = (size_t)tensors[i].number;
        for (int32_t j = starts[number]; j < starts[number + 1]; j++)
            if (placed[beside[j]].end >= 0)
                taken[found++] = placed[beside[j]];
        placed[number].begin = lowest(tensors[i].nbytes, taken, found);
        placed[number].end = placed[number].begin + tensors[i].nbytes;
        if (placed[number].end > total)
            total = placed[number].end;
    }
    return total;
}

static int fits(const int32_t *starts, const int32_t *beside, size_t count, size_t most) {
    for (size_t i = 0; i < count; i++)
        if (starts[i] < 0 || starts[i + 1] < starts[i] || (size_t)(starts[i + 1] - starts[i]) > count)
            return 0;
    if (count > 0 && (size_t)starts[count] > most)
        return 0;
    for (int32_t j = count > 0 ? starts[0] : 0; count > 0 && j < starts[count]; j++)
        if (beside[j] < 0 || (size_t)beside[j] >= count)
            return 0;
    return 1;
}

PyDoc_STRVAR(place_doc, "place(sizes, first, starts, beside, /)\n--\n\n"
                        "Return the offset of each tensor, of sizes that are multiples of the alignment, and all bytes.\n\n"
                        "first says when each is needed first, and beside, from its place in starts on, which others are\n"
                        "needed at the same time.");

static PyObject *place(PyObject *module, PyObject *arguments) {
    PyObject *sizes, *offsets = NULL, *answer = NULL;
    Py_buffer first, starts, beside;
    if (!PyArg_ParseTuple(arguments, "O!y*y*y*:place", &PyList_Type, &sizes, &first, &starts, &beside))
        return NULL;
    size_t count = (size_t)PyList_Size(sizes);
    tensor_t *tensors = PyMem_Malloc((count + 1) * sizeof(tensor_t));
    range_t *placed = PyMem_Malloc((2 * count + 1) * sizeof(range_t));
    if (tensors == NULL || placed == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    if ((size_t)first.len != 4 * count || (size_t)starts.len != 4 * count + 4 ||
        !fits(starts.buf, beside.buf, count, (size_t)beside.len / 4)) {
        PyErr_SetString(PyExc_ValueError, "the lifetimes are not those of so many tensors");
        goto end;
    }
    int64_t all = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t nbytes = PyLong_AsLongLong(PyList_GetItem(sizes, (Py_ssize_t)i));
        if (nbytes == -1 && PyErr_Occurred())
            goto end;
        if (nbytes < 0 || nbytes > INT64_MAX - all) {
            PyErr_SetString(PyExc_OverflowError, "so many bytes cannot be counted");
            goto end;
        }
        all += nbytes;
        tensors[i] = (tensor_t){nbytes, ((const int32_t *)first.buf)[i], (int32_t)i};
        placed[i] = (range_t){0, -1};
    }
    qsort(tensors, count, sizeof(tensor_t), by_size);
    int64_t total = place_all(tensors, count, starts.buf, beside.buf, placed, placed + count);
    offsets = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; offsets != NULL && i < count; i++) {
        PyObject *offset = PyLong_FromLongLong(placed[i].begin);
        if (offset == NULL || PyTuple_SetItem(offsets, (Py_ssize_t)i, offset) < 0)
            Py_CLEAR(offsets);
    }
    if (offsets != NULL)
        answer = Py_BuildValue("OL", offsets, (long long)total);
    Py_XDECREF(offsets);
end:
    PyMem_Free(tensors);
    PyMem_Free(placed);
    PyBuffer_Release(&first);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&beside);
    return answer;
}

static PyMethodDef methods[] = {{"place", place, METH_VARARGS, place_doc}, {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_arena", .m_doc = "Places in an arena.", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__arena(void) { return PyModuleDef_Init(&definition); }
