"""The user's own Triton kernels in a compiled model, on a GPU: against the kernels run eagerly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime._allocation import NullAllocator
from triton.tools.tensor_descriptor import TensorDescriptor

import tuning
from wrapper_ir import CopyBack, DefineKernel, Describe, ExternCall, Launch

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

EMITS = ("fx", "hop", "cpp")


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


DT = tl.float32


def kernel_in_a_function() -> Any:
    """Not importable, and a text cannot carry its global."""

    @triton.jit
    def add_as(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + i, i < n).to(DT) + tl.load(y + i, i < n).to(DT)
        tl.store(out + i, v, i < n)

    return add_as


add_as = kernel_in_a_function()


@triton.jit
def accumulate(x, y, n, by, SQUARE: tl.constexpr, BLOCK: tl.constexpr):
    """`x += y * by`, in place."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(y + i, i < n) * by
    if SQUARE:
        v = v * v
    tl.store(x + i, tl.load(x + i, i < n) + v, i < n)


add_tuned = triton.autotune(
    [
        triton.Config({"BLOCK": 16}, num_warps=1),
        triton.Config({"BLOCK": 1024}),
        triton.Config({"BLOCK": 4096}, num_warps=8),
    ],
    key=["n"],
)(add_kernel)
accumulate_tuned = triton.autotune(
    [triton.Config({"BLOCK": b}) for b in (64, 1024)], key=["n"], restore_value=["x"]
)(accumulate)


@triton.jit
def gather(x, index, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(index + i, i < n)
    tl.store(out + i, tl.load(x + at, i < n), i < n)


gather_tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 256)], key=[])(gather)


@triton.heuristics({"EVEN": lambda a: a["n"] % 128 == 0})
@triton.jit
def double(x, out, n, EVEN: tl.constexpr):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    if EVEN:
        tl.store(out + i, tl.load(x + i) * 2)
    else:
        tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)


@triton.jit
def host_descriptors(a, b, out, M: tl.constexpr, N: tl.constexpr):
    """`out = a + b`, 2-D blocks through descriptors made on the host."""
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    out.store(at, a.load(at) + b.load(at))


