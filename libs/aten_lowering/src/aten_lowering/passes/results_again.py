"""Results that a gradient reads, as pointwise work on what is kept for it anyway."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from aten_lowering.passes.base import call, replace
from aten_lowering.registry import named

aten = torch.ops.aten

_WHOLE = named(
    "native_dropout _native_batch_norm_legit_functional _native_batch_norm_legit.no_stats "
    "native_layer_norm native_group_norm"
)

_NARROW = (torch.bfloat16, torch.float16)
_SAME = (aten._to_copy.default, aten.view.default, aten.permute.default)  # values


def results_again(graph: fx.Graph, outputs: int) -> None:
    """`y, mask = native_dropout(x, p)`, `y` read by a gradient -> `y = x * mask / (1 - p)`;
    `y, mean, rstd, ... = norm(x, w, b, ...)` -> `y = (x - mean) * rstd * w + b`.

    Of a graph forward and backward, whose first `outputs` results are forward's: a partition may
    then keep `x`, and the mask or the statistics, which it keeps anyway, and have `y` computed
    again; the operators as wholes may not be, since a mask is random and statistics are dear. Not
    where no gradient reads `y`, nor where statistics are narrower than what `y` is computed in.
    What forward makes of it is one kernel, as before."""
    _wide_groups(graph, _forward(graph, outputs))
    forward = _forward(graph, outputs)
    for node in list(graph.nodes):
        parts: dict[Any, fx.Node] = {}
        if node.target in _WHOLE:
            parts = {user.args[1]: user for user in node.users}
        if len(parts) < 2 or len(parts) < len(node.users) or 0 not in parts:
            continue
        y = parts[0]
        if not _read(y, forward):
            continue
        last = next(n for n in reversed(graph.nodes) if n in parts.values())
        with graph.inserting_before(last.next):
            again = _again(graph, node, parts)
        if again is not None and _layout(again) == _layout(y):
            again.meta = {**y.meta, "val": again.meta["val"]}
            y.replace_all_uses_with(again)
    graph.eliminate_dead_code()


def _wide_groups(graph: fx.Graph, forward: set[fx.Node]) -> None:
    """Statistics of groups of 16 bits are float32 where a gradient reads them, as those of rows
    and batches are: rounded, they make a gradient that is near 0 any number."""
    for node in graph.find_nodes(op="call_function", target=aten.native_group_norm.default):
        dtype = node.args[0].meta["val"].dtype
        if dtype not in _NARROW or all(user.args[1] == 0 for user in node.users):
            continue
        with graph.inserting_before(node):
            given = [n and _to(graph, n, torch.float32) for n in node.args[:3]]
            wide = call(graph, node.target, *given, *node.args[3:])
            parts = [call(graph, operator.getitem, wide, i) for i in range(3)]
        for user in list(node.users):
            made = parts[user.args[1]]
            for reader in list(_readers(user)):
                copy = reader.target is aten._to_copy.default and reader not in forward
                if copy and _layout(reader) == _layout(made):
                    replace(reader, made)
            with graph.inserting_before(user):
                replace(user, _to(graph, made, dtype))


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    for user in node.users:
        yield from _readers(user) if user.target is aten.alias.default else [user]


def _forward(graph: fx.Graph, outputs: int) -> set[fx.Node]:
    """What the first results come of."""
    found: set[fx.Node] = set()
    results: Any = graph.output_node().args[0]
    left = [r for r in results[:outputs] if isinstance(r, fx.Node)]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(node.all_input_nodes)
    return found


def _read(y: fx.Node, forward: set[fx.Node]) -> bool:
    """Whether a gradient reads it, or its values in another type or shape."""
    return any(
        user not in forward or (user.target in _SAME and _read(user, forward)) for user in y.users
    )


def _layout(node: fx.Node) -> tuple[Any, ...]:
    value: Tensor = node.meta["val"]
    return value.shape, value.stride(), value.dtype


def _to(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    same = node.meta["val"].dtype is dtype
    return node if same else call(graph, aten._to_copy.default, node, dtype=dtype)


def _again(graph: fx.Graph, node: fx.Node, parts: dict[Any, fx.Node]) -> fx.Node | None:
    """The first result, of the input and the others, in the type that kernels compute in."""
    x: Any = node.args[0]
    dtype = x.meta["val"].dtype
    wide = torch.float32 if dtype in _NARROW else dtype
    if node.target is aten.native_dropout.default:
        p = draws(node)
        return None if p is None else dropped(graph, x, parts[1], p)
    y = _normal(graph, node, _to(graph, x, wide), parts)
    return None if y is None else _to(graph, y, dtype)


def draws(dropout: fx.Node) -> float | None:
    """The probability with which elements are dropped, where it is neither 0 nor 1."""
    p, train = (*dropout.args, *dropout.kwargs.values())[1:3]
    return p if train is not False and isinstance(p, float) and 0 < p < 1 else None


def dropped(graph: fx.Graph, x: fx.Node, mask: fx.Node, p: float) -> fx.Node:
    """What dropout makes of `x`, computed as kernels do."""
    dtype = x.meta["val"].dtype
    wide = torch.float32 if dtype in _NARROW else dtype
    kept = call(graph, aten.mul.Tensor, _to(graph, x, wide), _to(graph, mask, wide))
    return _to(graph, call(graph, aten.mul.Tensor, kept, 1 / (1 - p)), dtype)


def _normal(
    graph: fx.Graph, node: fx.Node, x: fx.Node, parts: dict[Any, fx.Node]
) -> fx.Node | None:
    value: Tensor = x.meta["val"]
    rows = node.target is aten.native_layer_norm.default
    groups = node.target is aten.native_group_norm.default
    weight, bias = node.args[2:4] if rows else node.args[1:3]
    if not isinstance(bias, fx.Node) or not {1, 2} <= parts.keys():
        return None
    if any(parts[i].meta["val"].dtype is not value.dtype for i in (1, 2)):
        return None
    if groups and not (value.is_contiguous() and isinstance(node.args[6], int)):
        return None
    # There is nothing to compute, or, of running statistics on the CPU, nothing that is kept.
    sizes = (*value.shape, *parts[1].meta["val"].shape)
    if 0 in [n for n in sizes if isinstance(n, int)]:
        return None

    def of_channels(vector: fx.Node) -> fx.Node:
        size = [-1, *[1] * (value.dim() - 2)]
        return vector if rows else call(graph, aten.view.default, vector, size)

    mean, rstd = parts[1], parts[2]
    if groups:
        x = call(graph, aten.view.default, x, [value.shape[0], node.args[6], -1])
        mean, rstd = (call(graph, aten.unsqueeze.default, s, -1) for s in (mean, rstd))
    else:
        mean, rstd = map(of_channels, (mean, rstd))
    y = call(graph, aten.mul.Tensor, call(graph, aten.sub.Tensor, x, mean), rstd)
    y = call(graph, aten.view.default, y, list(value.shape)) if groups else y
    if isinstance(weight, fx.Node):
        y = call(graph, aten.mul.Tensor, y, of_channels(_to(graph, weight, value.dtype)))
    return call(graph, aten.add.Tensor, y, of_channels(_to(graph, bias, value.dtype)))
