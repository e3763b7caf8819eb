// Address, element type and device of a torch tensor.
//
// Fast: a `torch.Tensor` object holds an `at::Tensor`; torch's stable C ABI (aoti_torch_*) reads it
// in nanoseconds. Where in the object it lies is found and checked by Python (torch_abi.py), never
// assumed; without that, and for subclasses other than Parameter, the methods are called.
#ifndef TRITON_RT_TENSORS_H
#define TRITON_RT_TENSORS_H

#include <Python.h>
#include <stdint.h>

typedef struct {
    uint64_t address;
    int device;    // -1: CPU, or no device that kernels run on
    int dtype;     // torch's number, or -1 where only `dtype_object` is known
    PyObject *dtype_object;  // borrowed: dtypes are never freed
} TensorView;

static PyObject *str_data_ptr, *str_get_device, *str_dtype;
static PyTypeObject *tensor_type, *parameter_type;  // NULL: no fast path
static Py_ssize_t tensor_offset;
static int32_t (*at_data_ptr)(void *, void **);
static int32_t (*at_dtype)(void *, int32_t *);
static int32_t (*at_device_type)(void *, int32_t *);
static int32_t (*at_device_index)(void *, int32_t *);
static int32_t (*at_dim)(void *, int64_t *);
static int32_t (*at_sizes)(void *, int64_t **);
static int32_t (*at_strides)(void *, int64_t **);
static int32_t (*at_stream)(int32_t, void **);
static int32_t (*at_device)(int32_t *);

static int call_method_int(PyObject *object, PyObject *method, int is_signed, uint64_t *out) {
    PyObject *result = PyObject_VectorcallMethod(
        method, &object, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (!result) return -1;
    *out = is_signed ? (uint64_t)PyLong_AsLongLong(result) : PyLong_AsUnsignedLongLong(result);
    Py_DECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

static inline int is_plain_tensor(PyObject *object) {
    return tensor_type && (Py_TYPE(object) == tensor_type || Py_TYPE(object) == parameter_type);
}

// Returns 0; -1 if torch refuses (a tensor without storage), or it is no CPU or CUDA tensor.
static inline int view_plain_tensor(PyObject *object, TensorView *out) {
    void *handle = (char *)object + tensor_offset, *address;
    int32_t dtype, kind, index = -1;
    if (at_device_type(handle, &kind) || at_dtype(handle, &dtype)) return -1;
    if (kind != 0 && kind != 1) return -1;  // c10::DeviceType: CPU, CUDA
    if (kind == 1 && at_device_index(handle, &index)) return -1;
    if (at_data_ptr(handle, &address)) return -1;
    out->address = (uint64_t)(uintptr_t)address;
    out->device = index;
    out->dtype = dtype;
    out->dtype_object = NULL;
    return 0;
}

// Returns 0, or -1 (with or without a Python error set) if the object is no usable tensor.
static int view_tensor(PyObject *object, TensorView *out) {
    if (is_plain_tensor(object)) return view_plain_tensor(object, out);
    uint64_t device;
    out->dtype = -1;
    out->dtype_object = PyObject_GetAttr(object, str_dtype);
    if (!out->dtype_object) return -1;
    Py_DECREF(out->dtype_object);
    if (call_method_int(object, str_get_device, 1, &device) ||
        call_method_int(object, str_data_ptr, 0, &out->address))
        return -1;
    out->device = (int)(int64_t)device;
    return 0;
}

// use_torch(tensor type, parameter type, offset, addresses of the nine functions)
static PyObject *use_torch(PyObject *module, PyObject *args) {
    PyObject *tensor, *parameter;
    unsigned long long data_ptr, dtype, device_type, device_index, dim, sizes, strides, stream,
        device;
    if (!PyArg_ParseTuple(args, "O!O!nKKKKKKKKK", &PyType_Type, &tensor, &PyType_Type, &parameter,
                          &tensor_offset, &data_ptr, &dtype, &device_type, &device_index, &dim,
                          &sizes, &strides, &stream, &device))
        return NULL;
    memcpy(&at_dim, &dim, sizeof at_dim);
    memcpy(&at_sizes, &sizes, sizeof at_sizes);
    memcpy(&at_strides, &strides, sizeof at_strides);
    memcpy(&at_data_ptr, &data_ptr, sizeof at_data_ptr);
    memcpy(&at_dtype, &dtype, sizeof at_dtype);
    memcpy(&at_device_type, &device_type, sizeof at_device_type);
    memcpy(&at_device_index, &device_index, sizeof at_device_index);
    memcpy(&at_stream, &stream, sizeof at_stream);
    memcpy(&at_device, &device, sizeof at_device);
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    parameter_type = (PyTypeObject *)Py_NewRef(parameter);
    Py_RETURN_NONE;
}

static PyObject *forget_torch(PyObject *module, PyObject *unused) {
    Py_CLEAR(tensor_type);
    Py_CLEAR(parameter_type);
    at_stream = NULL;
    at_device = NULL;
    Py_RETURN_NONE;
}

// What is compared of a tensor: as TensorView, and its sizes and strides.
typedef struct {
    TensorView view;
    int64_t dim;
    const int64_t *sizes, *strides;
} Layout;

static inline int layout_of(PyObject *object, Layout *out) {
    if (!is_plain_tensor(object) || view_plain_tensor(object, &out->view)) return -1;
    void *handle = (char *)object + tensor_offset;
    return at_dim(handle, &out->dim) || at_sizes(handle, (int64_t **)&out->sizes) ||
           at_strides(handle, (int64_t **)&out->strides);
}

static PyObject *numbers(const int64_t *values, int64_t count) {
    PyObject *out = PyTuple_New(count);
    for (int64_t i = 0; out && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (!value) Py_CLEAR(out);
        else PyTuple_SET_ITEM(out, i, value);
    }
    return out;
}

// view(tensor) -> (address, device, dtype number, sizes, strides), by the fast path alone; for its
// verification.
static PyObject *view_method(PyObject *module, PyObject *object) {
    Layout of;
    if (!is_plain_tensor(object)) return PyErr_Format(PyExc_TypeError, "not a plain tensor");
    if (layout_of(object, &of)) return PyErr_Format(PyExc_ValueError, "refused by torch");
    return Py_BuildValue("KiiNN", (unsigned long long)of.view.address, of.view.device,
                         of.view.dtype, numbers(of.sizes, of.dim), numbers(of.strides, of.dim));
}

#endif
