// The kinds of kernel parameters: what each takes, how wide it is, and how it is packed.
// A new kind is a row of `kind_table`, and a case of `dispatch` in launcher.c.
#ifndef TRITON_RT_KINDS_H
#define TRITON_RT_KINDS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

enum Kind {
    POINTER, BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, DESCRIPTOR, KINDS
};

static const struct {
    const char *name;  // a prefix for pointers, whose element type is checked by dtype
    unsigned words;    // of 8 bytes, in the packed arguments
} kind_table[KINDS] = {
    [POINTER] = {"*", 1}, [BOOL] = {"bool", 1}, [I8] = {"i8", 1},   [I16] = {"i16", 1},
    [I32] = {"i32", 1},   [I64] = {"i64", 1},   [U8] = {"u8", 1},   [U16] = {"u16", 1},
    [U32] = {"u32", 1},   [U64] = {"u64", 1},   [F16] = {"f16", 1}, [BF16] = {"bf16", 1},
    [F32] = {"f32", 1},   [F64] = {"f64", 1},
    // The longest forms: a CUtensorMap by value, 5 sizes, 5 strides; or a pointer, 5 sizes,
    // 5 strides, padding, and sizes and strides again (22 words).
    [DESCRIPTOR] = {"tensordesc", 26},
};

static int find_kind(const char *name) {
    if (name[0] == '*') return POINTER;
    if (!strncmp(name, "tensordesc<", 11)) return DESCRIPTOR;
    for (int kind = 1; kind < KINDS; kind++)
        if (!strcmp(name, kind_table[kind].name)) return kind;
    return -1;
}

static uint16_t to_bf16(double wide) {
    float value = (float)wide;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// A tensor of one element is no number here: reading it would wait for the GPU.
static int is_tensor_like(PyObject *arg) { return PyObject_HasAttr(arg, str_data_ptr); }

static int pack_float(enum Kind kind, PyObject *arg, uint64_t *out) {
    double value;
    if (PyFloat_CheckExact(arg)) {
        value = PyFloat_AS_DOUBLE(arg);
    } else {
        if (!PyFloat_Check(arg) && !PyLong_Check(arg) && is_tensor_like(arg)) return -1;
        value = PyFloat_AsDouble(arg);
        if (value == -1.0 && PyErr_Occurred()) return -1;
    }
    *out = 0;
    if (kind == F64) {
        memcpy(out, &value, 8);
    } else if (kind == F32) {
        float narrow = (float)value;
        memcpy(out, &narrow, 4);
    } else if (kind == BF16) {
        *out = to_bf16(value);
    } else {
        char bytes[2];
        if (PyFloat_Pack2(value, bytes, 1) < 0) {
            PyErr_Clear();
            *out = value < 0 ? 0xfc00 : 0x7c00;
        } else {
            memcpy(out, bytes, 2);
        }
    }
    return 0;
}

static int fits(enum Kind kind, int64_t value) {
    switch (kind) {
        case I8: return value == (int8_t)value;
        case I16: return value == (int16_t)value;
        case I32: return value == (int32_t)value;
        case U8: return value == (uint8_t)value;
        case U16: return value == (uint16_t)value;
        case U32: return value == (uint32_t)value;
        default: return 1;
    }
}

static int pack_integer(enum Kind kind, PyObject *arg, uint64_t *out, int *aligned) {
    PyObject *owned = NULL;
    if (!PyLong_Check(arg)) {
        if (!PyIndex_Check(arg) || is_tensor_like(arg)) return -1;
        if (!(owned = PyNumber_Index(arg))) return -1;
        arg = owned;
    }
    int status = 0;
    if (kind == U64) {
        *out = PyLong_AsUnsignedLongLong(arg);
        if (*out == (uint64_t)-1 && PyErr_Occurred()) status = -1;
    } else {
        int overflow;
        int64_t value = PyLong_AsLongLongAndOverflow(arg, &overflow);
        if (kind == BOOL)
            value = overflow || value != 0;
        else if (overflow || !fits(kind, value))
            status = -1;
        *out = (uint64_t)value;
    }
    *aligned = kind != BOOL && (*out & 15) == 0;
    Py_XDECREF(owned);
    return status;
}

// Returns 0, or -1 if the value is not of the kind (with or without a Python error set).
static inline int pack_scalar(enum Kind kind, PyObject *arg, uint64_t *out, int *aligned) {
    *aligned = 0;
    return kind >= F16 ? pack_float(kind, arg, out) : pack_integer(kind, arg, out, aligned);
}

#endif
