/* Which boxes does a greedy selection keep? As `select` of non_max_suppression.py says it, each box compared with those
 * that were selected before it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* Boxes that are compared with one at a time, without asking in between. */
#define TOGETHER 32

static float least(float a, float b) { return a < b ? a : b; }
static float most(float a, float b) { return a < b ? b : a; }

/* Whether one of `count` boxes, whose coordinates and areas lie `room` apart, overlaps another one too much. */
static int meets(const float *boxes, size_t room, size_t count, const float *other, float overlap) {
    const float *u0 = boxes, *v0 = u0 + room, *u1 = v0 + room, *v1 = u1 + room, *areas = v1 + room;
    for (size_t begin = 0; begin < count; begin += TOGETHER) {
        size_t end = begin + TOGETHER < count ? begin + TOGETHER : count;
        int found = 0;
        for (size_t i = begin; i < end; i++) {
            float width = least(u1[i], other[2]) - most(u0[i], other[0]);
            float height = least(v1[i], other[3]) - most(v0[i], other[1]);
            float shared = width * height, together = areas[i] + other[4] - shared;
            found |= (width > 0) & (height > 0) & (shared > 0) & (together > 0) & (shared / together > overlap);
        }
        if (found)
            return 1;
    }
    return 0;
}

PyDoc_STRVAR(select_doc, "select(boxes, order, most, overlap, room, /)\n--\n\n"
                         "Return how many boxes are selected, whose numbers are written to the begin of order.\n\n"
                         "boxes are five float32 each, the corners' coordinates and the area; order has numbers of them,\n"
                         "int64, the best first; room is for five float32 of each.");

static PyObject *select_boxes(PyObject *module, PyObject *arguments) {
    Py_buffer boxes, order, room;
    Py_ssize_t wanted;
    double overlap;
    if (!PyArg_ParseTuple(arguments, "y*w*ndw*:select", &boxes, &order, &wanted, &overlap, &room))
        return NULL;
    size_t count = (size_t)order.len / sizeof(int64_t), nbytes = 5 * sizeof(float), selected = 0, real = 0;
    size_t known = (size_t)boxes.len / nbytes, wide = (size_t)room.len / nbytes;
    const float *given = boxes.buf;
    float *kept = room.buf;
    int64_t *numbers = order.buf;
    int fits = wide >= count;
    for (size_t i = 0; i < count; i++)
        fits &= numbers[i] >= 0 && (size_t)numbers[i] < known;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS;
        for (size_t i = 0; i < count && (Py_ssize_t)selected < wanted; i++) {
            const float *box = given + 5 * numbers[i];
            int is_real = box[4] > 0; /* else it overlaps none */
            if (is_real && meets(kept, wide, real, box, (float)overlap))
                continue;
            for (size_t k = 0; is_real && k < 5; k++)
                kept[k * wide + real] = box[k];
            real += (size_t)is_real;
            numbers[selected++] = numbers[i];
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&boxes);
    PyBuffer_Release(&order);
    PyBuffer_Release(&room);
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "expected numbers of %zu boxes and room for them", known);
        return NULL;
    }
    return PyLong_FromSize_t(selected);
}

static PyMethodDef methods[] = {{"select", select_boxes, METH_VARARGS, select_doc}, {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_boxes", .m_doc = "Boxes on a plane.", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__boxes(void) { return PyModuleDef_Init(&definition); }
