"""The user's own Triton kernels in a compiled model, on CPU through the interpreter, in every
host program; and what their source becomes, compiled for a GPU that is not there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import triton_op, wrap_triton

import compile_cli
import cpp_emit
import triton_rt
import tuning
from aten_lowering import decompositions, lower_with_report
from compile_cli import Options
from loop_ir import Kernel, Symbol, UserKernel, fuse
from planner.kernels import Kernels, expected_variants, kernel_source
from planner.matmul.decide import MatmulPlanner
from planner.program import assemble
from planner.select import select
from planner.user_kernels.plan_launch import UserKernelPlanner
from wrapper_ir import Allocate, Assert, CopyBack, DefineKernel, ExternCall, If, Launch, Program
from wrapper_ir.passes import DedupeKernels, InsertFrees, PlanMemory, run_passes

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

EMITS = ("fx", "hop", "cpp")
# What one host program shows; `slow`: in all three.
in_a_module = pytest.mark.parametrize(
    "compiled",
    [pytest.param(emit, marks=() if emit == "fx" else pytest.mark.slow) for emit in EMITS],
    indirect=True,
)
BIAS = 0.5


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
def shift(v):
    return v + BIAS_C


BIAS_C = tl.constexpr(BIAS)


@triton.jit
def apply_kernel(x, out, by, n, flag, mask, F: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = F(tl.load(x + i, i < n).to(T)) * by
    if flag:
        v = -v
    if mask is not None:
        v = tl.where(tl.load(mask + i, i < n) != 0, v, 0.0)
    tl.store(out + i, v, i < n)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})], key=["n"]
)
@triton.jit
def add_tuned(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.autotune([triton.Config({"STEPS": s}) for s in (1 << 40, 1)], key=[])
@triton.jit
def add_for_long(x, y, out, n, STEPS: tl.constexpr):
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    v = tl.load(x + i, i < n)
    for _ in range(STEPS):
        v = tl.load(x + i, i < n) + tl.load(y + i, i < n)
    tl.store(out + i, v, i < n)


@triton.heuristics({"BLOCK": lambda a: 64 if a["n"] < 1000 else 128})
@triton.jit
def add_by_size(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (32, 64)], key=[])
@triton.heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@triton.jit
def add_even(x, y, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + i, tl.load(x + i) + tl.load(y + i))
    else:
        tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def add_rows(x, y, n, stride, BLOCK: tl.constexpr):
    """`x[row] += y[row]` where rows are `stride` apart."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    at = x + row * stride + i
    tl.store(at, tl.load(at, i < n) + tl.load(y + row * n + i, i < n), i < n)


