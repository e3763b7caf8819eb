"""Where what writes may write: in the memory of its argument, or in a copy of that.

A functional graph gives new tensors. `u = scatter(x, ...)` may be `x` itself, written in place,
when nothing looks at the old content of `x` afterwards, or when `x` is an input that is overwritten
later in any case (the model changes its argument)."""

import operator
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import OpOverload

from aten_lowering.aliasing import view_of
from aten_lowering.builder import Operand
from aten_lowering.elementwise import copy_kernel
from aten_lowering.errors import CannotLower
from aten_lowering.few import crowd_of, is_few_a_row
from aten_lowering.fills import FULLS, ONES, ZEROS
from aten_lowering.memory import storage_key
from aten_lowering.meta import tensor_type
from aten_lowering.registry import named
from loop_ir import Extern, Node, Origin, TensorRef, TensorType

aten = torch.ops.aten

# `scatter(x, part, ...)` -> the view of `x` whose content `part` becomes.
_VIEWED: dict[Any, OpOverload] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}

# Writes elements of a copy of the first argument -> what writes them in place.
_UPDATES = """
index_put scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add
scatter_reduce.two index_reduce masked_scatter put
"""
UPDATES: dict[Any, OpOverload] = {
    **{op: getattr(getattr(aten, f"{op._opname}_"), op._overloadname) for op in named(_UPDATES)},
    aten._unsafe_index_put.default: aten.index_put_.default,
}

# What is one number everywhere is no memory that a part is written into: it is computed with it.
_FILLS = (*ZEROS, *ONES, *FULLS)

_SCATTERS = (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)


def is_partial(node: fx.Node) -> bool:
    """The node puts a tensor in the place of a view of another."""
    return node.target in _VIEWED


@dataclass(frozen=True)
class Placement:
    """Where calls of one graph may write.

    env: what nodes mean so far. inputs: buffers of the caller. constants: buffers that nobody may
    write."""

    graph: fx.Graph
    env: Mapping[fx.Node, Any]
    inputs: frozenset[str]
    constants: Container[str]

    def takes_over(self, node: fx.Node, buffer: str, written: fx.Node | None = None) -> bool:
        """Whether `node` may write to a buffer, of which others have looked at the old content
        before. written: it writes to nothing but this tensor; what puts a tensor in the place of a
        view that holds all of that may then come later."""
        if buffer in self.constants:
            return False
        aliases = {n for n, v in self.env.items() if buffer in buffers_of(v)}
        position = {n: i for i, n in enumerate(self.graph.nodes)}
        later = {u for n in aliases for u in n.users if position[u] > position[node]}
        holding = set() if written is None else self._holding(written)
        later = {u for u in later if not self._replaces(u, aliases, holding)}
        if buffer not in self.inputs:
            return not later
        overwritten = bool(later) and all(
            n.target is aten.copy_.default
            and isinstance(n.args[0], fx.Node)
            and n.args[0].op == "placeholder"
            and n.args[1] not in aliases
            for n in later
        )
        return overwritten and not self._is_returned(node)

    def may_overwrite(self, node: fx.Node) -> bool:
        """Whether a node that changes elements of a copy of its first argument may do so in the
        argument itself."""
        if not (is_partial(node) or node.target in UPDATES):
            return False
        base = node.args[0]
        if is_partial(node) and isinstance(base, fx.Node) and base.target in _FILLS:
            return False
        x = self.env[base] if isinstance(base, fx.Node) else None
        if not (isinstance(x, Operand) and x.is_plain and x.constant is None):
            return False
        assert isinstance(base, fx.Node)
        if x.ref.buffer not in self.inputs and self._computes(node, x):
            return False
        type = tensor_type(node.meta["val"])
        if x.size != type.size or sympy.S.Zero in x.type.stride:
            return False
        # what is put into the place of a view may lie in any order
        placed = all(is_partial(u) and u.args[0] is not node for u in node.users)
        if x.type.stride != type.stride and not placed:
            return False
        others = [self.env[n] for n in node.all_input_nodes if n is not base]
        if is_partial(node):
            part = self.part(node).ref
            others = [y for y in others if not (isinstance(y, Operand) and y.ref == part)]
        if any(x.ref.buffer in buffers_of(y) for y in others):
            return False
        return self.takes_over(node, x.ref.buffer, base)

    def _computes(self, node: fx.Node, x: Operand) -> bool:
        """The node is part of what computes `x`: elements ask whether values are theirs, or those
        that are combined with a number, or in few places, go elsewhere first."""
        given: Any
        dim: Any
        base, dim, given = (*node.args, None)[:3]
        along = node.target in _SCATTERS and bool(x.size)
        if along and is_few_a_row(self.env[given].size, x.size, dim % len(x.size)):
            return True
        crowd = crowd_of(node)
        if crowd is None:
            return False
        filled = isinstance(base, fx.Node) and base.target in _FILLS
        return filled or crowd.is_asked or crowd.copies > 1

    def part(self, node: fx.Node) -> Operand:
        """The view of its first argument that a node replaces."""
        base, _, *args = node.args
        assert isinstance(base, fx.Node)
        given: Any = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (args, node.kwargs))
        fake = _VIEWED[node.target](base.meta["val"], *given[0], **given[1])
        return view_of(self.env[base], base.meta["val"], fake)

    def _replaces(self, user: fx.Node, aliases: set[fx.Node], holding: set[TensorRef]) -> bool:
        """The user looks at elements of the buffer outside of what is written, and no others."""
        if not is_partial(user) or user.args[1] in aliases:
            return False
        return self.part(user).ref in holding

    def _holding(self, node: fx.Node) -> set[TensorRef]:
        """The views of a buffer that hold all of a tensor: itself, and those that it is a view
        of."""
        found = {self.env[node].ref}
        while node.args and node.target is not aten.as_strided.default:
            base = node.args[0]
            seen = self.env.get(base) if isinstance(base, fx.Node) else None
            if not isinstance(seen, Operand) or seen.ref.buffer != self.env[node].ref.buffer:
                break
            assert isinstance(base, fx.Node)
            node = base
            found.add(seen.ref)
        return found

    def _is_returned(self, node: fx.Node) -> bool:
        """The graph returns what the node writes, as a tensor of its own."""
        items = [u for u in node.users if u.target is operator.getitem]
        made = {
            storage_key(value)
            for n in (node, *items)
            for value in pytree.tree_leaves(n.meta.get("val"))
            if isinstance(value, torch.Tensor)
        }
        returned = self.graph.output_node().all_input_nodes
        values = (n.meta.get("val") for n in returned)
        return any(isinstance(v, torch.Tensor) and storage_key(v) in made for v in values)


