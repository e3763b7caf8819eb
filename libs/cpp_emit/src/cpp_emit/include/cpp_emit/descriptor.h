// Tensor descriptors: what a kernel takes to copy blocks of a tensor through the TMA unit.
#pragma once

#include <algorithm>

#include "cpp_emit/driver.h"
#include "cpp_emit/tma_rules.h"

namespace cpp_emit {

// How a compiled kernel wants a tensor map; numbers of cuda.h. `box`: what one copy moves, in
// elements, the inner dimension last.
struct MapLayout {
  int32_t swizzle, data_type, element_bytes, fp4, rank;
  uint32_t box[5];
  bool operator==(const MapLayout& other) const {
    return std::memcmp(this, &other, sizeof other) == 0;
  }
};

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// A tensor map and what it was made of: address, sizes and strides of a tensor, and a layout. One
// that comes where such a tensor lay in a call before takes it.
struct KeptMap {
  MapLayout layout;
  int64_t words[1 + 2 * TMA_MAX_RANK];
  std::shared_ptr<TensorMap> map;

  // Where it is kept, or is to be: in a table of fixed size, in which the newest stays.
  KeptMap& place() const {
    thread_local std::vector<KeptMap> table(1024);
    uint64_t hash = static_cast<uint64_t>(layout.swizzle + (words[0] >> 4));
    for (const int64_t word : words) hash = hash * 31 + static_cast<uint64_t>(word);
    for (const uint32_t size : layout.box) hash = hash * 31 + size;
    return table[(hash ^ hash >> 16 ^ hash >> 32) % table.size()];
  }
  bool operator==(const KeptMap& other) const {
    return layout == other.layout && std::memcmp(words, other.words, sizeof words) == 0;
  }
};

// A tensor, kept alive, as kernels take it by blocks. Triton's kernels take several parameters for
// one descriptor:
//   with TMA     CUtensorMap by value, sizes (i32), strides (i64)
//   without      address, sizes (i64), strides (i64), padding is NaN (i1), sizes (i32), strides (i64)
class Descriptor {
 public:
  explicit Descriptor(const Tensor& tensor) : tensor_(tensor.share()), rank_(tensor.rank()) {
    if (rank_ < 1 || rank_ > max_rank) fail("a descriptor of a tensor of rank ", rank_);
    std::copy_n(tensor.sizes(), rank_, sizes());
    std::copy_n(tensor.strides(), rank_, strides());
    words_[0] = reinterpret_cast<int64_t>(tensor.data());
    words_[1 + 2 * rank_] = 0;  // zeros outside of the tensor
    std::copy_n(sizes(), 2 * rank_, fields());
    element_bytes_ = static_cast<int64_t>(aoti_torch_dtype_element_size(tensor.dtype()));
  }
  void reset() {
    tensor_.reset();
    maps_.clear();
  }
  const Tensor& tensor() const { return tensor_; }

  // Whether the TMA unit takes this tensor, and a kernel that writes may store through its map.
  bool keeps_rules(bool written) const {
    return tma_keeps_rules(static_cast<uint64_t>(words_[0]), rank_, sizes(), strides(),
                           element_bytes_, written);
  }

  // Pointers to the parameters of a kernel; `layout` is null where it was compiled without TMA.
  void put(void**& at, const MapLayout* layout, const char* where) {
    if (layout != nullptr) {
      *at++ = map(*layout, where);
    } else {
      for (int64_t i = 0; i < 2 + 2 * rank_; ++i) *at++ = words_ + i;
    }
    for (int64_t i = 0; i < 2 * rank_; ++i) *at++ = fields() + i;
  }

  static constexpr int64_t max_rank = TMA_MAX_RANK;
  static constexpr size_t max_params = 2 + 4 * max_rank;

 private:
  int64_t* sizes() { return words_ + 1; }
  const int64_t* sizes() const { return words_ + 1; }
  int64_t* strides() { return words_ + 1 + rank_; }
  const int64_t* strides() const { return words_ + 1 + rank_; }
  int64_t* fields() { return words_ + 2 + 2 * rank_; }

  TensorMap* map(const MapLayout& layout, const char* where) {
    KeptMap made{layout, {}, nullptr};
    std::copy_n(words_, 1 + 2 * rank_, made.words);
    KeptMap& kept = made.place();
    if (!(kept.map && kept == made)) {
      made.map = std::make_shared<TensorMap>();
      encode(*made.map, layout, where);
      kept = made;
    }
    maps_.push_back(kept.map);  // until the launch
    return maps_.back().get();
  }

  void encode(TensorMap& out, const MapLayout& layout, const char* where) {
    const TmaArguments to =
        tma_arguments(rank_, sizes(), strides(), layout.box, layout.element_bytes, layout.fp4);
    constexpr int fill_zero = 0;
    driver().check(
        encode_tiled()(&out, layout.data_type, static_cast<uint32_t>(rank_),
                       reinterpret_cast<void*>(words_[0]), to.sizes, to.strides, to.box, to.steps,
                       TMA_NO_INTERLEAVE, layout.swizzle, TMA_PROMOTE_128_BYTES, fill_zero),
        "cuTensorMapEncodeTiled", where);
  }

  Tensor tensor_;
  int64_t rank_;
  int64_t element_bytes_;
  int64_t words_[max_params] = {};
  std::vector<std::shared_ptr<TensorMap>> maps_;
};

// A descriptor as the argument of a launch.
struct Described {
  Descriptor* descriptor;
  bool is_written;
};
inline Described reads(Descriptor& d) { return {&d, false}; }
inline Described writes(Descriptor& d) { return {&d, true}; }

}  // namespace cpp_emit
