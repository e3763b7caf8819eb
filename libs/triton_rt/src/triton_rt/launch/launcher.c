// Generic launcher: Dispatcher(grid, *args) checks the arguments, finds the variant of their
// alignment, packs them and calls cuLaunchKernel (driver.h, which needs no CUDA headers).
//
// Every failure is told by Python code: `explain` raises the error that fits the call.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#include "tensors.h"

#include "driver.h"
#include "kinds.h"
#include "map_cache.h"
#include "maps.h"
#include "same.h"

static PyObject *str_base, *str_ready;
static PyTypeObject *map_type;  // TensorMap; NULL: all descriptors are asked of their slots
static PyObject *hook_before, *hook_after;  // NULL: none

typedef struct {
    enum Kind kind;
    unsigned offset;      // in 8-byte words of the packed arguments
    int dtype_number;     // of a tensor argument; -1: unknown
    PyObject *dtype;      // of a tensor argument; compared by identity
} Param;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name, *resolve, *on_cpu, *explain, *current_device, *raw_stream, *scratch, *failed;
    Py_ssize_t count;
    Param *params;
    unsigned words;       // of all packed arguments
    unsigned pointers;    // to kernel parameters, at most: a descriptor is up to 22 of them
    int descriptors;
    int fast;             // streams and devices may be asked of torch's C ABI
    int cuda_is_up;
    Py_ssize_t variants;
    Variant *table;
    KeptMap *maps;        // of tensors that came as descriptors; NULL: none yet
} Dispatcher;

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

static int resolve_variant(Dispatcher *self, uint64_t alignment, int device, Variant *out) {
    PyObject *entry = PyObject_CallFunction(self->resolve, "Ki", alignment, device);
    if (!entry) return -1;
    unsigned long long function, context, global_scratch, profile_scratch;
    memset(out, 0, sizeof *out);
    int ok = PyArg_ParseTuple(entry, "KKIIIiiKKIO!", &function, &context, &out->threads,
                              &out->shared, &out->num_ctas, &out->cooperative, &out->pdl,
                              &global_scratch, &profile_scratch, &out->head, &PyTuple_Type,
                              &out->slots);
    if (ok && PyTuple_GET_SIZE(out->slots) != self->descriptors) {
        PyErr_Format(PyExc_SystemError, "%U: slots do not match its descriptors", self->name);
        ok = 0;
    }
    if (ok) out->slots = self->descriptors ? Py_NewRef(out->slots) : NULL;
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
        Py_CLEAR(out->slots);
        PyErr_NoMemory();
        return -1;
    }
    table[self->variants++] = *out;
    self->table = table;
    return 0;
}

// Device, element type: those of the tensor that a descriptor describes (its `base`), or of a tensor
// that came in its place.
static int view_descriptor(PyObject *object, TensorView *out) {
    if (is_plain_tensor(object)) return view_plain_tensor(object, out);
    PyObject *base = PyObject_GetAttr(object, str_base);
    if (!base) {
        PyErr_Clear();
        return view_tensor(object, out);
    }
    int status = view_tensor(base, out);
    Py_DECREF(base);
    return status;
}

// The bytes of a `TensorMap` at `address` in a slot, if its `ready` has them; a borrowed reference.
static PyObject *ready_bytes(PyObject *map, PyObject *slot, uint64_t address) {
    if (Py_TYPE(map) != map_type) return NULL;
    PyObject *ready = PyObject_GetAttr(map, str_ready);
    PyObject *known = ready && PyDict_CheckExact(ready) ? PyDict_GetItemWithError(ready, slot) : NULL;
    Py_XDECREF(ready);  // the map holds it
    if (!known || !PyTuple_CheckExact(known) || PyTuple_GET_SIZE(known) != 2) {
        PyErr_Clear();
        return NULL;
    }
    uint64_t at = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(known, 0));
    if (at == address && !PyErr_Occurred()) return PyTuple_GET_ITEM(known, 1);
    PyErr_Clear();
    return NULL;
}

