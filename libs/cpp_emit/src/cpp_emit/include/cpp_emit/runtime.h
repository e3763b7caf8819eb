// What an emitted host program needs besides its own lines: tensors that free themselves, layout
// checks, operator calls through torch's stable C ABI, and the registration of the program as torch
// operators. Only C shims of torch are included (torch/torch.h would take many seconds to compile).
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cpp_emit {

// ---------------------------------------------------------------- errors

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  throw std::runtime_error(out.str());
}

// " failed; torch wrote the reason to stderr".
[[noreturn]] void torch_failed(const char* what);

inline void ok(AOTITorchError code, const char* what) {
  if (code != 0) torch_failed(what);
}

// ---------------------------------------------------------------- element types and devices

namespace dtype {
inline int32_t bool_() { return aoti_torch_dtype_bool(); }
inline int32_t u8() { return aoti_torch_dtype_uint8(); }
inline int32_t u16() { return aoti_torch_dtype_uint16(); }
inline int32_t u32() { return aoti_torch_dtype_uint32(); }
inline int32_t u64() { return aoti_torch_dtype_uint64(); }
inline int32_t i8() { return aoti_torch_dtype_int8(); }
inline int32_t i16() { return aoti_torch_dtype_int16(); }
inline int32_t i32() { return aoti_torch_dtype_int32(); }
inline int32_t i64() { return aoti_torch_dtype_int64(); }
inline int32_t f16() { return aoti_torch_dtype_float16(); }
inline int32_t bf16() { return aoti_torch_dtype_bfloat16(); }
inline int32_t f32() { return aoti_torch_dtype_float32(); }
inline int32_t f64() { return aoti_torch_dtype_float64(); }
inline int32_t f8e4m3() { return aoti_torch_dtype_float8_e4m3fn(); }
inline int32_t f8e5m2() { return aoti_torch_dtype_float8_e5m2(); }
inline int32_t c32() { return aoti_torch_dtype_complex32(); }
inline int32_t c64() { return aoti_torch_dtype_complex64(); }
inline int32_t c128() { return aoti_torch_dtype_complex128(); }

std::string name(int32_t code);
}  // namespace dtype

// `index` -1: the current device of its kind when allocating, any device when checking.
struct Device {
  int32_t type;
  int32_t index;
};
inline Device cpu() { return {aoti_torch_device_type_cpu(), -1}; }
inline Device cuda(int32_t index) { return {aoti_torch_device_type_cuda(), index}; }

std::string name(Device device);

// ---------------------------------------------------------------- tensors

using Ints = std::initializer_list<int64_t>;

// Owns one reference to a torch tensor.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), origin_(other.origin_) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(origin_, other.origin_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { reset(); }

  void reset() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(std::exchange(handle_, nullptr));
  }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
  AtenTensorHandle get() const { return handle_; }

  // A second reference, for a callee that takes ownership.
  AtenTensorHandle share() const {
    AtenTensorHandle copy = nullptr;
    ok(aoti_torch_new_tensor_handle(handle_, &copy), "aoti_torch_new_tensor_handle");
    return copy;
  }

  // Of a tensor that lies nowhere: only one of no elements may.
  void refuse_fake() const {
    int64_t count = 0;
    ok(aoti_torch_get_numel(handle_, &count), "aoti_torch_get_numel");
    if (count != 0) throw std::runtime_error("a tensor has no memory: a fake one?");
  }
  void* data() const {
    void* pointer = nullptr;
    ok(aoti_torch_get_data_ptr(handle_, &pointer), "aoti_torch_get_data_ptr");
    if (pointer == nullptr) refuse_fake();
    return pointer;
  }
  int64_t rank() const {
    int64_t value = 0;
    ok(aoti_torch_get_dim(handle_, &value), "aoti_torch_get_dim");
    return value;
  }
  const int64_t* sizes() const {
    int64_t* value = nullptr;
    ok(aoti_torch_get_sizes(handle_, &value), "aoti_torch_get_sizes");
    return value;
  }
  const int64_t* strides() const {
    int64_t* value = nullptr;
    ok(aoti_torch_get_strides(handle_, &value), "aoti_torch_get_strides");
    return value;
  }
  int32_t dtype() const {
    int32_t value = 0;
    ok(aoti_torch_get_dtype(handle_, &value), "aoti_torch_get_dtype");
    return value;
  }
  Device device() const {
    Device value{0, -1};
    ok(aoti_torch_get_device_type(handle_, &value.type), "aoti_torch_get_device_type");
    ok(aoti_torch_get_device_index(handle_, &value.index), "aoti_torch_get_device_index");
    return value;
  }
  int64_t storage_offset() const {
    int64_t value = 0;
    ok(aoti_torch_get_storage_offset(handle_, &value), "aoti_torch_get_storage_offset");
    return value;
  }

  // Bytes from the start of torch's storage to where the program's storage starts: not zero when
  // a caller passes a view with a storage offset of its own.
  int64_t origin() const { return origin_; }
  void set_origin(int64_t bytes) { origin_ = bytes; }
  void origin_from_offset(int64_t declared_offset) {
    origin_ = (storage_offset() - declared_offset) *
              static_cast<int64_t>(aoti_torch_dtype_element_size(dtype()));
  }

 private:
  AtenTensorHandle handle_ = nullptr;
  int64_t origin_ = 0;
};

