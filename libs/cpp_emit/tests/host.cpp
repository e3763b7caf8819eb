// A host with no Python: loads a library, runs it, prints what comes out.
#include <dlfcn.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdio>

template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

AtenTensorHandle filled(int64_t rows, int64_t columns, float value) {
  const int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
  AtenTensorHandle out = nullptr;
  void* data = nullptr;
  if (aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_float32(),
                               aoti_torch_device_type_cpu(), 0, &out) ||
      aoti_torch_get_data_ptr(out, &data))
    return nullptr;
  for (int64_t i = 0; i < rows * columns; ++i) static_cast<float*>(data)[i] = value;
  return out;
}

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return std::puts(dlerror()), 1;
  auto create = find<int32_t (*)(const AtenTensorHandle*, int64_t, int64_t*)>(library, "cpp_emit_create");
  auto run = find<int32_t (*)(int64_t, const AtenTensorHandle*, int64_t, const int64_t*, int64_t,
                              AtenTensorHandle*, int64_t, int64_t*, int64_t)>(library, "cpp_emit_run");
  auto drop = find<int32_t (*)(int64_t)>(library, "cpp_emit_drop");
  auto error = find<const char* (*)()>(library, "cpp_emit_error");

  int64_t instance = -1, n = 5, number = 0;
  AtenTensorHandle weight = filled(2, 4, 0.5f), x = filled(3, 4, 2.0f), y = nullptr;
  if (create(&weight, 1, &instance)) return std::puts(error()), 1;
  if (run(instance, &x, 1, &n, 1, &y, 1, &number, 1)) return std::puts(error()), 1;
  void* data = nullptr;
  aoti_torch_get_data_ptr(y, &data);
  std::printf("%g %lld\n", static_cast<float*>(data)[5], static_cast<long long>(number));
  if (run(instance, &weight, 1, &n, 1, &y, 1, &number, 0)) std::puts(error());
  if (run(instance, &weight, 0, &n, 1, &y, 1, &number, 1)) std::puts(error());
  drop(instance);
  if (run(instance, &x, 1, &n, 1, &y, 1, &number, 1)) std::puts(error());
  return 0;
}
