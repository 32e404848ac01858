/* How are all launches of a plan enqueued in one call?
 *
 * Those whose arguments are set go to the driver with the GIL given up once (`submit`); others get their arguments here,
 * each before it is enqueued (`launch`).
 * A plan that takes the device less time than a thread takes to wake up is carried out to its end (`copy_and_launch`),
 * the iterations of a loop several times, each with what the one before has made (`repeat`).
 * submit.py makes its tables, and does the same through ctypes where this was not built.
 */

#include "_work.h"

typedef int32_t(CL_CALL *set_argument_t)(void *kernel, uint32_t index, size_t nbytes, const void *value);

typedef struct {
    void *kernel;
    size_t index;
} argument_t;

PyDoc_STRVAR(submit_doc, "submit(enqueue, queue, launches, stop, /)\n--\n\n"
                         "Enqueue launches in order, until one is refused, or the first byte of stop is not 0.\n\n"
                         "Returns how many were enqueued, and what the driver answered to the next one, or 0.");

static PyObject *submit(PyObject *module, PyObject *arguments) {
    unsigned long long enqueue_address, queue_address;
    PyObject *object, *stopping;
    Py_buffer table, stop = {0};
    if (!PyArg_ParseTuple(arguments, "KKOO:submit", &enqueue_address, &queue_address, &object, &stopping) ||
        !open_stop(stopping, &stop))
        return NULL;
    if (!open_table(object, sizeof(launch_t), &table)) {
        close_stop(&stop);
        return NULL;
    }
    const volatile char *stopped = stopped_by(&stop);
    enqueue_t enqueue = (enqueue_t)(uintptr_t)enqueue_address;
    void *queue = (void *)(uintptr_t)queue_address;
    const launch_t *launch = table.buf;
    size_t count = (size_t)table.len / sizeof(launch_t), done = 0;
    int32_t status = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; done < count && !*stopped; done++, launch++) {
        status = enqueue(queue, launch->kernel, (uint32_t)launch->axes, NULL, launch->grid,
                         launch->grouped ? launch->group : NULL, 0, NULL, NULL);
        if (status)
            break;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&table);
    close_stop(&stop);
    return Py_BuildValue("ni", (Py_ssize_t)done, (int)status);
}

PyDoc_STRVAR(bind_doc, "bind(set_argument, arguments, variable, /)\n--\n\n"
                       "Set arguments to the object that a variable holds, up to the first that is refused.\n\n"
                       "Returns what the driver answered to that one, or 0.");

static PyObject *bind(PyObject *module, PyObject *arguments) {
    unsigned long long set_address, variable_address;
    PyObject *object;
    Py_buffer table;
    if (!PyArg_ParseTuple(arguments, "KOK:bind", &set_address, &object, &variable_address) ||
        !open_table(object, sizeof(argument_t), &table))
        return NULL;
    set_argument_t set_argument = (set_argument_t)(uintptr_t)set_address;
    const void *variable = (const void *)(uintptr_t)variable_address;
    const argument_t *argument = table.buf, *end = argument + (size_t)table.len / sizeof(argument_t);
    int32_t status = 0;
    for (; argument < end && !status; argument++)
        status = set_argument(argument->kernel, (uint32_t)argument->index, sizeof(void *), variable);
    PyBuffer_Release(&table);
    return PyLong_FromLong(status);
}

PyDoc_STRVAR(set_records_doc, "set_records(set_argument, records, /)\n--\n\n"
                              "Set the argument of each (kernel, index, bytes) of a list, up to the first that is "
                              "refused.\n\nReturns what the driver answered to that one, or 0.");

