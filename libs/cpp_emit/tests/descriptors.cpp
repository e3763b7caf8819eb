// What descriptors become, as text: built with a stand-in for the driver (see test_descriptors.py).
#include "cpp_emit/cuda.h"

#include <iostream>

namespace cpp_emit {
const int64_t num_constants = 0;
const char* const fingerprint = "";
void run(Instance&, Arguments&, Results&) {}
std::shared_ptr<Kernels> new_kernels() { return nullptr; }
}  // namespace cpp_emit

using namespace cpp_emit;

struct Encoded {
  uint32_t calls, type, rank, interleave, swizzle, promotion, fill, unaligned, box[5], steps[5];
  uint64_t address, sizes[5], strides[5];
};

static void show(const char* title, Descriptor& d, const MapLayout* layout) {
  void* params[Descriptor::max_params + 2] = {};
  void** end = params;
  Described argument = reads(d);
  int32_t after = 7;
  put(end, layout, argument, "test");
  put(end, layout, after, "test");
  const auto base = static_cast<int64_t>(reinterpret_cast<intptr_t>(d.tensor().data()));
  std::cout << title;
  for (void** p = params; p < end - 1; ++p) {
    const int64_t word = *static_cast<int64_t*>(*p);
    std::cout << " " << (word == base ? std::string("address") : std::to_string(word));
  }
  std::cout << " then " << *static_cast<int32_t*>(*(end - 1)) << "\n";
}

static void rules(const char* title, Tensor t) {
  Descriptor d(t);
  std::cout << title << " " << d.keeps_rules(false) << d.keeps_rules(true) << "\n";
}

int main() {
  const auto& encoded = *find_symbol<Encoded*>(driver().handle, "encoded");
  {
    Tensor t = empty(dtype::bf16(), {12, 1, 40}, {64, 7, 1}, cpu());
    Descriptor d(t);
    t.reset();  // the descriptor keeps it alive
    const MapLayout layout{3, 9, 2, 0, 3, {4, 1, 32}}, other{0, 9, 2, 0, 3, {4, 1, 8}};
    const MapLayout* at = &layout;
    show("without TMA:", d, nullptr);
    show("with TMA:", d, at);
    show("again:", d, at);
    std::cout << "encoded " << encoded.calls << " type " << encoded.type << " rank " << encoded.rank
              << " sizes " << encoded.sizes[0] << " " << encoded.sizes[1] << " " << encoded.sizes[2]
              << " strides " << encoded.strides[0] << " " << encoded.strides[1] << " box "
              << encoded.box[0] << " " << encoded.box[1] << " " << encoded.box[2] << " steps "
              << encoded.steps[2] << " swizzle " << encoded.swizzle << " promotion "
              << encoded.promotion << " fill " << encoded.fill << " unaligned "
              << encoded.unaligned << "\n";
    show("other layout:", d, &other);
    std::cout << "encoded " << encoded.calls << " box " << encoded.box[0] << "\n";
    Descriptor e(d.tensor());  // another call
    show("of one that lies so:", e, at);
    Descriptor f(view(d.tensor(), dtype::bf16(), {4, 1, 40}, {64, 7, 1}, 64));
    std::cout << "encoded " << encoded.calls << "\n";
    show("of another:", f, at);
    std::cout << "encoded " << encoded.calls << "\n";
    d.reset();
  }
  rules("fine", empty(dtype::f32(), {8, 8}, {8, 1}, cpu()));
  rules("rows of 12 bytes", empty(dtype::f32(), {8, 3}, {4, 1}, cpu()));
  rules("strides of 12 bytes", empty(dtype::f32(), {8, 3}, {3, 1}, cpu()));
  rules("one row", empty(dtype::f32(), {1, 4}, {3, 1}, cpu()));
  rules("columns", empty(dtype::f32(), {8, 8}, {1, 8}, cpu()));
  rules("one column", empty(dtype::f32(), {8, 1}, {4, 9}, cpu()));
  rules("repeated", empty(dtype::f32(), {8, 8}, {0, 1}, cpu()));
  rules("nothing", empty(dtype::f32(), {0, 8}, {8, 1}, cpu()));
  rules("address", view(empty(dtype::f32(), {64}, {1}, cpu()), dtype::f32(), {4, 4}, {4, 1}, 1));
  try {
    Tensor scalar = empty(dtype::f32(), {}, {}, cpu());
    Descriptor d(scalar);
  } catch (const std::exception& e) {
    std::cout << e.what() << "\n";
  }
}
