"""Alike layers are lowered and fused a few times, and stand in the graph as often as there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loop_ir import FuseOptions, Irregular, Kernel, Matmul, Node, fuse, verify
from loop_ir.ir import statements

SIZE, LAYERS = 8, 9
INTO_MATMULS = FuseOptions(epilogue=True, prologue=True)
Fn = Callable[..., Any]


def stack(layer: Fn, ends: Fn = lambda x, all_, x0: x, first: Fn = lambda x: x) -> Fn:
    """A model: what `ends` makes of the last value, those of all layers, and the first one."""

    def run(x: Tensor, *weights: Tensor) -> Any:
        x0, every = x, []
        x = first(x)
        for weight in weights:
            x = layer(x, weight, x0)
            every.append(x)
        return ends(x, every, x0)

    return run


def plain(x: Tensor, w: Tensor, x0: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x @ w), (SIZE,)) + x


def added_to(x: Tensor, *weights: Tensor) -> Any:
    """What is made before all layers, and changed after them."""
    made = x.t() @ x
    last = stack(plain)(x, *weights)
    return last, made.index_put((x[0].argsort(),), last[:SIZE], accumulate=True)


FOLDED: dict[str, Fn] = {
    "plain": stack(plain),
    "after others": stack(plain, first=lambda x: x.cumsum(0) * 2),
    "the first value at the end": stack(plain, lambda x, every, x0: (x + x0.exp(), x.sum(1))),
    "the first value in all": stack(lambda x, w, x0: plain(x, w, x0) * x0.sigmoid()),
    "a result of each": stack(plain, lambda x, every, x0: [*every[::-1], x0 + 1]),
    "views of each": stack(plain, lambda x, every, x0: [v.t() for v in every]),
    "the last ones": stack(plain, lambda x, every, x0: every[-1] - every[-2]),
    "an operand of its own": stack(lambda x, w, x0: x @ w.bfloat16().float() + x),
    "the last product": stack(lambda x, w, x0: x.sigmoid() @ w + x),
    "a value from before changes": added_to,
    "one weight": stack(lambda x, w, x0: plain(x, x0.t(), x0)),
}
WHOLE: dict[str, Fn] = {
    "all at the end": stack(plain, lambda x, every, x0: torch.stack(every).sum(0)),
    "an early one at the end": stack(plain, lambda x, every, x0: x * every[1]),
    "of an early one": stack(lambda x, w, x0: x @ w),
}


def shape(node: Node) -> Any:
    """What it does, in any order."""
    body = statements(node) if isinstance(node, Kernel) else ()
    return type(node), *sorted(type(s).__name__ for s in body)


def given(x: int = SIZE) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(x, SIZE), *(torch.randn(SIZE, SIZE) / 3 for _ in range(LAYERS))]


@pytest.mark.parametrize(
    ("name", "symbolic"), [*((name, False) for name in FOLDED), ("a result of each", True)]
)
def test_the_whole_is_what_it_was(
    name: str, symbolic: bool, lower_fn: Any, evaluate_graph: Any
) -> None:
    args = given(SIZE + 3 if name != "one weight" else SIZE)
    short, long = (
        lower_fn(FOLDED[name], *args, symbolic=symbolic, fold_layers=fold) for fold in (True, False)
    )
    assert short.layers is not None and long.layers is None
    assert len(short.graph.nodes) < len(long.graph.nodes)
    whole = [short.whole(short.graph)]
    for options in (FuseOptions(), INTO_MATMULS):
        graph, want = short.whole(fuse(short.graph, options)), fuse(long.graph, options)
        verify(graph)
        assert graph.inputs == want.inputs
        forms = [Counter(map(shape, g.nodes)) for g in (graph, want)]
        assert forms[0] == forms[1]
        whole.append(graph)
    expected = FOLDED[name](*args)
    expected = [expected] if isinstance(expected, Tensor) else expected
    for one in whole:
        got = list(evaluate_graph(one, args, short.constants))
        torch.testing.assert_close(got, [*expected], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", WHOLE)
def test_what_has_other_readers_stays_whole(name: str, lower_fn: Any) -> None:
    fn = WHOLE[name]
    if name == "of an early one":  # weights of other layouts
        args = [w.t() if i in (4, 6) else w for i, w in enumerate(given())]
    else:
        args = given()
    assert lower_fn(fn, *args, fold_layers=True).layers is None


def test_each_layer_draws_for_itself(lower_fn: Any, evaluate_graph: Any) -> None:
    args = [torch.ones(40, SIZE), *(torch.eye(SIZE) for _ in range(LAYERS))]
    fn = stack(lambda x, w, x0: torch.native_dropout(x @ w, 0.2, True)[0])
    short = lower_fn(fn, *args, fold_layers=True)
    assert short.layers is not None and short.layers.left_out == LAYERS - 5
    graph = short.whole(fuse(short.graph))
    (drawn, rows) = graph.nodes[:2]
    assert len(rows.outs) == LAYERS and drawn.outs[0][1].size[0] == LAYERS  # type: ignore[union-attr,index]  # calls
    torch.manual_seed(0)
    (got,) = evaluate_graph(graph, args, {})
    assert abs(float((got != 0).float().mean()) - 0.8**LAYERS) < 0.08


def test_what_is_made_of_layers_must_be_alike(lower_fn: Any) -> None:
    short = lower_fn(FOLDED["plain"], *given(), fold_layers=True)
    fused = fuse(short.graph)
    nodes = [
        replace(n, alpha=i) if isinstance(n, Matmul) else n for i, n in enumerate(fused.nodes, 2)
    ]
    with pytest.raises(Irregular):
        short.whole(replace(fused, nodes=tuple(nodes)))
