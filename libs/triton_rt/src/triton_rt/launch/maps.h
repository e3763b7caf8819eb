// What a descriptor becomes, made without Python: the driver's encoding of tma/encode.py, and the sizes
// and strides that follow the map (slots.py).
#ifndef TRITON_RT_MAPS_H
#define TRITON_RT_MAPS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../tma/rules.h"

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
    if (rank < 1 || rank > TMA_MAX_RANK || !bytes)
        return PyErr_Format(PyExc_ValueError, "a tensor of rank %zd, elements of %u bytes", rank,
                            bytes);
    int64_t shape[TMA_MAX_RANK], strides[TMA_MAX_RANK], box[TMA_MAX_RANK];
    uint32_t boxes[TMA_MAX_RANK];
    if (read_numbers(shape_tuple, rank, shape) || read_numbers(stride_tuple, rank, strides) ||
        read_numbers(box_tuple, rank, box))
        return NULL;
    for (Py_ssize_t i = 0; i < rank; i++) {
        if (box[i] < 1 || box[i] > 256) Py_RETURN_NONE;
        boxes[i] = (uint32_t)box[i];
    }
    if (!tma_keeps_rules(address, rank, shape, strides, bytes, writes)) Py_RETURN_NONE;
    if (!cu_encode && load_symbol("cuTensorMapEncodeTiled", &cu_encode)) return NULL;
    if (!cu_encode) Py_RETURN_NONE;

    TmaArguments to = tma_arguments(rank, shape, strides, boxes, bytes, 0);
    struct {
        _Alignas(64) unsigned char map[MAP_BYTES];
        int64_t fields[2 * TMA_MAX_RANK];
    } made;
    if (cu_encode(made.map, type, (unsigned)rank, (void *)(uintptr_t)address, to.sizes, to.strides,
                  to.box, to.steps, TMA_NO_INTERLEAVE, swizzle, TMA_PROMOTE_128_BYTES,
                  (unsigned)nan))
        Py_RETURN_NONE;
    memcpy(made.fields, shape, (size_t)rank * 8);
    memcpy(made.fields + rank, strides, (size_t)rank * 8);
    return PyBytes_FromStringAndSize((char *)&made, MAP_BYTES + 16 * rank);
}

#endif
