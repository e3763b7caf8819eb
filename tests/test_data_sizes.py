"""Sizes that depend on data, in one graph: kernels after the calls that say them, with every
emitter, in training too."""

from __future__ import annotations

import pytest
import torch
from data_size_cases import CASES, FLAGS, read, rows, selected

import cpp_emit
from compile_cli.options import Options
from fx_emit import TorchRuntime
from planner import Kernels
from wrapper_ir import Launch, interpret, parse_program, print_program
from wrapper_ir.analysis import free_symbols, programs
from wrapper_ir.errors import AssertionFailed


@pytest.fixture(autouse=True)
def captured():
    with torch._dynamo.config.patch(FLAGS):
        yield


def inputs():
    """A size that is as traced, another, and one of which little is left."""
    for seed, size, n in ((0, 8, 5), (1, 11, 3), (2, 8, 2)):
        torch.manual_seed(seed)
        yield torch.rand(size, size) - 0.6 * (seed == 2), torch.tensor(n)


# A C++ library takes seconds to build, and `hop` differs from `fx` in launches alone.
OTHERS = [
    pytest.param(f, emit, marks=() if f is rows and emit == "cpp" else pytest.mark.slow)
    for emit in ("hop", "cpp")
    for f in CASES
]


@pytest.mark.parametrize(("case", "emit"), [*((f, "fx") for f in CASES), *OTHERS])
def test_every_emitter(found, case, emit):
    run = torch.compile(
        case, backend="compile_cli", fullgraph=True, dynamic=True, options={"emit": emit}
    )
    for x, n in inputs():
        torch.testing.assert_close(run(x, n), case(x, n))
    (graph,) = found
    assert parse_program(print_program(graph.program)) == graph.program
    if emit == "cpp":  # ahead of time it is the same, with all operators called from C++
        assert cpp_emit.emit(graph.program, "aot", schemas=cpp_emit.torch_schema) == graph.host
    every = [op for p in programs(graph.program) for op in p.ops]
    assert any(isinstance(op, Launch) and free_symbols(op.grid) for op in every)
    runtime = TorchRuntime(Kernels(Options()).launcher)
    for x, n in inputs() if emit == "fx" else ():
        known = {"i64": n, "f32": x}
        given = [p.type and known[p.type.dtype.value] for p in graph.program.params]
        given = [x.shape[0] if v is None else v for v in given]
        want = interpret(graph.program, given, runtime, graph.constants)
        torch.testing.assert_close(tuple(graph.run(*given)), want)


def test_what_is_asserted_is_checked(found):
    run = torch.compile(read, backend="compile_cli", fullgraph=True)
    x = torch.rand(8, 8)
    torch.testing.assert_close(run(x, torch.tensor(8)), read(x, torch.tensor(8)))
    for n in (1, 9):
        with pytest.raises(AssertionFailed, match=r"depends on data: u0 [<>]= [28]"):
            run(x, torch.tensor(n))


@pytest.mark.parametrize(
    "emit", ["fx", *(pytest.param(e, marks=pytest.mark.slow) for e in ("hop", "cpp"))]
)
def test_whether_data_says_so_is_the_only_symbol(emit):
    def scaled(x, n):
        return x * (n > 3).item()

    run = torch.compile(
        scaled, backend="compile_cli", fullgraph=True, dynamic=False, options={"emit": emit}
    )
    for n in (5, 2):
        x = torch.rand(8, 8)
        torch.testing.assert_close(run(x, torch.tensor(n)), scaled(x, torch.tensor(n)))


@pytest.mark.parametrize("case", [selected, rows])
def test_gradients(found, case):
    run = torch.compile(case, backend="compile_cli", fullgraph=True)
    x, n = next(inputs())
    x.requires_grad_()

    def gradient(results):
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum(y.square().sum() for y in results), x)

    torch.testing.assert_close(gradient(run(x, n)), gradient(case(x, n)))
    assert len(found) == 2
