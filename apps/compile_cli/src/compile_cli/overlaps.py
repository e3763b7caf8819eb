"""Writes to memory that is read, or written again, by the same operator.

A functional graph reads everything before it writes. Eager refuses most programs in which that
makes a difference, and gives others an answer that hangs on the order in which elements are
visited; both are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from aten_lowering import storage_key
from compile_cli.errors import BadInput

aten = torch.ops.aten

# They give every element one value, whatever the order.
_FILLS = frozenset({aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor})
# They write and read elements at places that are data.
_SCATTERS = ("index_", "_index_put", "scatter", "put_", "masked_scatter")
# Steps of the search for a common element; past them, tensors are taken to overlap.
_STEPS = 100_000

Terms = list[tuple[int, int, int]]  # stride, lowest and highest index


def share_elements(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have bytes in common."""
    if 0 in a.shape or 0 in b.shape:
        return False
    one, other = a.element_size(), b.element_size()
    terms: Terms = [(s * one, 0, n - 1) for n, s in _layout(a)]
    terms += [(-s * other, 0, n - 1) for n, s in _layout(b)]
    terms += [(1, 0, one - 1), (-1, 0, other - 1)]
    return _reachable(terms, _int(b.storage_offset()) * other - _int(a.storage_offset()) * one)


def overlaps_itself(x: Tensor) -> bool:
    """Whether two elements of a tensor lie in one place."""
    layout = _layout(x)
    if 0 in x.shape:
        return False
    span = 0  # strides that exceed what the smaller ones span keep elements apart
    for n, s in sorted(layout, key=lambda ns: ns[1]):
        if s <= span:
            break
        span += (n - 1) * s
    else:
        return False
    for d, (n, s) in enumerate(layout):  # the first dimension in which the two elements differ
        rest: Terms = [(step, 1 - m, m - 1) for m, step in layout[d + 1 :]]
        if _reachable([(s, 1, n - 1), *rest], 0):
            return True
    return False


def refuse_overlaps(graph: GraphModule) -> None:
    """Raises `BadInput` for a write that reads what it writes, that writes one place twice, or that
    goes to an input whose elements share places. `graph` is not functional yet."""
    inputs = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
    folded = {storage_key(t) for t in inputs if isinstance(t, Tensor) and overlaps_itself(t)}
    for node in graph.graph.nodes:
        op = node.target
        if not isinstance(op, OpOverload) or not op._schema.is_mutable or op in _FILLS:
            continue
        written, read = _arguments(node, op)
        for i, x in enumerate(written):
            if overlaps_itself(x) or storage_key(x) in folded:
                raise _refused(node, "several elements of a tensor that it writes lie in one place")
            others = [*written[:i], *read]
            if any(_reads(op, x, y) for y in others):
                raise _refused(node, "it reads memory that it writes, at other places")


def refuse_new_layouts(graph: GraphModule) -> None:
    """Raises `BadInput` where the model leaves an input with other sizes or strides, or another
    storage (`x.t_()`, `x.resize_(2)`, `x.set_(y)`): a graph gives values only."""
    for place in graph.graph.find_nodes(op="placeholder"):
        node, changed = place, None
        while step := next((u for u in node.users if _changes_layout(u, node)), None):
            node, changed = step, step
        if changed is None:
            continue
        before, after = place.meta["val"], changed.meta["val"]
        kept = before.shape == after.shape and before.stride() == after.stride()
        if not kept or storage_key(before) != storage_key(after):
            raise BadInput(
                f"{changed.target} changes the layout of input {place.name}\n"
                f"  expected: {list(before.shape)}, as the caller passes it\n"
                f"  got:      {list(after.shape)}\n"
                "  to do: use the operator that gives a new tensor"
            )


def _changes_layout(user: Node, node: Node) -> bool:
    op = user.target
    if not isinstance(op, OpOverload) or not op._schema.is_mutable or user.args[0] is not node:
        return False
    return isinstance(user.meta.get("val"), Tensor)


def _reads(op: OpOverload, written: Tensor, read: Tensor) -> bool:
    if storage_key(written) != storage_key(read):
        return False
    layouts = [(t.dtype, _layout(t), _int(t.storage_offset())) for t in (written, read)]
    if layouts[0] == layouts[1] and written.shape == read.shape:
        return op._schema.name.removeprefix("aten::").startswith(_SCATTERS)
    return share_elements(written, read)


def _arguments(node: Node, op: OpOverload) -> tuple[list[Tensor], list[Tensor]]:
    written: list[Tensor] = []
    read: list[Tensor] = []
    for i, a in enumerate(op._schema.arguments):
        given = node.args[i] if i < len(node.args) else node.kwargs.get(a.name)
        is_written = a.alias_info is not None and a.alias_info.is_write
        (written if is_written else read).extend(_tensors(given))
    return written, read


def _tensors(given: Any) -> Iterator[Tensor]:
    for n in tree_leaves(given):
        if isinstance(n, Node) and isinstance(n.meta.get("val"), Tensor):
            yield n.meta["val"]


def _refused(node: Node, why: str) -> BadInput:
    return BadInput(
        f"{node.target} writes to memory in an order that its result would hang on\n"
        f"  why:   {why}\n  to do: clone() the tensor before the write"
    )


def _layout(x: Tensor) -> list[tuple[int, int]]:
    """Size and stride of each dimension with more than one element, those of the hints."""
    pairs = zip(map(_int, x.shape), map(_int, x.stride()), strict=True)
    return [(n, s) for n, s in pairs if n != 1]


def _int(n: int | torch.SymInt) -> int:
    return n if isinstance(n, int) else int(n.node.hint)


def _reachable(terms: Sequence[tuple[int, int, int]], target: int) -> bool:
    """Whether `sum(stride * k) == target` for some `k`, each between its bounds."""
    ordered = sorted(terms, key=lambda t: -abs(t[0]))
    low, high = [0], [0]
    for s, a, b in reversed(ordered):
        low.append(low[-1] + min(s * a, s * b))
        high.append(high[-1] + max(s * a, s * b))
    left = _STEPS

    def search(i: int, rest: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0 or i == len(ordered):
            return left < 0 or rest == 0
        s, a, b = ordered[i]
        below, above = low[len(ordered) - 1 - i], high[len(ordered) - 1 - i]
        if s == 0:
            return search(i + 1, rest)
        # below <= rest - s * k <= above
        first, last = (
            sorted((rest - above, rest - below)) if s > 0 else (rest - below, rest - above)
        )
        start = max(a, -(-first // s))
        stop = min(b, last // s)
        return any(search(i + 1, rest - s * k) for k in range(start, stop + 1))

    return search(0, target)
