"""Templates whose tensor maps the host makes: what the program says of them, in every emitter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import export

import cpp_emit
import triton_rt
from aten_lowering import lower_with_report
from compile_cli.capture import capture
from compile_cli.options import Options
from gemm_templates import Config
from loop_ir import FuseOptions, fuse_with_report, serve_one
from planner.kernels import Kernels, expected_variants, kernel_source
from planner.matmul.decide import VENDOR, MatmulPlanner
from planner.program import assemble
from planner.select import select
from planner.user_kernels.plan_launch import UserKernelPlanner
from wrapper_ir import DefineKernel, Describe, Launch, Program, Ref, parse_program, print_program
from wrapper_ir.analysis import walk
from wrapper_ir.passes import DedupeKernels, InsertFrees, PlanMemory, run_passes

TMA = Config(32, 32, 32, 8, 4, 2, "tma", 3, 2)
OVERLAPPED = replace(TMA, overlap=True)
GLUON = Config(128, 128, 64, 8, 8, 6, "gluon", 132, 2)
GLUON_HALF = replace(GLUON, block_m=64, num_stages=8)  # which compiles in less time


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`force(config)`: every matmul that templates are asked for runs this one."""

    def to(config: Config) -> None:
        def times(self: Any, node: Any, rung: Any, task: Any, many: bool) -> Any:
            return {VENDOR: (1.0, None)} if task is None else {str(config): (1.0, config)}

        monkeypatch.setattr(MatmulPlanner, "_times", times)

    return to


class Layer(nn.Module):
    """The weight of the first lies by its columns, that of the second by its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 48)
        self.down = nn.Parameter(torch.randn(48, 32) / 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.up(x)) @ self.down


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    ("dynamic", "config"),
    [
        pytest.param(False, TMA, id="static-plain"),
        pytest.param(True, OVERLAPPED, id="dynamic-overlapped"),
        pytest.param(False, OVERLAPPED, id="static-overlapped", marks=pytest.mark.slow),
        pytest.param(True, TMA, id="dynamic-plain", marks=pytest.mark.slow),
    ],
)
def test_what_runs(compiled: Any, force: Any, dynamic: bool, config: Config) -> None:
    """Interpreted; the last rows of a tile and of `out` are odd, and an input starts where no map
    can."""
    force(config)
    compiled.options = Options.from_mapping(
        {**compiled.options.__dict__, "gemm": "template", "multikernel": "off"}
    )
    torch.manual_seed(0)
    layer = Layer()
    run = compiled(layer, dynamic=None if dynamic else False)
    for rows in (40, 33, 70)[: 3 if dynamic else 1]:
        x = torch.randn(rows, 64)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)
        shifted = torch.randn(rows * 64 + 1)[1:].view(rows, 64)
        if not dynamic:
            torch.testing.assert_close(run(shifted), layer(shifted), rtol=1e-4, atol=1e-4)
    assert len(compiled.graphs) == 1
    program: Program = compiled.graphs[-1].program
    described = [op for op in walk(program.ops) if isinstance(op, Describe)]
    kinds = [p.kind for op in walk(program.ops) if isinstance(op, DefineKernel) for p in op.params]
    assert {d.block for d in described} == {(32, 32), (32, 16)}
    assert sum(k.startswith("tensordesc") for k in kinds) >= 5
    assert parse_program(print_program(program)) == program


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    "shared", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pairs", "one weight"]
)
def test_batches(compiled: Any, force: Any, shared: bool) -> None:
    """Maps of rank 3; where all products read one matrix, of one."""
    force(Config(32, 32, 32, 8, 4, 2, "batched_tma", 3, 2))
    compiled.options = Options.from_mapping({**compiled.options.__dict__, "gemm": "template"})
    x, w = torch.randn(3, 40, 64), torch.randn(1 if shared else 3, 48, 64)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.bmm(x, w.expand(3, 48, 64).mT)) + 1

    torch.testing.assert_close(compiled(fn)(x, w), fn(x, w), rtol=1e-4, atol=1e-4)
    described = [op for op in walk(compiled.graphs[-1].program.ops) if isinstance(op, Describe)]
    assert {d.block for d in described} == {(1, 32, 32), (1, 32, 16)} and len(described) == 3


def planned(shape: tuple[int, ...]) -> Program:
    """The layer's program for a GPU, of bf16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
            graph = capture(export(Layer(), (torch.zeros(shape),), {})).graph
    finally:
        torch.set_default_dtype(before)
    fused = fuse_with_report(serve_one(lower_with_report(graph).graph), FuseOptions(epilogue=True))
    options = Options(gemm="template")
    kernels = Kernels(options)
    users = UserKernelPlanner(options, kernels, fused[0], {})
    plans = select(fused[0], options, MatmulPlanner(options, kernels, fused[0]), users)
    return run_passes(assemble(fused[0], plans), [DedupeKernels(), InsertFrees(), PlanMemory()])


@pytest.mark.parametrize(
    "config", [GLUON_HALF, pytest.param(GLUON, marks=pytest.mark.slow)], ids=["half", "whole"]
)
def test_gluon_kernels_take_maps_from_the_host(force: Any, config: Config) -> None:
    force(config)
    program = planned((1000, 64))
    launches = [op for op in walk(program.ops) if isinstance(op, Launch)]
    described = {op.out: op for op in walk(program.ops) if isinstance(op, Describe)}
    assert len(launches) == 2 and len(described) >= 5
    for launch in launches:
        maps = [a.name for a in launch.args if isinstance(a, Ref) and a.name in described]
        assert len(maps) == 3  # a, b and out
    for define, alignment in expected_variants(program):
        source = kernel_source(define)
        assert source.is_gluon
        binary = triton_rt.compile(source, triton_rt.Target(90), alignment=alignment)
        assert binary.global_scratch_bytes == 0 and len(binary.tensor_maps) == 3
        assert [p.name for p in binary.params if p.mutated] == ["out"]
    text = cpp_emit.emit(program, mode="lazy", schemas=cpp_emit.torch_schema)
    assert text.count("Descriptor ") >= 5
