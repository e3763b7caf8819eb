"""Symbolic sizes: the same graph is right for other sizes than those it was traced with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aten_lowering import decompose, lower_with_report
from aten_lowering.equal_sizes import equal_sizes
from loop_ir import Extern, parse_graph, print_graph


class Fn(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(*args)


def two_sizes(fn: Callable[..., Any], rank: int, count: int) -> Any:
    a, b = Dim("a", min=3, max=40), Dim("b", min=3, max=40)
    dims = {0: a, 1: b} if rank > 1 else {0: a}
    shape = (4, 5, 4)[:rank]
    inputs = tuple(torch.randn(shape) for _ in range(count))
    program = export(Fn(fn), inputs, dynamic_shapes=((dims,) * count,))
    return lower_with_report(decompose(program))


CASES: list[tuple[str, Callable[..., Any], int, int]] = [
    ("broadcast", lambda x, y: x + y[:, :1] * 2, 3, 2),
    ("flatten", lambda x, y: (x + 1).reshape(x.shape[0] * x.shape[1], 4) @ y[0].t(), 3, 2),
    ("fold", lambda x: x.sum((0, 2)) / x.shape[1] + x.mean(1).sum(), 3, 1),
    ("moments", lambda x: F.layer_norm(x, x.shape[1:]) + x.var(1, keepdim=True), 3, 1),
    ("softmax", lambda x: x.softmax(1).transpose(0, 1).contiguous(), 3, 1),
    ("cat", lambda x, y: torch.cat([x, y, x], 1) * 2, 3, 2),
    ("arange", lambda x: x[:, 0, 0] * torch.arange(x.shape[0]) + torch.full((), x.shape[1]), 3, 1),
    ("causal", lambda x: x[:, :, 0].masked_fill(torch.ones_like(x[:, :, 0]).triu(1) > 0, -1), 3, 1),
    ("pad", lambda x: F.pad(x, (0, 0, 1, 2)).flip(1), 3, 1),
    ("gather", lambda x: x[torch.arange(x.shape[0]).flip(0)], 3, 1),
    ("slices", lambda x: x[1:, :-1].relu() + x[:-1, 1:], 3, 1),
    ("matmul", lambda x: x @ x.transpose(1, 2), 3, 1),
    ("expand", lambda x: x.unsqueeze(2).expand(-1, -1, 3, -1).reshape(x.shape[0], -1) + 1, 3, 1),
    ("rank one", lambda x: x.cos() + x.max() + x.argmax(), 1, 1),
]


@pytest.mark.parametrize(("rank", "count"), [(3, 2), (3, 1), (1, 1)])
def test_other_sizes(evaluate_graph: Any, rank: int, count: int) -> None:
    cases = [(name, fn) for name, fn, *of in CASES if of == [rank, count]]
    lowered = two_sizes(lambda *given: [fn(*given) for _, fn in cases], rank, count)
    assert lowered.fallbacks == ()
    for sizes in ((3, 5), (4, 9), (11, 3)):
        inputs = [torch.randn((*sizes, 4)[:rank] if rank > 1 else sizes[:1]) for _ in range(count)]
        results = evaluate_graph(lowered.graph, inputs, lowered.constants)
        for (name, fn), got in zip(cases, results, strict=True):
            torch.testing.assert_close(
                got,
                fn(*inputs),
                rtol=1e-5,
                atol=1e-5,
                msg=lambda text, name=name: f"{name}: {text}",
            )


def test_sizes_are_results_too(evaluate_graph: Any) -> None:
    lowered = two_sizes(lambda x: (x + 1, x.shape[0] * x.shape[1], None), 3, 1)
    got = evaluate_graph(lowered.graph, [torch.zeros(3, 7, 4)], {})
    assert got[1:] == [21, None]


def test_calls_bind_sizes_that_depend_on_data(oracle: Any) -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        k = (n * 1).item()
        torch._check(k >= 2)
        return [x[x > 0] * 2, torch.arange(k) + 1]

    args = torch.tensor([1.0, -1.0, 3.0]), torch.tensor(4)
    lowered = oracle(f, *args, symbolic=True, fallbacks=["aten.index.Tensor"])
    binders = [n for n in lowered.graph.nodes if isinstance(n, Extern)]
    assert [len(n.binds) for n in binders] == [1, 1]
    assert len(lowered.conditions.checked) == 1
    assert parse_graph(print_graph(lowered.graph)) == lowered.graph


def test_equal_sizes_beside_a_size_of_0() -> None:
    """A part of a tensor without elements, whose first dimension steps over more than it has."""
    graph, mode = fx.Graph(), FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.empty(7, 4))
    node = graph.placeholder("x")
    node.meta["val"] = x
    half = x.shape[0] // 2
    part = graph.call_function(torch.ops.aten.slice.Tensor, (node,))
    with mode:
        part.meta["val"] = torch.empty(0, 2, half)[:, :, : half - 2]
    assert half == 3  # a guard
    graph.output(part)
    equal_sizes(graph)
    got = part.meta["val"]
    assert tuple(got.shape) == (0, 2, 1) and tuple(got.stride()) == (6, 3, 1)


@pytest.mark.parametrize(
    ("sizes", "guard", "forms"),
    [
        ((8, 4), lambda a, b: (a + 1) // 2 == b and a - (a + 1) // 2 == b, "a -> 2*b"),
        ((8, 4), lambda a, b: (a + 1) // 2 == b and a // 2 == b, "a//2*b -> b**2"),
        ((9, 4), lambda a, b: a // 2 == b, "a//2*a -> b*a"),
        ((8, 3), lambda a, b: (a + 1) // 2 * 2 == a, "b*(a - (a + 1)//2) -> (a + 1)//2*b"),
        ((8, 3), lambda a, b: torch.sym_max(1, a - 5) == a - 5, "sym_max(1, a - 5)*b -> (a - 5)*b"),
    ],
)
def test_equal_sizes(sizes: tuple[int, int], guard: Any, forms: str) -> None:
    """What guards say of the sizes of an input is said of what is made of them."""
    graph, mode = fx.Graph(), FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.empty(sizes))
    graph.placeholder("x").meta["val"] = x
    names = {"a": x.shape[0], "b": x.shape[1], "sym_max": torch.sym_max}
    before, after = forms.split(" -> ")
    made = graph.call_function(torch.ops.aten.zeros.default, ([eval(before, names)],))
    with mode:
        made.meta["val"] = torch.empty(eval(before, names))
    assert guard(*x.shape)
    graph.output(())
    equal_sizes(graph)
    got = made.meta["val"].shape[0].node.expr
    assert sympy.expand(got - eval(after, names).node.expr) == 0, got
