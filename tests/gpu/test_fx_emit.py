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


CONVOLUTION = """program p(x: {0}[3, 16, 9, 9] cuda:0{1}, w: {0}[8, 16, 3, 3] cuda:0):
  y = extern aten.convolution.default(x, w, None, (2, 1), (1, 0), (1, 1), False, (0, 0), 1) -> {0}[3, 8, 5, 7] cuda:0{2}
  return (y,)
"""  # noqa: E501  # a line of a program


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("last", [False, True])
def test_convolutions_of_cudnn_are_torchs(dtype, last):
    """Bit for bit, in the layout that is declared, by the switches that hold at the call."""
    strides = (" stride (1296, 1, 144, 16)", " stride (280, 1, 56, 8)") if last else ("", "")
    program = parse_program(CONVOLUTION.format(dtype, *strides))
    run = emit(program, "direct", load_kernel=None, values=False)
    assert "cudnn_convolution" in run.code
    kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
    format = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(3, 16, 9, 9, device="cuda", dtype=kind).to(memory_format=format)
    w = torch.randn(8, 16, 3, 3, device="cuda", dtype=kind)
    rest = None, (2, 1), (1, 0), (1, 1), False, (0, 0), 1
    with torch.no_grad():
        for switches in ({}, {"deterministic": True, "allow_tf32": False}):
            with torch.backends.cudnn.flags(enabled=True, **switches):
                (y,) = run(x, w)
                wanted = torch.convolution(x, w, *rest)
                assert torch.equal(y, wanted) and y.stride() == wanted.stride()
