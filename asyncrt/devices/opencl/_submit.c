/* How are all launches of a plan enqueued in one call?
 *
 * Those whose arguments are set go to the driver with the GIL given up once (`submit`); others get their arguments here,
 * each before it is enqueued (`launch`).
 * A plan that takes the device less time than a thread takes to wake up is carried out to its end (`copy_and_launch`),
 * the iterations of a loop several times, each with what the one before has made (`repeat`).
 * It knows nothing of OpenCL but the signatures of five functions, whose addresses the caller gives: to build it takes
 * neither headers nor the loader, and it calls the loader that pyopencl has loaded.
 * submit.py makes its tables, and does the same through ctypes where this was not built.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#ifdef _WIN32
#define CL_CALL __stdcall
#else
#define CL_CALL
#endif

typedef int32_t(CL_CALL *enqueue_t)(void *queue, void *kernel, uint32_t axes, const size_t *offset, const size_t *grid,
                                    const size_t *group, uint32_t waits, const void *wait_list, void *event);
typedef int32_t(CL_CALL *copy_t)(void *queue, void *buffer, uint32_t blocking, const size_t *origin,
                                 const size_t *host_origin, const size_t *region, size_t row, size_t slice,
                                 size_t host_row, size_t host_slice, void *host, uint32_t waits, const void *wait_list,
                                 void *event);
typedef int32_t(CL_CALL *finish_t)(void *queue);
typedef int32_t(CL_CALL *set_argument_t)(void *kernel, uint32_t index, size_t nbytes, const void *value);

/* What the tables' records hold, as Python's struct module spells it: a caller made for others must not use this. */
#define LAYOUT "PNN3N3N PN"
/* Counts the changes of what the functions below take. */
#define CALLS 2

typedef struct {
    void *kernel;
    size_t axes;
    size_t grouped; /* 0: the driver chooses the work-group */
    size_t grid[3];
    size_t group[3];
} launch_t;

typedef struct {
    void *kernel;
    size_t index;
} argument_t;

/* Get the records of a table, each of `size` bytes; 0 is an error that is set. */
static int open_table(PyObject *object, size_t size, Py_buffer *table) {
    if (PyObject_GetBuffer(object, table, PyBUF_SIMPLE) < 0)
        return 0;
    if ((size_t)table->len % size == 0 && (uintptr_t)table->buf % sizeof(void *) == 0)
        return 1;
    PyErr_Format(PyExc_ValueError, "expected aligned records of %zu bytes, got %zd bytes at %p", size, table->len,
                 table->buf);
    PyBuffer_Release(table);
    return 0;
}

/* A byte that another thread sets when no more is to be launched; None is one that nobody sets. */
static int open_stop(PyObject *stopping, Py_buffer *stop) {
    return stopping == Py_None || PyObject_GetBuffer(stopping, stop, PyBUF_WRITABLE) == 0;
}

static void close_stop(Py_buffer *stop) {
    if (stop->buf != NULL)
        PyBuffer_Release(stop);
}

static const char NEVER = 0;

static const volatile char *stopped_by(const Py_buffer *stop) { return stop->len > 0 ? stop->buf : &NEVER; }

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

/* The names of what is looked up in Python's objects. */
static PyObject *POINTER, *HANDLE;

/* The address of a variable that holds a buffer, which memory has if the buffer is a number; NULL is an error. */
static const void *variable_of(PyObject *buffer, PyObject *memory) {
    PyObject *found = NULL;
    if (PyLong_Check(buffer)) {
        Py_ssize_t number = PyLong_AsSsize_t(buffer);
        if (number == -1 && PyErr_Occurred())
            return NULL;
        buffer = found = PySequence_GetItem(memory, number);
        if (found == NULL)
            return NULL;
    }
    PyObject *handle = PyObject_GetAttr(buffer, HANDLE);
    PyObject *address = handle == NULL ? NULL : PyTuple_GetItem(handle, 1);
    const void *variable = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    Py_XDECREF(handle);
    Py_XDECREF(found);
    return variable;
}

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

typedef struct {
    void *buffer;
    size_t offset;
    Py_buffer host;
} transfer_t;

/* Get an array of zeros with an element for each of a tuple's; NULL is an error that is set. */
static void *room_for(PyObject *tuple, size_t element) {
    void *room = PyMem_Calloc((size_t)PyTuple_Size(tuple) + 1, element);
    return room == NULL ? PyErr_NoMemory() : room;
}

static void close_transfers(transfer_t *transfers, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        PyBuffer_Release(&transfers[i].host);
    PyMem_Free(transfers);
}

