"""Templates of batches and prologues as sm_90 cubins, made where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import gemm_templates
import triton_rt
from aten_lowering import lower_with_report
from compile_cli.capture import capture, export
from compile_cli.options import Options
from compile_cli.pipeline import fuse_options
from gemm_templates.families import dense
from gemm_templates.model import is_legal
from gemm_templates.registry import FAMILIES
from loop_ir import Matmul, fuse_with_report, serve_one
from loop_ir.ir import hints_of
from planner.kernels import Kernels
from planner.matmul.chooser import MatmulChooser
from planner.matmul.decide import MatmulPlanner
from planner.matmul.problem import MatmulTask


def scores(q: Any, k: Any, mask: Any) -> Any:
    return torch.matmul(q, k.mT) * 0.125 + mask


def batch(a: Any, b: Any, c: Any) -> Any:
    return F.gelu(torch.baddbmm(c, a, b, alpha=0.5))


def int8_weights(x: Any, q: Any, s: Any) -> Any:
    return F.gelu(F.linear(x, q.to(x.dtype) * s[:, None]))


def of_two(x: Any, v: Any, w: Any) -> Any:
    return x @ (v * w)


def gated_batch(x: Any, g: Any, w: Any) -> Any:
    return torch.bmm(x * g, w.relu())


def gated(x: Any, g: Any, w: Any) -> Any:
    return (x * g) @ w


def swiglu(x: Any, v: Any, w: Any) -> Any:
    return F.silu(F.linear(x, v)) * F.linear(x, w) + 1


def groups(x: Any, w: Any, ends: Any) -> Any:
    return torch._grouped_mm(x, w.mT, offs=ends) + 1


def experts(x: Any, v: Any, w: Any, ends: Any) -> Any:
    return F.silu(groups(x, v, ends)) * torch._grouped_mm(x, w.mT, offs=ends)


def fp8_experts(x: Any, w: Any, a: Any, b: Any, ends: Any) -> Any:
    kind = {"out_dtype": torch.bfloat16}
    return F.silu(torch._scaled_grouped_mm(x, w.mT, a.float(), b.float(), offs=ends, **kind))


def integers(q: Any, w: Any, s: Any) -> Any:
    return (torch._int_mm(q, w.t()) * s).bfloat16()


def blocks(x: Any, w: Any, a: Any, b: Any) -> Any:
    a, b = a.float().t(), b.float()
    return F.gelu(torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], set[str]]] = {
    "scores": (scores, ((4, 8, 256, 64), (4, 8, 256, 64), (4, 1, 256, 256)),
               {"tiled", "batched_tma", "gluon_batched"}),
    "batch": (batch, ((8, 256, 512), (8, 512, 256), (8, 1, 256)),
              {"tiled", "batched_tma", "gluon_batched", "decompose_k"}),
    "int8 weights": (int8_weights, ((64, 1024), "i8", (1024,)),
                     {"tiled", "tma", "gemv", "split_k", "decompose_k"}),
    "int8 weights, 16 rows": (int8_weights, ((16, 1024), "i8", (1024,)), {"tiled", "gemv"}),
    "int8 weights, one row": (int8_weights, ((1, 1024), "i8", (1024,)), {"gemv"}),
    "gated": (gated, ((512, 1024), (512, 1024), (1024, 1024)), {"tiled", "tma"}),
    "gated batch": (gated_batch, ((8, 64, 512), (8, 64, 1), (8, 512, 256)),
                    {"tiled", "gemv"}),
    "few gated rows": (gated, ((16, 1024), (16, 1024), (1024, 1024)), {"tiled", "gemv"}),
    "pair": (swiglu, ((512, 1024), (2048, 1024), (2048, 1024)), {"gated", "gated_gluon"}),
    "integers": (integers, ("i8", "i8", (1024,)), {"tiled", "tma", "gluon", "decompose_k"}),
    "groups": (groups, ((512, 1024), (8, 1024, 1024), "ends"), {"grouped", "gluon_batched"}),
    "groups of one step": (groups, ((512, 64), (8, 1024, 64), "ends"), {"grouped"}),
    "experts": (experts, ((512, 1024), (8, 512, 1024), (8, 512, 1024), "ends"), {"grouped"}),
    "fp8 experts": (fp8_experts, ("f8", "f8 groups", (1024,), (8, 1024), "ends"), {"grouped"}),
    "blocks": (blocks, ("f8", "f8", (8, 1024), (8, 8)), {"tiled", "tma", "gluon_scaled"}),
}  # fmt: skip


NAMED = {
    "i8": ((1024, 1024), torch.int8),
    "f8": ((1024, 1024), torch.float8_e4m3fn),
    "f8 groups": ((8, 1024, 1024), torch.float8_e4m3fn),
    "ends": ((8,), torch.int32),
}


def task_of(
    fn: Callable[..., Any], shapes: tuple[Any, ...], dtype: torch.dtype = torch.bfloat16
) -> tuple[MatmulPlanner, MatmulTask]:
    class Model(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return fn(*args)

    with FakeTensorMode(allow_non_fake_inputs=True):
        args = tuple(
            torch.empty(size, dtype=kind, device="cuda")
            for shape in shapes
            for size, kind in (NAMED.get(shape, (shape, dtype)),)
        )
        captured = capture(export(Model(), args, {}))
    options = Options(gemm="template")
    loop = serve_one(lower_with_report(captured.graph).graph)
    fused = fuse_with_report(loop, fuse_options(options, loop))[0]
    node = fused.nodes[-1]
    assert isinstance(node, Matmul)
    planner = MatmulPlanner(options, Kernels(options), fused)
    (rung,) = planner._rungs(node, hints_of(fused.symbols))
    others = planner._gated(node, rung), planner._fused(node, rung)
    task = next(filter(None, others), planner._task(node, rung))
    assert task is not None
    return planner, task


# Each kernel with one epilogue or prologue, its smallest blocks, which compile in a fraction of
# the time; `slow`: with all, and the blocks that are proposed first.
ONCE = {
    **dict.fromkeys(CASES, frozenset[str]()),
    "scores": {"gluon_batched"}, "batch": {"batched_tma"}, "int8 weights": {"tma", "split_k"},
    "int8 weights, one row": {"gemv"}, "gated": {"tiled"}, "pair": {"gated_gluon"},
    "experts": {"grouped"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "families", "smallest"),
    [
        *((name, families, True) for name, families in ONCE.items() if families),
        ("groups of one step", {"grouped"}, False),
        *(pytest.param(name, CASES[name][2], False, marks=pytest.mark.slow) for name in CASES),
    ],
)
def test_each_family_compiles(name: str, families: set[str], smallest: bool) -> None:
    fn, shapes, _ = CASES[name]
    planner, task = task_of(fn, shapes)
    h200 = gemm_templates.H200
    for family in families:
        offered = FAMILIES[family].configs(task.problem, h200)
        fits = [c for c in offered if is_legal(task.problem, c, h200)]
        said = [c for c in fits if planner.chooser.sayable(task, c)]
        config = min(said, key=lambda c: c.block_m * c.block_n) if smallest else said[0]
        for kernel in gemm_templates.make_plan(task.problem, config).steps:
            binary = triton_rt.compile(kernel.source, triton_rt.Target(90))
            assert binary.cubin[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        pytest.param(
            gemm_templates.Config(64, 128, 64, 8, 4, 4), torch.float32, marks=pytest.mark.slow
        ),
        pytest.param(
            gemm_templates.Config(32, 64, 128, 1, 4, 4, "split_k", split_k=2), torch.float32,
            marks=pytest.mark.slow,
        ),
        (gemm_templates.Config(16, 64, 64, 1, 4, 8, "gemv", split_k=2), torch.float32),
        (gemm_templates.Config(128, 256, 64, 8, 8, 4), torch.bfloat16),
        pytest.param(
            gemm_templates.Config(16, 64, 128, 1, 4, 6, "gemv", split_k=2), torch.bfloat16,
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_shared_memory_of_what_a_prologue_reads_besides(
    config: gemm_templates.Config, dtype: torch.dtype
) -> None:
    """The estimate is an upper bound; wide elements are staged, and these configs do not fit."""
    _, task = task_of(of_two, ((16, 1024), (1024, 4096), (1024, 4096)), dtype)
    problem, h200 = task.problem, gemm_templates.H200
    assert problem.loaded("b") == 2 * dtype.itemsize
    (kernel,) = gemm_templates.make_plan(problem, config).steps
    used = triton_rt.compile(kernel.source, triton_rt.Target(90)).shared_bytes
    assert used <= dense.shared_memory(problem, config)
    assert is_legal(problem, config, h200) == (used <= h200.smem) == (dtype is torch.bfloat16)


@pytest.mark.parametrize("splits", [1, 8])
def test_the_parts_of_k_may_be_given(splits: int) -> None:
    planner, task = task_of(torch.mm, ((64, 65536), (65536, 64)))
    usual = gemm_templates.candidates(task.problem, gemm_templates.H200)
    assert max(c.config.split_k for c in usual if c.config) > 8
    chooser = MatmulChooser(Options(num_splits=splits), planner.kernels)
    found = chooser.candidates(task)
    assert found is not None
    shares = {c.config.split_k for c in found if c.config}
    assert splits in shares <= {1, splits}


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_precision_may_be_said_of_matmuls_alone(precision: str) -> None:
    """By torch's new names, after which it refuses to tell the old ones where the two differ."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, precision
    try:
        _, task = task_of(lambda x, w: F.gelu(x @ w), ((64, 64), (64, 64)), torch.float32)
    finally:
        matmul.fp32_precision = before
    assert task.problem.input_precision == precision
