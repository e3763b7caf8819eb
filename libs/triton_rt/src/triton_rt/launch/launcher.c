// Generic launcher: Dispatcher(grid, *args) checks the arguments, finds the variant of their
// alignment, packs them and calls cuLaunchKernel. No CUDA headers: the few declarations of the
// driver's ABI that are needed stand below. The driver's functions are looked up at the first
// launch through a Python callable, so that the module loads where there is no GPU.
//
// Every failure is told by Python code: `explain` raises the error that fits the call.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
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
static PyObject *symbol_getter, *str_data_ptr, *str_get_device, *str_dtype;

enum Kind { POINTER, BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64 };
static const char *const kind_names[] = {"*",   "bool", "i8",  "i16", "i32",  "i64", "u8",
                                         "u16", "u32",  "u64", "f16", "bf16", "f32", "f64"};

typedef struct {
    enum Kind kind;
    PyObject *dtype;  // of a tensor argument; compared by identity
} Param;

typedef struct {
    uint64_t alignment;
    int device;
    CUfunction function;
    CUcontext context;
    unsigned threads, shared, num_ctas;
    int cooperative, pdl;
    uint64_t global_scratch, profile_scratch;  // bytes per program
} Variant;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name, *resolve, *on_cpu, *explain, *current_device, *raw_stream, *scratch, *failed;
    Py_ssize_t count;
    Param *params;
    Py_ssize_t variants;
    Variant *table;
} Dispatcher;

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

