"""What is kept for a backward pass, in 8 bits."""

import math
import operator
from collections.abc import Set
from typing import Any, cast

import torch
from torch import Tag, Tensor, fx
from torch._ops import OpOverload

from aten_lowering.passes.base import call
from compile_cli.options import Options

aten = torch.ops.aten

_GROUP, _MOST = 64, 4096  # elements that share a factor, in whole dimensions
_TINY = 1e-30  # of which a factor is a normal number

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
_SCORES = ("query", "key", "attn_bias", "attn_mask")


def narrow_saved(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, options: Options
) -> None:
    """Floats that forward keeps as their values in an 8-bit float, which backward turns back;
    beyond its range the largest of it. Scaled, each group of the last dimensions is divided by a
    factor that has its largest be the largest of the type, and that is kept beside it. Not what is
    small or of other types (`saved_from`, `saved_of`), what the caller has anyway (its inputs, and
    the first `outputs` results), views of these, statistics, what is made of them, nor what they
    are taken from before an exponential: gradients are sensitive to these."""
    dtype: torch.dtype = getattr(torch, options.saved.removeprefix("scaled_"))
    scaled = options.saved.startswith("scaled_")
    types = {getattr(torch, name) for name in options.saved_of}
    node = forward.graph.output_node()
    results: list[Any] = list(node.args[0])  # type: ignore[arg-type]  # a tuple of results
    callers = {_base(r) for r in results[:outputs] if isinstance(r, fx.Node)}
    read = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    held: list[Any] = results[:outputs]
    for kept in results[outputs:]:
        held.append(kept)
        if not isinstance(kept, fx.Node) or (given := read.get(kept.name)) is None:
            continue
        base = _base(kept)
        if base in callers or _source(base).op == "placeholder":
            continue
        value = given.meta["val"]
        if not _worth(kept, options.saved_from, types) or _of_fewer(base):
            continue
        if _is_exponent(given, kept):
            continue
        if scaled and math.prod(value.shape[_group(kept)[0] :]) * (value.itemsize - 1) <= 4:
            continue  # with factors it were no less
        with forward.graph.inserting_before(node):
            factor = _factor(kept, dtype) if scaled else None
            held[-1] = _narrow(kept, dtype, factor)
        users = list(given.users)
        given.meta = {**given.meta, "val": held[-1].meta["val"]}
        first = next(iter(_body(backward)))
        if factor is not None:
            held.append(factor)
            with backward.graph.inserting_after(given):
                factor = backward.graph.placeholder(f"{given.name}_factor")
            factor.meta["val"] = held[-1].meta["val"]
        with backward.graph.inserting_before(first):
            again = _widened(given, value.dtype, factor)
        for user in users:
            user.replace_input_with(given, again)
    node.args = (tuple(held),)
    for module in (forward, backward):
        module.recompile()


def _group(x: fx.Node) -> list[int]:
    """The fewest last dimensions that have enough elements."""
    sizes = x.meta["val"].shape
    dims = [len(sizes) - 1]
    while dims[0] and math.prod(sizes[dims[0] :]) < _GROUP:
        if math.prod(sizes[dims[0] - 1 :]) > _MOST:
            break
        dims.insert(0, dims[0] - 1)
    return dims


def _factor(x: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Of each group, in f32. What is infinite or no number is no group's largest: the others would
    be zeros, or no numbers."""
    size = call(x.graph, aten.abs.default, x)
    finite = call(
        x.graph, aten.where.ScalarOther, call(x.graph, aten.lt.Scalar, size, math.inf), size, 0.0
    )
    largest = call(x.graph, aten.amax.default, finite, _group(x), True)
    wide = call(x.graph, aten._to_copy.default, largest, dtype=torch.float32)
    some = call(x.graph, aten.clamp.default, wide, _TINY)
    return call(x.graph, aten.mul.Tensor, some, 1 / torch.finfo(dtype).max)


def _widened(x: fx.Node, dtype: torch.dtype, factor: fx.Node | None) -> fx.Node:
    """What was narrowed as it was before."""
    if factor is None:
        return call(x.graph, aten._to_copy.default, x, dtype=dtype)
    wide = call(x.graph, aten._to_copy.default, x, dtype=torch.float32)
    return call(
        x.graph, aten._to_copy.default, call(x.graph, aten.mul.Tensor, wide, factor), dtype=dtype
    )


def _narrow(x: fx.Node, dtype: Any, factor: fx.Node | None) -> fx.Node:
    """A float tensor in 8 bits."""
    largest = torch.finfo(dtype).max
    if factor is not None:
        x = call(x.graph, aten.div.Tensor, x, factor)
    clamped = call(x.graph, aten.clamp.default, x, -largest, largest)
    return call(x.graph, aten._to_copy.default, clamped, dtype=dtype)


def _body(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op != "placeholder"]


def _worth(node: fx.Node, least: int, types: Set[torch.dtype]) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dtype not in types or not value.dim():
        return False
    elements = value.numel()
    return isinstance(elements, int) and elements * value.element_size() >= max(least, 1)


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


def _is_exponent(node: fx.Node, kept: fx.Node) -> bool:
    """Whether backward computes an exponential of it, or of pointwise work on it, less a statistic
    of what it was, as of queries and keys of attention and of rows of a softmax: coarse, it may be
    larger than its largest. `kept` is what it is in forward, which may have subtracted already."""
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
            elif target is aten.exp.default:
                source = _source(made)
                if _is_of_rows(_source(kept) if source is node else source):
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


def _source(node: fx.Node) -> fx.Node:
    """What it is a view of, or that in another type."""
    while (base := _base(node)).target is aten._to_copy.default:
        node = cast(fx.Node, base.args[0])
    return base


def _base(node: fx.Node) -> fx.Node:
    """What a view is of."""
    while node.target in _MADE_OF and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
