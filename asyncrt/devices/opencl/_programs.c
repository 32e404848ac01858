/* How are many compiled programs given to a driver without holding up Python's other threads?
 *
 * A driver takes milliseconds for each, and as long again for the first kernel that is taken from it.
 * From Python that would be three calls for each, behind each of which the thread waits for its turn of the interpreter.
 * It knows nothing of OpenCL but the signatures of five functions, whose addresses the caller gives.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#ifdef _WIN32
#define CL_CALL __stdcall
#else
#define CL_CALL
#endif

typedef void *(CL_CALL *create_t)(void *context, uint32_t devices, void *const *device, const size_t *nbytes,
                                  const unsigned char *const *binary, int32_t *loaded, int32_t *status);
typedef int32_t(CL_CALL *build_t)(void *program, uint32_t devices, void *const *device, const char *options,
                                  void *notify, void *given);
typedef void *(CL_CALL *kernel_t)(void *program, const char *name, int32_t *status);
typedef int32_t(CL_CALL *release_t)(void *object);

typedef struct {
    create_t create;
    build_t build;
    kernel_t kernel;
    release_t release_kernel, release_program;
} functions_t;

typedef struct {
    const unsigned char *binary;
    size_t nbytes;
    const char *name;
    void *program;
} wanted_t;

/* Make a program ready, and a kernel of it for a moment; NULL if the driver refuses either. */
static void *load_one(const functions_t *functions, void *context, void *device, const char *options,
                      const wanted_t *wanted) {
    int32_t loaded = 0, status = 0;
    void *program = functions->create(context, 1, &device, &wanted->nbytes, &wanted->binary, &loaded, &status);
    if (program == NULL)
        return NULL;
    void *kernel = NULL;
    if (!status && !functions->build(program, 1, &device, options, NULL, NULL))
        kernel = functions->kernel(program, wanted->name, &status);
    if (kernel != NULL) {
        functions->release_kernel(kernel);
        return program;
    }
    functions->release_program(program);
    return NULL;
}

PyDoc_STRVAR(load_doc, "load(functions, context, device, options, programs, /)\n--\n\n"
                       "Make programs ready, each a tuple of its binary and the name of one of its kernels.\n\n"
                       "Returns the address of each, or 0 where the driver refuses it.");

static PyObject *load(PyObject *module, PyObject *arguments) {
    unsigned long long address[5], context, device;
    const char *options;
    PyObject *programs;
    if (!PyArg_ParseTuple(arguments, "(KKKKK)KKyO!:load", &address[0], &address[1], &address[2], &address[3],
                          &address[4], &context, &device, &options, &PyTuple_Type, &programs))
        return NULL;
    functions_t functions = {(create_t)(uintptr_t)address[0], (build_t)(uintptr_t)address[1],
                             (kernel_t)(uintptr_t)address[2], (release_t)(uintptr_t)address[3],
                             (release_t)(uintptr_t)address[4]};
    Py_ssize_t count = PyTuple_Size(programs);
    wanted_t *wanted = PyMem_Calloc((size_t)count + 1, sizeof(wanted_t));
    if (wanted == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t nbytes;
        if (!PyArg_ParseTuple(PyTuple_GetItem(programs, i), "y#y:program", &wanted[i].binary, &nbytes,
                              &wanted[i].name)) {
            PyMem_Free(wanted);
            return NULL;
        }
        wanted[i].nbytes = (size_t)nbytes;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        wanted[i].program = load_one(&functions, (void *)(uintptr_t)context, (void *)(uintptr_t)device, options,
                                     &wanted[i]);
    Py_END_ALLOW_THREADS
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        PyObject *number = PyLong_FromVoidPtr(wanted[i].program);
        if (number == NULL || PyTuple_SetItem(found, i, number) < 0)
            Py_CLEAR(found);
    }
    PyMem_Free(wanted);
    return found;
}

static PyMethodDef methods[] = {{"load", load, METH_VARARGS, load_doc}, {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_programs",
    .m_doc = "Calls that ahead.py makes in C.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__programs(void) { return PyModuleDef_Init(&definition); }
