"""A CUDA program made where there is no GPU: captured with fake tensors, every kernel an sm_90
cubin, the host program a C++ library. Only running it needs the GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import cpp_emit
import gemm_templates
import triton_rt
from aten_lowering import lower_with_report
from compile_cli.capture import Captured, capture, export
from compile_cli.options import Options
from gemm_templates.model import is_legal, offered
from loop_ir import FuseOptions, Graph, fuse_with_report, serve_one
from loop_ir.ir import hints_of
from planner.kernels import Kernels, expected_variants, kernel_source
from planner.matmul.decide import MatmulPlanner
from planner.program import assemble
from planner.select import select
from planner.user_kernels.plan_launch import UserKernelPlanner
from wrapper_ir import Launch, Program, Ref, Workspace, parse_program, print_program
from wrapper_ir.passes import DedupeKernels, InsertFrees, PlanMemory, run_passes


@pytest.fixture(scope="module")
def captured(example: Any) -> Captured:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
            model = example.Encoder(vocab=1000, hidden=256, heads=4, layers=2, mlp=1024).eval()
            ids = torch.zeros(8, 128, dtype=torch.int64)
            return capture(export(model, (ids, torch.ones(8, 128, dtype=torch.bool)), {}))
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def fused(captured: Captured) -> Graph:
    loop = serve_one(lower_with_report(captured.graph).graph)
    return fuse_with_report(loop, FuseOptions(epilogue=True))[0]


def smallest(problem: gemm_templates.Problem, family: str) -> gemm_templates.Config:
    """The config of the fewest elements a tile, which compiles fastest."""
    legal = (
        config
        for config in offered(problem, gemm_templates.H200)
        if config.template == family and is_legal(problem, config, gemm_templates.H200)
    )
    return min(legal, key=lambda c: c.block_m * c.block_n, default=gemm_templates.CONFIGS[0])


@pytest.fixture(
    scope="module", params=["smallest", pytest.param("predicted", marks=pytest.mark.slow)]
)
def program(request: pytest.FixtureRequest, fused: Graph) -> Program:
    """With every matmul a template: of small tiles, or as the model finds best."""

    def times(self: Any, node: Any, rung: Any, task: Any, many: bool) -> Any:
        config = smallest(task.problem, "tiled")
        return {str(config): (1.0, config)}

    options = Options(gemm="template")
    kernels = Kernels(options)
    user_kernels = UserKernelPlanner(options, kernels, fused, {})
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "smallest":
            patch.setattr(MatmulPlanner, "_times", times)
        plans = select(fused, options, MatmulPlanner(options, kernels, fused), user_kernels)
    plain = assemble(fused, plans)
    return run_passes(plain, [DedupeKernels(), InsertFrees(), PlanMemory()])


def test_every_kernel_becomes_a_cubin(program: Program) -> None:
    variants = expected_variants(program)
    assert sum(isinstance(op, Launch) for op in program.ops) > len(variants) >= 4
    made = {}  # of kernels that differ in their names alone, one
    for define, alignment in variants:
        source = kernel_source(define)
        name = source.name.removesuffix("_overlapped")
        made[source.text.replace(name, ""), source.constants, alignment] = source
    assert len(made) >= 4
    for (*_, alignment), source in made.items():
        binary = triton_rt.compile(source, triton_rt.Target(90), alignment=alignment)
        assert binary.cubin[:4] == b"\x7fELF"
    assert any("gelu_f32" in define.source for define, _ in variants)


def test_the_host_program_builds(program: Program, libraries: Path) -> None:
    text = cpp_emit.emit(program, mode="lazy", schemas=cpp_emit.torch_schema)
    assert cpp_emit.build(text, libraries, "encoder").exists()


def test_how_templates_start_reaches_the_cubins(
    fused: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warps that share out registers, a launch that overlaps the one before, a workspace: all of it
    is in the text of the program."""

    def times(self: Any, node: Any, rung: Any, task: Any, many: bool) -> Any:
        config = smallest(task.problem, "gluon" if node.epilogue is not None else "decompose_k")
        return {str(config): (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)
    options = Options(gemm="template")
    kernels = Kernels(options)
    user_kernels = UserKernelPlanner(options, kernels, fused, {})
    plans = select(fused, options, MatmulPlanner(options, kernels, fused), user_kernels)
    program = run_passes(assemble(fused, plans), [DedupeKernels(), InsertFrees(), PlanMemory()])
    program = parse_program(print_program(program))
    defines = [define for define, _ in expected_variants(program)]
    gluon = next(d for d in defines if d.max_registers is not None)
    overlapping = next(d for d in defines if d.overlap)
    sm_90 = triton_rt.Target(90)
    warps = triton_rt.compile(kernel_source(gluon), sm_90).num_warps
    assert warps > gluon.num_warps  # those that load
    assert triton_rt.compile(kernel_source(overlapping), sm_90).pdl


def test_candidates_of_the_mlp_compile_ahead(
    fused: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the planner hands over to be compiled before anything is measured."""
    asked: list[gemm_templates.Problem] = []

    def prefetch(problems: list[gemm_templates.Problem], **settings: Any) -> list[Any]:
        asked.extend(dict.fromkeys(problems))
        (mlp,) = (p for p in asked if p.epilogue is not None and p.n == 1024)
        h200, sm_90 = gemm_templates.H200, triton_rt.Target(90)
        return original([mlp], device=h200, target=sm_90, **settings)[:2]

    original = gemm_templates.prefetch
    monkeypatch.setattr(gemm_templates, "prefetch", prefetch)
    kernels = Kernels(Options(cache_dir=str(tmp_path), tune="max"))  # all are waited for
    with kernels.compiling():
        MatmulPlanner(kernels.options, kernels, fused).prefetch(hints_of(fused.symbols))
    assert len(asked) == 4  # projections, the three of x in one, up with bias and GELU, down
    assert kernels.cache.stats().entries >= 1


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_places_among_floats_of_8_bits(dtype: torch.dtype) -> None:
    """What is read at no place of a tensor is NaN in its type."""
    with FakeTensorMode(), torch.device("cuda"):
        x, places = torch.empty(4, 3, dtype=dtype), torch.empty(5, dtype=torch.int64)
        traced: Any = make_fx(lambda x, i: x.float()[i, i])(x, places)
        loop = fuse_with_report(lower_with_report(traced).graph)[0]
    options = Options(gemm="extern")
    kernels = Kernels(options)
    user_kernels = UserKernelPlanner(options, kernels, loop, {})
    plans = select(loop, options, MatmulPlanner(options, kernels, loop), user_kernels)
    for define, alignment in expected_variants(assemble(loop, plans)):
        triton_rt.compile(kernel_source(define), triton_rt.Target(90), alignment=alignment)


def test_counters_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates that count in one workspace."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        sizes = ((4096, 64), (64, 128))
        made = [torch.nn.Linear(k, n, dtype=torch.bfloat16) for k, n in sizes]
        model = torch.nn.Sequential(*made)
        row = torch.empty(1, 4096, dtype=torch.bfloat16)
        loop = lower_with_report(capture(export(model, (row,), {})).graph).graph

    def times(self: Any, node: Any, rung: Any, task: Any, many: bool) -> Any:
        config = gemm_templates.Config(1, 4, 1024, 1, 4, 4, "gemv", split_k=3)
        config = config if task.problem.k == 4096 else replace(config, block_k=16, num_warps=1)
        assert is_legal(task.problem, config, gemm_templates.H200)
        return {str(config): (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)
    options = Options(gemm="template")
    kernels = Kernels(options)
    user_kernels = UserKernelPlanner(options, kernels, loop, {})
    plans = select(loop, options, MatmulPlanner(options, kernels, loop), user_kernels)
    program = run_passes(assemble(loop, plans), [DedupeKernels(), InsertFrees(), PlanMemory()])
    (counters,) = (op for op in program.ops if isinstance(op, Workspace))
    launches = [op for op in program.ops if isinstance(op, Launch)]
    assert all(Ref(counters.out) in op.args for op in launches)
    for define, alignment in expected_variants(program):
        triton_rt.compile(kernel_source(define), triton_rt.Target(90), alignment=alignment)