static PyObject *set_records(PyObject *module, PyObject *arguments) {
    unsigned long long set_address;
    PyObject *records;
    if (!PyArg_ParseTuple(arguments, "KO!:set_records", &set_address, &PyList_Type, &records))
        return NULL;
    set_argument_t set_argument = (set_argument_t)(uintptr_t)set_address;
    int32_t status = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(records) && !status; i++) {
        unsigned long long kernel;
        unsigned int index;
        const char *value;
        Py_ssize_t nbytes;
        if (!PyArg_ParseTuple(PyList_GetItem(records, i), "KIy#:set_records", &kernel, &index, &value, &nbytes))
            return NULL;
        status = set_argument((void *)(uintptr_t)kernel, index, (size_t)nbytes, value);
    }
    return PyLong_FromLong(status);
}

/* The name of what is looked up in a kernel object of Python's. */
static PyObject *POINTER;

static int get_sizes(PyObject *tuple, size_t sizes[3], Py_ssize_t *count) {
    *count = PyTuple_Size(tuple);
    if (*count > 3)
        PyErr_SetString(PyExc_ValueError, "a grid has three axes at most");
    for (Py_ssize_t axis = 0; axis < *count && !PyErr_Occurred(); axis++)
        sizes[axis] = PyLong_AsSize_t(PyTuple_GetItem(tuple, axis));
    return PyErr_Occurred() == NULL;
}

enum { ENQUEUEING, SETTING };

/* Set the arguments of a launch and enqueue it; returns what the driver answered, and what it was asked for last.
   Where there is an error of Python's, the status means nothing. */
static int32_t launch_one(set_argument_t set_argument, enqueue_t enqueue, void *queue, PyObject *launch,
                          PyObject *memory, int *asked) {
    PyObject *owner, *buffers, *record, *over, *in, *local;
    size_t grid[3], group[3], *groups = NULL;
    Py_ssize_t axes, same;
    if (!PyArg_ParseTuple(launch, "OO!O!O!OO!:launch", &owner, &PyTuple_Type, &buffers, &PyBytes_Type, &record,
                          &PyTuple_Type, &over, &in, &PyTuple_Type, &local) ||
        !get_sizes(over, grid, &axes))
        return 0;
    if (in != Py_None) {
        if (!PyTuple_Check(in) || !get_sizes(in, group, &same) || same != axes) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a group has as many axes as its grid");
            return 0;
        }
        groups = group;
    }
    PyObject *pointer = PyObject_GetAttr(owner, POINTER);
    void *kernel = pointer == NULL ? NULL : PyLong_AsVoidPtr(pointer);
    Py_XDECREF(pointer);
    if (PyErr_Occurred())
        return 0;
    Py_ssize_t count = PyTuple_Size(buffers), locals = PyTuple_Size(local);
    uint32_t index = 0;
    int32_t status = 0;
    *asked = SETTING;
    for (Py_ssize_t i = 0; i < count && !status; i++) {
        const void *variable = variable_of(PyTuple_GetItem(buffers, i), memory);
        if (variable == NULL)
            return 0;
        status = set_argument(kernel, index++, sizeof(void *), variable);
    }
    if (!status)
        status = set_argument(kernel, index++, (size_t)PyBytes_Size(record), PyBytes_AsString(record));
    for (Py_ssize_t i = 0; i < locals && !status; i++) {
        size_t nbytes = PyLong_AsSize_t(PyTuple_GetItem(local, i));
        if (PyErr_Occurred())
            return 0;
        status = set_argument(kernel, index++, nbytes, NULL);
    }
    if (status)
        return status;
    *asked = ENQUEUEING;
    Py_BEGIN_ALLOW_THREADS
    status = enqueue(queue, kernel, (uint32_t)axes, NULL, grid, groups, 0, NULL, NULL);
    Py_END_ALLOW_THREADS
    return status;
}

PyDoc_STRVAR(launch_doc, "launch(set_argument, enqueue, queue, launches, memory, /)\n--\n\n"
                         "Set the arguments of each launch and enqueue it, in order, until one is refused.\n\n"
                         "Returns how many were enqueued, what the driver answered to the next one, or 0, and whether "
                         "it refused one of its arguments.");

