/* How does Python go on while a driver is called for many requests? Threads without Python do it.
 *
 * One thread for all queues takes what was posted in that order, has one work of each queue at a time on the device, and
 * ends first what it began first. While it waits for the device it can begin nothing; so when it has said that something
 * can be collected, it waits a moment for what Python posts then, before it waits for the device, or falls asleep.
 * Threads with a queue each, whose commands the thread that enqueues them carries out by itself, do one work after the
 * other from beginning to end, whichever was posted first.
 * The number 1, written to an eventfd, says that there is something to collect.
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
    Py_buffer stop;
    long long number; /* it was the how manieth */
    Py_ssize_t done;
    int32_t status;
    int whole;
    int64_t began, took; /* nanoseconds */
} job_t;

typedef struct {
    job_t *first, **end;
} line_t;

typedef struct launcher launcher_t;

typedef struct worker {
    launcher_t *launcher;
    void *queue;              /* its own; NULL: each work has one */
    line_t begun;             /* nobody else's */
    struct worker *next;      /* of those that sleep */
    PyThread_type_lock awake; /* a binary semaphore, taken while it sleeps */
} worker_t;

struct launcher {
    PyThread_type_lock lock; /* of all that follows, and of those that sleep */
    PyThread_type_lock over; /* a binary semaphore, for who waits until nothing is unfinished */
    line_t posted, ended;
    long long posts;
    size_t unfinished; /* posted and not ended */
    worker_t *asleep;
    size_t threads; /* that have not ended */
    int waited_for, told, stopping;
    int fresh;             /* whether something was posted since something ended last */
    int64_t patience;      /* nanoseconds for which that is waited for */
    int64_t patient_until; /* by the clock of `now` */
    int file;
    int owner; /* the process whose threads they are: a copy of that process has none */
    size_t count;
    worker_t workers[];
};

static const char *const NAME = "asyncrt.launcher";

static void lock(launcher_t *launcher) { PyThread_acquire_lock(launcher->lock, WAIT_LOCK); }

static void unlock(launcher_t *launcher) { PyThread_release_lock(launcher->lock); }

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

