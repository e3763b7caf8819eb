"""Higher-order operators: their subgraphs are compiled like the graph that calls them, with every
emitter, in training too."""

from __future__ import annotations

import pytest
import torch
from subgraph_cases import (
    CASES,
    DIFFERENTIABLE,
    cond,
    gradients,
    launched,
    loop,
    nested,
    products,
    shared,
    views,
)
from torch.compiler import nested_compile_region

import cpp_emit
from compile_cli.options import Options
from fx_emit import TorchRuntime
from planner import Kernels
from wrapper_ir import (
    DefineControl,
    DefineSubgraph,
    ExternCall,
    Launch,
    interpret,
    parse_program,
    print_program,
)
from wrapper_ir.analysis import kernels, programs

# A C++ library takes most of a second to build, and `hop` differs from `fx` in launches alone: one
# case has calls and control.
SLOW = pytest.mark.slow
OTHERS = [
    pytest.param(f, emit, marks=() if f is loop and emit == "cpp" else SLOW)
    for emit in ("hop", "cpp")
    for f in CASES
]


FX = [pytest.param(f, "fx", marks=SLOW if f in (views, products) else ()) for f in CASES]


@pytest.mark.parametrize(("case", "emit"), [*FX, *OTHERS])  # `test_gradients` has the others
def test_every_emitter(found, case, emit):
    dynamic = emit != "cpp"
    run = torch.compile(
        case, backend="compile_cli", fullgraph=True, dynamic=dynamic, options={"emit": emit}
    )
    for sign in (1, -1):
        x, w = sign * torch.rand(6, 6), torch.randn(6, 6)
        torch.testing.assert_close(run(x.clone(), w), case(x.clone(), w))
    for each in found:
        assert not each.fallbacks
        text = print_program(each.program)
        assert parse_program(text) == each.program
        if emit == "cpp":  # ahead of time it is the same, with all operators called from C++
            assert cpp_emit.emit(each.program, "aot", schemas=cpp_emit.torch_schema) == each.host
        if emit == "fx":
            inputs = [n for n in (6, 6) if any(p.type is None for p in each.program.params)][:1]
            tensors = [torch.rand(6, 6) for p in each.program.params if p.type is not None]
            runtime = TorchRuntime(Kernels(Options()).launcher)
            given = [*inputs, *tensors]
            want = interpret(each.program, [_copy(v) for v in given], runtime, each.constants)
            torch.testing.assert_close(each.run(*map(_copy, given)), want)


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(("case", "count"), [(launched, 3), (shared, 1)])
def test_kernels_of_the_user_in_branches(found, case, count):
    run = torch.compile(case, backend="compile_cli", fullgraph=True)
    yes, no, outer = (2, 3, 5) if case is launched else (2, 2, 2)
    for sign in (1, -1):
        x, w = sign * torch.rand(6, 6), torch.randn(6, 6)
        want = (x * yes if sign > 0 else x * no + 1) * (w * outer)
        torch.testing.assert_close(run(x, w), want)
    scales = [k for name, k in kernels(found[0].program).items() if "scale" in name]
    assert len(scales) == count and not found[0].fallbacks


def test_a_region_is_compiled_once_and_fused(found):
    torch.compile(nested, backend="compile_cli", fullgraph=True)(torch.rand(4, 4), torch.rand(4, 4))
    (graph,) = found
    defined = [op for op in graph.program.ops if isinstance(op, DefineSubgraph)]
    calls = [op for op in graph.program.ops if isinstance(op, ExternCall)]
    assert len(defined) == 1 and len(calls) == 3
    assert len([op for op in defined[0].program.ops if isinstance(op, Launch)]) == 1


def test_control_is_in_the_program(found):
    torch.compile(cond, backend="compile_cli", fullgraph=True)(torch.rand(4, 4), torch.rand(4, 4))
    every = [op for p in programs(found[0].program) for op in p.ops]
    assert [op.form for op in every if isinstance(op, DefineControl)] == ["if", "if"]
    text = cpp_emit.emit(found[0].program, "aot", schemas=cpp_emit.torch_schema)
    assert text.count("\nstatic void ") == 4 and text.count("truth(") == 2


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 6)

    @nested_compile_region
    def forward(self, x):
        return torch.nn.functional.gelu(self.inner(x))


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * x, (x,))


# `test_training` has regions and branches of fixed sizes.
@pytest.mark.parametrize(
    ("case", "dynamic"),
    [
        pytest.param(f, dynamic, marks=() if dynamic and f in (views, products) else SLOW)
        for f in DIFFERENTIABLE
        for dynamic in (True, False)
    ],
)
def test_gradients(found, case, dynamic):
    run = torch.compile(case, backend="compile_cli", fullgraph=True, dynamic=dynamic)
    for sign in (1, -1):
        x = (sign * torch.rand(6, 6)).requires_grad_()
        w = torch.randn(6, 6, requires_grad=True)
        want, got = (gradients(fn(x, w), (x, w)) for fn in (case, run))
        torch.testing.assert_close(got, want)
    assert len(found) == 2 and not any(each.fallbacks for each in found)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training(found, dynamic):
    torch.manual_seed(0)
    model, x = Blocks(), torch.randn(4, 6, requires_grad=True)
    run = torch.compile(model, backend="compile_cli", fullgraph=True, dynamic=dynamic)
    inputs = [x, *model.parameters()]
    want = torch.autograd.grad(model(x).square().sum(), inputs)
    got = torch.autograd.grad(run(x).square().sum(), inputs)
    torch.testing.assert_close(got, want)
    assert len(found) == 2 and not any(each.fallbacks for each in found)


def test_what_torch_makes_functional_runs_as_eager(found):
    @nested_compile_region
    def writes(x):
        x.add_(1)
        return x * 2

    def case(x):
        y = x.clone()
        return writes(y) + y

    x = torch.rand(4)
    got = torch.compile(case, backend="compile_cli", fullgraph=True)(x)
    torch.testing.assert_close(got, case(x))
    assert found[0].fallbacks