static PyObject *launch(PyObject *module, PyObject *arguments) {
    unsigned long long set_address, enqueue_address, queue_address;
    PyObject *launches, *memory;
    if (!PyArg_ParseTuple(arguments, "KKKO!O:launch", &set_address, &enqueue_address, &queue_address, &PyTuple_Type,
                          &launches, &memory))
        return NULL;
    set_argument_t set_argument = (set_argument_t)(uintptr_t)set_address;
    enqueue_t enqueue = (enqueue_t)(uintptr_t)enqueue_address;
    Py_ssize_t count = PyTuple_Size(launches), done = 0;
    int32_t status = 0;
    int asked = ENQUEUEING;
    for (; done < count; done++) {
        status = launch_one(set_argument, enqueue, (void *)(uintptr_t)queue_address, PyTuple_GetItem(launches, done),
                            memory, &asked);
        if (PyErr_Occurred())
            return NULL;
        if (status)
            break;
    }
    return Py_BuildValue("niO", done, (int)status, status && asked == SETTING ? Py_True : Py_False);
}

/* Copy, launch, copy back, without Python; returns how many commands were enqueued. */
static Py_ssize_t carry_out(const work_t *work, int waits, int32_t *status) {
    int whole;
    Py_ssize_t done = begin_work(work, status, &whole);
    if (waits || *status)
        done += end_work(work, status, whole);
    else
        *status = work->flush(work->queue);
    return done;
}

PyDoc_STRVAR(copy_and_launch_doc, "copy_and_launch(functions, queue, writes, launches, reads, waits, stop, /)\n--\n\n"
                      "Copy to the device, enqueue launches, copy from it, and return when all of it is done; or at "
                      "once, if it is not to be waited for. Then nothing may be read.\n"
                      "Once the first byte of stop is not 0, nothing more is launched, and nothing read.\n\n"
                      "Returns how many commands were enqueued, and what the driver answered to the next one, or 0.");

static PyObject *copy_and_launch(PyObject *module, PyObject *arguments) {
    unsigned long long queue;
    PyObject *functions, *writes, *launches, *reads, *stopping;
    work_t work;
    int waits;
    Py_buffer stop = {0};
    if (!PyArg_ParseTuple(arguments, "O!KO!OO!pO:copy_and_launch", &PyTuple_Type, &functions, &queue, &PyTuple_Type,
                          &writes, &launches, &PyTuple_Type, &reads, &waits, &stopping) ||
        !open_stop(stopping, &stop))
        return NULL;
    int32_t status = 0;
    Py_ssize_t done = 0;
    int opened = open_work(&work, functions, queue, writes, launches, reads);
    if (opened) {
        work.stopped = stopped_by(&stop);
        Py_BEGIN_ALLOW_THREADS
        done = carry_out(&work, waits, &status);
        Py_END_ALLOW_THREADS
        close_work(&work);
    }
    close_stop(&stop);
    return opened ? Py_BuildValue("ni", done, (int)status) : NULL;
}

/* Bytes that go from one place on the host to another each time; each of the places goes on by a step of its own. */
typedef struct {
    Py_buffer from, to;
    Py_ssize_t at, hop, into, step, nbytes;
} move_t;

/* Whether so many places of some bytes each lie inside of a buffer. */
static int fits(const Py_buffer *buffer, Py_ssize_t at, Py_ssize_t step, Py_ssize_t nbytes, Py_ssize_t times) {
    return at >= 0 && step >= 0 && nbytes >= 0 && at <= buffer->len && nbytes <= buffer->len - at &&
           (!step || times - 1 <= (buffer->len - at - nbytes) / step);
}

static void close_moves(move_t *moves, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyBuffer_Release(&moves[i].from);
        PyBuffer_Release(&moves[i].to);
    }
    PyMem_Free(moves);
}