static int64_t now(void) {
    struct timespec time;
#ifdef _WIN32
    timespec_get(&time, TIME_UTC);
#else
    clock_gettime(CLOCK_MONOTONIC, &time);
#endif
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* With the lock. */
static void tell(launcher_t *launcher) {
#ifndef _WIN32
    const uint64_t one = 1;
    if (!launcher->told && write(launcher->file, &one, sizeof one) < 0) { /* that it is read is overdue */
    }
#endif
    launcher->told = 1;
}

/* Whether the first that was posted may begin on this thread. */
static int may_begin(const worker_t *worker) {
    const job_t *wanted = worker->launcher->posted.first, *job = worker->begun.first;
    if (wanted == NULL || worker->queue != NULL)
        return wanted != NULL && job == NULL;
    while (job != NULL && job->work.queue != wanted->work.queue)
        job = job->next;
    return job == NULL;
}

static void begin_job(worker_t *worker, job_t *job) {
    job->began = now();
    if (worker->queue != NULL)
        job->work.queue = worker->queue;
    job->done = begin_work(&job->work, &job->status, &job->whole);
    if (!job->status && worker->queue == NULL)
        job->status = job->work.flush(job->work.queue);
    push(&worker->begun, job);
}

/* Returns with the lock. */
static void end_first_job(worker_t *worker) {
    launcher_t *launcher = worker->launcher;
    job_t *job = pop(&worker->begun);
    job->done += end_work(&job->work, &job->status, job->whole);
    int64_t ended = now();
    job->took = ended - job->began;
    lock(launcher);
    push(&launcher->ended, job);
    launcher->fresh = 0;
    launcher->patient_until = ended + launcher->patience;
    tell(launcher);
    if (!--launcher->unfinished && launcher->waited_for) {
        launcher->waited_for = 0;
        PyThread_release_lock(launcher->over);
    }
}

/* Whether to wait for what Python posts next. */
static int is_patient(const launcher_t *launcher) {
    return launcher->patience && launcher->posted.first == NULL && !launcher->fresh && !launcher->waited_for &&
           !launcher->stopping && now() < launcher->patient_until;
}

/* With the lock: let one that sleeps look again. */
static void wake_one(launcher_t *launcher) {
    worker_t *worker = launcher->asleep;
    if (worker != NULL) {
        launcher->asleep = worker->next;
        PyThread_release_lock(worker->awake);
    }
}

/* With the lock, which is given up meanwhile. */
static void fall_asleep(worker_t *worker) {
    launcher_t *launcher = worker->launcher;
    worker->next = launcher->asleep;
    launcher->asleep = worker;
    unlock(launcher);
    PyThread_acquire_lock(worker->awake, WAIT_LOCK);
    lock(launcher);
}

static void free_launcher(launcher_t *launcher) {
#ifndef _WIN32
    close(launcher->file);
#endif
    for (size_t i = 0; i < launcher->count; i++)
        if (launcher->workers[i].awake != NULL)
            PyThread_free_lock(launcher->workers[i].awake);
    if (launcher->over != NULL)
        PyThread_free_lock(launcher->over);
    if (launcher->lock != NULL)
        PyThread_free_lock(launcher->lock);
    free(launcher);
}

/* With the lock, which is given up: a thread less; without any, everything is given back. */
static void leave(launcher_t *launcher, size_t threads) {
    launcher->threads -= threads;
    int last = !launcher->threads;
    unlock(launcher);
    if (last)
        free_launcher(launcher);
}

/* What a thread does; it never calls Python. */
static void serve(void *argument) {
    worker_t *worker = argument;
    launcher_t *launcher = worker->launcher;
    lock(launcher);
    for (;;) {
        if (may_begin(worker)) {
            job_t *job = pop(&launcher->posted);
            unlock(launcher);
            begin_job(worker, job);
            lock(launcher);
        } else if (is_patient(launcher)) {
            unlock(launcher);
            sched_yield();
            lock(launcher);
        } else if (worker->begun.first != NULL) {
            unlock(launcher);
            end_first_job(worker);
        } else if (launcher->stopping) {
            leave(launcher, 1);
            return;
        } else {
            fall_asleep(worker);
        }
    }
}

/* Return when nothing that was posted is unfinished. The threads need no Python for it. */
static void wait_until_over(launcher_t *launcher) {
    lock(launcher);
    int waits = launcher->waited_for = launcher->unfinished > 0;
    unlock(launcher);
    if (waits)
        PyThread_acquire_lock(launcher->over, WAIT_LOCK);
}

static void free_job(job_t *job) {
    close_work(&job->work);
    close_stop(&job->stop);
    PyMem_Free(job);
}

static job_t *take_ended(launcher_t *launcher) {
    lock(launcher);
    job_t *ended = launcher->ended.first;
    clear_line(&launcher->ended);
    launcher->told = 0;
    unlock(launcher);
    return ended;
}

/* Let the threads end, which give the rest back, when what was posted has. Nobody waits for what never ends: of that,
   and what else was not collected by then, the callers' memory is never given back. */
static void stop(PyObject *capsule) {
    launcher_t *launcher = PyCapsule_GetContext(capsule) == NULL ? PyCapsule_GetPointer(capsule, NAME) : NULL;
    if (launcher == NULL || launcher->owner != (int)getpid())
        return;
    PyCapsule_SetContext(capsule, capsule); /* stopped */
    lock(launcher);
    int over = !launcher->unfinished;
    unlock(launcher);
    for (job_t *job = over ? take_ended(launcher) : NULL, *next; job != NULL; job = next) {
        next = job->next;
        free_job(job);
    }
    lock(launcher);
    launcher->stopping = 1;
    while (launcher->asleep != NULL)
        wake_one(launcher);
    leave(launcher, 0);
}

static launcher_t *opened(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, NAME) && PyCapsule_GetContext(capsule) == NULL)
        return PyCapsule_GetPointer(capsule, NAME);
    PyErr_SetString(PyExc_ValueError, "expected a launcher that is not closed");
    return NULL;
}

static PyThread_type_lock taken(void) {
    PyThread_type_lock semaphore = PyThread_allocate_lock();
    if (semaphore != NULL)
        PyThread_acquire_lock(semaphore, WAIT_LOCK);
    return semaphore;
}

/* Without threads; NULL where there is no memory, or no file can be opened. */
static launcher_t *new_launcher(int file, int64_t patience, size_t count) {
    launcher_t *launcher = calloc(1, sizeof(launcher_t) + count * sizeof(worker_t));
    if (launcher == NULL)
        return NULL;
    clear_line(&launcher->posted), clear_line(&launcher->ended);
    launcher->patience = patience;
    launcher->owner = (int)getpid();
#ifndef _WIN32
    launcher->file = dup(file); /* as long as a thread is there no other file has its number */
#endif
    launcher->lock = PyThread_allocate_lock();
    launcher->over = taken();
    int made = launcher->file >= 0 && launcher->lock != NULL && launcher->over != NULL;
    for (launcher->count = count; count-- > 0;) {
        worker_t *worker = &launcher->workers[count];
        worker->launcher = launcher;
        worker->awake = taken();
        clear_line(&worker->begun);
        made = made && worker->awake != NULL;
    }
    if (made)
        return launcher;
    free_launcher(launcher);
    return NULL;
}