Tensor empty(int32_t dtype, Ints sizes, Ints strides, Device device);

// On the CPU.
Tensor zeros(int32_t dtype, int64_t count);

// Another layout over the storage of `source`; `offset` counts elements of `dtype` from the start
// of the program's storage.
Tensor view(const Tensor& source, int32_t dtype, Ints sizes, Ints strides, int64_t offset);

// `source` is dead afterwards; its storage lives on in the result.
Tensor reuse(Tensor& source, int32_t dtype, Ints sizes, Ints strides, int64_t offset);

void copy(const Tensor& source, const Tensor& target);

// The integer that a tensor of one element holds.
int64_t item(const Tensor& source);

// ---------------------------------------------------------------- checks

std::string list(const int64_t* values, int64_t count);

std::string describe(int32_t dtype, const int64_t* sizes, const int64_t* strides, int64_t rank,
                            Device device);

std::string describe(const Tensor& t);

// Element type, rank and device: what must hold before sizes can be read.
void check_kind(const Tensor& t, const char* what, int32_t dtype, int64_t rank, Device device);

// Whether the strides that can be observed agree: not those of a size of one or of an empty tensor.
bool same_steps(const Tensor& t, Ints sizes, Ints strides);

// Sizes, and the strides that can be observed.
void check_layout(const Tensor& t, const char* what, Ints sizes, Ints strides);

// What an operator returned, in the declared layout and element type: as it is, or converted into
// memory of its own, since fake tensors do not know the layout of every kernel's result. Rank, sizes
// and device are never changed.
void conform(Tensor& t, const char* what, int32_t dtype, Ints sizes, Ints strides, Device device);

void check_range(int64_t value, const char* what, int64_t low, int64_t high);

// A 64-bit value as a narrower integer parameter of a kernel, never wrapped.
template <class T>
T narrow(int64_t value, const char* what) {
  if constexpr (!std::is_same_v<T, int64_t>) {
    if constexpr (std::is_unsigned_v<T>) {
      if (value < 0 || static_cast<uint64_t>(value) > std::numeric_limits<T>::max())
        fail(what, ": ", value, " does not fit in ", 8 * sizeof(T), " unsigned bits");
    } else if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
      fail(what, ": ", value, " does not fit in ", 8 * sizeof(T), " bits");
    }
  }
  return static_cast<T>(value);
}

// ---------------------------------------------------------------- operator calls

template <class T>
StableIValue bits(T value) {
  static_assert(sizeof(T) <= sizeof(StableIValue));
  StableIValue out = 0;
  std::memcpy(&out, &value, sizeof(T));
  return out;
}

// One argument of an operator, as the type its schema declares.
inline StableIValue tensor(const Tensor& t) { return bits(t.share()); }
inline StableIValue integer(int64_t value) { return bits(value); }
inline StableIValue real(double value) { return bits(value); }
inline StableIValue boolean(bool value) { return bits(value); }
inline StableIValue code(int32_t value) { return bits(value); }  // dtype, layout, memory format
inline StableIValue none() { return 0; }
inline StableIValue some(StableIValue value) { return bits(new StableIValue(value)); }
inline StableIValue device(Device d) {
  return static_cast<uint64_t>(static_cast<uint32_t>(d.index)) |
         static_cast<uint64_t>(static_cast<uint32_t>(d.type)) << 32;
}
StableIValue string(const char* text);
template <class Values>
StableIValue list_of(const Values& values) {
  StableListHandle handle = nullptr;
  ok(torch_new_list_reserve_size(values.size(), &handle), "torch_new_list_reserve_size");
  for (StableIValue value : values)
    ok(torch_list_push_back(handle, value), "torch_list_push_back");
  return bits(handle);
}
inline StableIValue items(std::initializer_list<StableIValue> values) { return list_of(values); }
StableIValue integers(Ints values);

