/* How does Python go on while a driver is called for many requests? A thread without Python does it.
 *
 * It takes what was posted in that order, has one work of each queue at a time on the device, and ends first what it
 * began first. What has ended is collected in the order in which it was posted; the number 1, written to an eventfd,
 * says that there is something to collect.
 * While it waits for the device it can begin nothing. So when it has said that something can be collected, it waits a
 * moment for what Python posts then, before it waits for the device, or falls asleep.
 * launcher.py posts and collects, on one thread, which is the event loop's.
 */

#include "_work.h"

#include <stdlib.h>
#include <time.h>

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#define sched_yield()
#else
#include <sched.h>
#include <unistd.h>
#endif

typedef struct job {
    struct job *next;
    work_t work;
    Py_ssize_t done;
    int32_t status;
    int whole;
} job_t;

typedef struct {
    job_t *first, **end;
} line_t;

/* The lists are guarded by `lock`, but for `begun`, which is the thread's. The other two are binary semaphores. */
typedef struct {
    PyThread_type_lock lock, awake, over;
    line_t posted, begun, ended;
    size_t unfinished; /* posted and not ended */
    int asleep, waited_for, told, stopping;
    int fresh;             /* whether something was posted since something ended last */
    int64_t patience;      /* nanoseconds for which it waits for that */
    int64_t patient_until; /* by the clock of `now` */
    int file;
    int owner; /* the process whose thread it is: a copy of that process has none */
} launcher_t;

static const char *const NAME = "asyncrt.launcher";

static void clear_line(line_t *line) { line->first = NULL, line->end = &line->first; }

static void push(line_t *line, job_t *job) {
    job->next = NULL;
    *line->end = job;
    line->end = &job->next;
}

static job_t *pop(line_t *line) {
    job_t *job = line->first;
    line->first = job->next;
    if (line->first == NULL)
        line->end = &line->first;
    return job;
}

static int at_work(const launcher_t *launcher, const void *queue) {
    for (const job_t *job = launcher->begun.first; job != NULL; job = job->next)
        if (job->work.queue == queue)
            return 1;
    return 0;
}

static void begin_job(launcher_t *launcher, job_t *job) {
    job->done = begin_work(&job->work, &job->status, &job->whole);
    if (!job->status)
        job->status = job->work.flush(job->work.queue);
    push(&launcher->begun, job);
}