// What the descriptors become in this variant, and pointers to all kernel parameters. Returns how
// many there are, or -1.
static Py_ssize_t expand_descriptors(Dispatcher *self, const Variant *v,
                                     PyObject *const *args, uint64_t *values, void **params) {
    Py_ssize_t at = 0, slot = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        uint64_t *out = values + self->params[i].offset;
        params[at++] = out;
        if (self->params[i].kind != DESCRIPTOR) continue;
        PyObject *made = PyTuple_GET_ITEM(v->slots, slot++);
        PyObject *arg = args[i + 1], *bytes = Py_XNewRef(ready_bytes(arg, made, *out));
        if (!bytes) bytes = map_bytes(&self->maps, made, arg);
        if (!bytes) return -1;
        Py_ssize_t size = PyBytes_Check(bytes) ? PyBytes_GET_SIZE(bytes) : 0;
        if (size < v->head || size % 8 || size > 8 * kind_table[DESCRIPTOR].words) {
            PyErr_Format(PyExc_SystemError, "%U: a descriptor of %zd bytes", self->name, size);
            Py_DECREF(bytes);
            return -1;
        }
        memcpy(out, PyBytes_AS_STRING(bytes), (size_t)size);
        Py_DECREF(bytes);
        for (Py_ssize_t byte = v->head; byte < size; byte += 8) params[at++] = (char *)out + byte;
    }
    return at;
}

// A tensor of `size` bytes; its address in *out.
static PyObject *make_scratch(Dispatcher *self, uint64_t size, int device, uint64_t *out) {
    PyObject *tensor = PyObject_CallFunction(self->scratch, "Ki", size, device);
    if (tensor && call_method_int(tensor, str_data_ptr, 0, out) < 0) Py_CLEAR(tensor);
    return tensor;
}

static int call_hook(PyObject *hook, const Dispatcher *self, const Variant *v,
                     const unsigned grid[3], CUstream stream) {
    PyObject *out = PyObject_CallFunction(
        hook, "O(III)iKIIKK", self->name, grid[0], grid[1], grid[2], v->device,
        (unsigned long long)(uintptr_t)stream, v->threads, v->shared,
        (unsigned long long)v->alignment, (unsigned long long)(uintptr_t)v->function);
    Py_XDECREF(out);
    return out ? 0 : -1;
}

static int current_device(Dispatcher *self, int *out) {
    if (self->fast && self->cuda_is_up && at_device) {
        int32_t index;
        if (!at_device(&index)) {
            *out = index;
            return 0;
        }
    }
    PyObject *current = PyObject_CallNoArgs(self->current_device);
    if (!current) return -1;
    *out = (int)PyLong_AsLong(current);
    Py_DECREF(current);
    if (PyErr_Occurred()) return -1;
    self->cuda_is_up = *out >= 0;
    return 0;
}

static int current_stream(Dispatcher *self, int device, CUstream *out) {
    if (self->fast && at_stream && !at_stream(device, out)) return 0;
    PyObject *index = PyLong_FromLong(device);
    if (!index) return -1;
    PyObject *stream = PyObject_CallOneArg(self->raw_stream, index);
    Py_DECREF(index);
    if (!stream) return -1;
    *out = PyLong_AsVoidPtr(stream);
    Py_DECREF(stream);
    return !*out && PyErr_Occurred() ? -1 : 0;
}

