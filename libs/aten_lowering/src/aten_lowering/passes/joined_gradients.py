"""Gradients of pieces of a tensor, which autograd adds up over zeros."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from aten_lowering.extern import bind
from aten_lowering.fills import filled_with
from aten_lowering.meta import tensor_type
from aten_lowering.passes.base import call
from aten_lowering.passes.purity import mutates

aten = torch.ops.aten
_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)


class _Piece(NamedTuple):
    """Elements `start` to `end` of a dimension, `step` apart; `value` has no such dimension where
    it is one element that was selected."""

    dim: int
    start: int
    end: int
    step: int
    value: fx.Node
    selected: bool

    @property
    def place(self) -> tuple[int, int, int, bool]:
        """Which elements of the dimension it has, and whether it lacks that."""
        return self.start, self.end, self.step, self.selected


def joined_gradients(graph: fx.Graph) -> None:
    """`add(slice_scatter(zeros, a, 1, 0, 16), slice_scatter(zeros, b, 1, 16))` ->
    `cat([a + 0.0, b + 0.0], 1)`, where the pieces are all of the tensor: what makes a piece may
    store it where it belongs. Likewise pieces in turns, and several of the same elements, which are
    added first, and so may be pieces of another dimension. (Adding to zero turns -0.0 into 0.0, so
    that stays.)

    `add(index_put(zeros, ids, rows, True), y)` -> `index_put(y, ids, rows, True)`, of a `y` that
    nothing else reads, as that of a table is which is also the weight of logits: rows are added to
    it, and no zeros are made."""
    if mutates(graph):
        return
    for node in [n for n in graph.nodes if _adds(n)]:
        _put(graph, node)
    sums = [n for n in graph.nodes if _adds(n) and not any(_adds(user) for user in n.users)]
    while sums:
        node = sums.pop()
        pieces: dict[tuple[int, int, int, bool], list[_Piece]] = {}
        for piece in _pieces(node):
            pieces.setdefault(piece.place, []).append(piece)
        if len(pieces) > 1 and _tile([p for ps in pieces.values() for p in ps], node.meta["val"]):
            sums += _join(graph, node, [pieces[place] for place in sorted(pieces)])


def _put(graph: fx.Graph, node: fx.Node) -> None:
    """Adds a put's rows to the other term of a sum, where the sum is of puts over zeros."""
    if node.meta["val"].dtype not in (torch.float32, torch.float64):
        return
    for put, other in (node.args, node.args[::-1]):
        assert isinstance(put, fx.Node) and isinstance(other, fx.Node)
        puts: list[fx.Node] = []
        base: Any = put
        while base.target in _PUTS and base.args[3:] == (True,) and len(base.users) == 1:
            puts.append(base)
            base = base.args[0]
        alone = put is not other and len(other.users) == 1 and other.op == "call_function"
        if puts and alone and filled_with(base) == 0:
            whole = other
            with graph.inserting_before(node):
                for each in reversed(puts):
                    whole = call(graph, each.target, whole, *each.args[1:])
                    # a fake tensor of its own: two nodes of one would be one buffer
                    whole.meta = {**node.meta, "val": whole.meta["val"]}
            node.replace_all_uses_with(whole)
            return _drop(graph, node)


def _adds(node: fx.Node) -> bool:
    return (
        node.target is aten.add.Tensor
        and not node.kwargs
        and all(isinstance(a, fx.Node) and _alike(a, node) for a in node.args)
    )


def _alike(one: fx.Node, other: fx.Node) -> bool:
    a, b = (n.meta.get("val") for n in (one, other))
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    return tensor_type(a) == tensor_type(b)


def _pieces(node: fx.Node) -> Iterator[_Piece]:
    """The terms of a sum; one that is no piece begins in front of the first element."""
    if _adds(node):
        for arg in node.args:
            assert isinstance(arg, fx.Node)
            yield from _pieces(arg) if len(arg.users) == 1 else (_Piece(0, -1, 0, 1, arg, False),)
        return
    piece = _Piece(0, -1, 0, 1, node, False)
    selected = node.target is aten.select_scatter.default
    if selected or node.target is aten.slice_scatter.default:
        target: Any = node.target
        zeros, value, dim, start, *cut = bind(node, target).values()
        end, step = cut or (None, 1)
        size = node.meta["val"].shape
        dim %= len(size)
        numbers = all(isinstance(n, int) for n in (start or 0, end or 0, size[dim]))
        if numbers and isinstance(step, int) and filled_with(zeros) == 0:
            if selected:
                end = start % size[dim] + 1
            places = range(*slice(start, end, step).indices(size[dim]))
            if places:
                piece = _Piece(dim, places[0], places[-1] + 1, step, value, selected)
    yield piece


def _tile(pieces: list[_Piece], whole: torch.Tensor) -> bool:
    """Whether the pieces are all of one dimension, end to end or in turns, of real numbers."""
    (dim, *others) = {p.dim for p in pieces}
    if others or dim >= whole.dim() or whole.is_complex():
        return False
    size, (step, *steps) = whole.shape[dim], {p.step for p in pieces}
    places = sorted({(p.start, p.end) for p in pieces})
    if steps or len({p.place for p in pieces}) > len(places):
        return False
    if step == 1:
        return [*(start for start, _ in places), size] == [0, *(end for _, end in places)]
    return size % step == 0 and places == [(n, size - step + n + 1) for n in range(step)]


def _join(graph: fx.Graph, node: fx.Node, pieces: list[list[_Piece]]) -> list[fx.Node]:
    """Puts the pieces in the node's place; the sums of those of the same elements. pieces: by
    place, each place's in the order in which they were added."""

    def made(target: Any, *args: Any) -> fx.Node:
        new = call(graph, target, *args)
        new.meta = {**node.meta, **new.meta}
        return new

    (first, *_), *_ = pieces
    dim, turns = first.dim, first.step > 1
    sums: list[fx.Node] = []
    with graph.inserting_before(node):
        parts = []
        for same in pieces:
            values = [
                made(aten.unsqueeze.default, p.value, dim) if p.selected else p.value for p in same
            ]
            part = functools.reduce(functools.partial(made, aten.add.Tensor), values)
            if len(same) > 1:
                sums.append(part)
            if part.meta["val"].is_floating_point():
                part = made(aten.add.Tensor, part, 0.0)
            rows = part  # has the sizes of the whole but in `dim`
            parts.append(made(aten.unsqueeze.default, part, dim + 1) if turns else part)
        whole = made(aten.cat.default, parts, dim + turns)
        if turns:
            sizes = enumerate(node.meta["val"].shape)
            # of a part: the node's own users are handed over to what is made here
            known = [
                n if isinstance(n, int) else made(aten.sym_size.int, rows, d) for d, n in sizes
            ]
            whole = made(aten.view.default, whole, known)
    if not _alike(whole, node):
        return []
    node.replace_all_uses_with(whole)
    _drop(graph, node)
    return sums


def _drop(graph: fx.Graph, node: fx.Node) -> None:
    """Erases a node that nothing uses, and what only it used."""
    if not node.users and node.op == "call_function":
        args = node.all_input_nodes
        graph.erase_node(node)
        for arg in args:
            _drop(graph, arg)
