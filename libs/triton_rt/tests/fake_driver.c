// A stand-in for libcuda: records the last launch, fails on demand. For tests without a GPU.
#include <stdint.h>
#include <string.h>

typedef struct {
    uint32_t id, pad, value[16];
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Config;

struct {
    uint32_t launches, grid[3], threads, shared, attribute_count, attributes[4][4];
    uint64_t function, stream, args[160];
} record;
uint64_t current_context = 0xc0;
uint32_t fail_with, fail_load, fail_init, unloads, max_threads = 1024, version = 13000,
     arg_count, pushes, loads, max_dynamic_shared, capability = 90;

struct {
    uint32_t calls, type, rank, interleave, swizzle, promotion, fill, unaligned, box[5], steps[5];
    uint64_t address, sizes[5], strides[5];
} encoded;

static void arguments(void **params) {
    for (uint32_t i = 0; i < arg_count; i++) memcpy(record.args + i, params[i], 8);
}
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    if (fail_with) return (int)fail_with;
    uint32_t launches = record.launches + 1;
    memset(&record, 0, sizeof record);
    record.launches = launches;
    record.grid[0] = gx, record.grid[1] = gy, record.grid[2] = gz;
    record.threads = bx, record.shared = shared;
    record.function = (uint64_t)f, record.stream = (uint64_t)stream;
    arguments(params);
    return 0;
}
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
    int code = cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], 1, 1, c->shared,
                              c->stream, params, extra);
    if (code) return code;
    record.attribute_count = c->count;
    for (unsigned i = 0; i < c->count; i++) {
        record.attributes[i][0] = c->attributes[i].id;
        memcpy(record.attributes[i] + 1, c->attributes[i].value, 12);
    }
    return 0;
}
static uint64_t below;
int cuCtxGetCurrent(uint64_t *out) { *out = current_context; return 0; }
int cuCtxPushCurrent_v2(uint64_t context) {
    pushes++;
    below = current_context, current_context = context;
    return 0;
}
int cuCtxPopCurrent_v2(uint64_t *out) { *out = current_context; current_context = below; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuDevicePrimaryCtxRetain(uint64_t *out, int device) { *out = 0xc0 + (uint64_t)device; return 0; }
int cuDeviceGetAttribute(int *out, int attribute, int device) {
    *out = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10
         : attribute == 97 ? 232448 : attribute == 12 ? 65536 : attribute == 1 ? 1024
         : attribute == 16 ? 132 : 0;
    return 0;
}
int cuModuleLoadData(uint64_t *out, const void *image) {
    if (fail_load) return (int)fail_load;
    *out = 0x600d + loads++;
    return 0;
}
int cuModuleGetFunction(uint64_t *out, uint64_t module, const char *name) {
    *out = 0xf000 + module;
    return 0;
}
int cuFuncGetAttribute(int *out, int attribute, uint64_t function) {
    *out = attribute == 0 ? (int)max_threads : attribute == 4 ? 200 : 64;
    return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void *function, int threads,
                                                uint64_t shared) {
    *out = 2;
    return 0;
}
int cuModuleUnload(uint64_t module) { unloads++; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuInit(unsigned flags) { return (int)fail_init; }
int cuDriverGetVersion(int *out) { *out = (int)version; return 0; }
int cuFuncSetAttribute(uint64_t function, int attribute, int value) {
    if (attribute == 8) max_dynamic_shared = (uint32_t)value;
    return 0;
}
int cuGetErrorString(int code, const char **out) { *out = "an illegal fake"; return 0; }
int cuGetErrorName(int code, const char **out) { *out = "CUDA_ERROR_FAKE"; return 0; }
// The map is its address, sixteen times.
int cuTensorMapEncodeTiled(uint64_t *out, int type, uint32_t rank, uint64_t address,
                           const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int promotion,
                           int fill) {
    if (!current_context) return 201;
    uint32_t calls = encoded.calls + 1;
    memset(&encoded, 0, sizeof encoded);
    encoded.calls = calls, encoded.type = type, encoded.rank = rank, encoded.address = address;
    encoded.interleave = interleave, encoded.swizzle = swizzle, encoded.promotion = promotion;
    encoded.fill = fill, encoded.unaligned = (uint64_t)out % 64;
    for (uint32_t i = 0; i < rank; i++) {
        encoded.sizes[i] = sizes[i], encoded.box[i] = box[i], encoded.steps[i] = steps[i];
        if (i + 1 < rank) encoded.strides[i] = strides[i];
    }
    for (int i = 0; i < 16; i++) out[i] = address;
    return 0;
}