// Bits of the mask: one for each of so many arguments, and one that all others share.
#define OWN_BITS 62
#define STACK_ARGS 96
#define STACK_WORDS (STACK_ARGS + 2)

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

    uint64_t stack_values[STACK_WORDS], *values = stack_values;
    void *stack_params[STACK_ARGS + 2], **params = stack_params;
    PyObject *result = NULL, *scratch[2] = {NULL, NULL}, *slots = NULL;
    if (self->pointers > STACK_ARGS || self->words + 2 > STACK_WORDS) {
        values = PyMem_Malloc((self->words + 2) * sizeof(uint64_t) +
                              ((size_t)self->pointers + 2) * sizeof(void *));
        if (!values) return PyErr_NoMemory();
        params = (void **)(values + self->words + 2);
    }
    uint64_t alignment = 0;
    int device = -2;  // -2: no tensor seen, -1: CPU
    int rest = self->count > OWN_BITS;  // arguments without a bit of their own are aligned
    for (Py_ssize_t i = 0; i < self->count; i++) {
        PyObject *arg = args[i + 1];
        const Param *param = self->params + i;
        uint64_t *out = values + param->offset;
        int aligned = 0, wrong;
        int may_align = param->kind < F16 && param->kind != BOOL;
        params[i] = out;
        if (param->kind == POINTER || param->kind == DESCRIPTOR) {
            TensorView view;
            int is_pointer = param->kind == POINTER;
            wrong = (is_pointer ? view_tensor(arg, &view) : view_descriptor(arg, &view)) ||
                    (view.dtype >= 0 ? view.dtype != param->dtype_number
                                     : view.dtype_object != param->dtype) ||
                    (device != -2 && device != view.device);
            if (!wrong) {
                device = view.device;
                *out = view.address;
                aligned = is_pointer && (view.address & 15) == 0;
            }
        } else {
            wrong = pack_scalar(param->kind, arg, out, &aligned);
        }
        if (wrong) {
            refuse(self, args, nargs);
            goto done;
        }
        if (i >= OWN_BITS)
            rest &= aligned || !may_align;
        else if (aligned)
            alignment |= (uint64_t)1 << i;
    }
    if (rest) alignment |= (uint64_t)1 << OWN_BITS;
    if (device == -2 && current_device(self, &device)) goto done;
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
    slots = Py_XNewRef(variant.slots);  // clear() may run meanwhile
    if (!cu_launch && load_symbols()) goto done;

    Py_ssize_t pointers = self->count;
    if (slots) {
        pointers = expand_descriptors(self, &variant, args, values, params);
        if (pointers < 0) goto done;
    }
    uint64_t *tail = values + self->words;
    tail[0] = tail[1] = 0;
    if (variant.global_scratch || variant.profile_scratch) {
        uint64_t programs = (uint64_t)grid[0] * grid[1] * grid[2] * variant.num_ctas;
        if (variant.global_scratch &&
            !(scratch[0] = make_scratch(self, programs * variant.global_scratch, device, tail)))
            goto done;
        if (variant.profile_scratch &&
            !(scratch[1] =
                  make_scratch(self, programs * variant.profile_scratch, device, tail + 1)))
            goto done;
    }
    params[pointers] = tail;
    params[pointers + 1] = tail + 1;

    CUstream stream;
    if (current_stream(self, device, &stream)) goto done;
    PyObject *before = hook_before, *after = Py_XNewRef(hook_after);
    if (before) {
        Py_INCREF(before);
        int status = call_hook(before, self, &variant, grid, stream);
        Py_DECREF(before);
        if (status) {
            Py_XDECREF(after);
            goto done;
        }
    }
    CUresult code;
    Py_BEGIN_ALLOW_THREADS
    code = launch(&variant, grid, stream, params);
    Py_END_ALLOW_THREADS
    if (after) {
        int status = code ? 0 : call_hook(after, self, &variant, grid, stream);
        Py_DECREF(after);
        if (status) goto done;
    }
    if (code) {
        PyObject *out =
            PyObject_CallFunction(self->failed, "iO(III)IIIKi", code, self->name, grid[0], grid[1],
                                  grid[2], variant.threads, variant.shared, variant.num_ctas,
                                  (unsigned long long)(uintptr_t)variant.function, device);
        Py_XDECREF(out);
        if (out) PyErr_Format(PyExc_RuntimeError, "%U: launch failed with %d", self->name, code);
        goto done;
    }
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(scratch[0]);
    Py_XDECREF(scratch[1]);
    Py_XDECREF(slots);
    if (values != stack_values) PyMem_Free(values);
    return result;
}

static void forget_variants(Dispatcher *self) {
    while (self->variants) {
        PyObject *slots = self->table[--self->variants].slots;  // Py_CLEAR reads its argument twice
        Py_XDECREF(slots);
    }
}

static void dispatcher_dealloc(Dispatcher *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->count; i++) Py_XDECREF(self->params[i].dtype);
    PyMem_Free(self->params);
    forget_variants(self);
    PyMem_Free(self->table);
    drop_maps(&self->maps);
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

