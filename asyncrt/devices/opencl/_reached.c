/* How does an event loop learn that commands are done, without a thread that waits for them?
 *
 * The driver calls back on a thread of its own. All that happens there is that the event's number and status are put on
 * a list and an eventfd is written, which the loop polls anyway; Python is not entered, and its lock not wanted.
 * It knows nothing of OpenCL but the signature of clSetEventCallback, whose address the caller gives.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef void (*callback_t)(void *event, int32_t status, void *data);
typedef int32_t (*set_callback_t)(void *event, int32_t at, callback_t callback, void *data);

#define COMPLETE 0 /* CL_COMPLETE; failed commands are reported then, too, with a negative status */

typedef struct inbox inbox_t;

typedef struct report {
    struct report *next;
    inbox_t *inbox;
    unsigned long long number;
    int32_t status;
} report_t;

/* Drivers may call back after everything else is over, so what they write to is counted. */
struct inbox {
    _Atomic(report_t *) newest;
    atomic_size_t users;
    int file;
};

static void leave(inbox_t *inbox) {
    if (atomic_fetch_sub(&inbox->users, 1) > 1)
        return;
    for (report_t *report = atomic_load(&inbox->newest), *next; report; report = next) {
        next = report->next;
        free(report);
    }
    close(inbox->file);
    free(inbox);
}

/* On a thread of the driver. */
static void reached(void *event, int32_t status, void *data) {
    report_t *report = data;
    inbox_t *inbox = report->inbox;
    report_t *newest = atomic_load(&inbox->newest);
    report->status = status;
    do
        report->next = newest;
    while (!atomic_compare_exchange_weak(&inbox->newest, &newest, report));
    /* From here on the report may be gone. Whoever found the list empty wakes the loop, for those behind as well. */
    if (newest == NULL)
        while (eventfd_write(inbox->file, 1) < 0 && errno == EINTR)
            ;
    leave(inbox);
}

static const char NAME[] = "asyncrt.devices.opencl._reached.inbox";

static void forget(PyObject *capsule) { leave(PyCapsule_GetPointer(capsule, NAME)); }

PyDoc_STRVAR(inbox_doc, "inbox()\n--\n\nReturn a new inbox for reports, and the number of the file that is readable "
                        "when there are some.");

static PyObject *make_inbox(PyObject *module, PyObject *nothing) {
    inbox_t *inbox = calloc(1, sizeof(inbox_t));
    if (inbox == NULL)
        return PyErr_NoMemory();
    atomic_init(&inbox->newest, NULL);
    atomic_init(&inbox->users, 1);
    inbox->file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (inbox->file < 0) {
        free(inbox);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    int file = inbox->file;
    PyObject *capsule = PyCapsule_New(inbox, NAME, forget);
    if (capsule == NULL) {
        leave(inbox);
        return NULL;
    }
    return Py_BuildValue("Ni", capsule, file);
}

PyDoc_STRVAR(watch_doc, "watch(inbox, set_callback, event, number, /)\n--\n\n"
                        "Have it reported by that number when an event is reached; returns the driver's refusal, or 0.");

static PyObject *watch(PyObject *module, PyObject *arguments) {
    PyObject *capsule;
    unsigned long long set_address, event, number;
    if (!PyArg_ParseTuple(arguments, "OKKK:watch", &capsule, &set_address, &event, &number))
        return NULL;
    inbox_t *inbox = PyCapsule_GetPointer(capsule, NAME);
    if (inbox == NULL)
        return NULL;
    report_t *report = malloc(sizeof(report_t));
    if (report == NULL)
        return PyErr_NoMemory();
    *report = (report_t){NULL, inbox, number, 0};
    atomic_fetch_add(&inbox->users, 1);
    /* The driver may call back before this returns, on this thread or on another that holds a lock of the driver. */
    int32_t status;
    Py_BEGIN_ALLOW_THREADS
    status = ((set_callback_t)(uintptr_t)set_address)((void *)(uintptr_t)event, COMPLETE, reached, report);
    Py_END_ALLOW_THREADS
    if (status) {
        free(report);
        leave(inbox);
    }
    return PyLong_FromLong(status);
}

PyDoc_STRVAR(collect_doc, "collect(inbox, /)\n--\n\nReturn the number and status of each event reported since, oldest "
                          "first.");

static PyObject *collect(PyObject *module, PyObject *capsule) {
    inbox_t *inbox = PyCapsule_GetPointer(capsule, NAME);
    if (inbox == NULL)
        return NULL;
    eventfd_t ignored;
    eventfd_read(inbox->file, &ignored); /* before the list: what comes later writes again */
    PyObject *reports = PyList_New(0);
    if (reports == NULL)
        return NULL;
    for (report_t *report = atomic_exchange(&inbox->newest, NULL), *next; report; report = next) {
        next = report->next;
        PyObject *item = reports == NULL ? NULL : Py_BuildValue("Ki", report->number, (int)report->status);
        if (reports != NULL && (item == NULL || PyList_Append(reports, item) < 0))
            Py_CLEAR(reports);
        Py_XDECREF(item);
        free(report);
    }
    if (reports != NULL && PyList_Reverse(reports) < 0)
        Py_CLEAR(reports);
    return reports;
}

static PyMethodDef methods[] = {
    {"inbox", make_inbox, METH_NOARGS, inbox_doc},
    {"watch", watch, METH_VARARGS, watch_doc},
    {"collect", collect, METH_O, collect_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_reached",
    .m_doc = "Reports of events, for reached.py.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__reached(void) { return PyModuleDef_Init(&definition); }
