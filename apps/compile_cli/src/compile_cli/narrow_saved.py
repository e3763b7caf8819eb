"""What is kept for a backward pass, stored smaller: masks, and floats for those who ask for it."""

import operator
from typing import Any, cast

import torch
from torch import Tag, Tensor, fx
from torch._ops import OpOverload

from aten_lowering.passes.base import call
from aten_lowering.passes.drawn_masks import order_of

aten = torch.ops.aten

LEAST = 1 << 16
"""Bytes from which on a tensor is worth it."""

_WIDE = (torch.float32, torch.bfloat16, torch.float16)

# Whose results may well be smaller than their first operand.
_PRODUCTS = (
    *(aten.mm.default, aten.bmm.default, aten.convolution.default, aten.embedding.default),
    *(aten.index.Tensor, aten.index_select.default, aten.gather.default),
)

_MADE_OF = (
    *(aten.view.default, aten._unsafe_view.default, aten.t.default, aten.permute.default),
    *(aten.transpose.int, aten.slice.Tensor, aten.select.int, aten.expand.default),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.alias.default),
    aten.detach.default,
)

_ATTENTION = (
    aten._scaled_dot_product_cudnn_attention_backward.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
_ROWS = (
    *(aten._softmax.default, aten._log_softmax.default, aten.native_layer_norm.default),
    *(aten._fused_rms_norm.default, aten.native_group_norm.default),
)
_SCORES = ("query", "key", "attn_bias", "attn_mask")


def narrow_saved(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, dtype: torch.dtype | None
) -> None:
    """Tensors that forward keeps, stored smaller, which backward turns back: masks as bits, and
    floats as their values in `dtype`, an 8-bit float, if any; beyond its range the largest of it.
    Not what is small, what the caller has anyway (its inputs, and the first `outputs` results),
    views of these, nor, of floats, statistics, what is made of them, and what they are taken from
    before an exponential: gradients are sensitive to these."""
    node = forward.graph.output_node()
    results: list[Any] = list(node.args[0])  # type: ignore[arg-type]  # a tuple of results
    callers = {_base(r) for r in results[:outputs] if isinstance(r, fx.Node)}
    read = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    for i, kept in enumerate(results[outputs:], start=outputs):
        if not isinstance(kept, fx.Node) or (given := read.get(kept.name)) is None:
            continue
        base = _base(kept)
        if base.op == "placeholder" or base in callers:
            continue
        order = _bits_of(kept, given)
        if order is None and (dtype is None or not _is_coarse(kept, given)):
            continue
        with forward.graph.inserting_before(node):
            small = _narrow(kept, dtype) if order is None else _packed(kept, order)
        users, value = list(given.users), given.meta["val"]
        given.meta = {**given.meta, "val": small.meta["val"]}
        with backward.graph.inserting_before(next(iter(_body(backward)))):
            if order is None:
                again = call(backward.graph, aten._to_copy.default, given, dtype=value.dtype)
            else:
                again = _unpacked(given, value, order)
        for user in users:
            user.replace_input_with(given, again)
        results[i] = small
    node.args = (tuple(results),)
    for module in (forward, backward):
        module.recompile()


def _narrow(x: fx.Node, dtype: Any) -> fx.Node:
    """A float tensor in 8 bits."""
    largest = torch.finfo(dtype).max
    clamped = call(x.graph, aten.clamp.default, x, -largest, largest)
    return call(x.graph, aten._to_copy.default, clamped, dtype=dtype)


def _packed(mask: fx.Node, order: list[int]) -> fx.Node:
    """A mask of dimensions that lie in memory in this order, eight neighbours in a byte."""
    graph = mask.graph
    lying = call(graph, aten.permute.default, mask, order)
    *outer, length = lying.meta["val"].shape
    lanes = call(graph, aten.view.default, lying, [*outer, length // 8, 8])
    bits = call(graph, aten.mul.Tensor, lanes, _lanes(mask))
    byte = call(graph, aten.sum.dim_IntList, bits, [-1], dtype=torch.int32)
    return call(graph, aten._to_copy.default, byte, dtype=torch.uint8)


def _unpacked(byte: fx.Node, mask: Tensor, order: list[int]) -> fx.Node:
    """What `_packed` was given, in the memory that it lay in."""
    graph = byte.graph
    bits = call(
        graph, aten.bitwise_and.Tensor, call(graph, aten.unsqueeze.default, byte, -1), _lanes(byte)
    )
    lying = call(graph, aten.ne.Scalar, bits, 0)
    whole = call(graph, aten.view.default, lying, [mask.shape[d] for d in order])
    return call(graph, aten.permute.default, whole, [order.index(d) for d in range(mask.dim())])


def _lanes(like: fx.Node) -> fx.Node:
    """1, 2, 4, ..., 128."""
    graph, device = like.graph, like.meta["val"].device
    lane = call(graph, aten.arange.default, 8, dtype=torch.int32, device=device)
    return call(graph, aten.bitwise_left_shift.Scalar_Tensor, 1, lane)


def _bits_of(kept: fx.Node, given: fx.Node) -> list[int] | None:
    """The order in which the dimensions of a large mask lie, if kernels make and read it whose
    neighbours eight can be told apart; else None."""
    value = kept.meta.get("val")
    if not isinstance(value, Tensor) or value.dtype is not torch.bool or _count(kept) < LEAST:
        return None
    order = order_of(value)
    if value.shape[order[-1]] % 8 or not value.permute(order).is_contiguous():
        return None
    base = _base(kept)
    ours = _is_pointwise(base) and _by_kernels(base) and _by_kernels(given)
    return order if ours and not _beside_rows(base) else None


def _by_kernels(node: fx.Node) -> bool:
    """Whether all that reads it, or views of it, is pointwise."""
    return all(
        _by_kernels(u) if u.target in _MADE_OF else u.op == "output" or _is_pointwise(u)
        for u in node.users
    )


def _beside_rows(mask: fx.Node) -> bool:
    """Whether what it is computed from, or of that, is reduced, too: that kernel stores the mask as
    bytes on its way, where bits take another reading."""
    size, left, seen = _count(mask), [mask], {mask}
    while left:
        made = left.pop()
        if any(u.target in _ROWS or _reduces(u) for u in made.users):
            return True
        through = _is_pointwise(made) or made.target in _MADE_OF
        near = [*(made.all_input_nodes if through else ()), *filter(_is_pointwise, made.users)]
        new = [n for n in near if n not in seen and _count(n) == size]
        seen.update(new)
        left.extend(new)
    return False


def _reduces(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and Tag.reduction in node.target.tags


def _is_coarse(kept: fx.Node, given: fx.Node) -> bool:
    """Whether gradients of a float tensor are good enough in 8 bits."""
    return _worth(kept) and not _of_fewer(_base(kept)) and not _is_exponent(given)


def _body(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op != "placeholder"]


def _worth(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dtype not in _WIDE:
        return False
    elements = value.numel()
    return isinstance(elements, int) and elements * value.element_size() >= LEAST


def _of_fewer(node: fx.Node) -> bool:
    """Whether it is, or is pointwise work of, fewer numbers than they were computed from."""
    size = _count(node)
    left, seen = [node], {node}
    while left:
        made = left.pop()
        target = made.target
        through = target in _MADE_OF or target is aten._to_copy.default
        if target is operator.getitem:
            made = cast(fx.Node, made.args[0])
        elif through or (isinstance(target, OpOverload) and Tag.pointwise in target.tags):
            new = [n for n in made.all_input_nodes if n not in seen and 0 < _count(n) <= size]
            seen.update(new)
            left.extend(new)
            continue
        first = made.args[0] if made.args else None
        larger = isinstance(first, fx.Node) and 4 * size <= _count(first)
        if larger and made.target not in _PRODUCTS:
            return True
    return False


def _is_exponent(node: fx.Node) -> bool:
    """Whether backward computes an exponential of it, or of pointwise work on it, less a statistic
    of what it was, as of queries and keys of attention and of rows of a softmax: coarse, it may be
    larger than its largest."""
    left, seen = [node], {node}
    while left:
        made = left.pop()
        for user in made.users:
            target: Any = user.target
            if target in _ATTENTION:
                names = [a.name for a in target._schema.arguments]
                given = {**dict(zip(names, user.args, strict=False)), **user.kwargs}
                if made in [given.get(name) for name in _SCORES]:
                    return True
            elif target is aten.exp.default and _is_of_rows(_base(made)):
                return True
            elif user not in seen and (_is_pointwise(user) or target in _MADE_OF):
                seen.add(user)
                left.append(user)
    return False


def _is_of_rows(node: fx.Node) -> bool:
    """A difference from fewer numbers."""
    counts = [_count(n) for n in node.all_input_nodes]
    return node.target is aten.sub.Tensor and 0 < min(counts) < max(counts)


def _is_pointwise(node: fx.Node) -> bool:
    pointwise = isinstance(node.target, OpOverload) and Tag.pointwise in node.target.tags
    return pointwise or node.target in (aten._to_copy.default, aten.cat.default, aten.clone.default)


def _count(node: fx.Node) -> int:
    """How many elements a node's value has; 0 if it is no tensor."""
    value = node.meta.get("val")
    elements = value.numel() if isinstance(value, Tensor) else 0
    return elements if isinstance(elements, int) else 0


def _base(node: fx.Node) -> fx.Node:
    """What a view is of."""
    while node.target in _MADE_OF and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
