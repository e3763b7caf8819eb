// Launches of compiled kernels through the CUDA driver.
#pragma once

#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>

#include "cpp_emit/descriptor.h"

namespace cpp_emit {

// A C shim function of libtorch_cuda, which a library built on a machine with no CUDA does not link.
template <class Function>
Function torch_cuda(const char* name) {
  static void* handle = open_library("libtorch_cuda.so");
  return find_symbol<Function>(handle, name);
}

// TORCH_CUDA(aoti_torch_cuda_addmm_out)(out, ...): found once.
#define TORCH_CUDA(function)                                                        \
  ([] {                                                                             \
    static const auto found = torch_cuda<decltype(&function)>(#function);           \
    return found;                                                                   \
  }())

// ---------------------------------------------------------------- device and stream

// Loading a module, or making a stream, would end a graph capture that is under way in this thread.
struct RelaxedCapture {
  int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
  RelaxedCapture() { driver().exchange_capture_mode(&mode); }
  ~RelaxedCapture() { driver().exchange_capture_mode(&mode); }
};

// Makes devices current for as long as it lives; launches go to torch's current stream of each.
class CudaScope {
 public:
  explicit CudaScope(int32_t index) {
    if (index < 0) {
      ok(aoti_torch_get_current_device_index(&index), "aoti_torch_get_current_device_index");
    }
    ok(aoti_torch_create_device_guard(index, &guard_), "aoti_torch_create_device_guard");
    on(index);
  }
  // What follows runs on a device.
  void on(int32_t index) {
    this->index = index;
    ok(aoti_torch_device_guard_set_index(guard_, index), "aoti_torch_device_guard_set_index");
    static auto current_stream =
        torch_cuda<AOTITorchError (*)(int32_t, void**)>("aoti_torch_get_current_cuda_stream");
    ok(current_stream(index, &stream), "aoti_torch_get_current_cuda_stream");
    CUcontext context = nullptr;
    driver().check(driver().get_context(&context), "cuCtxGetCurrent", "device");
    if (context == nullptr) {  // a thread in which torch has not used the device yet
      driver().check(driver().retain_primary(&context, index), "cuDevicePrimaryCtxRetain", "device");
      driver().check(driver().set_context(context), "cuCtxSetCurrent", "device");
    }
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;
  ~CudaScope() {
    leave();
    if (own_ != nullptr && std::uncaught_exceptions() != 0) {
      for (Side& side : *own_) {  // what they still use is freed
        stream_calls().record(side.event, side.stream);
        stream_calls().wait(own_->front().stream, side.event, 0);
      }
    }
    aoti_torch_delete_device_guard(guard_);
  }

  // A stream of which nothing is known counts as captured.
  bool is_capturing() const {
    int status = 0;
    return stream_calls().is_capturing(stream, &status) != 0 || status != 0;
  }
  // What follows runs on a stream beside the one of the call, which is 0.
  void to(size_t number) {
    Side& side = beside(number);
    leave();
    if (number != 0) {
      static auto create = torch_cuda<AOTITorchError (*)(void*, int32_t, void**)>(
          "aoti_torch_create_cuda_stream_guard");
      ok(create(side.stream, index, &switched_), "aoti_torch_create_cuda_stream_guard");
    }
    stream = side.stream;
  }
  // What follows on this stream begins when another has done what it was given.
  void wait(size_t number) {
    Side& side = beside(number);
    StreamCalls& calls = stream_calls();
    driver().check(calls.record(side.event, side.stream), "cuEventRecord", "stream");
    driver().check(calls.wait(stream, side.event, 0), "cuStreamWaitEvent", "stream");
  }

  int32_t index = 0;
  CUstream stream = nullptr;

 private:
  struct Side {
    CUstream stream;
    CUevent event;
  };
  // Streams are those of one stream of calls: memory of one of them is used again after what that
  // was given before.
  Side& beside(size_t number) {
    static std::mutex mutex;
    static std::map<std::pair<int32_t, CUstream>, std::deque<Side>> all;
    if (own_ == nullptr) {
      std::lock_guard<std::mutex> lock(mutex);
      own_ = &all[{index, stream}];
      if (own_->empty()) add(stream);
    }
    std::lock_guard<std::mutex> lock(mutex);
    while (own_->size() <= number) {
      RelaxedCapture relaxed;
      CUstream made = nullptr;
      driver().check(stream_calls().create(&made, 1), "cuStreamCreate", "stream");
      add(made);
    }
    return (*own_)[number];
  }
  void add(CUstream made) {
    CUevent event = nullptr;
    RelaxedCapture relaxed;
    driver().check(stream_calls().create_event(&event, 2), "cuEventCreate", "stream");
    own_->push_back({made, event});
  }
  void leave() {
    if (switched_ == nullptr) return;
    static auto end =
        torch_cuda<AOTITorchError (*)(void*)>("aoti_torch_delete_cuda_stream_guard");
    end(switched_);
    switched_ = nullptr;
  }

  std::deque<Side>* own_ = nullptr;
  void* switched_ = nullptr;
  DeviceGuardHandle guard_ = nullptr;
};

// ---------------------------------------------------------------- kernels

// A compiled kernel. `required`: one bit a parameter, which must be a multiple of 16 (the address of
// a pointer, the value of an integer), or a descriptor that keeps the rules of TMA, for this code to
// be right.
struct Image {
  const void* cubin;
  const char* symbol;
  unsigned shared;  // bytes of dynamic shared memory
  unsigned warps;
  uint64_t required;
  int64_t scratch;  // bytes of global memory for each block
  unsigned ctas = 1;  // blocks of a program
  const MapLayout* maps = nullptr;  // of its descriptors, in order; none without TMA
  size_t num_maps = 0;
  bool overlap = false;  // launched as the kernel before it in the stream ends; it waits by itself
};

struct KernelInfo {
  const char* name;
  const Image* images;  // the most demanding first; none in mode `lazy`
  size_t count;
};

struct Loaded {
  CUfunction function = nullptr;
  unsigned shared = 0;
  unsigned threads = 0;
  int64_t scratch = 0;
  unsigned ctas = 1;
  bool overlap = false;
  std::shared_ptr<const std::vector<MapLayout>> maps;
};

// Code for launches on `device` whose arguments are multiples of 16 where `aligned` has a bit:
// each of the first `own_bits` one of its own, all others together the next.
constexpr size_t own_bits = 62;
struct Variant {
  int32_t device;
  uint64_t aligned;
  Loaded code;
};

struct Spare {
  Tensor memory;
  int graphs = 0;  // that took some
};

struct Kernels {
  Kernels(const KernelInfo* table, size_t count) : table(table), loaded(count) {}
  const KernelInfo* table;
  std::mutex mutex;
  std::vector<std::vector<Variant>> loaded;  // by kernel; few each
  // Workspaces, by place in the program, device and stream; and what is filled already for a graph.
  std::map<std::tuple<size_t, int32_t, CUstream>, Tensor> kept;
  std::map<std::pair<size_t, int32_t>, Spare> spare;

  Loaded find(size_t kernel, int32_t device, uint64_t aligned) {
    std::lock_guard<std::mutex> lock(mutex);
    for (const Variant& v : loaded[kernel])
      if (v.aligned == aligned && v.device == device) return v.code;
    return {};
  }
  void add(size_t kernel, const Variant& variant) {
    std::lock_guard<std::mutex> lock(mutex);
    loaded[kernel].push_back(variant);
  }
};

// Memory that launches find all zero and leave all zero. That of a stream is kept, since the calls on
// one follow each other. A graph takes the spare one for good, or fills some at each replay, as those
// do that come after many: what one took is not known to be free again.
inline Tensor workspace(Instance& self, const CudaScope& at, size_t number, int32_t dtype,
                        int64_t count) {
  static auto& captured = *new std::vector<Tensor>;  // graphs may outlive their program
  const auto fits = [&](const Tensor& t) { return t.get() != nullptr && t.sizes()[0] >= count; };
  const auto filled = [&] {
    Tensor made = empty(dtype, {count}, {1}, cuda(at.index));
    const size_t bytes = static_cast<size_t>(count) * aoti_torch_dtype_element_size(dtype);
    if (bytes != 0)
      driver().check(stream_calls().set_bytes(made.data(), 0, bytes, at.stream), "cuMemsetD8Async",
                     "workspace");
    return made;
  };
  Kernels& kernels = *self.kernels;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  constexpr int most_graphs = 64;
  Spare& spare = kernels.spare[{number, at.index}];
  if (at.is_capturing()) {
    if (!fits(spare.memory)) return filled();
    ++spare.graphs;
    captured.push_back(std::move(spare.memory));
    return Tensor(captured.back().share());
  }
  Tensor& kept = kernels.kept[{number, at.index, at.stream}];
  if (!fits(kept)) kept = filled();
  if (spare.graphs < most_graphs && !fits(spare.memory)) spare.memory = filled();
  return Tensor(kept.share());
}

inline Loaded load_image(const Image& image, const char* where) {
  constexpr int max_dynamic_shared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  constexpr int non_portable_cluster = 14;  // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
  CUmodule module = nullptr;
  Loaded out{nullptr, image.shared, 32 * image.warps, image.scratch, image.ctas, image.overlap, nullptr};
  if (image.num_maps != 0)
    out.maps =
        std::make_shared<const std::vector<MapLayout>>(image.maps, image.maps + image.num_maps);
  RelaxedCapture relaxed;
  driver().check(driver().load_module(&module, image.cubin), "cuModuleLoadData", where);
  driver().check(driver().get_function(&out.function, module, image.symbol), "cuModuleGetFunction",
                 where);
  if (image.shared > 48 * 1024)
    driver().check(driver().set_attribute(out.function, max_dynamic_shared,
                                          static_cast<int>(image.shared)),
                   "cuFuncSetAttribute", where);
  if (image.ctas > 8)
    driver().check(driver().set_attribute(out.function, non_portable_cluster, 1),
                   "cuFuncSetAttribute", where);
  return out;
}

struct Grid {
  int64_t x, y, z;
};

// A tensor as a kernel takes it. The address comes first: the driver reads it in place.
struct Pointer {
  void* address;
  const Tensor* tensor;
};
inline Pointer pointer(const Tensor& t) { return {t.data(), &t}; }

inline bool is_aligned(const Pointer& p) {
  return reinterpret_cast<uintptr_t>(p.address) % 16 == 0;
}
inline bool is_aligned(const Described& d) { return d.descriptor->keeps_rules(d.is_written); }
template <class T>
bool is_aligned(const T& value) {
  if constexpr (std::is_integral_v<T>) return value % 16 == 0;
  return false;
}

// Asks Python for the cubin of a kernel, given the arguments of its first launch.
inline Loaded fetch(Instance& self, size_t kernel, uint64_t aligned, Grid grid, const char* where,
                    const std::vector<StableIValue>& tensors, const std::vector<StableIValue>& ints) {
  Stack<6> stack = call<6>(
      library.compile.c_str(), "", where,
      {{integer(self.id), integer(static_cast<int64_t>(kernel)),
        integer(static_cast<int64_t>(aligned)), integers({grid.x, grid.y, grid.z}),
        list_of(tensors), list_of(ints)}});
  // (cubin bytes, symbol bytes, [shared, warps, required, scratch, ctas, overlap, map layouts...])
  // as three CPU tensors
  std::vector<Tensor> result = take_tensors(stack[0]);
  if (result.size() != 3) fail(where, ": the Python callback that compiles kernels raised an error");
  const auto* numbers = static_cast<const int64_t*>(result[2].data());
  auto symbol = std::string(static_cast<const char*>(result[1].data()),
                            static_cast<size_t>(result[1].sizes()[0]));
  Image image{result[0].data(), symbol.c_str(), static_cast<unsigned>(numbers[0]),
              static_cast<unsigned>(numbers[1]), static_cast<uint64_t>(numbers[2]), numbers[3],
              static_cast<unsigned>(numbers[4])};
  image.overlap = numbers[5] != 0;
  constexpr int64_t before = 6, words = sizeof(MapLayout) / sizeof(int32_t);
  std::vector<MapLayout> maps(static_cast<size_t>(result[2].sizes()[0] - before) / words);
  for (size_t i = 0; i < maps.size(); ++i) {
    int32_t layout[words];
    std::copy_n(numbers + before + static_cast<int64_t>(i) * words, words, layout);
    std::memcpy(&maps[i], layout, sizeof layout);
  }
  image.maps = maps.data();
  image.num_maps = maps.size();
  if ((image.required & ~aligned) != 0)
    fail(where, ": the compiled kernel needs arguments that are aligned, or descriptors that keep ",
         "the rules of TMA, and this launch does not have them");
  return load_image(image, where);
}

template <class T>
void collect(const T& value, std::vector<StableIValue>& tensors, std::vector<StableIValue>& ints) {
  if constexpr (std::is_same_v<T, Pointer>) {
    tensors.push_back(tensor(*value.tensor));
  } else if constexpr (std::is_same_v<T, Described>) {
    tensors.push_back(tensor(value.descriptor->tensor()));
  } else if constexpr (std::is_integral_v<T>) {
    ints.push_back(integer(static_cast<int64_t>(value)));
  } else {
    ints.push_back(real(static_cast<double>(value)));  // the bits of a double
  }
}

// Where a kernel reads an argument: a descriptor is several parameters.
template <class T>
constexpr size_t params_of = std::is_same_v<T, Described> ? Descriptor::max_params : 1;

template <class T>
void put(void**& at, const MapLayout*& layout, T& arg, const char* where) {
  if constexpr (std::is_same_v<T, Described>) {
    arg.descriptor->put(at, layout, where);
    if (layout != nullptr) ++layout;
  } else {
    *at++ = &arg;
  }
}

// Launches on the current stream of `at`. An empty grid launches nothing.
template <class... Args>
void launch(Instance& self, const CudaScope& at, size_t kernel, Grid grid, const char* where,
            Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const unsigned x = narrow<uint32_t>(grid.x, where), y = narrow<uint32_t>(grid.y, where),
                 z = narrow<uint32_t>(grid.z, where);
  uint64_t aligned = 0, rest = sizeof...(Args) > own_bits;
  size_t number = 0;
  const auto look = [&](const auto& arg) {
    if (number < own_bits)
      aligned |= static_cast<uint64_t>(is_aligned(arg)) << number;
    else if (!std::is_floating_point_v<std::decay_t<decltype(arg)>>)
      rest &= is_aligned(arg);
    ++number;
  };
  (look(args), ...);
  aligned |= rest << own_bits;

  Kernels& kernels = *self.kernels;
  Loaded code = kernels.find(kernel, at.index, aligned);
  if (code.function == nullptr) {
    const KernelInfo& info = kernels.table[kernel];
    if (info.count == 0) {
      std::vector<StableIValue> tensors, ints;
      (collect(args, tensors, ints), ...);
      code = fetch(self, kernel, aligned, grid, where, tensors, ints);
    } else {
      const Image* fit = nullptr;
      for (size_t i = 0; i < info.count && fit == nullptr; ++i)
        if ((info.images[i].required & ~aligned) == 0) fit = &info.images[i];
      if (fit == nullptr)
        fail(where, ": kernel ", info.name, " was compiled for arguments that are multiples of 16 ",
             "(bits ", info.images[info.count - 1].required, "), got bits ", aligned);
      code = load_image(*fit, where);
    }
    kernels.add(kernel, {at.index, aligned, code});
  }

  // Two hidden parameters of Triton's kernels. Scratch memory is free again once the launch is in
  // the stream: whoever gets it next on this stream comes after.
  Tensor scratch;
  void* global_scratch = nullptr;
  void* profile_scratch = nullptr;
  if (code.scratch != 0) {
    scratch = empty(dtype::u8(), {grid.x * grid.y * grid.z * code.ctas * code.scratch}, {1},
                    cuda(at.index));
    global_scratch = scratch.data();
  }
  void* params[(params_of<Args> + ... + 2)];
  void** end = params;
  const MapLayout* layout = code.maps ? code.maps->data() : nullptr;
  (put(end, layout, args, where), ...);
  *end++ = &global_scratch;
  *end++ = &profile_scratch;
  if (code.ctas == 1 && !code.overlap) {
    driver().check(
        driver().launch(code.function, x, y, z, code.threads, 1, 1, code.shared, at.stream, params,
                        nullptr),
        "cuLaunchKernel", where);
    return;
  }
  LaunchAttribute attributes[3];
  unsigned count = 0;
  if (code.ctas != 1) {
    attributes[count++] = {4, 0, {code.ctas, 1, 1}};  // CLUSTER_DIMENSION
    attributes[count++] = {5, 0, {1}};  // CLUSTER_SCHEDULING_POLICY_PREFERENCE: spread
  }
  if (code.overlap) attributes[count++] = {6, 0, {1}};  // PROGRAMMATIC_STREAM_SERIALIZATION
  const unsigned blocks = narrow<uint32_t>(grid.x * code.ctas, where);
  LaunchConfig config{blocks, y, z, code.threads, 1, 1, code.shared, at.stream, attributes, count};
  driver().check(launch_ex()(&config, code.function, params, nullptr), "cuLaunchKernelEx", where);
}

}  // namespace cpp_emit