static uint16_t to_bf16(double wide) {
    float value = (float)wide;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Returns 0, or -1 if the value is not of the kind (with or without a Python error set).
static int pack_scalar(enum Kind kind, PyObject *arg, uint64_t *out, int *aligned) {
    *out = 0;
    *aligned = 0;
    if (kind >= F16) {
        double value;
        if (PyFloat_CheckExact(arg)) {
            value = PyFloat_AS_DOUBLE(arg);
        } else {
            if (!PyFloat_Check(arg) && !PyLong_Check(arg) && PyObject_HasAttr(arg, str_data_ptr))
                return -1;
            value = PyFloat_AsDouble(arg);
            if (value == -1.0 && PyErr_Occurred()) return -1;
        }
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
    PyObject *owned = NULL;
    if (!PyLong_Check(arg)) {
        if (!PyIndex_Check(arg) || PyObject_HasAttr(arg, str_data_ptr)) return -1;
        if (!(owned = PyNumber_Index(arg))) return -1;
        arg = owned;
    }
    int status = 0;
    if (kind == U64) {
        uint64_t value = PyLong_AsUnsignedLongLong(arg);
        if (value == (uint64_t)-1 && PyErr_Occurred()) status = -1;
        *out = value;
        *aligned = (value & 15) == 0;
    } else {
        int overflow;
        int64_t value = PyLong_AsLongLongAndOverflow(arg, &overflow);
        if (overflow && kind != BOOL) status = -1;
        switch (kind) {
            case BOOL: value = overflow || value != 0; break;
            case I8: if (value != (int8_t)value) status = -1; break;
            case I16: if (value != (int16_t)value) status = -1; break;
            case I32: if (value != (int32_t)value) status = -1; break;
            case U8: if (value != (uint8_t)value) status = -1; break;
            case U16: if (value != (uint16_t)value) status = -1; break;
            case U32: if (value != (uint32_t)value) status = -1; break;
            default: break;
        }
        *out = (uint64_t)value;
        *aligned = kind != BOOL && (value & 15) == 0;
    }
    Py_XDECREF(owned);
    return status;
}

static int as_size(PyObject *item, int64_t limit, unsigned *out) {
    if (!PyLong_Check(item)) return -1;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
    if (overflow || value < 0 || value > limit) return -1;
    *out = (unsigned)value;
    return 0;
}

static int parse_grid(PyObject *grid, unsigned out[3]) {
    static const int64_t limits[3] = {2147483647, 65535, 65535};
    out[0] = out[1] = out[2] = 1;
    if (PyLong_Check(grid)) return as_size(grid, limits[0], out);
    if (!PyTuple_Check(grid) && !PyList_Check(grid)) return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(grid);
    if (count < 1 || count > 3) return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (as_size(PySequence_Fast_GET_ITEM(grid, i), limits[i], out + i)) return -1;
    return 0;
}

// Raises through `explain`, which looks at the same arguments in Python. Always returns NULL.
static PyObject *refuse(Dispatcher *self, PyObject *const *args, Py_ssize_t nargs) {
    PyErr_Clear();
    PyObject *out = PyObject_Vectorcall(self->explain, args, (size_t)nargs, NULL);
    if (out) {
        Py_DECREF(out);
        PyErr_Format(PyExc_SystemError, "%U: the native launcher refused arguments that the "
                     "checks in Python accept; please report it", self->name);
    }
    return NULL;
}

static int call_method_int(PyObject *object, PyObject *method, int is_signed, uint64_t *out) {
    PyObject *result = PyObject_VectorcallMethod(
        method, &object, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (!result) return -1;
    *out = is_signed ? (uint64_t)PyLong_AsLongLong(result) : PyLong_AsUnsignedLongLong(result);
    Py_DECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

static int resolve_variant(Dispatcher *self, uint64_t alignment, int device, Variant *out) {
    PyObject *entry = PyObject_CallFunction(self->resolve, "Ki", alignment, device);
    if (!entry) return -1;
    unsigned long long function, context, global_scratch, profile_scratch;
    memset(out, 0, sizeof *out);
    int ok = PyArg_ParseTuple(entry, "KKIIIiiKK", &function, &context, &out->threads,
                              &out->shared, &out->num_ctas, &out->cooperative, &out->pdl,
                              &global_scratch, &profile_scratch);
    Py_DECREF(entry);
    if (!ok) return -1;
    out->alignment = alignment;
    out->device = device;
    out->function = (CUfunction)(uintptr_t)function;
    out->context = (CUcontext)(uintptr_t)context;
    out->global_scratch = global_scratch;
    out->profile_scratch = profile_scratch;
    Variant *table = PyMem_Realloc(self->table, (size_t)(self->variants + 1) * sizeof(Variant));
    if (!table) {
        PyErr_NoMemory();
        return -1;
    }
    table[self->variants++] = *out;
    self->table = table;
    return 0;
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

// A tensor of `size` bytes; its address in *out.
static PyObject *make_scratch(Dispatcher *self, uint64_t size, int device, uint64_t *out) {
    PyObject *tensor = PyObject_CallFunction(self->scratch, "Ki", size, device);
    if (tensor && call_method_int(tensor, str_data_ptr, 0, out) < 0) Py_CLEAR(tensor);
    return tensor;
}

#define STACK_ARGS 64

static PyObject *dispatch(PyObject *object, PyObject *const *args, size_t nargsf,
                          PyObject *kwnames) {
    Dispatcher *self = (Dispatcher *)object;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (kwnames && PyTuple_GET_SIZE(kwnames)) {
        PyErr_Format(PyExc_TypeError, "%U takes its arguments by position", self->name);
        return NULL;
    }
    unsigned grid[3];
    if (nargs < 1) {
        PyErr_Format(PyExc_TypeError, "%U(grid, *args): the grid is missing", self->name);
        return NULL;
    }
    if (nargs != self->count + 1 || parse_grid(args[0], grid)) return refuse(self, args, nargs);

    uint64_t stack_values[STACK_ARGS + 2], *values = stack_values;
    void *stack_params[STACK_ARGS + 2], **params = stack_params;
    PyObject *result = NULL, *scratch[2] = {NULL, NULL};
    if (self->count > STACK_ARGS) {
        values = PyMem_Malloc((size_t)(self->count + 2) * (sizeof(uint64_t) + sizeof(void *)));
        if (!values) return PyErr_NoMemory();
        params = (void **)(values + self->count + 2);
    }
    uint64_t alignment = 0;
    int device = -2;  // -2: no tensor seen, -1: CPU
    for (Py_ssize_t i = 0; i < self->count; i++) {
        PyObject *arg = args[i + 1];
        const Param *param = self->params + i;
        int aligned;
        params[i] = values + i;
        if (param->kind == POINTER) {
            PyObject *dtype = PyObject_GetAttr(arg, str_dtype);
            Py_XDECREF(dtype);  // dtypes are immortal singletons: only the address is compared
            uint64_t where;
            if (dtype != param->dtype || call_method_int(arg, str_get_device, 1, &where) ||
                (device != -2 && device != (int)(int64_t)where) ||
                call_method_int(arg, str_data_ptr, 0, values + i)) {
                refuse(self, args, nargs);
                goto done;
            }
            device = (int)(int64_t)where;
            aligned = (values[i] & 15) == 0;
        } else if (pack_scalar(param->kind, arg, values + i, &aligned)) {
            refuse(self, args, nargs);
            goto done;
        }
        if (aligned && i < 64) alignment |= (uint64_t)1 << i;
    }
    if (device == -2) {
        PyObject *current = PyObject_CallNoArgs(self->current_device);
        if (!current) goto done;
        device = (int)PyLong_AsLong(current);
        Py_DECREF(current);
        if (PyErr_Occurred()) goto done;
    }
    if (device < 0) {
        result = PyObject_Vectorcall(self->on_cpu, args, (size_t)nargs, NULL);
        goto done;
    }
    if (!grid[0] || !grid[1] || !grid[2]) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    Variant variant;
    Py_ssize_t at = 0;
    while (at < self->variants &&
           (self->table[at].alignment != alignment || self->table[at].device != device))
        at++;
    if (at < self->variants)
        variant = self->table[at];
    else if (resolve_variant(self, alignment, device, &variant))
        goto done;
    if (!cu_launch && load_symbols()) goto done;

    uint64_t programs = (uint64_t)grid[0] * grid[1] * grid[2] * variant.num_ctas;
    uint64_t *tail = values + self->count;
    tail[0] = tail[1] = 0;
    if (variant.global_scratch &&
        !(scratch[0] = make_scratch(self, programs * variant.global_scratch, device, tail)))
        goto done;
    if (variant.profile_scratch &&
        !(scratch[1] = make_scratch(self, programs * variant.profile_scratch, device, tail + 1)))
        goto done;
    params[self->count] = tail;
    params[self->count + 1] = tail + 1;

    PyObject *index = PyLong_FromLong(device);
    if (!index) goto done;
    PyObject *stream_object = PyObject_CallOneArg(self->raw_stream, index);
    Py_DECREF(index);
    if (!stream_object) goto done;
    CUstream stream = PyLong_AsVoidPtr(stream_object);
    Py_DECREF(stream_object);
    if (!stream && PyErr_Occurred()) goto done;

    CUresult code;
    Py_BEGIN_ALLOW_THREADS
    code = launch(&variant, grid, stream, params);
    Py_END_ALLOW_THREADS
    if (code) {
        PyObject *out = PyObject_CallFunction(self->failed, "iO", code, self->name);
        Py_XDECREF(out);
        if (out) PyErr_Format(PyExc_RuntimeError, "%U: launch failed with %d", self->name, code);
        goto done;
    }
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(scratch[0]);
    Py_XDECREF(scratch[1]);
    if (values != stack_values) PyMem_Free(values);
    return result;
}

static void dispatcher_dealloc(Dispatcher *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->count; i++) Py_XDECREF(self->params[i].dtype);
    PyMem_Free(self->params);
    PyMem_Free(self->table);
    Py_XDECREF(self->name);
    Py_XDECREF(self->resolve);
    Py_XDECREF(self->on_cpu);
    Py_XDECREF(self->explain);
    Py_XDECREF(self->current_device);
    Py_XDECREF(self->raw_stream);
    Py_XDECREF(self->scratch);
    Py_XDECREF(self->failed);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int dispatcher_traverse(Dispatcher *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->resolve);
    Py_VISIT(self->on_cpu);
    Py_VISIT(self->explain);
    Py_VISIT(self->current_device);
    Py_VISIT(self->raw_stream);
    Py_VISIT(self->scratch);
    Py_VISIT(self->failed);
    return 0;
}

static int dispatcher_clear(Dispatcher *self) {
    Py_CLEAR(self->resolve);
    Py_CLEAR(self->on_cpu);
    Py_CLEAR(self->explain);
    return 0;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *name, *kinds, *dtypes, *resolve, *on_cpu, *explain, *device, *stream, *scratch,
        *failed;
    if (!PyArg_ParseTuple(args, "UO!O!OOOOOOO", &name, &PyList_Type, &kinds, &PyList_Type,
                          &dtypes, &resolve, &on_cpu, &explain, &device, &stream, &scratch,
                          &failed))
        return NULL;
    Dispatcher *self = (Dispatcher *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = dispatch;
    self->name = Py_NewRef(name);
    self->resolve = Py_NewRef(resolve);
    self->on_cpu = Py_NewRef(on_cpu);
    self->explain = Py_NewRef(explain);
    self->current_device = Py_NewRef(device);
    self->raw_stream = Py_NewRef(stream);
    self->scratch = Py_NewRef(scratch);
    self->failed = Py_NewRef(failed);
    Py_ssize_t count = PyList_GET_SIZE(kinds);
    self->params = PyMem_Calloc(count ? (size_t)count : 1, sizeof(Param));
    if (!self->params) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *kind = PyUnicode_AsUTF8(PyList_GET_ITEM(kinds, i));
        size_t found = 0;
        if (!kind) goto bad;
        if (kind[0] != '*')
            for (found = 1; found < 14 && strcmp(kind, kind_names[found]); found++) {
            }
        if (found == 14) {
            PyErr_Format(PyExc_ValueError, "unknown kind %s", kind);
            goto bad;
        }
        self->params[i].kind = (enum Kind)found;
        self->params[i].dtype = Py_NewRef(PyList_GET_ITEM(dtypes, i));
        self->count = i + 1;
    }
    return (PyObject *)self;
bad:
    Py_DECREF(self);
    return NULL;
}

static PyMemberDef dispatcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatcher, vectorcall), READONLY, NULL},
    {"variants", T_PYSSIZET, offsetof(Dispatcher, variants), READONLY, "how many were resolved"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot dispatcher_slots[] = {
    {Py_tp_new, dispatcher_new},
    {Py_tp_dealloc, dispatcher_dealloc},
    {Py_tp_traverse, dispatcher_traverse},
    {Py_tp_clear, dispatcher_clear},
    {Py_tp_members, dispatcher_members},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_doc, "dispatch(grid, *args): one kernel launch"},
    {0, NULL},
};

static PyType_Spec dispatcher_spec = {
    .name = "_triton_rt_launcher.Dispatcher",
    .basicsize = sizeof(Dispatcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = dispatcher_slots,
};

static PyObject *set_symbols_from(PyObject *module, PyObject *getter) {
    Py_XSETREF(symbol_getter, Py_NewRef(getter));
    cu_launch = NULL;
    Py_RETURN_NONE;
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

static PyMethodDef methods[] = {
    {"set_symbols_from", set_symbols_from, METH_O, "set_symbols_from(getter: name -> address)"},
    {"time_raw", time_raw, METH_VARARGS, "nanoseconds of one cuLaunchKernel"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_triton_rt_launcher", "Generic launcher of Triton kernels", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__triton_rt_launcher(void) {
    str_data_ptr = PyUnicode_InternFromString("data_ptr");
    str_get_device = PyUnicode_InternFromString("get_device");
    str_dtype = PyUnicode_InternFromString("dtype");
    if (!str_data_ptr || !str_get_device || !str_dtype) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    PyObject *type = PyType_FromSpec(&dispatcher_spec);
    if (!type || PyModule_AddObjectRef(module, "Dispatcher", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
