// What a descriptor becomes, made without Python: the rules of tma/rules.py, the driver's encoding of
// tma/encode.py, and the sizes and strides that follow the map (tma/slots.py).
#ifndef TRITON_RT_MAPS_H
#define TRITON_RT_MAPS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_RANK 5
#define MAP_BYTES 128

static CUresult (*cu_encode)(void *, unsigned, unsigned, void *, const uint64_t *, const uint64_t *,
                             const uint32_t *, const uint32_t *, unsigned, unsigned, unsigned,
                             unsigned);

// A tuple of `count` integers; -1 with an error set.
static int read_numbers(PyObject *tuple, Py_ssize_t count, int64_t *out) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_ValueError, "expected a tuple of %zd integers", count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (out[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

// Whether the TMA unit takes a tensor, and a kernel that `writes` may store through its map: the
// rules about the box and the swizzle are the compiler's. `used`: strides, legal where a size is 1.
static int keeps_rules(uint64_t address, Py_ssize_t rank, const int64_t *shape,
                       const int64_t *used, int64_t bytes, int writes) {
    if (address % 16) return 0;
    for (Py_ssize_t i = 0; i < rank; i++)
        if (shape[i] < 1 || shape[i] > INT32_MAX) return 0;
    for (Py_ssize_t i = 0; i + 1 < rank; i++) {
        if (used[i] <= 0 || used[i] >= ((int64_t)1 << 40) / bytes) return 0;
        if (used[i] * bytes % 16) return 0;
    }
    return used[rank - 1] == 1 && !(writes && shape[rank - 1] * bytes % 16);
}

// encode_slot(address, shape, strides, box, (swizzle, data type, bytes of an element), writes, nan)
// -> the bytes of a descriptor for a kernel that takes tensor maps; None where a rule is broken or
// the driver refuses, which Python then tells in words.
static PyObject *encode_slot(PyObject *module, PyObject *args) {
    unsigned long long address;
    PyObject *shape_tuple, *stride_tuple, *box_tuple;
    unsigned swizzle, type, bytes;
    int writes, nan;
    if (!PyArg_ParseTuple(args, "KO!O!O!(III)pp", &address, &PyTuple_Type, &shape_tuple,
                          &PyTuple_Type, &stride_tuple, &PyTuple_Type, &box_tuple, &swizzle, &type,
                          &bytes, &writes, &nan))
        return NULL;
    Py_ssize_t rank = PyTuple_GET_SIZE(shape_tuple);
    if (rank < 1 || rank > MAX_RANK || !bytes)
        return PyErr_Format(PyExc_ValueError, "a tensor of rank %zd, elements of %u bytes", rank,
                            bytes);
    int64_t shape[MAX_RANK], strides[MAX_RANK], used[MAX_RANK], box[MAX_RANK];
    if (read_numbers(shape_tuple, rank, shape) || read_numbers(stride_tuple, rank, strides) ||
        read_numbers(box_tuple, rank, box))
        return NULL;
    for (Py_ssize_t i = 0; i < rank; i++) {
        used[i] = shape[i] == 1 ? (bytes < 16 ? 16 / bytes : 1) : strides[i];
        if (box[i] < 1 || box[i] > 256) Py_RETURN_NONE;
    }
    if (shape[rank - 1] == 1) used[rank - 1] = 1;
    if (!keeps_rules(address, rank, shape, used, bytes, writes)) Py_RETURN_NONE;
    if (!cu_encode && load_symbol("cuTensorMapEncodeTiled", &cu_encode)) return NULL;
    if (!cu_encode) Py_RETURN_NONE;

    uint64_t sizes[MAX_RANK] = {0}, outer[MAX_RANK] = {0};
    uint32_t boxes[MAX_RANK] = {0}, steps[MAX_RANK] = {1, 1, 1, 1, 1};
    for (Py_ssize_t i = 0; i < rank; i++) {  // from the inner dimension out, as the driver counts
        Py_ssize_t from = rank - 1 - i;
        sizes[i] = (uint64_t)shape[from];
        boxes[i] = (uint32_t)box[from];
        if (i) outer[i - 1] = (uint64_t)used[from] * bytes;
    }
    struct {
        _Alignas(64) unsigned char map[MAP_BYTES];
        int64_t fields[2 * MAX_RANK];
    } made;
    enum { NO_INTERLEAVE = 0, PROMOTE_128_BYTES = 2 };
    if (cu_encode(made.map, type, (unsigned)rank, (void *)(uintptr_t)address, sizes, outer, boxes,
                  steps, NO_INTERLEAVE, swizzle, PROMOTE_128_BYTES, (unsigned)nan))
        Py_RETURN_NONE;
    memcpy(made.fields, shape, (size_t)rank * 8);
    memcpy(made.fields + rank, strides, (size_t)rank * 8);
    return PyBytes_FromStringAndSize((char *)&made, MAP_BYTES + 16 * rank);
}

#endif
