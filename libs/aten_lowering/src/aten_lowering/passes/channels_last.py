"""Convolutions on tensors whose channels lie side by side in memory.

    x = [8, 64, 56, 56] (200704, 3136, 56, 1)         x = [8, 64, 56, 56] (200704, 3136, 56, 1)
    y = convolution(x, w, ...)                  ->    x1 = clone(x, channels_last)
    z = relu(y)                                       y = convolution(x1, clone(w, channels_last))
    return z                                          z = relu(y)      (200704, 1, 3584, 64)
                                                      return clone(z, contiguous_format)

Tensor cores take channels-last operands, and the vendor's kernels for others rearrange them in each
call. What follows a convolution keeps the order that it gives, as in eager, so that only the first
input of a chain is rearranged; results of the graph keep the strides that they had. Gradients of
convolutions take all three operands so: a graph that has both, before it is cut in forward and
backward, is changed as a whole, and what is kept between them needs no other order. Convolutions in
one dimension run as those in two, of images of one row, as in eager."""

import operator
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from aten_lowering.convolutions import is_depthwise, is_vendors
from aten_lowering.passes.base import call, tensor
from aten_lowering.passes.convolution_bias import take_out_bias
from aten_lowering.registry import named

aten = torch.ops.aten
DEVICES = frozenset({"cuda"})
# How many operands have an order; the last two are an input and its weight.
_OPERANDS = {aten.convolution.default: 2, aten.convolution_backward.default: 3}
_CONTIGUOUS = torch.contiguous_format
# By the number of dimensions.
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# What says where elements lie, and so is not the same function of a tensor in another order.
_BY_PLACE = frozenset(
    named(
        "as_strided as_strided_ as_strided_copy as_strided_scatter empty_strided "
        "new_empty_strided sym_stride sym_stride.int sym_storage_offset"
    )
)


@dataclass(frozen=True)
class Convolution:
    """A call of a convolution or its gradient: input and weight, of a gradient that of the result
    before them, as they are given and channels-last, where a bias is added by what follows; and its
    other arguments. All tensors are fake."""

    given: tuple[Tensor, ...]
    last: tuple[Tensor, ...]
    bias: Tensor | None
    rest: tuple[Any, ...]

    @property
    def target(self) -> torch._ops.OpOverload:
        """The operator that is called."""
        return next(op for op, count in _OPERANDS.items() if count == len(self.given))


@dataclass(frozen=True)
class Copy:
    """A tensor in another order. fused: the kernel that computes it writes it so."""

    tensor: Tensor
    fused: bool


@dataclass(frozen=True)
class Rewrite:
    """What would change: the convolutions, and the copies in another order that are made."""

    convolutions: tuple[Convolution, ...]
    copies: tuple[Copy, ...]


def lines_as_planes(graph: fx.Graph) -> None:
    """`convolution(x, w)` of lines becomes one of images of one row:

    squeeze(convolution(unsqueeze(x, 2), unsqueeze(w, 2)), 2)

    The image may be channels-last where the line, for its fake tensor, is not: a copy is."""
    for node in list(graph.nodes):
        if node.target != aten.convolution.default or not _is_convolution(node, dims=(3,)):
            continue
        if not node.meta["val"].is_contiguous():
            continue
        x, weight, bias, *lists = node.args
        stride, padding, dilation, transposed, output_padding, groups = lists
        with graph.inserting_before(node):
            operands = [call(graph, aten.unsqueeze.default, n, 2) for n in (x, weight)]
            steps = [1, *stride], [0, *padding], [1, *dilation]
            more = transposed, [0, *output_padding], groups
            wide = call(graph, aten.convolution.default, *operands, bias, *steps, *more)
            out = call(graph, aten.squeeze.dim, wide, 2)
            if out.meta["val"].stride() != node.meta["val"].stride():
                out = call(graph, aten.clone.default, out, memory_format=_CONTIGUOUS)
        out.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(out)
        graph.erase_node(node)


def channels_last(graph: fx.Graph, pays: Callable[[Rewrite], bool] = lambda _: True) -> None:
    """Changes the graph, if that pays, or leaves it where something in it depends on how memory is
    laid out: on strides, or a kernel of the user's. New nodes have fake tensors, too."""
    nodes = list(graph.nodes)
    convolutions = [node for node in nodes if _format(node) is not None]
    if not convolutions or any(_depends_on_places(node) for node in nodes):
        return
    changes = _Changes()
    try:
        for node in nodes:
            changes.follow(node)
    except _Refused:
        return
    rewrite = Rewrite(tuple(changes.convolutions), (*changes.copies, *changes.biases()))
    if changes.pending and pays(rewrite):
        for change in changes.pending:
            change()
        for node in nodes:
            if node.target == aten.convolution.default and is_vendors(node):
                take_out_bias(graph, node)


def _is_convolution(node: fx.Node, dims: Container[int]) -> bool:
    """One of `_OPERANDS`, the vendor's, of floating-point tensors of so many dimensions on a device
    that this is for, of sizes that are known, but for the batch."""
    count = _OPERANDS.get(node.target)  # type: ignore[call-overload]  # what is not an operator is no key
    if node.op != "call_function" or count is None:
        return False
    x, weight = (tensor(n) for n in node.args[count - 2 : count])
    stride, _, _, transposed, _, groups = node.args[count + 1 : count + 7]
    return (
        x is not None
        and weight is not None
        and x.dim() == weight.dim()
        and x.dim() in dims
        and x.dtype.is_floating_point
        and x.device.type in DEVICES
        and all(isinstance(n, int) for n in (*x.shape[1:], *x.stride(), *weight.shape))
        and not is_depthwise(x, weight, stride, bool(transposed), groups)  # type: ignore[arg-type]  # numbers of a convolution
    )


