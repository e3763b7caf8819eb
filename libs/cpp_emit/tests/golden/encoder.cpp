// program encoder(ids: i64[s0, 32] cuda:0, mask: bool[s0, 1, 32, 32] cuda:0, emb: f32[100, 64] cuda:0, b_up: f32[128] cuda:0)

#include "cpp_emit/runtime.h"
#include "cpp_emit/expr.h"
#include "cpp_emit/cuda.h"
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>

namespace cpp_emit {

const int64_t num_constants = 6;
const char* const fingerprint = "687bbef4a5aad5fc";

static const KernelInfo kernel_table[] = {
    {"embed", nullptr, 0},  // (ids: *i64, emb: *f32, out: *f32, n: i32)
    {"add_norm", nullptr, 0},  // (a: *f32, b: *f32, w: *f32, out: *f32, eps: f32)
    {"gelu", nullptr, 0},  // (x: *f32, n: i32)
    {nullptr, nullptr, 0},
};
std::shared_ptr<Kernels> new_kernels() {
  return std::make_shared<Kernels>(kernel_table, 3);
}

void run(Instance& self, Arguments& in, Results& out) {
  check_arguments(in, "encoder", 4, 0);
  Tensor& ids = in.tensors[0];
  check_kind(ids, "encoder: parameter ids", dtype::i64(), 2, cuda(0));
  Tensor& mask = in.tensors[1];
  check_kind(mask, "encoder: parameter mask", dtype::bool_(), 4, cuda(0));
  Tensor& emb = in.tensors[2];
  check_kind(emb, "encoder: parameter emb", dtype::f32(), 2, cuda(0));
  Tensor& b_up = in.tensors[3];
  check_kind(b_up, "encoder: parameter b_up", dtype::f32(), 1, cuda(0));
  const int64_t s0 = ids.sizes()[0];
  check_range(s0, "encoder: symbol s0", 1, 64);
  check_layout(ids, "encoder: parameter ids", {s0, 32}, {32, 1});
  check_layout(mask, "encoder: parameter mask", {s0, 1, 32, 32}, {1024, 1024, 32, 1});
  check_layout(emb, "encoder: parameter emb", {100, 64}, {64, 1});
  check_layout(b_up, "encoder: parameter b_up", {128}, {1});
  CudaScope stream(0);
  Tensor& w_qkv = self.constants[0];
  check_kind(w_qkv, "encoder: constant layers.0.qkv.weight", dtype::f32(), 2, cuda(0));
  check_layout(w_qkv, "encoder: constant layers.0.qkv.weight", {192, 64}, {64, 1});
  Tensor& b_qkv = self.constants[1];
  check_kind(b_qkv, "encoder: constant layers.0.qkv.bias", dtype::f32(), 1, cuda(0));
  check_layout(b_qkv, "encoder: constant layers.0.qkv.bias", {192}, {1});
  Tensor& w_out = self.constants[2];
  check_kind(w_out, "encoder: constant layers.0.out.weight", dtype::f32(), 2, cuda(0));
  check_layout(w_out, "encoder: constant layers.0.out.weight", {64, 64}, {64, 1});
  Tensor& w_up = self.constants[3];
  check_kind(w_up, "encoder: constant layers.0.up.weight", dtype::f32(), 2, cuda(0));
  check_layout(w_up, "encoder: constant layers.0.up.weight", {64, 128}, {128, 1});
  Tensor& w_down = self.constants[4];
  check_kind(w_down, "encoder: constant layers.0.down.weight", dtype::f32(), 2, cuda(0));
  check_layout(w_down, "encoder: constant layers.0.down.weight", {64, 128}, {128, 1});
  Tensor& norm = self.constants[5];
  check_kind(norm, "encoder: constant layers.0.norm.weight", dtype::f32(), 1, cuda(0));
  check_layout(norm, "encoder: constant layers.0.norm.weight", {64}, {1});
  // embeddings
  Tensor h = empty(dtype::f32(), {s0, 32, 64}, {2048, 64, 1}, cuda(0));
  // aten.embedding encoder.py:30
  launch(
      self, stream, 0, {s0*2, 1, 1}, "launch embed", pointer(ids), pointer(emb), pointer(h),
      narrow<int32_t>(s0*2048, "embed.n"));
  // layer 0
  // encoder.py:35
  auto qkv_results = call<3>(
      "aten::linear", "", "qkv = extern aten.linear.default", {{tensor(h), tensor(w_qkv),
      some(tensor(b_qkv))}});
  Tensor qkv = take_tensor(qkv_results[0]);
  conform(
      qkv, "aten.linear.default: result qkv", dtype::f32(), {s0, 32, 192}, {6144, 192, 1}, cuda(0));
  qkv.origin_from_offset(0);
  Tensor q = view(qkv, dtype::f32(), {s0, 4, 32, 16}, {6144, 16, 192, 1}, 0);
  Tensor k = view(qkv, dtype::f32(), {s0, 4, 32, 16}, {6144, 16, 192, 1}, 64);
  Tensor v = view(qkv, dtype::f32(), {s0, 4, 32, 16}, {6144, 16, 192, 1}, 128);
  auto a_results = call<8>(
      "aten::scaled_dot_product_attention", "",
      "a = extern aten.scaled_dot_product_attention.default", {{tensor(q), tensor(k), tensor(v),
      some(tensor(mask)), real(0.0), boolean(false), some(real(0.25)), boolean(false)}});
  Tensor a = take_tensor(a_results[0]);
  conform(
      a, "aten.scaled_dot_product_attention.default: result a", dtype::f32(), {s0, 4, 32, 16},
      {2048, 16, 64, 1}, cuda(0));
  a.origin_from_offset(0);
  qkv.reset(); q.reset(); k.reset(); v.reset();
  Tensor m = view(a, dtype::f32(), {s0, 32, 64}, {2048, 64, 1}, 0);
  auto o_results = call<3>(
      "aten::linear", "", "o = extern aten.linear.default", {{tensor(m), tensor(w_out), none()}});
  Tensor o = take_tensor(o_results[0]);
  conform(o, "aten.linear.default: result o", dtype::f32(), {s0, 32, 64}, {2048, 64, 1}, cuda(0));
  Tensor x = reuse(a, dtype::f32(), {s0, 32, 64}, {2048, 64, 1}, 0);
  m.reset();
  // aten.native_layer_norm encoder.py:41
  launch(
      self, stream, 1, {s0*32, 1, 1}, "launch add_norm", pointer(h), pointer(o), pointer(norm),
      pointer(x), float(1e-05));
  Tensor rows = view(x, dtype::f32(), {s0*32, 64}, {64, 1}, 0);
  // encoder.py:43
  Tensor u = empty(dtype::f32(), {s0*32, 128}, {128, 1}, cuda(0));
  shim("u = extern aten.addmm.default", TORCH_CUDA(aoti_torch_cuda_addmm_out)(
      u.get(), b_up.get(), rows.get(), w_up.get(), 1.0, 1.0));
  if (s0 > 4) {
    // aten.gelu encoder.py:44
    launch(
        self, stream, 2, {s0*4, 1, 1}, "launch gelu", pointer(u),
        narrow<int32_t>(s0*4096, "gelu.n"));
  } else {
    launch(
        self, stream, 2, {s0*4, 1, 1}, "launch gelu", pointer(u),
        narrow<int32_t>(s0*4096, "gelu.n"));
  }
  auto d_results = call<3>(
      "aten::linear", "", "d = extern aten.linear.default", {{tensor(u), tensor(w_down), none()}});
  Tensor d = take_tensor(d_results[0]);
  conform(d, "aten.linear.default: result d", dtype::f32(), {s0*32, 64}, {64, 1}, cuda(0));
  d.origin_from_offset(0);
  u.reset();
  Tensor d3 = view(d, dtype::f32(), {s0, 32, 64}, {2048, 64, 1}, 0);
  // aten.native_layer_norm encoder.py:46
  launch(
      self, stream, 1, {s0*32, 1, 1}, "launch add_norm", pointer(x), pointer(d3), pointer(norm),
      pointer(h), float(1e-05));
  x.reset(); rows.reset();
  d.reset(); d3.reset();
  out.push(h);
  out.push(int64_t(s0));
}

}  // namespace cpp_emit
