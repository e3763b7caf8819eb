// The functions of runtime.h that are no templates, and the C functions of a library: compiled once
// for each library, within the emitted program or apart from it.
#pragma once

#include "cpp_emit/runtime.h"

namespace cpp_emit {

void torch_failed(const char* what) { fail(what, " failed; torch wrote the reason to stderr"); }

namespace dtype {
std::string name(int32_t code) {
  static const std::pair<int32_t (*)(), const char*> table[] = {
      {bool_, "bool"}, {u8, "u8"},   {u16, "u16"}, {u32, "u32"},  {u64, "u64"}, {i8, "i8"},
      {i16, "i16"},    {i32, "i32"}, {i64, "i64"}, {f16, "f16"},  {bf16, "bf16"}, {f32, "f32"},
      {f64, "f64"},    {f8e4m3, "f8e4m3"},         {f8e5m2, "f8e5m2"},
      {c32, "c32"},    {c64, "c64"}, {c128, "c128"}};
  for (const auto& row : table)
    if (row.first() == code) return row.second;
  return "dtype " + std::to_string(code);
}
}  // namespace dtype

std::string name(Device device) {
  std::string kind = device.type == aoti_torch_device_type_cpu()    ? "cpu"
                     : device.type == aoti_torch_device_type_cuda() ? "cuda"
                                                                    : "device " + std::to_string(device.type);
  if (device.index < 0 || kind == "cpu") return kind;
  return kind + ":" + std::to_string(device.index);
}

Tensor empty(int32_t dtype, Ints sizes, Ints strides, Device device) {
  AtenTensorHandle out = nullptr;
  ok(aoti_torch_empty_strided(
         static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(), dtype, device.type,
         device.index, &out),
     "aoti_torch_empty_strided");
  return Tensor(out);
}

Tensor zeros(int32_t dtype, int64_t count) {
  Tensor made = empty(dtype, {count}, {1}, cpu());
  if (count != 0)
    std::memset(made.data(), 0, static_cast<size_t>(count) * aoti_torch_dtype_element_size(dtype));
  return made;
}

Tensor view(const Tensor& source, int32_t dtype, Ints sizes, Ints strides, int64_t offset) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const auto itemsize = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
  int64_t storage = 0, end = offset + 1;
  ok(aoti_torch_get_storage_size(source.get(), &storage), "aoti_torch_get_storage_size");
  bool nothing = false;
  for (int64_t d = 0; d < rank; ++d) {
    nothing = nothing || sizes.begin()[d] == 0;
    end += (sizes.begin()[d] - 1) * strides.begin()[d];
  }
  if (!nothing && source.origin() + end * itemsize > storage)
    fail("a view needs ", source.origin() + end * itemsize, " bytes of a storage of ", storage,
         "; its layout is wrong for these sizes");
  AtenTensorHandle out = nullptr;
  // aoti_torch__reinterpret_tensor counts its offset from the first element of its argument.
  const int64_t first = source.storage_offset();
  if (source.dtype() == dtype) {
    ok(aoti_torch__reinterpret_tensor(
           source.get(), rank, sizes.begin(), strides.begin(),
           source.origin() / itemsize + offset - first, &out),
       "aoti_torch__reinterpret_tensor");
  } else {
    // aoti_torch__alloc_from_pool changes the element type but wants a tensor at offset 0.
    const int64_t none[] = {0}, one[] = {1};
    AtenTensorHandle start = nullptr;
    ok(aoti_torch__reinterpret_tensor(source.get(), 1, none, one, -first, &start),
       "aoti_torch__reinterpret_tensor");
    Tensor base(start);
    ok(aoti_torch__alloc_from_pool(
           base.get(), source.origin() + offset * itemsize, dtype, rank, sizes.begin(),
           strides.begin(), &out),
       "aoti_torch__alloc_from_pool");
  }
  Tensor result(out);
  result.set_origin(source.origin());
  return result;
}

Tensor reuse(Tensor& source, int32_t dtype, Ints sizes, Ints strides, int64_t offset) {
  Tensor result = view(source, dtype, sizes, strides, offset);
  source.reset();
  return result;
}

