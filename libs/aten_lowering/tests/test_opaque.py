"""Parts of a graph that torch runs itself: which nodes they take, and in what order they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import DependsOnData, UnsupportedGraph, lower, lower_with_report
from aten_lowering.opaque import Opaque, enclose
from loop_ir import Extern, Kernel

aten = torch.ops.aten


def traced(f: Any, *args: Tensor, mode: str = "fake") -> fx.GraphModule:
    return make_fx(lambda *a: [f(*a)], tracing_mode=mode)(*args)


def parts(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in enclose(gm, gm.graph).nodes if isinstance(n.target, Opaque)]


def test_a_value_without_a_type_takes_its_users() -> None:
    gm = traced(lambda x: (x * 2).to_sparse().to_dense() + 1, torch.randn(3, 4))
    first, part, last = lower(gm).nodes
    assert isinstance(first, Kernel) and isinstance(part, Extern) and isinstance(last, Kernel)
    assert part.target == "eager._to_sparse" and part.fallback and part.tuple_result
    (fallback,) = lower_with_report(gm).fallbacks
    assert fallback.op == "aten._to_sparse.default" and "sparse_coo" in fallback.reason


def test_what_lies_between_two_nodes_of_a_part_joins_it() -> None:
    def f(x: Tensor) -> Tensor:
        s = x.to_sparse()
        return torch.sparse.mm(s, s.to_dense().t().sin() + 1)

    x = torch.randn(3, 3)
    gm = traced(f, x)
    (part,) = parts(gm)
    enclosed = fx.GraphModule(gm, enclose(gm, gm.graph))
    torch.testing.assert_close(enclosed(x), [f(x)])
    assert "sin" in part.target.module.code


def test_what_does_not_hang_on_a_part_stays_out_and_runs() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        s = x.to_sparse()
        z = y.cos()
        return s.to_dense() + z

    x, y = torch.randn(3), torch.randn(3)
    gm = traced(f, x, y)
    (part,) = parts(gm)
    assert "cos" not in part.target.module.code
    torch.testing.assert_close(fx.GraphModule(gm, enclose(gm, gm.graph))(x, y), [f(x, y)])


def test_results_have_memory_of_their_own_and_the_strides_of_the_trace() -> None:
    root, graph = torch.nn.Module(), fx.Graph()
    x = graph.placeholder("x")
    graph.output((x, graph.call_method("t", (x,)), graph.call_method("expand", (x, 2, 3, 4))))
    fakes = (torch.empty(3, 4), torch.empty(4, 3), torch.empty(3, 4).expand(2, 3, 4))
    part = Opaque("part", fx.GraphModule(root, graph), "", fakes, (), False)
    value = torch.randn(3, 4)
    same, turned, wide = part(value)
    torch.testing.assert_close((same, turned, wide), (value, value.t(), value.expand(2, 3, 4)))
    assert [t.stride() for t in (same, turned, wide)] == [f.stride() for f in fakes]
    assert len({t.data_ptr() for t in (value, same, turned, wide)}) == 4


def test_writes_to_an_input_are_declared() -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    gm = traced(f, torch.randn(3))
    (write,) = (n for n in gm.graph.nodes if n.target is aten.mul_.Tensor)
    graph = enclose(gm, gm.graph, {write.name: "a test"})
    (part,) = (n for n in graph.nodes if isinstance(n.target, Opaque))
    assert part.target.written == (0,) and part.target.effects


@pytest.mark.parametrize(
    ("f", "mode", "error"),
    [
        (lambda x: x.sum().item(), "symbolic", DependsOnData),
        (lambda x: x.to_sparse(), "fake", UnsupportedGraph),
    ],
)
def test_results_without_a_type_are_refused(f: Any, mode: str, error: type[Exception]) -> None:
    gm = traced(f, torch.randn(4), mode=mode)
    with pytest.raises(error, match=r"depends on data|sparse_coo"):
        lower(gm)


def test_sizes_that_stand_in_a_call_are_passed_to_its_part() -> None:
    """As those of an `as_strided` that a pass made: no node computes them."""
    gm = traced(lambda x: x.t() * 2, torch.randn(3, 4), mode="symbolic")
    (view,) = gm.graph.find_nodes(op="call_function", target=aten.t.default)
    with gm.graph.inserting_before(view):
        fake = view.meta["val"]
        layout = (list(fake.shape), list(fake.stride()))
        strided = gm.graph.call_function(aten.as_strided.default, (view.args[0], *layout))
    strided.meta["val"] = fake
    view.replace_all_uses_with(strided)
    assert all(isinstance(node, Kernel) for node in lower(gm).nodes)
    graph = enclose(gm, gm.graph, {strided.name: "asked for"})
    (call,) = [n for n in graph.nodes if isinstance(n.target, Opaque)]
    x = torch.randn(5, 2)
    (got,) = call.target(x, *(5 if s == fake.shape[1] else 2 for s in call.args[1:]))
    torch.testing.assert_close(got, x.t())