PyDoc_STRVAR(start_doc,
             "start(file, patience, queues, /)\n--\n\n"
             "Start a thread for each of the queues, or one for all if there is none, and return the launcher. They write "
             "to the eventfd when something can be collected; one for all waits then for so many nanoseconds for what "
             "is posted.");

static PyObject *start(PyObject *module, PyObject *arguments) {
    int file;
    long long patience;
    PyObject *queues;
    if (!PyArg_ParseTuple(arguments, "iLO!:start", &file, &patience, &PyTuple_Type, &queues))
        return NULL;
    size_t own = (size_t)PyTuple_Size(queues);
    launcher_t *launcher = new_launcher(file, own ? 0 : patience, own ? own : 1);
    if (launcher == NULL)
        return PyErr_NoMemory();
    for (size_t i = 0; i < own && !PyErr_Occurred(); i++)
        launcher->workers[i].queue = PyLong_AsVoidPtr(PyTuple_GetItem(queues, (Py_ssize_t)i));
    PyObject *capsule = PyErr_Occurred() ? NULL : PyCapsule_New(launcher, NAME, stop);
    if (capsule == NULL) {
        free_launcher(launcher);
        return NULL;
    }
    lock(launcher);
    for (size_t i = 0; i < launcher->count; i++)
        launcher->threads += PyThread_start_new_thread(serve, &launcher->workers[i]) != (unsigned long)-1;
    int some = launcher->threads > 0;
    unlock(launcher);
    if (some)
        return capsule;
    Py_DECREF(capsule);
    PyErr_SetString(PyExc_RuntimeError, "no thread can be started");
    return NULL;
}

PyDoc_STRVAR(post_doc,
             "post(launcher, functions, queue, writes, launches, reads, stop, /)\n--\n\n"
             "Let a thread copy to the device, launch, copy from it, and wait for that; on its own queue if it has one.\n"
             "Once the first byte of stop is not 0, nothing more is launched, and nothing read.\n\n"
             "Returns the how manieth it is, from 0 on.");

static PyObject *post(PyObject *module, PyObject *arguments) {
    unsigned long long queue;
    PyObject *capsule, *functions, *writes, *launches, *reads, *stopping;
    if (!PyArg_ParseTuple(arguments, "OO!KO!OO!O:post", &capsule, &PyTuple_Type, &functions, &queue, &PyTuple_Type,
                          &writes, &launches, &PyTuple_Type, &reads, &stopping))
        return NULL;
    launcher_t *launcher = opened(capsule);
    job_t *job = launcher == NULL ? NULL : PyMem_Calloc(1, sizeof(job_t));
    if (job == NULL)
        return launcher == NULL ? NULL : PyErr_NoMemory();
    if (!open_stop(stopping, &job->stop) || !open_work(&job->work, functions, queue, writes, launches, reads)) {
        close_stop(&job->stop);
        PyMem_Free(job);
        return NULL;
    }
    job->work.stopped = stopped_by(&job->stop);
    lock(launcher);
    long long number = job->number = launcher->posts++;
    push(&launcher->posted, job);
    launcher->unfinished++;
    launcher->fresh = 1;
    wake_one(launcher);
    unlock(launcher);
    return PyLong_FromLongLong(number);
}

PyDoc_STRVAR(collect_doc, "collect(launcher, /)\n--\n\n"
                          "Return what has become of each work that has ended since, in the order in which they have: "
                          "the how manieth it was, how many commands were enqueued, what the driver answered to the "
                          "next one, or 0, and the nanoseconds from its beginning to its end.");

static PyObject *collect(PyObject *module, PyObject *capsule) {
    launcher_t *launcher = opened(capsule);
    PyObject *outcomes = launcher == NULL ? NULL : PyList_New(0);
    if (outcomes == NULL)
        return NULL;
    for (job_t *job = take_ended(launcher), *next; job != NULL; job = next) {
        next = job->next;
        PyObject *outcome = NULL;
        if (outcomes != NULL)
            outcome = Py_BuildValue("LniL", job->number, job->done, (int)job->status, (long long)job->took);
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
                        "Let the threads end, when all has ended that was posted; what is not collected yet never is.");

static PyObject *close_launcher(PyObject *module, PyObject *capsule) {
    PyObject *waited = wait(module, capsule);
    if (waited != NULL)
        stop(capsule);
    return waited;
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
    .m_doc = "Threads that launcher.py hands work to, in C.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__launcher(void) { return PyModuleDef_Init(&definition); }
