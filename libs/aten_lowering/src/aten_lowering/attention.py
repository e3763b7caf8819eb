"""Calls of flex attention: the functions of scores that the user wrote, as kernels.

score_mod, mask_mod (graphs of numbers)    ->    kernels over (batch, head, query, key) that read
                                                 `score` there and store what becomes of it
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering.decomposition import decompositions
from aten_lowering.errors import CannotLower, UnsupportedGraph, require
from aten_lowering.meta import expr
from aten_lowering.opaque import Opaque, attribute
from aten_lowering.passes.forget_blocks import MASK
from aten_lowering.torch_compat import (
    FakeTensor,
    flex_attention,
    flex_attention_backward,
    unset_fake_temporarily,
    vmap_over_scores,
    zeros_and_scatter,
)
from aten_lowering.whole import own_composites
from loop_ir import Axis, FuseOptions, Graph, Kernel, Load, Store, TensorRef, fuse
from loop_ir.ir import statements

aten = torch.ops.aten

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Arguments of functions of scores before what they have captured: the score, and where it is.
_PLACES = 5
_FUSE = FuseOptions(epilogue=False, prologue=False, split=False)

Lower = Callable[[fx.GraphModule], Graph]


@dataclass(frozen=True)
class Attention:
    """softmax(partial(q @ k.T * scale)) @ v, with `full` in place of `partial` for all keys of the
    blocks `full`; or its gradients.

    tensors: `q`, `k`, `v`; results that somebody asks for, `out`, and `logsumexp` and `maxima` of
    scores, to the base 2; `counts` [batch, heads, blocks of queries] and `indices` [..., number]:
    of the blocks of keys that each block of queries looks at, if it does not look at all, and
    `full_counts`, `full_indices`. Of gradients `out` and `logsumexp` are given, as are `grad_out`,
    `grad_logsumexp`, and blocks of queries (`q_counts`, ..., `full_q_indices`); the results are
    `grad_q`, `grad_k` and `grad_v`.
    partial, full: kernels over (batch, head, query, key) that read `score` and store one number;
    None: scores stay as they are. partial_gradient, full_gradient: likewise, of `score` and
    `gradient`, the gradient of what became of a score. captured: what else they read, by their
    names for it. sizes: of blocks, of queries and of keys. scatters: by the names of results, the
    gradients of what `full` captured, kernels that read `score` and `gradient`, too, and add to
    memory of f32 that is zero."""

    tensors: Mapping[str, TensorRef]
    scale: float
    partial: Kernel | None
    full: Kernel | None
    partial_gradient: Kernel | None
    full_gradient: Kernel | None
    captured: Mapping[str, TensorRef]
    sizes: tuple[int, int]
    scatters: Mapping[str, Kernel] = field(default_factory=dict)

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradients."""
        return "grad_out" in self.tensors


# The arguments of calls, and their results.
_TAKES = {
    flex_attention: "q k v",
    flex_attention_backward: "q k v out logsumexp grad_out grad_logsumexp",
}
_GIVES = {flex_attention: "out logsumexp maxima", flex_attention_backward: "grad_q grad_k grad_v"}
# The blocks of a mask, from its third element on.
_BLOCKS = (
    *("counts", "indices", "full_counts", "full_indices"),
    *("q_counts", "q_indices", "full_q_counts", "full_q_indices"),
)


def is_attention(part: Opaque) -> bool:
    """Whether what torch runs is one call of flex attention, or of its gradients."""
    calls = [n.target for n in part.module.graph.nodes if n.op == "call_function"]
    return len([c for c in calls if c in _TAKES]) == 1 and {*calls} <= {*_TAKES, operator.getitem}


def attention(
    part: Opaque, arguments: Sequence[Any], results: Sequence[Any], lower: Lower
) -> Attention:
    """What a call computes. arguments, results: those of `part` in the IR's terms. lower: makes a
    graph of the functions. Raises `CannotLower` for what no kernel of attention computes."""
    graph = part.module.graph
    call: Any = next(n for n in graph.nodes if n.target in _TAKES)
    known = dict(zip(graph.find_nodes(op="placeholder"), arguments, strict=True))
    at = MASK[call.target]
    block_mask, scale, _, captured, masking = call.args[at:]
    taken = (*captured, *masking)
    _check(call, scale, taken)
    tensors = dict(zip(_TAKES[call.target].split(), call.args, strict=False))
    tensors |= zip(_BLOCKS, block_mask[2:10], strict=True)
    refs = {name: _broadcast(known[n].ref) for name, n in tensors.items() if n is not None}
    outputs: Any = next(iter(graph.find_nodes(op="output"))).args[0]
    names, wanted = _GIVES[call.target].split(), dict[str, int]()
    for node, result in zip(outputs, results, strict=True):
        if result is not None and node.args[0] is call:
            refs[names[node.args[1]]] = result.ref
        elif result is not None:
            wanted[f"grad_captured{node.args[1]}"] = node.args[1]
            refs[f"grad_captured{node.args[1]}"] = result.ref
    functions: Any = call.args[3] if at == 4 else call.args[7]
    score, mask = (attribute(part.module, n) for n in (functions, block_mask[-1]))
    fakes, kept, masked = ([*map(_value, nodes)] for nodes in (call.args[:3], captured, masking))
    trace = _Trace(fakes, kept, masked, lower)
    mask = None if _takes_all(mask) else mask
    full = trace.kernel(score, None)
    partial = full if mask is None else trace.kernel(score, mask)
    full_gradient = partial_gradient = None
    scatters = dict[str, Kernel]()
    if call.target is flex_attention_backward:
        joint: Any = attribute(part.module, call.args[8])
        full_gradient = partial_gradient = trace.kernel(joint, None, gradient=0)
        if full_gradient is not None and mask is not None:
            partial_gradient = trace.kernel(joint, mask, gradient=0)
        for name, number in wanted.items():
            scatter = trace.kernel(joint, None, gradient=_PLACES + number)
            require(scatter is not None, "gradients of what score_mod captured")
            assert scatter is not None
            scatters[name] = scatter
    return Attention(
        refs,
        scale,
        partial,
        full,
        partial_gradient,
        full_gradient,
        {f"captured{i}": known[n].ref for i, n in enumerate(taken) if _is_tensor(n)},
        block_mask[10:12],
        scatters,
    )