/* Get the host's side and the device's of a tuple's transfers; NULL is an error that is set. */
static transfer_t *open_transfers(PyObject *tuple, int flags) {
    Py_ssize_t count = PyTuple_Size(tuple);
    transfer_t *transfers = room_for(tuple, sizeof(transfer_t));
    for (Py_ssize_t i = 0; transfers != NULL && i < count; i++) {
        PyObject *memory, *host;
        Py_ssize_t offset;
        const void *variable = NULL;
        if (PyArg_ParseTuple(PyTuple_GetItem(tuple, i), "OnO:transfer", &memory, &offset, &host) &&
            PyObject_GetBuffer(host, &transfers[i].host, flags) == 0) {
            variable = variable_of(memory, NULL);
            if (variable == NULL)
                PyBuffer_Release(&transfers[i].host);
        }
        if (variable == NULL) {
            close_transfers(transfers, i);
            return NULL;
        }
        transfers[i].buffer = *(void *const *)variable;
        transfers[i].offset = (size_t)offset;
    }
    return transfers;
}

/* Copy rectangles of one row, in order, until one is refused; some drivers note the addresses of other copies for good.
   The last one is waited for if that is wanted. Returns how many were enqueued. */
static Py_ssize_t copy_all(copy_t copy, void *queue, const transfer_t *transfers, Py_ssize_t count, int waits,
                           int32_t *status) {
    Py_ssize_t done = 0;
    for (; done < count && !*status; done += !*status) {
        const transfer_t *one = &transfers[done];
        const size_t origin[3] = {one->offset, 0, 0}, host[3] = {0, 0, 0}, region[3] = {(size_t)one->host.len, 1, 1};
        *status = copy(queue, one->buffer, waits && done == count - 1, origin, host, region, 0, 0, 0, 0, one->host.buf,
                       0, NULL, NULL);
    }
    return done;
}

/* What the driver is asked to do with a plan's launches, and what the copies before and behind them are. */
typedef struct {
    enqueue_t enqueue;
    copy_t write, read;
    finish_t finish, flush;
    void *queue;
    Py_buffer table;
    transfer_t *sources, *targets;
    Py_ssize_t up, down;
    const volatile char *stopped;
} work_t;

static int open_work(work_t *work, PyObject *functions, unsigned long long queue, PyObject *writes, PyObject *launches,
                     PyObject *reads) {
    unsigned long long enqueue, write, read, finish, flush;
    if (!PyArg_ParseTuple(functions, "KKKKK:functions", &enqueue, &write, &read, &finish, &flush) ||
        !open_table(launches, sizeof(launch_t), &work->table))
        return 0;
    work->enqueue = (enqueue_t)(uintptr_t)enqueue;
    work->write = (copy_t)(uintptr_t)write, work->read = (copy_t)(uintptr_t)read;
    work->finish = (finish_t)(uintptr_t)finish, work->flush = (finish_t)(uintptr_t)flush;
    work->queue = (void *)(uintptr_t)queue;
    work->stopped = &NEVER;
    work->up = PyTuple_Size(writes), work->down = PyTuple_Size(reads);
    work->sources = open_transfers(writes, PyBUF_SIMPLE);
    work->targets = work->sources == NULL ? NULL : open_transfers(reads, PyBUF_WRITABLE);
    if (work->targets != NULL)
        return 1;
    if (work->sources != NULL)
        close_transfers(work->sources, work->up);
    PyBuffer_Release(&work->table);
    return 0;
}

static void close_work(work_t *work) {
    close_transfers(work->sources, work->up);
    close_transfers(work->targets, work->down);
    PyBuffer_Release(&work->table);
}

/* Copy, launch, copy back, without Python; returns how many commands were enqueued. */
static Py_ssize_t carry_out(const work_t *work, int waits, int32_t *status) {
    const launch_t *launch = work->table.buf, *end = launch + (size_t)work->table.len / sizeof(launch_t);
    Py_ssize_t done = copy_all(work->write, work->queue, work->sources, work->up, 0, status);
    for (; launch < end && !*status && !*work->stopped; launch++, done += !*status)
        *status = work->enqueue(work->queue, launch->kernel, (uint32_t)launch->axes, NULL, launch->grid,
                                launch->grouped ? launch->group : NULL, 0, NULL, NULL);
    int reads = !*status && launch == end;
    if (reads)
        done += copy_all(work->read, work->queue, work->targets, work->down, 1, status);
    if (!waits && !*status)
        *status = work->flush(work->queue);
    else if (*status || !reads || !work->down) { /* whatever was enqueued is done before its memory is somebody else's */
        int32_t end_status = work->finish(work->queue);
        *status = *status ? *status : end_status;
    }
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
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    if (POINTER == NULL)
        POINTER = PyUnicode_InternFromString("pointer");
    if (HANDLE == NULL)
        HANDLE = PyUnicode_InternFromString("handle");
    if (POINTER == NULL || HANDLE == NULL || PyModule_AddIntConstant(module, "CALLS", CALLS) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "LAYOUT", LAYOUT);
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
