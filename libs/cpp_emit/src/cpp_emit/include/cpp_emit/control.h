// Calls of subgraphs as data says: `wrapper_ir.control.run_control` for tensors of torch.
#pragma once

#include "cpp_emit/runtime.h"

namespace cpp_emit {

bool truth(const Tensor& predicate) {
  bool value = false;
  ok(aoti_torch_item_bool(predicate.get(), &value), "aoti_torch_item_bool");
  return value;
}

static std::vector<Tensor> shared(Tensors tensors) {
  std::vector<Tensor> out;
  for (const Tensor* t : tensors) out.emplace_back(t->share());
  return out;
}

static Results called(Instance& self, Subgraph body, const std::vector<Tensor>& first,
                      const std::vector<Tensor>& rest, Ints ints) {
  Arguments in;
  for (const auto* part : {&first, &rest})
    for (const Tensor& t : *part) in.tensors.emplace_back(t.share());
  in.ints = ints;
  Results out;
  body(self, in, out);
  return out;
}

std::vector<Tensor> call_subgraph(Instance& self, Subgraph body, Tensors tensors, Ints ints) {
  return called(self, body, shared(tensors), {}, ints).tensors;
}

// One step of the first dimension.
static Tensor step(const Tensor& whole, int64_t i) {
  AtenTensorHandle out = nullptr;
  ok(aoti_torch__reinterpret_tensor(whole.get(), whole.rank() - 1, whole.sizes() + 1,
                                    whole.strides() + 1, i * whole.strides()[0], &out),
     "aoti_torch__reinterpret_tensor");
  return Tensor(out);
}

// Memory for `count` tensors like `one`, along a new first dimension.
static Tensor room(const Tensor& one, int64_t count) {
  const int64_t rank = one.rank();
  std::vector<int64_t> sizes{count}, strides(rank + 1, 1);
  sizes.insert(sizes.end(), one.sizes(), one.sizes() + rank);
  for (int64_t d = rank; d > 0; --d)
    strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  const Device at = one.device();
  AtenTensorHandle out = nullptr;
  ok(aoti_torch_empty_strided(rank + 1, sizes.data(), strides.data(), one.dtype(), at.type, at.index,
                              &out),
     "aoti_torch_empty_strided");
  return Tensor(out);
}

static std::vector<Tensor> rooms(const std::vector<Tensor>& like, int64_t count) {
  std::vector<Tensor> out;
  for (const Tensor& t : like) out.push_back(room(t, count));
  return out;
}

static void put(const std::vector<Tensor>& parts, const std::vector<Tensor>& stacks, int64_t i) {
  for (size_t n = 0; n < parts.size(); ++n) copy(parts[n], step(stacks[n], i));
}

// What begins at `place`, which `all` has no more.
static std::vector<Tensor> split_off(std::vector<Tensor>& all, size_t place) {
  std::vector<Tensor> tail;
  for (size_t n = place; n < all.size(); ++n) tail.push_back(std::move(all[n]));
  all.resize(std::min(place, all.size()));
  return tail;
}

// The same in memory of their own.
static std::vector<Tensor> cloned(const std::vector<Tensor>& given) {
  std::vector<Tensor> wholes = rooms(given, 1), out;
  put(given, wholes, 0);
  for (const Tensor& whole : wholes) out.push_back(step(whole, 0));
  return out;
}

std::vector<Tensor> repeat(Instance& self, Subgraph more, Subgraph body, size_t carries, bool trace,
                           Tensors tensors, Ints ints) {
  std::vector<Tensor> given = shared(tensors);
  const std::vector<Tensor> rest = split_off(given, carries);
  std::vector<std::vector<Tensor>> seen;
  const std::vector<Tensor>* carried = &given;
  while (true) {
    const Results test = called(self, more, *carried, rest, ints);
    if (!(test.tensors.empty() ? test.ints.at(0) != 0 : truth(test.tensors[0]))) break;
    std::vector<Tensor> next = called(self, body, *carried, rest, ints).tensors;
    if (!trace) seen.clear();
    seen.push_back(std::move(next));
    carried = &seen.back();
  }
  if (trace) {
    std::vector<Tensor> stacks = rooms(given, static_cast<int64_t>(seen.size()));
    for (size_t i = 0; i < seen.size(); ++i) put(seen[i], stacks, static_cast<int64_t>(i));
    return stacks;
  }
  // Where nothing ran, these belong to the caller.
  return seen.empty() ? cloned(given) : std::move(seen.back());
}

std::vector<Tensor> scan(Instance& self, Subgraph body, size_t carries, size_t over, Tensors tensors,
                         Ints ints) {
  std::vector<Tensor> carried = shared(tensors), walked = split_off(carried, carries), stacks;
  const std::vector<Tensor> rest = split_off(walked, over);
  const int64_t count = walked.at(0).sizes()[0];
  for (int64_t i = 0; i < count; ++i) {
    std::vector<Tensor> taken;
    for (const Tensor& t : carried) taken.emplace_back(t.share());
    for (const Tensor& t : walked) taken.push_back(step(t, i));
    carried = called(self, body, taken, rest, ints).tensors;
    const std::vector<Tensor> parts = split_off(carried, carries);
    if (i == 0) stacks = rooms(parts, count);
    put(parts, stacks, i);
  }
  if (count == 0) carried = cloned(carried);
  for (Tensor& stack : stacks) carried.push_back(std::move(stack));
  return carried;
}

}  // namespace cpp_emit