def _check(call: Any, scale: object, taken: Sequence[Any]) -> None:
    fakes = [n.meta["val"] for n in call.args[:3]]
    kept = [_value(n) for n in taken if _is_tensor(n)]
    require(all(x.dtype in _DTYPES for x in fakes), f"elements of {fakes[0].dtype}")
    require(len({x.dtype for x in fakes}) == 1, "tensors of several element types")
    require(isinstance(scale, float), f"a scale of {scale}")
    devices = {x.device for x in (fakes[0], *kept)}
    require(len(devices) == 1, f"tensors of {len(devices)} devices")
    if call.target is flex_attention_backward:
        require(call.args[5] is not None, "gradients of the logsumexp alone")
        one = fakes[0].shape[0] != fakes[1].shape[0]
        require(not one, "gradients of keys that batches share")


def _value(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, fx.Node) else node


def _is_tensor(node: Any) -> bool:
    """Whether what functions captured is no size."""
    return isinstance(_value(node), Tensor)


def _takes_all(mask: Any) -> bool:
    """Whether a mask is but a constant: True."""
    calls = [n.target for n in mask.graph.nodes if n.op == "call_function"]
    return calls == [aten.new_ones.default]


def _number(gm: fx.GraphModule) -> None:
    """Constants of no dimension, as of `bias[0]`, as what makes them."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.lift_fresh_copy.default):
        held = attribute(gm, node.args[0])
        held = getattr(held, "constant", held)  # a fake tensor knows it
        if isinstance(held, Tensor) and held.dim() == 0:
            with unset_fake_temporarily():
                node.args = ([], held.item())
            node.target = aten.full.default
            node.kwargs = {"dtype": held.dtype, "device": held.device}


def _move(graph: fx.Graph, device: torch.device) -> None:
    """Numbers, which are tensors of the CPU there, to the device of the scores."""
    for node in graph.nodes:
        fake = node.meta.get("val")
        if node.op == "call_function" and isinstance(fake, Tensor) and fake.device != device:
            node.meta["val"] = fake.new_empty(fake.shape, device=device)
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": device}


def _broadcast(ref: TensorRef) -> TensorRef:
    """With strides of 0 along batches and heads of which there is one."""
    pairs = zip(ref.type.size, ref.type.stride, strict=True)
    stride = tuple(sympy.S.Zero if i < 2 and n == 1 else s for i, (n, s) in enumerate(pairs))
    return replace(ref, type=replace(ref.type, stride=stride))


@dataclass(frozen=True)
class _Trace:
    """The functions of one call: fake tensors of query, key and value, and fake tensors and sizes
    that score_mod and mask_mod captured."""

    fakes: Sequence[Tensor]
    captured: Sequence[Any]
    masking: Sequence[Any]
    lower: Lower

    def kernel(self, function: Any, mask_mod: Any, gradient: int | None = None) -> Kernel | None:
        """`where(mask_mod(...), function(score, ...), -inf)` at all scores; without a mask_mod what
        becomes of scores. gradient: which of the gradients that the function gives, given
        `gradient`, that of what became of a score; others are 0. None where nothing does."""
        traced = self.traced(function, mask_mod, gradient)
        if gradient:
            _sum_in_f32(traced.graph)
        (output,) = traced.graph.find_nodes(op="output")
        result: Any = output.args[0]
        if gradient == 0:
            result = _unrounded(result)
        if result.op == "placeholder":
            return None
        try:
            nodes = fuse(self.lower(traced), _FUSE).nodes
        except UnsupportedGraph as error:
            raise CannotLower(str(error)) from error
        if gradient and len(nodes) == 2:  # zeros come first
            nodes = tuple(n for n in nodes if isinstance(n, Kernel) and _adds(n))
        one = nodes[0] if len(nodes) == 1 else None
        require(isinstance(one, Kernel), f"{len(nodes)} kernels for what becomes of scores")
        assert isinstance(one, Kernel)
        given = {n.name for n in traced.graph.find_nodes(op="placeholder")}
        own = [b.name for b in one.buffers if not b.written and b.name not in given]
        require(not own, "a tensor that is the function's own")
        return self.placed(one)

    def traced(self, function: Any, mask_mod: Any, gradient: int | None) -> fx.GraphModule:
        """The functions of all scores. These lie so that no two axes could be one, and there are
        two at least along each."""
        mode = next(x.fake_mode for x in self.fakes if isinstance(x, FakeTensor))
        tiles = ["score"] if gradient is None else ["score", "gradient"]
        buffers = (*self.captured, *self.masking)
        of_one = function
        if gradient is not None:
            of_one = functools.partial(_of_score, function, gradient)

        def functions(score: Tensor, *more: Tensor) -> Tensor:
            places = [torch.arange(n, dtype=torch.int32, device=score.device) for n in score.shape]
            grad, taken = more[: len(tiles) - 1], more[len(tiles) - 1 :]
            first = len(self.captured)
            given = ((0,) * len(tiles[1:])) + (None,) * first
            gives: Any = None if gradient else 0
            whole = vmap_over_scores(of_one, (0,), given, gives)
            out: Tensor = whole(score, *places, *grad, *taken[:first])
            require(isinstance(out, Tensor), "no gradient of what score_mod captured")
            if mask_mod is not None:
                masked = vmap_over_scores(mask_mod, (), (None,) * len(self.masking))
                other = float("-inf") if gradient is None else 0.0
                out = torch.where(masked(*places, *taken[first:]), out, other)
            return out.to(torch.float32)

        with own_composites(), mode:
            size = [n if not isinstance(n, int) or n > 1 else 2 for n in self.lengths]
            stride: list[Any] = [1]
            for n in reversed(size[1:]):
                stride.append(stride[-1] * (n + 1))
            device = self.fakes[0].device
            scores = [torch.empty_strided(size, stride[::-1], device=device) for _ in tiles]
            try:
                graph: fx.GraphModule = make_fx(functions, decompositions())(*scores, *buffers)
            except AssertionError as error:  # torch's, of integers that it divides by sizes
                raise CannotLower(f"a captured size: {error}") from error
            except ValueError as error:  # of vmap: a gradient for each score
                raise CannotLower(f"what score_mod captured, not by an index: {error}") from error
            _number(graph)
            _move(graph.graph, device)
        names = [*tiles, *(f"captured{i}" for i in range(len(buffers)))]
        for node, name in zip(graph.graph.find_nodes(op="placeholder"), names, strict=True):
            node.name = node.target = name
        return graph

    @property
    def lengths(self) -> tuple[Any, ...]:
        """Batches, heads, queries and keys."""
        query, key, _ = self.fakes
        return (*query.shape[:3], key.shape[2])

    def placed(self, kernel: Kernel) -> Kernel:
        """With its axes in the order of those of scores, and of the lengths that there are."""
        tiles = {b.name: b.type.stride for b in kernel.buffers if b.name in ("score", "gradient")}
        loads = [s for s in statements(kernel) if isinstance(s, Load) and s.buffer in tiles]
        require(bool(loads), "what becomes of scores does not depend on them")
        index, axes = loads[0].index, list[Axis]()
        for step, length in zip(tiles[loads[0].buffer], self.lengths, strict=True):
            own = [a for a in kernel.axes if sympy.expand(index.coeff(a.symbol) - step) == 0]
            require(len(own) == 1 and len(kernel.axes) == 4, "scores of other places")
            axes.append(Axis(own[0].symbol, expr(length)))
        return replace(kernel, axes=tuple(axes))


def _of_score(joint: Any, number: int, *args: Tensor) -> Tensor:
    """One of the gradients of a graph that gives those of all its arguments."""
    found: Tensor = joint(*args)[number]
    return found


def _unrounded(node: Any) -> Any:
    """What is rounded in any case, if not here."""
    while node.target is aten._to_copy.default:
        node = node.args[0]
    return node


def _sum_in_f32(graph: fx.Graph) -> None:
    """What becomes of numbers that have been captured is a sum of f32."""
    output = graph.output_node()
    result: Any = _unrounded(output.args[0])
    require(result.target is zeros_and_scatter, "what score_mod captured twice, or not by an index")
    value = _unrounded(result.args[2])
    require(value.meta["val"].dtype is torch.float32, "gradients that are no f32")
    result.args = (*result.args[:2], value)
    result.meta["val"] = result.meta["val"].to(torch.float32)
    output.args = (result,)
    graph.eliminate_dead_code()


def _adds(kernel: Kernel) -> bool:
    """Whether a kernel adds to memory."""
    return any(isinstance(s, Store) and s.mode == "add" for s in statements(kernel))
