// A stand-in for libcuda: records the last tensor map. For tests without a GPU.
#include <stdint.h>
#include <string.h>

struct {
    uint32_t calls, type, rank, interleave, swizzle, promotion, fill, unaligned, box[5], steps[5];
    uint64_t address, sizes[5], strides[5];
} encoded;

int cuGetErrorString(int code, const char **out) { *out = "an illegal fake"; return 0; }
int cuCtxGetCurrent(void **out) { *out = 0; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuDevicePrimaryCtxRetain(void **out, int device) { *out = 0; return 0; }
int cuModuleLoadData(void **out, const void *image) { *out = 0; return 0; }
int cuModuleGetFunction(void **out, void *module, const char *name) { *out = 0; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuLaunchKernel(void *function) { return 1; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }

// The map is 42, sixteen times.
int cuTensorMapEncodeTiled(uint64_t *out, int type, uint32_t rank, uint64_t address,
                           const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int promotion,
                           int fill) {
    uint32_t calls = encoded.calls + 1;
    memset(&encoded, 0, sizeof encoded);
    encoded.calls = calls, encoded.type = (uint32_t)type, encoded.rank = rank;
    encoded.address = address, encoded.interleave = (uint32_t)interleave;
    encoded.swizzle = (uint32_t)swizzle, encoded.promotion = (uint32_t)promotion;
    encoded.fill = (uint32_t)fill, encoded.unaligned = (uint32_t)((uintptr_t)out % 64);
    for (uint32_t i = 0; i < rank; i++) {
        encoded.sizes[i] = sizes[i], encoded.box[i] = box[i], encoded.steps[i] = steps[i];
        if (i + 1 < rank) encoded.strides[i] = strides[i];
    }
    for (int i = 0; i < 16; i++) out[i] = 42;
    return 0;
}