// A parameter from (kind, dtype or None, dtype number).
static int read_param(PyObject *record, Param *out) {
    const char *kind;
    PyObject *dtype;
    int number;
    if (!PyArg_ParseTuple(record, "sOi", &kind, &dtype, &number)) return -1;
    int found = find_kind(kind);
    if (found < 0) {
        PyErr_Format(PyExc_ValueError, "unknown kind %s", kind);
        return -1;
    }
    out->kind = (enum Kind)found;
    out->dtype = Py_NewRef(dtype);
    out->dtype_number = number;
    return 0;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *name, *params, *resolve, *on_cpu, *explain, *device, *stream, *scratch, *failed;
    int fast;
    if (!PyArg_ParseTuple(args, "UO!OOOOOOOp", &name, &PyTuple_Type, &params, &resolve, &on_cpu,
                          &explain, &device, &stream, &scratch, &failed, &fast))
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
    self->fast = fast;
    Py_ssize_t count = PyTuple_GET_SIZE(params);
    self->params = PyMem_Calloc(count ? (size_t)count : 1, sizeof(Param));
    if (!self->params) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Param *param = self->params + i;
        if (read_param(PyTuple_GET_ITEM(params, i), param)) {
            Py_DECREF(self);
            return NULL;
        }
        param->offset = self->words;
        self->words += kind_table[param->kind].words;
        self->pointers += param->kind == DESCRIPTOR ? 22 : 1;
        self->descriptors += param->kind == DESCRIPTOR;
        self->count = i + 1;
    }
    return (PyObject *)self;
}

// clear(): forgets the variants, so that the next launch resolves them anew.
static PyObject *dispatcher_forget(Dispatcher *self, PyObject *unused) {
    forget_variants(self);
    drop_maps(&self->maps);
    Py_RETURN_NONE;
}

static PyMethodDef dispatcher_methods[] = {
    {"clear", (PyCFunction)dispatcher_forget, METH_NOARGS, "forgets the resolved variants"},
    {NULL, NULL, 0, NULL},
};

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
    {Py_tp_methods, dispatcher_methods},
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

static PyObject *hook_or_null(PyObject *hook) { return hook == Py_None ? NULL : Py_NewRef(hook); }

// set_hooks(before, after): callables or None, called around every launch of the process.
static PyObject *set_hooks(PyObject *module, PyObject *args) {
    PyObject *before, *after;
    if (!PyArg_ParseTuple(args, "OO", &before, &after)) return NULL;
    Py_XSETREF(hook_before, hook_or_null(before));
    Py_XSETREF(hook_after, hook_or_null(after));
    Py_RETURN_NONE;
}

static PyObject *find_symbols_from(PyObject *module, PyObject *getter) {
    cu_encode = NULL;
    return set_symbols_from(module, getter);
}

// use_maps(type): the type of descriptors that keep their bytes, by slot, in a dict `ready`.
static PyObject *use_maps(PyObject *module, PyObject *type) {
    if (!PyType_Check(type)) return PyErr_Format(PyExc_TypeError, "expected a type");
    map_type = (PyTypeObject *)Py_NewRef(type);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"encode_slot", encode_slot, METH_VARARGS, "the bytes of a descriptor, or None"},
    {"use_maps", use_maps, METH_O, "use_maps(type of tensor maps)"},
    {"set_symbols_from", find_symbols_from, METH_O, "set_symbols_from(getter: name -> address)"},
    {"set_hooks", set_hooks, METH_VARARGS, "set_hooks(before, after)"},
    {"use_torch", use_torch, METH_VARARGS, "turns the fast path for tensors on"},
    {"forget_torch", forget_torch, METH_NOARGS, "turns the fast path for tensors off"},
    {"view", view_method, METH_O, "view(tensor) -> (address, device, dtype number)"},
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
    str_base = PyUnicode_InternFromString("base");
    str_ready = PyUnicode_InternFromString("ready");
    if (!str_data_ptr || !str_get_device || !str_dtype || !str_base || !str_ready) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    PyObject *type = PyType_FromSpec(&dispatcher_spec);
    if (!type || PyModule_AddObjectRef(module, "Dispatcher", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    PyObject *same = PyType_FromSpec(&same_spec);
    if (!same || PyModule_AddObjectRef(module, "Same", same) < 0) Py_CLEAR(module);
    Py_XDECREF(same);
    return module;
}
