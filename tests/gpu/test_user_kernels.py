"""The user's own Triton kernels in a compiled model, on a GPU: against the kernels run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from aten_lowering import decompositions
from compile_cli import Options
from compile_cli.compiled import CompiledGraph
from compile_cli.pipeline import compile_graph
from compile_cli.stages import Record
from wrapper_ir.ops import CopyBack, ExternCall, Launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

EMITS = ("fx", "hop", "cpp")


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


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


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Compiled:
    """`torch.compile` with our backend, keeping what was compiled."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = Options.from_mapping(options)
        self.graphs: list[CompiledGraph] = []

    def backend(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def compile_fx(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
            self.graphs.append(compile_graph(graph, self.options, Record()))
            run = self.graphs[-1].run

            def boxed(args: list[Any]) -> Any:
                return run(*args)

            boxed._boxed_call = True  # type: ignore[attr-defined]
            return boxed

        make: Callable[..., Any] = aot_autograd(
            fw_compiler=compile_fx,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )
        return make(gm, inputs)  # type: ignore[no-any-return]

    def __call__(self, fn: Callable[..., Any], **more: Any) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(
            fn, backend=self.backend, fullgraph=True, **more
        )
        return torch.no_grad()(compiled)

    def ops(self, kind: type) -> list[Any]:
        return [op for op in self.graphs[-1].program.ops if isinstance(op, kind)]


@pytest.fixture(params=EMITS)
def compiled(request: pytest.FixtureRequest, options: dict[str, Any]) -> Compiled:
    return Compiled({**options, "emit": request.param})


@pytest.fixture
def fx(options: dict[str, Any]) -> Compiled:
    return Compiled(options)


def cuda(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*size, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_model_around_kernels(compiled: Compiled, dynamic: bool) -> None:
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


def test_configs_are_measured(compiled: Compiled) -> None:
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


def test_tuning_leaves_arguments_alone(fx: Compiled) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        n = x.numel()
        accumulate_tuned[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, y, n, 2.0, SQUARE=False)
        return x.sum()

    x, y = cuda(10_000), cuda(10_000)
    want = x + 2 * y
    torch.testing.assert_close(fx(fn)(x, y), want.sum())
    torch.testing.assert_close(x, want)
    assert not fx.ops(CopyBack)


def test_integers_are_tuned_apart(fx: Compiled) -> None:
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
def test_heuristics(fx: Compiled, n: int) -> None:
    def fn(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 128),)](x, out, x.numel())
        return out

    x = cuda(n)
    torch.testing.assert_close(fx(fn)(x), x * 2)


def test_unaligned_views(compiled: Compiled) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        accumulate[(4,)](z[3:], y, 997, 1.0, False, BLOCK=256)
        return z

    x, y = cuda(1000), cuda(1000)
    want = x * 2
    want[3:] += y[:997]
    torch.testing.assert_close(compiled(fn)(x, y), want)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_host_descriptors(compiled: Compiled, dynamic: bool) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        out = torch.empty_like(z)
        a, b, c = (TensorDescriptor.from_tensor(t, [32, 64]) for t in (z, y, out))
        grid = (triton.cdiv(x.shape[0], 32), triton.cdiv(x.shape[1], 64))
        host_descriptors[grid](a, b, c, 32, 64)
        return out + 1

    run = compiled(fn, dynamic=dynamic)
    for rows in (128, 96):
        x, y = cuda(rows, 256), cuda(rows, 256)
        torch.testing.assert_close(run(x, y), x * 2 + y + 1)


def test_device_descriptors(compiled: Compiled) -> None:
    def fn(x: Tensor) -> Tensor:
        z = x + 1
        out = torch.empty_like(z)
        device_descriptors[(4, 4)](z, out, x.shape[0], x.shape[1], 32, 64)
        return out

    # Triton's own launches, which `hop` makes, take the workspace from the user.
    triton.set_allocator(lambda size, _, __: torch.empty(size, dtype=torch.int8, device="cuda"))
    x = cuda(128, 256)
    torch.testing.assert_close(compiled(fn)(x), (x + 1) * 2)
    assert not compiled.ops(ExternCall)


def test_what_only_triton_can_launch_is_launched_by_it(compiled: Compiled) -> None:
    limited = triton.autotune([triton.Config({"BLOCK": 64}, maxnreg=32)], key=[])(add_kernel)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        limited[(2,)](x, y, out, 100)
        return out + 1

    x, y = cuda(100), cuda(100)
    torch.testing.assert_close(compiled(fn)(x, y), x + y + 1)
    (fallback,) = compiled.graphs[-1].fallbacks
    assert fallback.op == "triton.add_kernel" and "maxnreg=32" in fallback.reason
    assert len(compiled.ops(ExternCall)) == 1