static int64_t now(void) {
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void tell(int file) {
#ifndef _WIN32
    const uint64_t one = 1;
    if (write(file, &one, sizeof one) < 0) { /* that it is read is overdue */
    }
#endif
}

static void end_first_job(launcher_t *launcher) {
    job_t *job = pop(&launcher->begun);
    job->done += end_work(&job->work, &job->status, job->whole);
    PyThread_acquire_lock(launcher->lock, WAIT_LOCK);
    push(&launcher->ended, job);
    launcher->fresh = 0;
    launcher->patient_until = now() + launcher->patience;
    if (!launcher->told)
        tell(launcher->file);
    launcher->told = 1;
    int over = !--launcher->unfinished && launcher->waited_for;
    if (over)
        launcher->waited_for = 0;
    PyThread_release_lock(launcher->lock);
    if (over)
        PyThread_release_lock(launcher->over);
}

static void free_launcher(launcher_t *launcher) {
#ifndef _WIN32
    close(launcher->file);
#endif
    for (PyThread_type_lock *each = &launcher->lock; each <= &launcher->over; each++)
        if (*each != NULL)
            PyThread_free_lock(*each);
    free(launcher);
}

/* Whether it is to wait for what Python posts next. */
static int is_patient(const launcher_t *launcher) {
    return !launcher->fresh && !launcher->waited_for && !launcher->stopping && now() < launcher->patient_until;
}

/* What the thread does; it never calls Python. */
static void serve(void *argument) {
    launcher_t *launcher = argument;
    for (;;) {
        PyThread_acquire_lock(launcher->lock, WAIT_LOCK);
        job_t *job = launcher->posted.first;
        if (job != NULL && !at_work(launcher, job->work.queue)) {
            pop(&launcher->posted);
            PyThread_release_lock(launcher->lock);
            begin_job(launcher, job);
        } else if (job == NULL && is_patient(launcher)) {
            PyThread_release_lock(launcher->lock);
            sched_yield();
        } else if (launcher->begun.first != NULL) {
            PyThread_release_lock(launcher->lock);
            end_first_job(launcher);
        } else if (launcher->stopping) {
            PyThread_release_lock(launcher->lock);
            free_launcher(launcher);
            return;
        } else {
            launcher->asleep = 1;
            PyThread_release_lock(launcher->lock);
            PyThread_acquire_lock(launcher->awake, WAIT_LOCK);
        }
    }
}

/* With the lock held. */
static void wake_up(launcher_t *launcher) {
    if (launcher->asleep) {
        launcher->asleep = 0;
        PyThread_release_lock(launcher->awake);
    }
}

/* Return when nothing that was posted is unfinished. The thread needs no Python for it. */
static void wait_until_over(launcher_t *launcher) {
    PyThread_acquire_lock(launcher->lock, WAIT_LOCK);
    int waits = launcher->waited_for = launcher->unfinished > 0;
    PyThread_release_lock(launcher->lock);
    if (waits)
        PyThread_acquire_lock(launcher->over, WAIT_LOCK);
}

static void free_job(job_t *job) {
    close_work(&job->work);
    PyMem_Free(job);
}

static job_t *take_ended(launcher_t *launcher) {
    PyThread_acquire_lock(launcher->lock, WAIT_LOCK);
    job_t *ended = launcher->ended.first;
    clear_line(&launcher->ended);
    launcher->told = 0;
    PyThread_release_lock(launcher->lock);
    return ended;
}

/* Let the thread end, which gives the rest back, when what was posted has. */
static void stop(PyObject *capsule) {
    launcher_t *launcher = PyCapsule_GetContext(capsule) == NULL ? PyCapsule_GetPointer(capsule, NAME) : NULL;
    if (launcher == NULL || launcher->owner != (int)getpid())
        return;
    PyCapsule_SetContext(capsule, capsule); /* stopped */
    wait_until_over(launcher);
    for (job_t *job = take_ended(launcher), *next; job != NULL; job = next) {
        next = job->next;
        free_job(job);
    }
    PyThread_acquire_lock(launcher->lock, WAIT_LOCK);
    launcher->stopping = 1;
    wake_up(launcher);
    PyThread_release_lock(launcher->lock);
}

static launcher_t *opened(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, NAME) && PyCapsule_GetContext(capsule) == NULL)
        return PyCapsule_GetPointer(capsule, NAME);
    PyErr_SetString(PyExc_ValueError, "expected a launcher that is not closed");
    return NULL;
}

PyDoc_STRVAR(start_doc, "start(file, patience, /)\n--\n\n"
                        "Start a thread, and return its launcher. It writes to the eventfd when something can be "
                        "collected, and then waits for so many nanoseconds for what is posted.");

static PyObject *start(PyObject *module, PyObject *arguments) {
    int file;
    long long patience;
    if (!PyArg_ParseTuple(arguments, "iL:start", &file, &patience))
        return NULL;
    launcher_t *launcher = calloc(1, sizeof(launcher_t));
    if (launcher == NULL)
        return PyErr_NoMemory();
    clear_line(&launcher->posted), clear_line(&launcher->begun), clear_line(&launcher->ended);
#ifndef _WIN32
    launcher->file = dup(file); /* as long as the thread is there no other file has its number */
#endif
    launcher->patience = patience;
    launcher->owner = (int)getpid();
    launcher->lock = PyThread_allocate_lock();
    launcher->awake = PyThread_allocate_lock();
    launcher->over = PyThread_allocate_lock();
    PyObject *capsule = NULL;
    if (launcher->lock != NULL && launcher->awake != NULL && launcher->over != NULL) {
        PyThread_acquire_lock(launcher->awake, WAIT_LOCK);
        PyThread_acquire_lock(launcher->over, WAIT_LOCK);
        capsule = PyCapsule_New(launcher, NAME, stop);
        if (capsule != NULL && PyThread_start_new_thread(serve, launcher) != (unsigned long)-1)
            return capsule;
    }
    if (capsule != NULL) {
        PyCapsule_SetContext(capsule, capsule); /* its end finds nothing to stop */
        Py_DECREF(capsule);
    }
    free_launcher(launcher);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "no thread can be started");
    return NULL;
}

