// The CUDA driver's C API, opened at run time: nothing of CUDA is needed to build, and a library that
// was built here loads on a machine with no GPU.
#pragma once

#include <dlfcn.h>

#include "cpp_emit/runtime.h"

namespace cpp_emit {

using CUresult = int;
using CUcontext = void*;
using CUmodule = void*;
using CUfunction = void*;
using CUstream = void*;
using CUevent = void*;

struct LaunchAttribute {
  uint32_t id, pad, value[16];
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  CUstream stream;
  LaunchAttribute* attributes;
  unsigned count;
};

inline void* open_library(const char* name) {
  void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) fail("cannot open ", name, ": ", dlerror());
  return handle;
}

template <class Function>
Function find_symbol(void* handle, const char* name) {
  void* symbol = dlsym(handle, name);
  if (symbol == nullptr) fail("no symbol ", name, ": ", dlerror());
  return reinterpret_cast<Function>(symbol);
}

struct Driver {
  void* handle = open_library("libcuda.so.1");
  template <class Function>
  Function get(const char* name) {
    return find_symbol<Function>(handle, name);
  }
  CUresult (*error_string)(CUresult, const char**) =
      get<CUresult (*)(CUresult, const char**)>("cuGetErrorString");
  CUresult (*get_context)(CUcontext*) = get<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
  CUresult (*set_context)(CUcontext) = get<CUresult (*)(CUcontext)>("cuCtxSetCurrent");
  CUresult (*retain_primary)(CUcontext*, int) =
      get<CUresult (*)(CUcontext*, int)>("cuDevicePrimaryCtxRetain");
  CUresult (*load_module)(CUmodule*, const void*) =
      get<CUresult (*)(CUmodule*, const void*)>("cuModuleLoadData");
  CUresult (*get_function)(CUfunction*, CUmodule, const char*) =
      get<CUresult (*)(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction");
  CUresult (*set_attribute)(CUfunction, int, int) =
      get<CUresult (*)(CUfunction, int, int)>("cuFuncSetAttribute");
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CUstream, void**, void**) =
      get<CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, CUstream, void**, void**)>("cuLaunchKernel");
  CUresult (*exchange_capture_mode)(int*) =
      get<CUresult (*)(int*)>("cuThreadExchangeStreamCaptureMode");

  void check(CUresult code, const char* call, const char* where) {
    if (code == 0) return;
    const char* text = nullptr;
    error_string(code, &text);
    fail(where, ": ", call, " failed: ", text ? text : "unknown error", " (", code, ")");
  }
};

inline Driver& driver() {
  static Driver loaded;
  return loaded;
}

// Functions of later drivers, found when a program needs them.
inline auto launch_ex() {
  static const auto found =
      driver().get<CUresult (*)(const LaunchConfig*, CUfunction, void**, void**)>("cuLaunchKernelEx");
  return found;
}
struct StreamCalls {
  CUresult (*create)(CUstream*, unsigned) =
      driver().get<CUresult (*)(CUstream*, unsigned)>("cuStreamCreate");
  CUresult (*create_event)(CUevent*, unsigned) =
      driver().get<CUresult (*)(CUevent*, unsigned)>("cuEventCreate");
  CUresult (*record)(CUevent, CUstream) =
      driver().get<CUresult (*)(CUevent, CUstream)>("cuEventRecord");
  CUresult (*wait)(CUstream, CUevent, unsigned) =
      driver().get<CUresult (*)(CUstream, CUevent, unsigned)>("cuStreamWaitEvent");
  CUresult (*is_capturing)(CUstream, int*) =
      driver().get<CUresult (*)(CUstream, int*)>("cuStreamIsCapturing");
  CUresult (*set_bytes)(void*, unsigned char, size_t, CUstream) =
      driver().get<CUresult (*)(void*, unsigned char, size_t, CUstream)>("cuMemsetD8Async");
};
inline StreamCalls& stream_calls() {
  static StreamCalls found;
  return found;
}
inline auto encode_tiled() {
  static const auto found = driver().get<CUresult (*)(
      void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
      const uint32_t*, int, int, int, int)>("cuTensorMapEncodeTiled");
  return found;
}

}  // namespace cpp_emit
