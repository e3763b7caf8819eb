// The bytes of tensor maps by slot and layout: a tensor that comes where one of the same layout lay
// before takes what was made for that one. A table of fixed size, in which the newest stays.
#ifndef TRITON_RT_MAP_CACHE_H
#define TRITON_RT_MAP_CACHE_H

#include "../tma/rules.h"
#include "tensors.h"

#define KEPT_MAPS 256

typedef struct {
    PyObject *slot, *bytes;  // NULL: free
    uint64_t address;
    int64_t dim, numbers[2 * TMA_MAX_RANK];
} KeptMap;

static void drop_maps(KeptMap **maps) {
    KeptMap *table = *maps;
    *maps = NULL;
    for (int i = 0; table && i < KEPT_MAPS; i++) {
        Py_XDECREF(table[i].slot);
        Py_XDECREF(table[i].bytes);
    }
    PyMem_Free(table);
}

// Where the bytes for this slot and layout are, or are to be; NULL without memory, or dimensions.
static KeptMap *place_of(KeptMap **maps, PyObject *slot, const Layout *of) {
    if (of->dim < 1 || of->dim > TMA_MAX_RANK) return NULL;
    if (!*maps && !(*maps = PyMem_Calloc(KEPT_MAPS, sizeof(KeptMap)))) return NULL;
    uint64_t hash = of->view.address >> 4 ^ (uint64_t)(uintptr_t)slot >> 4;
    for (int64_t i = 0; i < of->dim; i++)
        hash = hash * 31 + (uint64_t)of->sizes[i] * 7 + (uint64_t)of->strides[i];
    return *maps + (hash ^ hash >> 8 ^ hash >> 16 ^ hash >> 24) % KEPT_MAPS;
}

static int keeps_map(const KeptMap *at, PyObject *slot, const Layout *of) {
    size_t bytes = (size_t)of->dim * sizeof(int64_t);
    return at->slot == slot && at->address == of->view.address && at->dim == of->dim &&
           !memcmp(at->numbers, of->sizes, bytes) &&
           !memcmp(at->numbers + of->dim, of->strides, bytes);
}

// What slot(tensor) gives, a new reference. NULL with an error; the slot tells what is wrong.
static PyObject *map_bytes(KeptMap **maps, PyObject *slot, PyObject *tensor) {
    Layout of;
    KeptMap *at = layout_of(tensor, &of) ? NULL : place_of(maps, slot, &of);
    if (at && keeps_map(at, slot, &of)) return Py_NewRef(at->bytes);
    PyObject *bytes = PyObject_CallOneArg(slot, tensor);
    if (!bytes || !at) return bytes;
    // Python ran: the tensor may have changed, and the table have gone.
    if (layout_of(tensor, &of) || !(at = place_of(maps, slot, &of))) return bytes;
    PyObject *old_slot = at->slot, *old_bytes = at->bytes;
    at->slot = Py_NewRef(slot);
    at->bytes = Py_NewRef(bytes);
    at->address = of.view.address;
    at->dim = of.dim;
    memcpy(at->numbers, of.sizes, (size_t)of.dim * sizeof(int64_t));
    memcpy(at->numbers + of.dim, of.strides, (size_t)of.dim * sizeof(int64_t));
    Py_XDECREF(old_slot);
    Py_XDECREF(old_bytes);
    return bytes;
}

#endif