PyDoc_STRVAR(post_doc, "post(launcher, functions, queue, writes, launches, reads, /)\n--\n\n"
                       "Let the thread copy to the device, launch, copy from it, and wait for that.");

static PyObject *post(PyObject *module, PyObject *arguments) {
    unsigned long long queue;
    PyObject *capsule, *functions, *writes, *launches, *reads;
    if (!PyArg_ParseTuple(arguments, "OO!KO!OO!:post", &capsule, &PyTuple_Type, &functions, &queue, &PyTuple_Type,
                          &writes, &launches, &PyTuple_Type, &reads))
        return NULL;
    launcher_t *launcher = opened(capsule);
    job_t *job = launcher == NULL ? NULL : PyMem_Calloc(1, sizeof(job_t));
    if (job == NULL)
        return launcher == NULL ? NULL : PyErr_NoMemory();
    if (!open_work(&job->work, functions, queue, writes, launches, reads)) {
        PyMem_Free(job);
        return NULL;
    }
    PyThread_acquire_lock(launcher->lock, WAIT_LOCK);
    push(&launcher->posted, job);
    launcher->unfinished++;
    launcher->fresh = 1;
    wake_up(launcher);
    PyThread_release_lock(launcher->lock);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(collect_doc, "collect(launcher, /)\n--\n\n"
                          "Return what has become of each work that has ended since, in the order in which they were "
                          "posted: how many commands were enqueued, and what the driver answered to the next one, or "
                          "0.");

static PyObject *collect(PyObject *module, PyObject *capsule) {
    launcher_t *launcher = opened(capsule);
    PyObject *outcomes = launcher == NULL ? NULL : PyList_New(0);
    if (outcomes == NULL)
        return NULL;
    for (job_t *job = take_ended(launcher), *next; job != NULL; job = next) {
        next = job->next;
        PyObject *outcome = outcomes == NULL ? NULL : Py_BuildValue("ni", job->done, (int)job->status);
        if (outcome == NULL || PyList_Append(outcomes, outcome) < 0)
            Py_CLEAR(outcomes);
        Py_XDECREF(outcome);
        free_job(job);
    }
    return outcomes;
}

PyDoc_STRVAR(wait_doc, "wait(launcher, /)\n--\n\nReturn when all has ended that was posted.");

static PyObject *wait(PyObject *module, PyObject *capsule) {
    launcher_t *launcher = opened(capsule);
    if (launcher == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    wait_until_over(launcher);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc, "close(launcher, /)\n--\n\n"
                        "Let the thread end, when all has ended that was posted; what is not collected yet never is.");

static PyObject *close_launcher(PyObject *module, PyObject *capsule) {
    launcher_t *launcher = opened(capsule);
    if (launcher == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    wait_until_over(launcher);
    Py_END_ALLOW_THREADS
    stop(capsule);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, start_doc},
    {"post", post, METH_VARARGS, post_doc},
    {"collect", collect, METH_O, collect_doc},
    {"wait", wait, METH_O, wait_doc},
    {"close", close_launcher, METH_O, close_doc},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) { return prepare_module(module) ? 0 : -1; }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_launcher",
    .m_doc = "A thread that launcher.py hands work to, in C.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__launcher(void) { return PyModuleDef_Init(&definition); }