void copy(const Tensor& source, const Tensor& target) {
  ok(aoti_torch_copy_(target.get(), source.get(), 0), "aoti_torch_copy_");
}

int64_t item(const Tensor& source) {
  int64_t value = 0;
  ok(aoti_torch_item_int64(source.get(), &value), "aoti_torch_item_int64");
  return value;
}

std::string list(const int64_t* values, int64_t count) {
  std::ostringstream out;
  for (int64_t i = 0; i < count; ++i) out << (i ? ", " : "") << values[i];
  return out.str();
}

std::string describe(int32_t dtype, const int64_t* sizes, const int64_t* strides, int64_t rank,
                            Device device) {
  return dtype::name(dtype) + "[" + list(sizes, rank) + "] " + name(device) + " stride (" +
         list(strides, rank) + ")";
}

std::string describe(const Tensor& t) {
  return describe(t.dtype(), t.sizes(), t.strides(), t.rank(), t.device());
}

void check_kind(const Tensor& t, const char* what, int32_t dtype, int64_t rank, Device device) {
  int32_t layout = 0;
  ok(aoti_torch_get_layout(t.get(), &layout), "aoti_torch_get_layout");
  if (layout != aoti_torch_layout_strided())
    fail(what, ": expected a dense (strided) tensor, got layout ", layout);
  const Device got = t.device();
  if (t.dtype() != dtype || t.rank() != rank || got.type != device.type ||
      (device.index >= 0 && got.index != device.index && got.type != aoti_torch_device_type_cpu()))
    fail(what, ": expected ", dtype::name(dtype), " of rank ", rank, " on ", name(device), ", got ",
         describe(t));
}

bool same_steps(const Tensor& t, Ints sizes, Ints strides) {
  const int64_t* stride = t.strides();
  bool same = true, empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    same = same && (sizes.begin()[d] == 1 || stride[d] == strides.begin()[d]);
    empty = empty || sizes.begin()[d] == 0;
  }
  return same || empty;
}

void check_layout(const Tensor& t, const char* what, Ints sizes, Ints strides) {
  const auto rank = static_cast<int64_t>(sizes.size());
  if (!std::equal(sizes.begin(), sizes.end(), t.sizes()) || !same_steps(t, sizes, strides))
    fail(what, ": expected ", describe(t.dtype(), sizes.begin(), strides.begin(), rank, t.device()),
         ", got ", describe(t));
}

void conform(Tensor& t, const char* what, int32_t dtype, Ints sizes, Ints strides, Device device) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const bool sized = t.rank() == rank && std::equal(sizes.begin(), sizes.end(), t.sizes());
  check_kind(t, what, sized ? t.dtype() : dtype, rank, device);
  if (sized && (t.dtype() != dtype || !same_steps(t, sizes, strides))) {
    Tensor converted = empty(dtype, sizes, strides, t.device());
    copy(t, converted);
    t = std::move(converted);
  }
  check_layout(t, what, sizes, strides);
}

void check_range(int64_t value, const char* what, int64_t low, int64_t high) {
  if (value < low || value > high) {
    std::ostringstream range;
    range << "[" << low << ", ";
    if (high == std::numeric_limits<int64_t>::max()) range << "inf)";
    else range << high << "]";
    fail(what, ": expected a value in ", range.str(), ", got ", value);
  }
}

void call_dispatcher(const char* op, const char* overload, const char* where, StableIValue* stack) {
  if (torch_call_dispatcher(op, overload, stack, TORCH_ABI_VERSION) != 0)
    fail(where, ": operator ", op, *overload ? "." : "", overload,
         " failed; torch wrote the reason to stderr");
}

StableIValue string(const char* text) {
  StringHandle handle = nullptr;
  ok(torch_new_string_handle(text, std::strlen(text), &handle), "torch_new_string_handle");
  return bits(handle);
}

