# ruff: noqa: E501 (lines of programs)
"""C++ programs on a GPU: cubins launched by the driver, operators by the dispatcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cpp_emit
from wrapper_ir import DefineKernel, parse_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

PROGRAM = """\
program mlp(x: bf16[s0, 64] cuda:0, w: bf16[64, 64] cuda:0, bias: bf16[64] cuda:0):
  where s0 in [1, 4096] hint 32
  symbol s0 = x.size(0)
  kernel relu_add(a: *bf16 mutated aligned, b: *bf16 aligned, n: i32, shift: f32) constants (BLOCK=256) warps 4 stages 3:
    import triton
    import triton.language as tl


    @triton.jit
    def relu_add(a, b, n, shift, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        m = i < n
        v = tl.load(a + i, m).to(tl.float32) + tl.load(b + i, m).to(tl.float32) + shift
        tl.store(a + i, tl.maximum(v, 0.0), m)
  end
  kernel square(a: *bf16, w: *bf16, out: *bf16 mutated) warps 4 stages 4:
    import triton
    import triton.language as tl


    @triton.jit
    def square(a, w, out):
        # 192 KiB of operands at once: more dynamic shared memory than a kernel gets unasked.
        i, k, j = tl.arange(0, 128), tl.arange(0, 256), tl.arange(0, 256)
        left = tl.load(a + i[:, None] * 0 + k[None, :] % 64)
        right = tl.load(w + (k[:, None] % 64) * 64 + j[None, :] % 64)
        v = tl.dot(left, right)
        tl.store(out + i[:, None] * 256 + j[None, :], v.to(tl.bfloat16))
  end
  b0 = extern aten.addmm.default(bias, x, w) -> bf16[s0, 64] cuda:0
  launch relu_add grid (CeilDiv(s0*64, 256), 1, 1) (b0, x, s0*64, 0.5)
  b1 = extern aten.mm.default(b0, w) -> bf16[s0, 64] cuda:0
  big = alloc bf16[128, 256] cuda:0
  launch square grid (1, 1, 1) (b0, w, big)
  free b0
  return (b1, big)
"""


def _expected(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    b0 = torch.addmm(bias, x, w)
    b0 = (b0.float() + x.float() + 0.5).relu().bfloat16()
    left = b0[0].repeat(4).expand(128, 256)
    return b0 @ w, left.float() @ w.float().repeat(4, 4)


def _check(run: Any, rows: int, offset: int = 0) -> None:
    x = torch.randn(rows * 64 + offset, device="cuda", dtype=torch.bfloat16)[offset:].view(-1, 64)
    w = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) / 8
    bias = torch.randn(64, device="cuda", dtype=torch.bfloat16)
    got, big = run(x, w, bias)
    expected, square = _expected(x, w, bias)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(big.float(), square, rtol=2e-2, atol=2e-2)


def _compile(kernel: DefineKernel, alignment: int, tma: bool = True) -> Any:
    triton_rt = pytest.importorskip("triton_rt")
    params = tuple(
        triton_rt.KernelParam(p.name, p.kind, p.mutated, p.aligned) for p in kernel.params
    )
    source = triton_rt.KernelSource(
        kernel.name, kernel.source, params, kernel.constants, kernel.num_warps, kernel.num_stages,
        kernel.num_ctas, tma,
    )  # fmt: skip
    return triton_rt.compile(source, triton_rt.Target.current(), alignment=alignment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cpp")


@pytest.fixture(scope="module")
def aot(folder: Path) -> Iterator[Any]:
    program = parse_program(PROGRAM)
    kernels = {op.name: op for op in program.ops if isinstance(op, DefineKernel)}
    binaries = {
        "relu_add": [_compile(kernels["relu_add"], 0b11), _compile(kernels["relu_add"], 0)],
        "square": _compile(kernels["square"], 0),
    }
    assert binaries["square"].shared_bytes > 48 * 1024
    text = cpp_emit.emit(program, "aot", schemas=cpp_emit.torch_schema, binaries=binaries)
    assert "call_python" not in text
    yield cpp_emit.load(cpp_emit.build(text, folder, "aot"), program)


@pytest.mark.parametrize("rows", [1, 2, 37, 4096])
def test_aot_with_a_dynamic_batch(aot: Any, rows: int) -> None:
    _check(aot, rows)


def test_a_pointer_that_is_not_aligned_gets_other_code(aot: Any) -> None:
    _check(aot, 5, offset=1)


def test_another_stream_and_a_graph(aot: Any) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        _check(aot, 37)
    x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16)
    w = torch.eye(64, device="cuda", dtype=torch.bfloat16)
    bias = torch.zeros(64, device="cuda", dtype=torch.bfloat16)
    aot(x, w, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got, _ = aot(x, w, bias)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(got, _expected(x, w, bias)[0])


def test_wrong_device_is_named(aot: Any) -> None:
    x = torch.zeros(3, 64, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="parameter x: expected bf16 of rank 2 on cuda:0, got"):
        aot(x, x, x)


def test_lazy_asks_once_for_each_kernel_and_alignment(folder: Path) -> None:
    program = parse_program(PROGRAM)
    asked: list[tuple[str, int]] = []

    def compile(
        kernel: DefineKernel, alignment: int, grid: tuple[int, int, int], args: tuple[Any, ...]
    ) -> Any:
        asked.append((kernel.name, alignment))
        if kernel.name == "relu_add":
            assert args[2] == grid[0] * 256 or args[2] < grid[0] * 256
            assert args[3] == 0.5 and args[0].shape[1] == 64
        return _compile(kernel, alignment)

    text = cpp_emit.emit(program, "lazy", schemas=cpp_emit.torch_schema)
    run = cpp_emit.load(
        cpp_emit.build(text, folder, "lazy"), program, cpp_emit.Callbacks(compile=compile)
    )
    for _ in range(3):
        _check(run, 4)
    assert asked == [("relu_add", 0b111), ("square", 0b111)]
    _check(run, 4, offset=1)
    assert asked[2:] == [("relu_add", 0b101)]


def test_an_error_of_the_compiler_comes_out_as_it_was(folder: Path) -> None:
    program = parse_program(PROGRAM)
    text = cpp_emit.emit(program, "lazy", schemas=cpp_emit.torch_schema)
    run = cpp_emit.load(cpp_emit.build(text, folder, "lazy"), program)
    with pytest.raises(cpp_emit.CppEmitError, match="kernel relu_add has no code yet"):
        _check(run, 4)


BLOCKS = """\
program blocks(x: f32[s0, 64] cuda:0):
  where s0 in [1, 4096] hint 32
  symbol s0 = x.size(0)
  kernel double(t: tensordesc<f32[16,32]>, u: tensordesc<f32[16,32]> mutated, scale: f32) warps 4 stages 3 ctas 2:
    import triton
    import triton.language as tl


    @triton.jit
    def double(t, u, scale):
        at = [tl.program_id(0) * 16, tl.program_id(1) * 32]
        u.store(at, t.load(at) * scale)
  end
  b = alloc f32[s0, 64] cuda:0
  d = describe x block (16, 32)
  e = describe b block (16, 32)
  launch double grid (CeilDiv(s0, 16), 2, 1) (d, e, 2.0)
  launch double grid (CeilDiv(s0, 16), 2, 1) (e, e, 3.0)
  return (b,)
"""


def test_aot_descriptors_and_clusters(folder: Path) -> None:
    """One cubin with TMA, for clusters, and one without TMA for what breaks its rules."""
    program = parse_program(BLOCKS)
    (kernel,) = [op for op in program.ops if isinstance(op, DefineKernel)]
    binaries = {"double": [_compile(kernel, 0), _compile(kernel, 0, tma=False)]}
    assert len(binaries["double"][0].tensor_maps) == 2 and not binaries["double"][1].tensor_maps
    text = cpp_emit.emit(program, "aot", schemas=cpp_emit.torch_schema, binaries=binaries)
    run = cpp_emit.load(cpp_emit.build(text, folder, "blocks"), program)
    for rows in (1, 40, 4096):
        for offset in (0, 1):
            x = torch.randn(rows * 64 + offset, device="cuda")[offset:].view(-1, 64)
            torch.testing.assert_close(run(x)[0], x * 6)