def _format(node: fx.Node) -> torch.memory_format | None:
    """The order of a convolution's operands; None of other nodes."""
    x = tensor(node.args[0]) if _is_convolution(node, _LAST) else None
    return None if x is None else _LAST[x.dim()]


def _depends_on_places(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("call_module", "call_method")
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target in _BY_PLACE
    return not _is_arithmetic(node)


def _is_arithmetic(node: fx.Node) -> bool:
    """Of sizes, and items of what an operator returns: not a higher-order operator."""
    return getattr(node.target, "__module__", "") in ("_operator", "math", "torch")


class _Refused(Exception):
    """The graph stays as it is."""


class _Changes:
    """What the nodes are worth once convolutions are channels-last: `values`, where that is another
    than `meta["val"]`, and the changes to the graph that make it so."""

    def __init__(self) -> None:
        self.values: dict[fx.Node, Any] = {}
        self.pending: list[Callable[[], None]] = []
        self.convolutions: list[Convolution] = []
        self.copies: list[Copy] = []
        self.rearranged: set[fx.Node] = set()
        self.copied: set[tuple[fx.Node, torch.memory_format]] = set()
        self.made: dict[tuple[fx.Node, torch.memory_format], fx.Node] = {}

    def value(self, node: Any) -> Any:
        return self.values.get(node, node.meta.get("val"))

    def follow(self, node: fx.Node) -> None:
        if node.op == "output":
            self.keep_strides(node)
        if node.op != "call_function":
            return
        chosen = _format(node)
        given = {n: self.value(n) for n in node.all_input_nodes}
        for operand in _operands(node) if chosen is not None else ():
            assert chosen is not None
            if not given[operand].is_contiguous(memory_format=chosen):
                given[operand] = self.rearrange(node, operand, given[operand], chosen)
        if chosen is not None:
            self.convolutions.append(_as_call(node, given))
        if chosen is None and all(n not in self.values for n in given):
            return
        # Random numbers follow each other in memory, so they stay as they lie.
        stays = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        before = _strides(node.meta.get("val"))
        found = self.called(node, given)
        if found is None or (stays and _strides(found) != before):
            # That, or a view that has no strides for this order.
            for n, value in given.items():
                if n in self.values:
                    given[n] = self.rearrange(node, n, value, _CONTIGUOUS)
            found = self.called(node, given)
        if found is None or (stays and _strides(found) != before):
            raise _Refused
        if _strides(found) == before:
            return
        self.values[node] = found
        self.pending.append(lambda: node.meta.__setitem__("val", found))

    def called(self, node: fx.Node, given: dict[fx.Node, Any]) -> Any:
        """What the node gives for other inputs; None where it refuses them."""
        args, kwargs = tree_map_only(fx.Node, given.__getitem__, (node.args, node.kwargs))
        assert callable(node.target)  # of a call_function
        try:
            return node.target(*args, **kwargs)
        except (RuntimeError, ValueError):
            return None

    def rearrange(
        self, user: fx.Node, node: fx.Node, value: Tensor, order: torch.memory_format
    ) -> Tensor:
        """`user` gets a copy of `node` in another order, which this returns."""
        found: Tensor = aten.clone.default(value, memory_format=order)

        def change() -> None:
            if (node, order) not in self.made:
                with user.graph.inserting_before(user):
                    made = user.graph.call_function(
                        aten.clone.default, (node,), {"memory_format": order}
                    )
                made.meta["val"] = found
                self.made[node, order] = made
            user.replace_input_with(node, self.made[node, order])

        self.pending.append(change)
        if (node, order) not in self.copied:
            self.copies.append(Copy(found, _is_computed(node)))
            self.copied.add((node, order))
        self.rearranged.add(node)
        return found

    def biases(self) -> Iterator[Copy]:
        """A result to which a bias is added: as much as a copy, unless a copy does so."""
        for node, value in self.values.items():
            forward = node.target == aten.convolution.default and _format(node) is not None
            if forward and node.args[2] and node not in self.rearranged:
                yield Copy(value, False)

    def keep_strides(self, output: fx.Node) -> None:
        for node in output.all_input_nodes:
            before, now = node.meta.get("val"), self.value(node)
            if not isinstance(before, Tensor) or before.stride() == now.stride():
                continue
            if not before.is_contiguous():
                raise _Refused
            self.rearrange(output, node, now, _CONTIGUOUS)


def _is_computed(node: fx.Node) -> bool:
    """By a kernel that a copy of the result can be part of: not an input, nor a library's call."""
    while node.op == "call_function":
        if is_vendors(node):
            return False
        is_view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
        if not is_view and node.target is not operator.getitem:
            return True
        (node, *_) = node.all_input_nodes
    return False


def _strides(value: Any) -> list[Any]:
    return [t.stride() if isinstance(t, Tensor) else None for t in tree_leaves(value)]


def _as_call(node: fx.Node, given: dict[fx.Node, Any]) -> Convolution:
    operands = _operands(node)
    bias = tensor(node.args[2]) if node.target == aten.convolution.default else None
    as_given = tuple(n.meta["val"] for n in operands)
    return Convolution(as_given, tuple(given[n] for n in operands), bias, tuple(node.args[3:]))


def _operands(node: fx.Node) -> list[fx.Node]:
    """Of a convolution or its gradient: those that have an order."""
    count = _OPERANDS[node.target]  # type: ignore[index]  # what has a format is one of these
    return [n for n in node.args[:count] if isinstance(n, fx.Node)]
