// Same(tensors, places)(others): whether others are as many plain tensors with the element types,
// devices, sizes and strides of these, and at the places (numbers) begin where these do. A call for
// all: in Python each tensor costs half a microsecond. It keeps no tensor.
#ifndef TRITON_RT_SAME_H
#define TRITON_RT_SAME_H

#include "tensors.h"

typedef struct {
    Layout layout;  // its sizes and strides are in `numbers`
    int placed;
} Known;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    Known *known;
    int64_t *numbers;
} Same;

static int same_as(const Known *known, PyObject *object) {
    const Layout *a = &known->layout;
    Layout b;
    if (layout_of(object, &b) || a->dim != b.dim || a->view.dtype != b.view.dtype ||
        a->view.device != b.view.device || (known->placed && a->view.address != b.view.address))
        return 0;
    size_t bytes = (size_t)a->dim * sizeof(int64_t);
    return !memcmp(a->sizes, b.sizes, bytes) && !memcmp(a->strides, b.strides, bytes);
}

static PyObject *same_call(Same *self, PyObject *args, PyObject *kwargs) {
    PyObject *others;
    if (!PyArg_ParseTuple(args, "O", &others)) return NULL;
    if (!PyTuple_Check(others) && !PyList_Check(others))
        return PyErr_Format(PyExc_TypeError, "expected a tuple or a list");
    if (PySequence_Fast_GET_SIZE(others) != self->count) Py_RETURN_FALSE;
    PyObject **items = PySequence_Fast_ITEMS(others);
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (!same_as(self->known + i, items[i])) Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}

static void same_dealloc(Same *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->known);
    PyMem_Free(self->numbers);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *same_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *tensors, *places;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &tensors, &PyTuple_Type, &places))
        return NULL;
    Same *self = (Same *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    Py_ssize_t count = self->count = PyTuple_GET_SIZE(tensors), words = 0;
    self->known = PyMem_Calloc((size_t)count + 1, sizeof(Known));
    for (Py_ssize_t i = 0; self->known && i < count; i++) {
        if (layout_of(PyTuple_GET_ITEM(tensors, i), &self->known[i].layout)) {
            PyErr_Format(PyExc_TypeError, "number %zd is no plain tensor", i);
            goto failed;
        }
        words += 2 * self->known[i].layout.dim;
    }
    self->numbers = PyMem_Malloc((size_t)(words + 1) * sizeof(int64_t));
    if (!self->known || !self->numbers) {
        PyErr_NoMemory();
        goto failed;
    }
    int64_t *at = self->numbers;
    for (Py_ssize_t i = 0; i < count; i++) {
        Layout *layout = &self->known[i].layout;
        size_t bytes = (size_t)layout->dim * sizeof(int64_t);
        layout->sizes = memcpy(at, layout->sizes, bytes);
        layout->strides = memcpy(at + layout->dim, layout->strides, bytes);
        at += 2 * layout->dim;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i));
        if (place < 0 || place >= count) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_IndexError, "place %zd", place);
            goto failed;
        }
        self->known[place].placed = 1;
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static PyType_Slot same_slots[] = {
    {Py_tp_new, same_new},
    {Py_tp_dealloc, same_dealloc},
    {Py_tp_call, same_call},
    {Py_tp_doc, "Same(tensors, places)(others): whether others are like these"},
    {0, NULL},
};

static PyType_Spec same_spec = {
    .name = "_triton_rt_launcher.Same",
    .basicsize = sizeof(Same),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = same_slots,
};

#endif