StableIValue integers(Ints values) {
  StableListHandle handle = nullptr;
  ok(torch_new_list_reserve_size(values.size(), &handle), "torch_new_list_reserve_size");
  for (int64_t value : values)
    ok(torch_list_push_back(handle, integer(value)), "torch_list_push_back");
  return bits(handle);
}

std::vector<StableIValue> take_list(StableIValue value) {
  StableListHandle handle = nullptr;
  std::memcpy(&handle, &value, sizeof(handle));
  size_t count = 0;
  ok(torch_list_size(handle, &count), "torch_list_size");
  std::vector<StableIValue> out(count);
  for (size_t i = 0; i < count; ++i)
    ok(torch_list_get_item(handle, i, &out[i]), "torch_list_get_item");
  ok(torch_delete_list(handle), "torch_delete_list");
  return out;
}

std::vector<Tensor> take_tensors(StableIValue value) {
  std::vector<Tensor> out;
  for (StableIValue item : take_list(value)) out.push_back(take_tensor(item));
  return out;
}

// Second references to tensors of a caller.
static std::vector<Tensor> borrow(const AtenTensorHandle* handles, int64_t count) {
  std::vector<Tensor> out;
  for (int64_t i = 0; i < count; ++i) {
    AtenTensorHandle copy = nullptr;
    ok(aoti_torch_new_tensor_handle(handles[i], &copy), "aoti_torch_new_tensor_handle");
    out.emplace_back(copy);
  }
  return out;
}

void check_arguments(const Arguments& in, const char* what, size_t tensors, size_t ints) {
  if (in.tensors.size() != tensors || in.ints.size() != ints)
    fail(what, ": expected ", tensors, " tensors and ", ints, " integers, got ", in.tensors.size(),
         " and ", in.ints.size());
}

void check_count(const std::vector<Tensor>& results, size_t count, const char* where) {
  if (results.size() != count)
    fail(where, ": expected ", count, " results, got ", results.size());
}

std::vector<Tensor> call_python(const Instance& self, int64_t site, const char* where,
                                       size_t count, std::initializer_list<const Tensor*> tensors,
                                       Ints ints) {
  std::vector<StableIValue> handles;
  for (const Tensor* t : tensors) handles.push_back(tensor(*t));
  Stack<4> stack = call<4>(
      library.callback.c_str(), "", where,
      {{integer(self.id), integer(site), list_of(handles), integers(ints)}});
  std::vector<Tensor> results = take_tensors(stack[0]);
  // An error is kept on the side of Python, which gives back another number of tensors.
  if (results.size() != count) fail(where, ": the Python callback raised an error");
  return results;
}

static int64_t create(std::vector<Tensor> constants) {
  auto made = std::make_shared<Instance>();
  made->constants = std::move(constants);
  if (static_cast<int64_t>(made->constants.size()) != num_constants)
    fail("expected ", num_constants, " constants, got ", made->constants.size());
  made->kernels = new_kernels();
  std::lock_guard<std::mutex> lock(library.mutex);
  made->id = static_cast<int64_t>(library.instances.size());
  library.instances.push_back(made);
  return made->id;
}

static void drop(int64_t id) {
  auto self = library.find(id);
  std::lock_guard<std::mutex> lock(library.mutex);
  library.instances[id] = nullptr;
}

static Results run_instance(int64_t id, Arguments& in) {
  Results out;
  auto self = library.find(id);
  NoGrad guard;
  run(*self, in, out);
  return out;
}

static void boxed_create(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = integer(create(take_tensors(stack[0])));
}

static std::string& last_error() {
  static thread_local std::string text;
  return text;
}

// Runs `body` for a caller in C: 0, or 1 with the reason in `cpp_emit_error`.
template <class Body>
int32_t guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    last_error() = e.what();
    return 1;
  }
}

static void boxed_run(StableIValue* stack, uint64_t, uint64_t) {
  Arguments in;
  in.tensors = take_tensors(stack[1]);
  for (StableIValue value : take_list(stack[2])) in.ints.push_back(static_cast<int64_t>(value));
  const Results out = run_instance(static_cast<int64_t>(stack[0]), in);
  std::vector<StableIValue> tensors, ints;
  for (const Tensor& t : out.tensors) tensors.push_back(tensor(t));
  for (int64_t value : out.ints) ints.push_back(integer(value));
  stack[0] = list_of(tensors);
  stack[1] = list_of(ints);
}