inline Tensor take_tensor(StableIValue value) {
  AtenTensorHandle handle = nullptr;
  std::memcpy(&handle, &value, sizeof(handle));
  return Tensor(handle);
}
std::vector<StableIValue> take_list(StableIValue value);
std::vector<Tensor> take_tensors(StableIValue value);

template <size_t N>
struct Stack {
  StableIValue values[N];
  StableIValue& operator[](size_t i) { return values[i]; }
};

void call_dispatcher(const char* op, const char* overload, const char* where, StableIValue* stack);

// Calls `op` with every argument of its schema; slots 0, 1, ... hold the results afterwards.
// `N` is the larger of the number of arguments and of results.
template <size_t N>
Stack<N> call(const char* op, const char* overload, const char* where, Stack<N> stack) {
  call_dispatcher(op, overload, where, stack.values);
  return stack;
}

inline void shim(const char* where, AOTITorchError code) { ok(code, where); }

// ---------------------------------------------------------------- the program as torch operators

struct Kernels;  // the loaded kernels of an instance: cuda.h

// One loaded program: its constants and kernels. Several may share a library.
struct Instance {
  int64_t id = 0;
  std::vector<Tensor> constants;
  std::shared_ptr<Kernels> kernels;
};

struct Arguments {
  std::vector<Tensor> tensors;
  std::vector<int64_t> ints;
};

void check_arguments(const Arguments& in, const char* what, size_t tensors, size_t ints);

void check_count(const std::vector<Tensor>& results, size_t count, const char* where);

struct Results {
  std::vector<Tensor> tensors;
  std::vector<int64_t> ints;
  void push(const Tensor& t) { tensors.emplace_back(t.share()); }
  void push(int64_t value) { ints.push_back(value); }
};

// ---------------------------------------------------------------- subgraphs

// A program of the library that others call, with parameters and results like `run`.
using Subgraph = void (*)(Instance&, Arguments&, Results&);
using Tensors = std::initializer_list<const Tensor*>;

// Of a tensor of one element, which the host waits for.
bool truth(const Tensor& predicate);

// The tensors that a call gives.
std::vector<Tensor> call_subgraph(Instance& self, Subgraph body, Tensors tensors, Ints ints);

// Calls `body` as long as `more` holds, both with all arguments, the first `carries` of which `body`
// gives anew. `trace`: gives stacks of what they were after each step.
std::vector<Tensor> repeat(Instance& self, Subgraph more, Subgraph body, size_t carries, bool trace,
                           Tensors tensors, Ints ints);

// Calls `body` for each step along the first dimension of the `over` tensors after those that are
// carried; what it gives beyond those is stacked.
std::vector<Tensor> scan(Instance& self, Subgraph body, size_t carries, size_t over, Tensors tensors,
                         Ints ints);

// Inference only: the operators called by the program record nothing for autograd.
struct NoGrad {
  bool before = aoti_torch_grad_mode_is_enabled();
  NoGrad() { aoti_torch_grad_mode_set_enabled(false); }
  ~NoGrad() { aoti_torch_grad_mode_set_enabled(before); }
};

struct Library {
  std::string callback;  // operator `NAMESPACE::callback`, implemented in Python
  std::string compile;   // operator `NAMESPACE::compile`, implemented in Python
  std::mutex mutex;
  std::vector<std::shared_ptr<Instance>> instances;

  std::shared_ptr<Instance> find(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex);
    if (id < 0 || id >= static_cast<int64_t>(instances.size()) || !instances[id])
      fail("no loaded program has number ", id);
    return instances[id];
  }
};
inline Library library;

// Hands a launch or an operator call to Python: `site` is its position among the launches and
// extern calls of the program, `count` the number of tensors it gives back.
std::vector<Tensor> call_python(const Instance& self, int64_t site, const char* where,
                                       size_t count, std::initializer_list<const Tensor*> tensors,
                                       Ints ints);

// The addresses of kernels in C++, by number.
inline std::vector<void*> loops;
inline void* loops_at(size_t number, const char* where) {
  if (number >= loops.size()) fail(where, ": nobody gave the address of this C++ kernel");
  return loops[number];
}

// Defined by the emitted program.
void run(Instance& self, Arguments& in, Results& out);
extern const int64_t num_constants;
extern const char* const fingerprint;
std::shared_ptr<Kernels> new_kernels();

}  // namespace cpp_emit

// `build` compiles the functions once, and links them to each program.
#ifndef CPP_EMIT_LINKED
#include "cpp_emit/runtime_body.h"
#endif
