// What the TMA unit asks of a tensor, and how the driver is told of one: for C11 and C++17.
// The same rules with their reasons, in words, are triton_rt's tma/rules.py.
#ifndef TMA_RULES_H
#define TMA_RULES_H

#include <stdint.h>

enum { TMA_MAX_RANK = 5, TMA_NO_INTERLEAVE = 0, TMA_PROMOTE_128_BYTES = 2 };

// The stride of a dimension, in elements. In one of size 1 only index 0 lies inside: any stride reads
// the same elements, so that it is a legal one.
static inline int64_t tma_stride(int64_t rank, int64_t d, const int64_t *shape,
                                 const int64_t *strides, int64_t bytes) {
    if (shape[d] != 1) return strides[d];
    return d + 1 == rank || bytes >= 16 ? 1 : 16 / bytes;
}

// Whether the unit takes a tensor with elements of `bytes` bytes, and a kernel that `writes` may store
// through its map. The rules about the box and the swizzle are the compiler's.
static inline int tma_keeps_rules(uint64_t address, int64_t rank, const int64_t *shape,
                                  const int64_t *strides, int64_t bytes, int writes) {
    if (address % 16) return 0;
    for (int64_t d = 0; d < rank; d++) {
        const int64_t stride = tma_stride(rank, d, shape, strides, bytes);
        if (shape[d] < 1 || shape[d] > INT32_MAX) return 0;
        if (d + 1 == rank) {
            if (stride != 1) return 0;
        } else if (stride <= 0 || stride >= ((int64_t)1 << 40) / bytes || stride * bytes % 16) {
            return 0;
        }
    }
    return !(writes && shape[rank - 1] * bytes % 16);
}

// The arrays that cuTensorMapEncodeTiled takes, from the inner dimension out; strides are in bytes,
// the inner one left out. `fp4`: elements are pairs of 4-bit numbers.
typedef struct {
    uint64_t sizes[TMA_MAX_RANK], strides[TMA_MAX_RANK];
    uint32_t box[TMA_MAX_RANK], steps[TMA_MAX_RANK];
} TmaArguments;

static inline TmaArguments tma_arguments(int64_t rank, const int64_t *shape, const int64_t *strides,
                                         const uint32_t *box, int64_t bytes, int fp4) {
    TmaArguments out = {{0}, {0}, {0}, {1, 1, 1, 1, 1}};
    for (int64_t d = 0; d < rank; d++) {
        const int64_t from = rank - 1 - d;
        out.sizes[d] = (uint64_t)shape[from] * (d == 0 && fp4 ? 2 : 1);
        out.box[d] = box[from];
        if (d > 0) out.strides[d - 1] = (uint64_t)(tma_stride(rank, from, shape, strides, bytes) * bytes);
    }
    return out;
}

#endif