static void register_operators(const char* ns) {
  TorchLibraryHandle handle = nullptr;  // lives as long as the process, as the library does
  ok(aoti_torch_library_init_fragment(ns, __FILE__, __LINE__, &handle), "registration");
  for (const char* schema :
       {"create(Tensor[] constants) -> int",
        "run(int instance, Tensor[] tensors, int[] ints) -> (Tensor[], int[])"})
    ok(aoti_torch_library_def(handle, schema), schema);
  // "Implicit" so that torch puts no autograd node around a call.
  ok(aoti_torch_library_init_impl(ns, "CompositeImplicitAutograd", __FILE__, __LINE__, &handle),
     "registration");
  ok(torch_library_impl(handle, "create", boxed_create, TORCH_ABI_VERSION), "create");
  ok(torch_library_impl(handle, "run", boxed_run, TORCH_ABI_VERSION), "run");
  library.callback = std::string(ns) + "::callback";
  library.compile = std::string(ns) + "::compile";
}

}  // namespace cpp_emit

#include "cpp_emit/control.h"

// ---------------------------------------------------------------- the library's C functions

#define CPP_EMIT_EXPORT extern "C" __attribute__((visibility("default"), used))

// Registers `create` and `run` as operators of torch in the namespace `ns`, once: what the Python
// loader uses. Returns null, or what went wrong.
CPP_EMIT_EXPORT const char* cpp_emit_register(const char* ns) {
  using namespace cpp_emit;
  return guarded([&] { register_operators(ns); }) ? last_error().c_str() : nullptr;
}

// Of which program this library was made.
CPP_EMIT_EXPORT const char* cpp_emit_fingerprint() { return cpp_emit::fingerprint; }

// The addresses of kernels in C++, by number, before a program that calls them is run.
CPP_EMIT_EXPORT void cpp_emit_set_loops(void* const* addresses, int64_t count) {
  cpp_emit::loops.assign(addresses, addresses + count);
}

// For hosts without Python. Each function returns 0, or 1 with the reason in `cpp_emit_error` (of
// this thread). Tensors that go in stay the caller's; those that come out are the caller's to delete
// (aoti_torch_delete_tensor_object).
CPP_EMIT_EXPORT const char* cpp_emit_error() { return cpp_emit::last_error().c_str(); }

CPP_EMIT_EXPORT int32_t cpp_emit_create(const AtenTensorHandle* constants, int64_t count,
                                        int64_t* instance) {
  using namespace cpp_emit;
  return guarded([&] { *instance = create(borrow(constants, count)); });
}

CPP_EMIT_EXPORT int32_t cpp_emit_drop(int64_t instance) {
  return cpp_emit::guarded([&] { cpp_emit::drop(instance); });
}

CPP_EMIT_EXPORT int32_t cpp_emit_run(int64_t instance, const AtenTensorHandle* tensors,
                                     int64_t num_tensors, const int64_t* ints, int64_t num_ints,
                                     AtenTensorHandle* out_tensors, int64_t num_out_tensors,
                                     int64_t* out_ints, int64_t num_out_ints) {
  using namespace cpp_emit;
  return guarded([&] {
    Arguments in{borrow(tensors, num_tensors), {ints, ints + num_ints}};
    Results out = run_instance(instance, in);
    if (static_cast<int64_t>(out.tensors.size()) != num_out_tensors ||
        static_cast<int64_t>(out.ints.size()) != num_out_ints)
      fail("the program gives ", out.tensors.size(), " tensors and ", out.ints.size(),
           " integers; room was given for ", num_out_tensors, " and ", num_out_ints);
    for (size_t i = 0; i < out.tensors.size(); ++i) out_tensors[i] = out.tensors[i].release();
    for (size_t i = 0; i < out.ints.size(); ++i) out_ints[i] = out.ints[i];
  });
}