static move_t *open_moves(PyObject *tuple, Py_ssize_t most) {
    Py_ssize_t count = PyTuple_Size(tuple);
    move_t *moves = room_for(tuple, sizeof(move_t));
    for (Py_ssize_t i = 0; moves != NULL && i < count; i++) {
        move_t *move = &moves[i];
        PyObject *from, *to;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, i), "OnnOnnn:move", &from, &move->at, &move->hop, &to, &move->into,
                              &move->step, &move->nbytes) ||
            PyObject_GetBuffer(from, &move->from, PyBUF_SIMPLE) < 0) {
            close_moves(moves, i);
            return NULL;
        }
        if (PyObject_GetBuffer(to, &move->to, PyBUF_WRITABLE) < 0) {
            PyBuffer_Release(&move->from);
            close_moves(moves, i);
            return NULL;
        }
        if (!fits(&move->from, move->at, move->hop, move->nbytes, most) ||
            !fits(&move->to, move->into, move->step, move->nbytes, most)) {
            PyErr_SetString(PyExc_ValueError, "a move leaves its memory");
            close_moves(moves, i + 1);
            return NULL;
        }
    }
    return moves;
}

PyDoc_STRVAR(repeat_doc, "repeat(functions, queue, writes, launches, reads, moves, most, going, findings, /)\n--\n\n"
                         "Do what copy_and_launch does so many times, or until the byte at the beginning of going is 0 "
                         "or one in findings is not; behind each time, move bytes on the host.\n\n"
                         "Returns how often it was done, how many commands were enqueued the last time, and what the "
                         "driver answered to the next one, or 0.");

static PyObject *repeat(PyObject *module, PyObject *arguments) {
    unsigned long long queue;
    PyObject *functions, *writes, *launches, *reads, *moving;
    Py_ssize_t most;
    Py_buffer going, findings;
    work_t work;
    if (!PyArg_ParseTuple(arguments, "O!KO!OO!O!ny*y*:repeat", &PyTuple_Type, &functions, &queue, &PyTuple_Type, &writes,
                          &launches, &PyTuple_Type, &reads, &PyTuple_Type, &moving, &most, &going, &findings))
        return NULL;
    Py_ssize_t count = PyTuple_Size(moving), times = 0, done = 0;
    move_t *moves = open_moves(moving, most);
    PyObject *outcome = NULL;
    if (moves != NULL && open_work(&work, functions, queue, writes, launches, reads)) {
        const volatile char *goes = going.buf, *found = findings.buf;
        int32_t status = 0;
        int on = 1;
        Py_BEGIN_ALLOW_THREADS
        while (on && times < most) {
            done = carry_out(&work, 1, &status);
            if (status)
                break;
            for (const move_t *move = moves; move < moves + count; move++)
                memmove((char *)move->to.buf + move->into + times * move->step,
                        (char *)move->from.buf + move->at + times * move->hop, (size_t)move->nbytes);
            times++;
            on = !going.len || *goes;
            for (Py_ssize_t i = 0; i < findings.len; i++)
                on = on && !found[i];
        }
        Py_END_ALLOW_THREADS
        close_work(&work);
        outcome = Py_BuildValue("nni", times, done, (int)status);
    }
    if (moves != NULL)
        close_moves(moves, count);
    PyBuffer_Release(&going);
    PyBuffer_Release(&findings);
    return outcome;
}

static PyMethodDef methods[] = {
    {"copy_and_launch", copy_and_launch, METH_VARARGS, copy_and_launch_doc},
    {"repeat", repeat, METH_VARARGS, repeat_doc},
    {"launch", launch, METH_VARARGS, launch_doc},
    {"submit", submit, METH_VARARGS, submit_doc},
    {"bind", bind, METH_VARARGS, bind_doc},
    {"set_records", set_records, METH_VARARGS, set_records_doc},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    if (POINTER == NULL)
        POINTER = PyUnicode_InternFromString("pointer");
    return POINTER != NULL && prepare_module(module) ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_submit",
    .m_doc = "Calls that submit.py makes in C.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__submit(void) { return PyModuleDef_Init(&definition); }
