// What is used of libcuda: its few declarations, looked up at run time, and one launch through them.
// The functions are found at the first launch through a Python callable, so that the module loads
// where there is no GPU.
#ifndef TRITON_RT_DRIVER_H
#define TRITON_RT_DRIVER_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef void *CUfunction, *CUstream, *CUcontext;
typedef struct {
    uint32_t id, pad, value[16];
} Attribute;
typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    CUstream stream;
    Attribute *attributes;
    unsigned count;
} Config;

static CUresult (*cu_launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, unsigned, CUstream, void **, void **);
static CUresult (*cu_launch_ex)(const Config *, CUfunction, void **, void **);
static CUresult (*cu_get_current)(CUcontext *);
static CUresult (*cu_push)(CUcontext);
static CUresult (*cu_pop)(CUcontext *);
static PyObject *symbol_getter;

// A kernel that is loaded on a device, for arguments of one alignment.
typedef struct {
    uint64_t alignment;
    int device;
    CUfunction function;
    CUcontext context;
    unsigned threads, shared, num_ctas;
    int cooperative, pdl;
    uint64_t global_scratch, profile_scratch;  // bytes per program
    unsigned head;    // bytes of a descriptor's first kernel parameter: a tensor map or a pointer
    PyObject *slots;  // a tuple with a callable for each descriptor: argument -> bytes; or NULL
} Variant;

static int load_symbol(const char *name, void *slot) {
    PyObject *address = PyObject_CallFunction(symbol_getter, "s", name);
    if (!address) return -1;
    void *pointer = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    if (PyErr_Occurred()) return -1;
    memcpy(slot, &pointer, sizeof pointer);
    return 0;
}

static int load_symbols(void) {
    if (cu_launch) return 0;
    if (load_symbol("cuLaunchKernelEx", &cu_launch_ex) ||
        load_symbol("cuCtxGetCurrent", &cu_get_current) ||
        load_symbol("cuCtxPushCurrent_v2", &cu_push) ||
        load_symbol("cuCtxPopCurrent_v2", &cu_pop) || load_symbol("cuLaunchKernel", &cu_launch))
        return -1;
    return 0;
}

static PyObject *set_symbols_from(PyObject *module, PyObject *getter) {
    Py_XSETREF(symbol_getter, Py_NewRef(getter));
    cu_launch = NULL;
    Py_RETURN_NONE;
}

static CUresult launch(const Variant *v, const unsigned grid[3], CUstream stream, void **params) {
    CUcontext current = NULL, popped;
    CUresult code = cu_get_current(&current);
    if (code) return code;
    int switched = current != v->context;
    if (switched && (code = cu_push(v->context))) return code;
    if (v->num_ctas == 1 && !v->cooperative && !v->pdl) {
        code = cu_launch(v->function, grid[0], grid[1], grid[2], v->threads, 1, 1, v->shared,
                         stream, params, NULL);
    } else {
        Attribute attributes[4];
        unsigned count = 0;
        memset(attributes, 0, sizeof attributes);
        if (v->pdl) {
            attributes[count].id = 6;  // PROGRAMMATIC_STREAM_SERIALIZATION
            attributes[count++].value[0] = 1;
        }
        if (v->cooperative) {
            attributes[count].id = 2;  // COOPERATIVE
            attributes[count++].value[0] = 1;
        }
        if (v->num_ctas > 1) {
            attributes[count].id = 4;  // CLUSTER_DIMENSION
            attributes[count].value[0] = v->num_ctas;
            attributes[count].value[1] = attributes[count].value[2] = 1;
            count++;
            attributes[count].id = 5;  // CLUSTER_SCHEDULING_POLICY_PREFERENCE: spread
            attributes[count++].value[0] = 1;
        }
        Config config = {grid[0] * v->num_ctas, grid[1], grid[2], v->threads, 1, 1,
                         v->shared, stream, attributes, count};
        code = cu_launch_ex(&config, v->function, params, NULL);
    }
    if (switched) {
        CUresult pop_code = cu_pop(&popped);
        if (!code) code = pop_code;
    }
    return code;
}

// time_raw(function, stream, threads, shared, values: bytes of 8 a param, count) -> ns per launch:
// what cuLaunchKernel itself costs, from a loop in C. The current context must be the kernel's.
static PyObject *time_raw(PyObject *module, PyObject *args) {
    unsigned long long function, stream;
    unsigned threads, shared;
    Py_buffer values;
    int count;
    if (!PyArg_ParseTuple(args, "KKIIy*i", &function, &stream, &threads, &shared, &values, &count))
        return NULL;
    if (load_symbols()) {
        PyBuffer_Release(&values);
        return NULL;
    }
    void *params[256];
    Py_ssize_t n = values.len / 8 > 256 ? 256 : values.len / 8;
    for (Py_ssize_t i = 0; i < n; i++) params[i] = (char *)values.buf + 8 * i;
    struct timespec begin, end;
    CUresult code = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count && !code; i++)
        code = cu_launch((CUfunction)(uintptr_t)function, 1, 1, 1, threads, 1, 1, shared,
                         (CUstream)(uintptr_t)stream, params, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    PyBuffer_Release(&values);
    if (code) return PyErr_Format(PyExc_RuntimeError, "cuLaunchKernel failed with %d", code);
    double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    return PyFloat_FromDouble(ns / (count ? count : 1));
}

#endif
