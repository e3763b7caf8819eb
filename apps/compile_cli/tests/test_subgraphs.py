"""Higher-order operators: their subgraphs are compiled like the graph that calls them, with every
emitter, in training too."""

from __future__ import annotations

import warnings

import pytest
import torch
from functorch.experimental.control_flow import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.compiler import nested_compile_region

import cpp_emit
from compile_cli import pipeline
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
from wrapper_ir.analysis import programs


@nested_compile_region
def region(x, w):
    return (x + w).sin() * 2


@nested_compile_region
def around(x):
    return region(x, x) + region(x.t(), x + 1)


def nested(x, w):
    for _ in range(3):
        x = region(x, w)
    return x * 2


def cond(x, w):
    def inner(x):
        return torch.cond(x.max() > 100, lambda x: x + 3, lambda x: x.cos() - w, (x,))

    return torch.cond(x.sum() > 0, lambda x: (x.sin() + 1) * w, inner, (x,)) * 2


def loop(x, w):
    def body(i, y):
        return i + 1, (y + w).sin() + 1

    return while_loop(lambda i, y: i < 4, body, (torch.tensor(0), x))[1] * 2


def never(x, w):
    y = while_loop(lambda y: y.sum() > 1e9, lambda y: y + 1, (x,))[0]
    return y, y.add_(1)


def scanned(x, w):
    def step(c, x):
        c = c * 0.5 + x[0] * x[1]
        return c, (c.tanh(), c + w[0])

    return scan(step, torch.zeros_like(x[:, 0]), (x, w), dim=1, reverse=True)


def mapped(x, w):
    return torch_map(lambda row, w: (row + w).sin().sum(-1), x, w)


def by_size(x, w):
    return torch.cond(x.shape[0] > 4, lambda x: x * x.shape[0], lambda x: x - 1, (x,))


def views(x, w):
    return around(x[1:, 1:]) + 1


def constants(x, w):
    return torch.cond(x.sum() > 0, lambda x: x + torch.tensor([2.0]), lambda x: x - 1, (x,))


CASES = [nested, cond, loop, never, scanned, mapped, by_size, views, constants]


@pytest.fixture
def compiled(monkeypatch):
    """The graphs that are compiled, as they come."""
    found = []
    compile_graph = pipeline.compile_graph

    def spy(*args, **kwargs):
        found.append(compile_graph(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(pipeline, "compile_graph", spy)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="compile_cli leaves")
        yield found


# A C++ library for each subgraph takes seconds to build: one case has calls and control.
CPP = [pytest.param(f, "cpp", marks=() if f is loop else pytest.mark.slow) for f in CASES]


@pytest.mark.parametrize(("case", "emit"), [(f, e) for e in ("fx", "hop") for f in CASES] + CPP)
def test_every_emitter(compiled, case, emit):
    dynamic = emit != "cpp"
    run = torch.compile(
        case, backend="compile_cli", fullgraph=True, dynamic=dynamic, options={"emit": emit}
    )
    for sign in (1, -1):
        x, w = sign * torch.rand(6, 6), torch.randn(6, 6)
        torch.testing.assert_close(run(x.clone(), w), case(x.clone(), w))
    for each in compiled:
        assert not each.fallbacks
        text = print_program(each.program)
        assert parse_program(text) == each.program
        if emit == "fx":
            inputs = [n for n in (6, 6) if any(p.type is None for p in each.program.params)][:1]
            tensors = [torch.rand(6, 6) for p in each.program.params if p.type is not None]
            runtime = TorchRuntime(Kernels(Options()).launcher)
            given = [*inputs, *tensors]
            want = interpret(each.program, [_copy(v) for v in given], runtime, each.constants)
            torch.testing.assert_close(each.run(*map(_copy, given)), want)


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_a_region_is_compiled_once_and_fused(compiled):
    torch.compile(nested, backend="compile_cli", fullgraph=True)(torch.rand(4, 4), torch.rand(4, 4))
    (graph,) = compiled
    defined = [op for op in graph.program.ops if isinstance(op, DefineSubgraph)]
    calls = [op for op in graph.program.ops if isinstance(op, ExternCall)]
    assert len(defined) == 1 and len(calls) == 3
    assert len([op for op in defined[0].program.ops if isinstance(op, Launch)]) == 1


def test_control_is_in_the_program(compiled):
    torch.compile(cond, backend="compile_cli", fullgraph=True)(torch.rand(4, 4), torch.rand(4, 4))
    every = [op for p in programs(compiled[0].program) for op in p.ops]
    assert [op.form for op in every if isinstance(op, DefineControl)] == ["if", "if"]
    with pytest.raises(cpp_emit.CppEmitError, match="DefineSubgraph has no C"):
        cpp_emit.emit(compiled[0].program, "aot", schemas=cpp_emit.torch_schema)


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


@pytest.mark.parametrize("dynamic", [False, True])
def test_training(compiled, dynamic):
    torch.manual_seed(0)
    model, x = Blocks(), torch.randn(4, 6, requires_grad=True)
    run = torch.compile(model, backend="compile_cli", fullgraph=True, dynamic=dynamic)
    inputs = [x, *model.parameters()]
    want = torch.autograd.grad(model(x).square().sum(), inputs)
    got = torch.autograd.grad(run(x).square().sum(), inputs)
    torch.testing.assert_close(got, want)
    assert len(compiled) == 2 and not any(each.fallbacks for each in compiled)


def test_what_torch_makes_functional_runs_as_eager(compiled):
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
    assert compiled[0].fallbacks