@triton.jit
def device_descriptors(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    """`out = 2 x` through descriptors made in the kernel."""
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    target.store(at, source.load(at) * 2)


@triton.jit
def matmul_descriptors(a, b, out, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """`out = a @ b.T`, blocks of all three through descriptors made on the host."""
    m, n = tl.program_id(0) * M, tl.program_id(1) * N
    acc = tl.zeros((M, N), tl.float32)
    for i in range(0, k, K):
        acc = tl.dot(a.load([m, i]), b.load([n, i]).T, acc)
    out.store([m, n], acc.to(tl.bfloat16))


matmul_tuned = triton.autotune(
    [triton.Config({}, num_warps=w, num_stages=s) for w, s in ((4, 2), (8, 3))], key=["k"]
)(matmul_descriptors)


@triton.jit
def add_1d_and_3d(x, y, out, N: tl.constexpr):
    """`out[i, 0, :] = x + y[i, 0, :]`, 1-D and 3-D blocks."""
    i = tl.program_id(0)
    out.store([i, 0, 0], y.load([i, 0, 0]) + tl.reshape(x.load([0]), (1, 1, N)))


@triton.jit
def accumulate_blocks(x, y, M: tl.constexpr, N: tl.constexpr):
    """`x += y`, in place."""
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    x.store(at, x.load(at) + y.load(at))


add_clustered = triton.autotune(
    [
        triton.Config({"BLOCK": 256}, num_ctas=2, maxnreg=32),
        triton.Config({"BLOCK": 512}, num_ctas=4, maxnreg=32),
    ],
    key=[],
)(add_kernel)


def cuda(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*size, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_model_around_kernels(compiled: Any, dynamic: bool) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = x.sin() * 2
        out = torch.empty_like(z)
        n = z.numel()
        add_kernel[(triton.cdiv(n, 256),)](z, y, out, n, BLOCK=256)
        accumulate[lambda m: (triton.cdiv(n, m["BLOCK"]),)](out, y, n, 0.5, True, BLOCK=128)
        return out.relu() * 2 + y

    run = compiled(fn, dynamic=dynamic)
    for n in (1000, 4096, 100):
        x, y = cuda(n), cuda(n)
        torch.testing.assert_close(run(x, y), fn(x, y))
    assert len(compiled.ops(Launch)) == 4 and not compiled.ops(ExternCall)


def test_configs_are_measured(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        add_tuned[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, y, out, n)
        return out + 1

    x, y = cuda(1 << 20), cuda(1 << 20)
    torch.testing.assert_close(compiled(fn)(x, y), x + y + 1)
    (launch,) = [op for op in compiled.ops(Launch) if op.kernel.startswith("add_kernel")]
    assert not launch.kernel.endswith("config0")  # one warp for 16 elements is no choice
    assert not compiled.graphs[-1].fallbacks


def test_tuning_leaves_arguments_alone(fx: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        n = x.numel()
        accumulate_tuned[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, y, n, 2.0, SQUARE=False)
        return x.sum()

    x, y = cuda(10_000), cuda(10_000)
    want = x + 2 * y
    torch.testing.assert_close(fx(fn)(x, y), want.sum())
    torch.testing.assert_close(x, want)
    assert not fx.ops(CopyBack)


def test_integers_are_tuned_apart(fx: Any) -> None:
    """What is read through an index is measured in a worker process."""

    def fn(x: Tensor, index: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = index.numel()
        gather_tuned[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, index, out, n)
        return out

    x, index = cuda(1000), torch.randperm(1000, device="cuda")
    torch.testing.assert_close(fx(fn)(x, index), x[index])
    assert not fx.graphs[-1].fallbacks


@pytest.mark.parametrize("n", [1000, 1024])
def test_heuristics(compiled: Any, n: int) -> None:
    def fn(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 128),)](x, out, x.numel())
        return out

    x = cuda(n)
    torch.testing.assert_close(compiled(fn)(x), x * 2)
    assert not compiled.ops(ExternCall)


def test_unaligned_views(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        accumulate[(4,)](z[3:], y, 997, 1.0, False, BLOCK=256)
        return z

    x, y = cuda(1000), cuda(1000)
    want = x * 2
    want[3:] += y[:997]
    torch.testing.assert_close(compiled(fn)(x, y), want)


def described(*tensors: Tensor, block: list[int]) -> list[Any]:
    return [TensorDescriptor.from_tensor(t, block) for t in tensors]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_host_descriptors(compiled: Any, dynamic: bool) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        out = torch.empty_like(z)
        a, b, c = described(z, y, out, block=[32, 64])
        grid = (triton.cdiv(x.shape[0], 32), triton.cdiv(x.shape[1], 64))
        host_descriptors[grid](a, b, c, 32, 64)
        host_descriptors[grid](c, b, c, 32, 64)
        return out + 1

    run = compiled(fn, dynamic=None if dynamic else False)
    for rows in (128, 96, 7)[: 3 if dynamic else 2]:
        x, y = cuda(rows, 256), cuda(rows, 256)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(y, 0)
        for _ in range(2):  # memory comes back, with the same maps
            torch.testing.assert_close(run(x, y), x * 2 + 2 * y + 1)
    assert len(compiled.graphs) == (1 if dynamic else 2)
    assert len(compiled.ops(Describe)) == 3  # for six arguments
    assert not compiled.ops(ExternCall) and not compiled.graphs[-1].fallbacks


@pytest.mark.parametrize("kernel", [matmul_descriptors, matmul_tuned], ids=["plain", "tuned"])
def test_a_matmul_by_descriptors(compiled: Any, kernel: Any) -> None:
    """Swizzled maps, and configs measured with descriptors."""

    def fn(a: Tensor, b: Tensor) -> Tensor:
        a = a * 2
        out = a.new_empty(a.shape[0], b.shape[0])
        grid = (triton.cdiv(a.shape[0], 128), triton.cdiv(b.shape[0], 64))
        left, right = described(a, block=[128, 64]) + described(b, block=[64, 64])
        kernel[grid](left, right, *described(out, block=[128, 64]), a.shape[1], 128, 64, 64)
        return out + 1

    a, b = cuda(300, 192, dtype=torch.bfloat16), cuda(200, 192, dtype=torch.bfloat16)
    torch.testing.assert_close(compiled(fn)(a, b), (2 * a) @ b.T + 1, rtol=2e-2, atol=2e-1)
    assert not compiled.ops(ExternCall) and not compiled.graphs[-1].fallbacks


def test_descriptors_of_other_ranks_and_of_views(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros_like(y)
        part = y[:, 1:2, 32:]
        (a,), (b, c) = described(x, block=[64]), described(part, out[:, 1:2, 32:], block=[1, 1, 64])
        add_1d_and_3d[(5,)](a, b, c, 64)
        return out

    x, y = cuda(64), cuda(5, 3, 96)
    want = torch.zeros_like(y)
    want[:, 1, 32:] = y[:, 1, 32:] + x
    torch.testing.assert_close(compiled(fn)(x, y), want)
    assert not compiled.ops(ExternCall) and not compiled.graphs[-1].fallbacks


def test_an_input_is_written_through_a_descriptor(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        accumulate_blocks[(4, 2)](*described(x, y, block=[32, 64]), 32, 64)
        return x.sum()

    x, y = cuda(100, 128), cuda(100, 128)
    want = x + y
    torch.testing.assert_close(compiled(fn)(x, y), want.sum(), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(x, want)
    assert not compiled.ops(CopyBack) and not compiled.ops(ExternCall)


@pytest.mark.parametrize("emit", ["fx", "cpp"])
def test_tensors_that_break_the_rules_of_tma(compiled_as: Any, emit: str) -> None:
    """Written rows of 40 bytes; inputs that are 4 bytes off. Eager refuses the second."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        whole = torch.zeros(40, 12, device="cuda")
        host_descriptors[(2, 1)](*described(x, y, whole[:, :10], block=[32, 64]), 32, 64)
        return whole

    compiled = compiled_as(emit)
    run = compiled(fn)
    for offset in (0, 1):
        x, y = (cuda(40 * 12 + 1)[offset : 480 + offset].view(40, 12)[:, :10] for _ in range(2))
        got = run(x, y)
        torch.testing.assert_close(got[:, :10], x + y)
        assert not got[:, 10:].any()
    assert not compiled.ops(ExternCall)


def test_clusters_and_register_limits(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_clustered[lambda m: (triton.cdiv(10_000, m["BLOCK"]),)](x, y, out, 10_000)
        return out + 1

    x, y = cuda(10_000), cuda(10_000)
    torch.testing.assert_close(compiled(fn)(x, y), x + y + 1)
    assert not compiled.ops(ExternCall) and not compiled.graphs[-1].fallbacks
    assert any(d.num_ctas in (2, 4) for d in compiled.ops(DefineKernel) if d.max_registers == 32)


def test_a_dynamic_size_is_tuned_at_two(fx: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        add_tuned[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, y, out, n)
        return out + 1

    measured: list[int] = []
    autotune = tuning.autotune

    def counted(candidates: Any, args: Any, **settings: Any) -> Any:
        measured.append(args[3])
        return autotune(candidates, args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "autotune", counted)
        run = fx(fn, dynamic=True)
        for n in (1 << 16, 1 << 24, 100):
            x, y = cuda(n), cuda(n)
            torch.testing.assert_close(run(x, y), x + y + 1)
    assert len(fx.graphs) == 1 and measured == [1 << 16, 1 << 22]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_device_descriptors(compiled: Any, dynamic: bool) -> None:
    """The workspace of `fx` and `cpp` comes with the launch."""

    def fn(x: Tensor) -> Tensor:
        z = x + 1
        out = torch.empty_like(z)
        device_descriptors[(triton.cdiv(x.shape[0], 32), 4)](z, out, x.shape[0], 256, 32, 64)
        return out

    if compiled.options.emit == "hop":  # Triton's own launches take the workspace from the user
        triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda"))
    try:
        run = compiled(fn, dynamic=None if dynamic else False)
        for rows in (128, 70)[: 2 if dynamic else 1]:
            x = cuda(rows, 256)
            if dynamic:
                torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(run(x), (x + 1) * 2)
    finally:
        triton.set_allocator(NullAllocator())
    assert len(compiled.graphs) == 1 and not compiled.ops(ExternCall)


def test_what_only_triton_can_launch_is_launched_by_it(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_as[(2,)](x, y, out, 100, BLOCK=64)
        return out + 1

    x, y = cuda(100), cuda(100)
    torch.testing.assert_close(compiled(fn)(x, y), x + y + 1)
    (fallback,) = compiled.graphs[-1].fallbacks
    assert fallback.op == "triton.add_as" and "the global DT" in fallback.reason
    assert len(compiled.ops(ExternCall)) == 1
