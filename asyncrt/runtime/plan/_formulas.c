/* How are the formulas of a recipe evaluated? In one loop over int64s, without an object for any number between.
 *
 * traced_int.py makes the table and says what its lines mean; where this was not built, it compiles them to Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* A line: its number is that of the sizes and constants, and of the lines before it, after one another. */
typedef struct {
    int32_t code, a, b;
} line_t;

enum { ADD, SUBTRACT, MULTIPLY, DIVIDE, REMAINDER, NEGATE, QUESTIONS };

/* What the codes of lines are, as Python's operators: those made for another list must not be used. */
#define CODES "+ - * // % neg == != < <= > >="

/* The quotient, rounded down as Python does; 0 where it is none. */
static int divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder) {
    if (b == 0 || (b == -1 && a == INT64_MIN))
        return 0;
    *quotient = a / b, *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
    return 1;
}

/* The product; 0 where it is none of 64 bits. */
static int multiply(int64_t a, int64_t b, int64_t *product) {
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    if ((x | y) >> 31 && x != 0 && y > (uint64_t)INT64_MAX / x)
        return 0;
    *product = (int64_t)((a < 0) != (b < 0) ? 0 - x * y : x * y);
    return 1;
}

static int ask(int question, int64_t a, int64_t b) {
    switch (question) {
    case 0:
        return a == b;
    case 1:
        return a != b;
    case 2:
        return a < b;
    case 3:
        return a <= b;
    case 4:
        return a > b;
    default:
        return a >= b;
    }
}

/* Fill the numbers from `known` on; 0 where an answer is another one, or a number is none of 64 bits, and -1 where a line
 * reads what is not there before it. */
static int evaluate_lines(const line_t *line, size_t lines, int64_t *numbers, size_t known) {
    for (size_t i = 0; i < lines; i++, line++) {
        if (line->a < 0 || line->b < 0 || (size_t)line->a >= known + i || (size_t)line->b >= known + i)
            return -1;
        int64_t a = numbers[line->a], b = numbers[line->b], other, *made = numbers + known + i;
        *made = 0;
        switch (line->code) {
        case ADD:
            if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b)
                return 0;
            *made = a + b;
            break;
        case SUBTRACT:
            if (b < 0 ? a > INT64_MAX + b : a < INT64_MIN + b)
                return 0;
            *made = a - b;
            break;
        case MULTIPLY:
            if (!multiply(a, b, made))
                return 0;
            break;
        case DIVIDE:
            if (!divide(a, b, made, &other))
                return 0;
            break;
        case REMAINDER:
            if (!divide(a, b, &other, made))
                return 0;
            break;
        case NEGATE:
            if (a == INT64_MIN)
                return 0;
            *made = -a;
            break;
        default: /* a question, and whether the answer was yes */
            if (ask((line->code - QUESTIONS) / 2, a, b) != (line->code - QUESTIONS) % 2)
                return 0;
        }
    }
    return 1;
}

static int all_below(const int32_t *place, size_t places, size_t count) {
    for (size_t i = 0; i < places; i++)
        if (place[i] < 0 || (size_t)place[i] >= count)
            return 0;
    return 1;
}

static PyObject *in_turn(const int32_t *place, size_t places, const int64_t *numbers) {
    PyObject *found = PyTuple_New((Py_ssize_t)places);
    for (size_t i = 0; found != NULL && i < places; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[place[i]]);
        if (number == NULL || PyTuple_SetItem(found, (Py_ssize_t)i, number) < 0)
            Py_CLEAR(found);
    }
    return found;
}

PyDoc_STRVAR(evaluate_doc, "evaluate(lines, constants, results, sizes, /)\n--\n\n"
                           "Return the results for sizes, by their numbers; None where an answer is another one, or where\n"
                           "a number is none of 64 bits.");

static PyObject *evaluate(PyObject *module, PyObject *arguments) {
    Py_buffer lines, constants, results;
    PyObject *sizes, *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*O!:evaluate", &lines, &constants, &results, &PyTuple_Type, &sizes))
        return NULL;
    size_t count = (size_t)lines.len / sizeof(line_t), given = (size_t)PyTuple_Size(sizes);
    size_t known = given + (size_t)constants.len / sizeof(int64_t), places = (size_t)results.len / sizeof(int32_t);
    int64_t *numbers = PyMem_Malloc((known + count + 1) * sizeof(int64_t));
    if (numbers == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (size_t i = 0; i < given; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, (Py_ssize_t)i));
        if (numbers[i] == -1 && PyErr_Occurred())
            goto end;
    }
    memcpy(numbers + given, constants.buf, (known - given) * sizeof(int64_t));
    int answer = evaluate_lines(lines.buf, count, numbers, known);
    if (answer < 0 || !all_below(results.buf, places, known + count))
        PyErr_SetString(PyExc_ValueError, "a number is read before it is there");
    else
        found = answer ? in_turn(results.buf, places, numbers) : Py_NewRef(Py_None);
end:
    PyMem_Free(numbers);
    PyBuffer_Release(&lines);
    PyBuffer_Release(&constants);
    PyBuffer_Release(&results);
    return found;
}

static PyMethodDef METHODS[] = {
    {"evaluate", evaluate, METH_VARARGS, evaluate_doc},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) { return PyModule_AddStringConstant(module, "CODES", CODES); }

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, (void *)prepare},
    {0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_formulas", .m_doc = "Formulas of int64s.", .m_methods = METHODS, .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__formulas(void) { return PyModuleDef_Init(&MODULE); }
