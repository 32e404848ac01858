/* What does a driver do for a plan: the copies before its launches, the launches, and the copies behind them?
 *
 * It knows nothing of OpenCL but the signatures of four functions, whose addresses the caller gives: to build it takes
 * neither headers nor the loader, and it calls the loader that pyopencl has loaded.
 * submit.py makes the tables of launches.
 */

#ifndef ASYNCRT_WORK_H
#define ASYNCRT_WORK_H

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

/* What the tables' records hold, as Python's struct module spells it: a caller made for others must not use this. */
#define LAYOUT "PNN3N3N PN"
/* Counts the changes of what functions take that are called from Python. */
#define CALLS 3

typedef struct {
    void *kernel;
    size_t axes;
    size_t grouped; /* 0: the driver chooses the work-group */
    size_t grid[3];
    size_t group[3];
} launch_t;

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

/* The name of what is looked up in a memory object of Python's. */
static PyObject *HANDLE;

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

/* Copy to the device and launch, and return at once; how many commands were enqueued, and whether that is all of them. */
static Py_ssize_t begin_work(const work_t *work, int32_t *status, int *whole) {
    const launch_t *launch = work->table.buf, *end = launch + (size_t)work->table.len / sizeof(launch_t);
    Py_ssize_t done = copy_all(work->write, work->queue, work->sources, work->up, 0, status);
    for (; launch < end && !*status && !*work->stopped; launch++, done += !*status)
        *status = work->enqueue(work->queue, launch->kernel, (uint32_t)launch->axes, NULL, launch->grid,
                                launch->grouped ? launch->group : NULL, 0, NULL, NULL);
    *whole = !*status && launch == end;
    return done;
}

/* Copy from the device, if all before that was enqueued, and return when what was enqueued is done; how many copies were
   enqueued. */
static Py_ssize_t end_work(const work_t *work, int32_t *status, int whole) {
    Py_ssize_t done = whole ? copy_all(work->read, work->queue, work->targets, work->down, 1, status) : 0;
    if (*status || !whole || !work->down) { /* its memory is somebody else's from now on */
        int32_t end_status = work->finish(work->queue);
        *status = *status ? *status : end_status;
    }
    return done;
}

/* Find what is looked up, and say what is expected; 0 is an error that is set. */
static int prepare_module(PyObject *module) {
    if (HANDLE == NULL)
        HANDLE = PyUnicode_InternFromString("handle");
    return HANDLE != NULL && PyModule_AddIntConstant(module, "CALLS", CALLS) == 0 &&
           PyModule_AddStringConstant(module, "LAYOUT", LAYOUT) == 0;
}

#endif