def buffers_of(value: Any) -> set[str]:
    """Buffers that the meaning of an FX node refers to."""
    if isinstance(value, Operand):
        return {value.ref.buffer}
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return {b for v in value for b in buffers_of(v)}
    return set()


def moved(
    group: Mapping[str, Operand], new: str, nodes: list[Node], origin: Origin
) -> dict[str, Operand]:
    """Tensors of one buffer in a copy of it: as far as they see it, if they see it alike and
    without gaps; else all of it."""
    first = next(iter(group.values()))
    seen = {v.ref for v in group.values()}
    source = first if len(seen) == 1 and _is_dense(first.ref.type) else _whole(first)
    type = replace(source.ref.type, offset=sympy.S.Zero)
    target = Operand(TensorRef(new, type), type)
    try:
        nodes.append(copy_kernel(new, source, target, origin))
    except CannotLower:  # an element type that kernels do not compute on
        outs = ((new, type),)
        clone = Extern("aten.clone.default", (source.ref,), (), outs, False, origins=(origin,))
        nodes.append(clone)
    return {k: Operand(TensorRef(new, v.ref.type), type) for k, v in group.items()}


def _is_dense(type: TensorType) -> bool:
    """The view starts its buffer and has no gaps, so that a copy of it is a copy of memory."""
    gapless = sympy.expand(type.extent - type.numel) == 0 and 0 not in type.stride
    return bool(type.offset == 0 and gapless)


def _whole(x: Operand) -> Operand:
    """The whole buffer, element by element: `f32[2, 3] stride (8, 1) -> f32[11]`."""
    storage = x.storage
    if _is_dense(storage) or 0 in storage.size:  # of nothing, `extent` is no number of elements
        return Operand(TensorRef(x.ref.buffer, storage), storage)
    span = sympy.expand(storage.offset + storage.extent)
    flat = TensorType(storage.dtype, (span,), (sympy.S.One,), storage.device)
    return Operand(TensorRef(x.ref.buffer, flat), storage)