def around(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin() * 2
    out = torch.empty_like(z)
    n = z.numel()
    add_kernel[(triton.cdiv(n, 64),)](z, y, out, n, BLOCK=64)
    return out.relu() * 2 + y


@pytest.mark.parametrize(
    ("compiled", "dynamic"),
    [
        pytest.param(
            emit, dynamic, id=f"{emit}-{'dynamic' if dynamic else 'static'}",
            marks=() if emit == "fx" or (emit, dynamic) == ("cpp", True) else pytest.mark.slow,
        )
        for emit in EMITS
        for dynamic in (False, True)
    ],
    indirect=["compiled"],
)  # fmt: skip
def test_a_model_around_a_kernel(compiled: Any, dynamic: bool) -> None:
    """One kernel of ours before, the user's, one after; nothing is copied."""
    run = compiled(around, dynamic=dynamic)
    for n in (100, 130, 64):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(run(x, y), (x.sin() * 2 + y).relu() * 2 + y)
    assert len(compiled.graphs) == (1 if dynamic else len(compiled.graphs))
    graph = compiled.graphs[0]
    assert [type(n) for n in graph.fused.nodes] == [Kernel, UserKernel, Kernel]
    assert not compiled.ops(ExternCall) and not graph.fallbacks
    assert len(compiled.ops(Launch)) == 3


def test_by_name_and_with_options(options: dict[str, Any]) -> None:
    x, y = torch.randn(100), torch.randn(100)
    run = torch.compile(around, backend="compile_cli", fullgraph=True, options=options)
    exported = compile_cli.compile(around, (x, y), options=options)
    assert not exported.graph.fallbacks
    with torch.no_grad():
        for call in (run, exported):
            torch.testing.assert_close(call(x, y), (x.sin() * 2 + y).relu() * 2 + y)


KERNELS = {"tuned": add_tuned, "heuristics": add_by_size, "both": add_even}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_configs_and_heuristics(fx: Any, name: str, dynamic: bool) -> None:
    if dynamic and name == "both":
        pytest.skip("Dynamo itself refuses heuristics of dynamic sizes under an autotuner")
    run = fx(added_by(KERNELS[name]), dynamic=dynamic)
    for n in (128, 1500):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(run(x, y), x * 2 + y + 1)
    assert not fx.ops(ExternCall)


def added_by(kernel: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x * 2, y, out, n)
        return out + 1

    return fn


def test_configs_in_every_host_program(compiled: Any) -> None:
    x, y = torch.randn(128), torch.randn(128)
    torch.testing.assert_close(compiled(added_by(add_tuned))(x, y), x * 2 + y + 1)


@triton_op("compile_cli_tests::apply", mutates_args={})
def apply_op(x: Tensor, by: float, flag: bool, mask: Tensor | None) -> Tensor:
    out = torch.empty_like(x, dtype=torch.float32)
    n = x.numel()
    wrap_triton(apply_kernel)[(triton.cdiv(n, 64),)](
        x, out, 1 if by == 1.0 else by, n, flag, mask, F=shift, T=tl.float32, BLOCK=64
    )
    return out


def test_scalars_constants_functions_and_types(compiled: Any) -> None:
    """f32, bool, integers, an integer 1, None, `tl.float32` and a jit function."""

    def fn(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return apply_op(x, 1.5, True, None), apply_op(x, 1.0, False, mask)

    x, mask = torch.randn(100, dtype=torch.bfloat16), torch.rand(100) > 0.5
    a, b = compiled(fn)(x, mask)
    torch.testing.assert_close(a, -(x.float() + BIAS) * 1.5)
    torch.testing.assert_close(b, (x.float() + BIAS) * mask)


@in_a_module
def test_inputs_are_written_in_place(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        add_rows[(4,)](x, y, 8, x.stride(0), BLOCK=8)
        add_rows[(4,)](x, y, 8, x.stride(0), BLOCK=8)
        return x * 2

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    want = x + 2 * y
    torch.testing.assert_close(compiled(fn)(x, y), want * 2)
    torch.testing.assert_close(x, want)
    assert not compiled.ops(CopyBack) and len(compiled.ops(Allocate)) == 1
    defines = compiled.ops(DefineKernel)  # the user's, launched twice, and ours
    assert sorted(define.contract for define in defines) == [False, True]


def test_a_slice_of_an_input(fx: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        add_rows[(4,)](x[:, 2:6], y, 4, x.stride(0), BLOCK=4)
        return x.sum()

    x, y = torch.randn(4, 8), torch.randn(4, 4)
    want = x.clone()
    want[:, 2:6] += y
    torch.testing.assert_close(fx(fn)(x, y), want.sum())
    torch.testing.assert_close(x, want)


def test_an_input_that_is_saved_before_it_changes(fx: Any) -> None:
    """`y` gets what `x` was."""

    def fn(x: Tensor, y: Tensor) -> None:
        y.copy_(x)
        add_rows[(4,)](x, x, 8, 8, BLOCK=8)

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    before = x.clone()
    fx(fn)(x, y)
    torch.testing.assert_close(y, before)
    torch.testing.assert_close(x, 2 * before)


def test_what_is_needed_later_is_kept(fx: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = x * 2
        b = a.clone()
        add_rows[(4,)](b, y, 8, 8, BLOCK=8)
        return a, b

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    a, b = fx(fn)(x, y)
    torch.testing.assert_close(a, x * 2)
    torch.testing.assert_close(b, x * 2 + y)


def test_training(fx: Any) -> None:
    """A kernel in an autograd function, forward and backward."""

    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            out = torch.empty_like(x)
            add_kernel[(2,)](x, y, out, x.numel(), BLOCK=64)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            twice = torch.empty_like(grad)
            add_kernel[(2,)](grad, grad, twice, grad.numel(), BLOCK=64)
            return twice / 2, grad

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return (Add.apply(x.sin(), y) ** 2).sum()

    x, y = (torch.randn(100, requires_grad=True) for _ in range(2))
    run: Any = torch.compile(fn, backend=fx.backend, fullgraph=True)
    got = torch.autograd.grad(run(x, y), (x, y))
    want = torch.autograd.grad(((x.sin() + y) ** 2).sum(), (x, y))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_an_operator_of_the_users(fx: Any) -> None:
    """`torch.library.triton_op`: the other way in, which exporting takes too."""

    @triton_op("compile_cli_tests::add", mutates_args={})
    def add(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        wrap_triton(add_kernel)[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
        return out

    x, y = torch.randn(100), torch.randn(100)
    torch.testing.assert_close(fx(lambda x, y: add(x, y) * 2)(x, y), (x + y) * 2)


def test_an_integer_that_is_not_proven_small_is_checked(fx: Any) -> None:
    """A product of two sizes is compiled for 32 bits, and checked to fit at run time."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.shape[0] * x.shape[1]
        add_kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
        return out

    x, y = torch.randn(4, 25), torch.randn(4, 25)
    torch.testing.assert_close(fx(fn, dynamic=True)(x, y), x + y)
    (check,) = fx.ops(Assert)
    assert "add_kernel" in check.message and "32-bit" in check.message
    assert all(isinstance(s, Symbol) for s in fx.graphs[-1].program.symbols)
    (define,) = fx.ops(DefineKernel)
    assert [p.kind for p in define.params] == ["*f32", "*f32", "*f32", "i32"]


def test_what_only_triton_can_launch_is_refused_without_a_gpu(fx: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_as[(2,)](x, y, out, 100, BLOCK=64)
        return out

    with pytest.raises(Exception, match=r"(?s)UserKernelFailed.*add_as.*global DT.*to do"):
        fx(fn)(torch.randn(100), torch.randn(100))


def test_what_is_defined_compiles_for_a_gpu(fx: Any) -> None:
    """The very sources that are launched, for sm_90, with no GPU: renamed, bound, tuned."""

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        outs = [torch.empty_like(x) for _ in range(2)]
        grid = (triton.cdiv(x.numel(), 64),)
        add_kernel[grid](x, y, outs[0], x.numel(), BLOCK=64)
        add_kernel[grid](x, y, outs[1], x.numel(), BLOCK=32)
        outs.append(apply_op(x, 2.0, True, None))
        add_tuned[lambda m: (triton.cdiv(100, m["BLOCK"]),)](x, y, x, 100)
        return (*outs, x)

    fx(fn)(torch.randn(100), torch.randn(100))
    defines = fx.ops(DefineKernel)
    assert [d.num_warps for d in defines] == [4, 4, 4, 2]
    assert len({d.name for d in defines}) == 4
    for define in defines:
        binary = triton_rt.compile(kernel_source(define), triton_rt.Target(90))
        assert binary.name.startswith(define.name.rsplit("_", 1)[0])  # what a profiler shows


def on_fake_cuda(fn: Callable[..., Any], *sizes: int) -> torch.fx.GraphModule:
    """What a function of CUDA tensors is lowered and fused to, where there is no GPU."""
    with FakeTensorMode():
        inputs = [torch.empty(n, device="cuda") for n in sizes]
        body = torch.func.functionalize(fn, remove="mutations")
        gm = make_fx(lambda *a: [body(*a)], decomposition_table=decompositions())(*inputs)
    return gm


def cuda_program(gm: Any, options: Options) -> tuple[Program, Any]:
    lowered = lower_with_report(gm)
    graph = fuse(lowered.graph)
    kernels = Kernels(options)
    planner = UserKernelPlanner(options, kernels, graph, lowered.kernels)
    plans = select(graph, options, MatmulPlanner(options, kernels, graph), planner)
    passes = [DedupeKernels(), InsertFrees(), PlanMemory()]
    return run_passes(assemble(graph, plans), passes), planner


def scaled(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(apply_kernel)[(2,)](
        x.sin(), out, 1.5, 100, True, y, F=shift, T=tl.float32, BLOCK=64
    )
    return out.exp()


def test_a_cuda_program_builds_without_a_gpu(fx: Any, libraries: Path) -> None:
    """Scalars of each kind in C++, and cubins of the very definitions."""
    program, _ = cuda_program(on_fake_cuda(scaled, 100, 100), fx.options)
    text = cpp_emit.emit(program, mode="lazy", schemas=cpp_emit.torch_schema)
    assert cpp_emit.build(text, libraries, "scaled").exists()
    for define, alignment in expected_variants(program):
        source = kernel_source(define)
        assert triton_rt.compile(source, triton_rt.Target(90), alignment=alignment).cubin


def test_configs_are_measured_on_cuda(fx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner gets every config with its grid, and its choice is what is launched."""
    seen: list[Any] = []

    def autotune(candidates: Any, args: Any, **settings: Any) -> tuning.Tuned:
        seen.append(([(k.source, grid) for k, grid in candidates], args, settings["name"]))
        return tuning.Tuned(1, (0.2, 0.1))

    monkeypatch.setattr(tuning, "autotune", autotune)
    monkeypatch.setattr("planner.user_kernels.plan_launch._example", lambda value, *_: value)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        wrap_triton(add_tuned)[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, y, out, n)
        return out

    program, planner = cuda_program(on_fake_cuda(fn, 200, 200), fx.options)
    (candidates, args, name), *more = seen
    assert not more and name == "add_tuned"
    assert [grid for _, grid in candidates] == [(4, 1, 1), (2, 1, 1)]
    assert [dict(s.constants)["BLOCK"] for s, _ in candidates] == [64, 128]
    assert [s.num_warps for s, _ in candidates] == [2, 4] and args[3] == 200
    (launch,) = [op for op in program.ops if isinstance(op, Launch)]
    assert launch.grid == (2, 1, 1) and launch.kernel.endswith("config1")
    assert list(planner.chosen.values()) == [(1, (0.2, 0.1))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("emit", "tune_at"), [("fx", "first_call"), ("cpp", "compile"), ("cpp", "first_call")]
)
def test_a_config_that_hangs_ends_its_worker(
    options: Any, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None, emit: str, tune_at: str
) -> None:
    """Each config runs in a process of its own kind, here on the CPU, for a limited time."""

    class OnCPU(tuning.TuningPool):
        def __init__(self) -> None:
            super().__init__(("cpu",), timeout=3.0)

    autotune = tuning.autotune
    found: list[tuning.Tuned] = []
    monkeypatch.setattr(tuning, "TuningPool", OnCPU)
    monkeypatch.setattr(
        tuning, "autotune", lambda *a, **more: found.append(autotune(*a, **more)) or found[-1]
    )
    monkeypatch.setattr("planner.user_kernels.plan_launch._on_cuda", lambda args: True)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_for_long[(2,)](x, y, out, 100)
        return out * 2

    x, y = torch.randn(100), torch.randn(100)
    run = torch.compile(
        fn, backend="compile_cli", options={**options, "emit": emit, "tune_at": tune_at}
    )
    torch.testing.assert_close(run(x, y), (x + y) * 2)
    (tuned,) = found
    assert tuned.winner == 1 and "CandidateHung" in dict(tuned.failures)[0]


@pytest.mark.parametrize("emit", EMITS)
def test_launched_by_triton(
    fx: Any, emit: str, monkeypatch: pytest.MonkeyPatch, compiled_as: Any
) -> None:
    """A launch that must go through Triton is an operator in every host program. Triton itself is
    replaced by the interpreter here."""
    called: list[Any] = []

    def run_captured(kernel: Any, grids: Any, given: Any, blocks: Any) -> None:
        called.append((kernel.name, grids, blocks))
        source = triton_rt.KernelSource.from_jit(
            add_kernel, {"x": "*f32", "y": "*f32", "out": "*f32", "n": "i32"}, {"BLOCK": 64}
        )
        names = ("x", "y", "out")
        triton_rt.LazyKernel(source)(grids[0], *(given[k] for k in names), 100)

    monkeypatch.setattr("planner.user_kernels.plan_launch.run_captured", run_captured)
    monkeypatch.setattr("planner.user_kernels.plan_launch._on_cuda", lambda args: True)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_as[(2,)](x * 2, y, out, 100, BLOCK=64)
        return out + 1

    ours = compiled_as(emit)
    x, y = torch.randn(100), torch.randn(100)
    torch.testing.assert_close(ours(fn)(x, y), x * 2 + y + 1)
    assert called == [("add_as", [(2, 1, 1)], {})]
    (fallback,) = ours.graphs[-1].fallbacks
    assert fallback.op == "triton.add_as" and "the global DT" in fallback.reason


@in_a_module
def test_clusters_and_register_limits(compiled: Any) -> None:
    config = triton.Config({"BLOCK": 64}, num_ctas=2, maxnreg=32)
    clusters = triton.autotune([config], key=[])(add_kernel)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        clusters[(2,)](x, y, out, 100)
        return out

    x, y = torch.randn(100), torch.randn(100)
    torch.testing.assert_close(compiled(fn)(x, y), x + y)
    (define,) = compiled.ops(DefineKernel)
    assert define.num_ctas == 2 and define.max_registers == 32 and not compiled.ops(ExternCall)
    assert not compiled.graphs[-1].fallbacks
    assert triton_rt.compile(kernel_source(define), triton_rt.Target(90)).num_ctas == 2


def test_a_dynamic_size_is_tuned_at_two(fx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `key` names it: one config for small sizes, another for large ones."""
    seen: list[int] = []

    def autotune(candidates: Any, args: Any, **settings: Any) -> tuning.Tuned:
        assert isinstance(settings["pool"], tuning.TuningPool)  # in processes of its own
        seen.append(args[3])
        return tuning.Tuned(int(args[3] > 1000), (0.1, 0.2))

    monkeypatch.setattr(tuning, "autotune", autotune)
    monkeypatch.setattr("planner.user_kernels.plan_launch._on_cuda", lambda args: True)
    monkeypatch.setattr("planner.user_kernels.plan_launch._free_memory", lambda: 1 << 20)
    run = fx(added_by(add_tuned), dynamic=True)
    for n in (100, 4000, 300):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(run(x, y), x * 2 + y + 1)
    assert len(fx.graphs) == 1 and seen == [100, 6400]
    (branch,) = [op for op in fx.ops(If) if isinstance(op.then[0], Launch)]
    kernels = [op.kernel for op in (*branch.then, *branch.orelse) if isinstance(op, Launch)]
    assert [k.rpartition("_")[2] for k in kernels] == ["config0", "config1"]
    # Not more than a quarter of the memory: 3 tensors of 4 bytes an element.
    seen.clear()
    torch._dynamo.reset()
    monkeypatch.setattr("planner.user_kernels.plan_launch._free_memory", lambda: 4 * 12 * 1000)
    fx(added_by(add_tuned), dynamic=True)(x, y)
    assert seen == [300, 600]


def test_readme_example(tmp_path: Path) -> None:
    readme = Path(compile_cli.__file__).parents[2] / "README.md"
    section = readme.read_text().partition("## Your own Triton kernels")[2]
    path = tmp_path / "own_kernels.py"
    path.write_text(section.partition("```python\n")[2].partition("```")[0])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y = torch.randn(20, 48), torch.randn(20, 48)
    torch.testing.assert_close(module.model(x, y), (x.sin() + y).relu())
