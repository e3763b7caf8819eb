"""Emitted modules on a GPU: compiled kernels by both launches, and the memory they hold."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from fx_emit import TorchRuntime, emit
from wrapper_ir import interpret, parse_program
from wrapper_ir.memory import peak_bytes
from wrapper_ir.passes import InsertFrees, PlanMemory, run_passes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TEXT = """program layer(x: bf16[s0, 256] cuda:0, w: bf16[256, 256] cuda:0):
  where s0 in [128, 8192] hint 1024
  symbol s0 = x.size(0)
  kernel square(x: *bf16, out: *bf16 mutated, n: i32) constants (B=1024) warps 4 stages 1:
    import triton
    import triton.language as tl


    @triton.jit
    def square(x, out, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        v = tl.load(x + i, mask=i < n).to(tl.float32)
        tl.store(out + i, v * v, mask=i < n)
  end
  a = extern aten.mm.default(x, w) -> bf16[s0, 256] cuda:0
  b = alloc bf16[s0, 256] cuda:0
  launch square grid (CeilDiv(s0*256, 1024), 1, 1) (a, b, s0*256)
  t = view b bf16[256, s0] cuda:0 stride (1, 256)
  c = extern aten.mm.default(t, b) -> bf16[256, 256] cuda:0
  d = alloc bf16[s0, 256] cuda:0
  launch square grid (CeilDiv(s0*256, 1024), 1, 1) (x, d, s0*256)
  e = alloc f32[s0, 128] cuda:0
  extern aten.fill_.Scalar(e, 2.0) mutates (e,)
  if s0 > 2000:
    launch square grid (64, 1, 1) (c, c, 65536)
  copy d -> x
  return (c, e)
"""


@pytest.fixture
def load_jit(tmp_path):
    def load(kernel):
        path = tmp_path / f"{kernel.name}.py"
        path.write_text(kernel.source)
        spec = importlib.util.spec_from_file_location(kernel.name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, kernel.name)

    return load


@pytest.fixture
def load_launcher(load_jit):
    def load(kernel):
        function = load_jit(kernel)
        options = dict(kernel.constants) | {"num_warps": kernel.num_warps}
        return lambda grid, *args: function[grid](*args, **options)

    return load


@pytest.mark.parametrize("launch", ["hop", "direct"])
@pytest.mark.parametrize("rows", [129, 1024, 4000])
def test_same_as_the_interpreter(launch, rows, load_jit, load_launcher):
    program = parse_program(TEXT)
    planned = run_passes(program, [InsertFrees(), PlanMemory()])
    x = torch.randn(rows, 256, device="cuda").bfloat16()
    w = torch.randn(256, 256, device="cuda").bfloat16() / 16
    reference = x.clone()
    expected = interpret(program, [reference, w], TorchRuntime(load_launcher))
    gm = emit(planned, launch, load_kernel=load_jit if launch == "hop" else load_launcher)
    for _ in range(2):
        actual = x.clone()
        out = gm(actual, w)
        for a, b in zip((*expected, reference), (*out, actual), strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=0)


@pytest.mark.parametrize("launch", ["hop", "direct"])
def test_peak_memory_is_what_the_program_says(launch, load_jit, load_launcher):
    program = parse_program(TEXT)
    planned = run_passes(program, [InsertFrees(), PlanMemory()])
    x = torch.randn(4096, 256, device="cuda").bfloat16()
    w = torch.randn(256, 256, device="cuda").bfloat16()
    load = load_jit if launch == "hop" else load_launcher
    for variant in (run_passes(program, [InsertFrees()]), planned):
        gm = emit(variant, launch, load_kernel=load)
        gm(x, w)
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = gm(x, w)
        held = torch.cuda.max_memory_allocated() - base
        assert held == peak_bytes(variant, {"s0": 4096})
        del out
        assert torch.cuda.memory_allocated() == base
