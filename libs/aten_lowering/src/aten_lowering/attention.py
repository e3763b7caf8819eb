"""Calls of flex attention: the functions of scores that the user wrote, as kernels.

score_mod, mask_mod (graphs of numbers)    ->    kernels over (batch, head, query, key) that read
                                                 `score` there and store what becomes of it
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering.decompositions import decompositions
from aten_lowering.errors import CannotLower, UnsupportedGraph, require
from aten_lowering.meta import expr
from aten_lowering.opaque import Opaque, attribute
from aten_lowering.torch_compat import FakeTensor, flex_attention, vmap_over_scores
from aten_lowering.whole import own_composites
from loop_ir import Axis, FuseOptions, Graph, Kernel, Load, TensorRef, fuse
from loop_ir.ir import statements

aten = torch.ops.aten

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_FUSE = FuseOptions(epilogue=False, prologue=False, split=False)

Lower = Callable[[fx.GraphModule], Graph]


@dataclass(frozen=True)
class Blocks:
    """The blocks of keys that each block of queries looks at: how many
    [batch, heads, blocks of queries], and which [batch, heads, blocks of queries, number]."""

    counts: TensorRef
    indices: TensorRef


@dataclass(frozen=True)
class Attention:
    """softmax(partial(query @ key.T * scale)) @ value, with `full` in place of `partial` for all
    keys of `full_blocks`.

    partial, full: kernels over (batch, head, query, key) that read `score` and store one number;
    None: scores stay as they are. captured: what else they read, by their names for it.
    partial_blocks: None where all keys are looked at. sizes: of blocks, of queries and of keys.
    out, logsumexp, maxima: results; the latter two, of scores, to the base 2; None where nobody
    asks.
    """

    query: TensorRef
    key: TensorRef
    value: TensorRef
    scale: float
    partial: Kernel | None
    full: Kernel | None
    captured: Mapping[str, TensorRef]
    partial_blocks: Blocks | None
    full_blocks: Blocks | None
    sizes: tuple[int, int]
    out: TensorRef | None
    logsumexp: TensorRef | None
    maxima: TensorRef | None


def forget_blocks(graph: fx.Graph) -> None:
    """Calls of flex attention take no blocks that are not looked at: those of queries, and of keys
    where one block is all there is. torch makes some for calls without a mask."""
    for node in graph.find_nodes(op="call_function", target=flex_attention):
        blocks: Any = node.args[4]
        keys = blocks[2:6] if _cut(node) else (None,) * 4
        blocks = (*blocks[:2], *keys, *(None,) * 4, *blocks[10:])
        node.args = (*node.args[:4], blocks, *node.args[5:])


def _cut(call: fx.Node) -> bool:
    """Whether a block of queries, or of keys, is not all of them."""
    blocks: Any = call.args[4]
    tensors: Any = call.args[:2]
    queries, keys = (n.meta["val"].shape[-2] for n in tensors)
    return not (blocks[10] >= queries and blocks[11] >= keys)


def is_attention(part: Opaque) -> bool:
    """Whether what torch runs is a call of flex attention, and nothing else."""
    calls = [n.target for n in part.module.graph.nodes if n.op == "call_function"]
    return calls.count(flex_attention) == 1 and {*calls} <= {flex_attention, operator.getitem}


def attention(
    part: Opaque, arguments: Sequence[Any], results: Sequence[Any], lower: Lower
) -> Attention:
    """What a call computes. arguments, results: those of `part` in the IR's terms. lower: makes a
    graph of the functions. Raises `CannotLower` for what no kernel of attention computes."""
    graph = part.module.graph
    (call,) = graph.find_nodes(op="call_function", target=flex_attention)
    known = dict(zip(graph.find_nodes(op="placeholder"), arguments, strict=True))
    query, key, value, score_mod, block_mask, scale, _, captured, masking = call.args
    fakes = [n.meta["val"] for n in (query, key, value)]
    require(all(x.dtype in _DTYPES for x in fakes), f"elements of {fakes[0].dtype}")
    require(len({x.dtype for x in fakes}) == 1, "tensors of several element types")
    require(isinstance(scale, float), f"a scale of {scale}")
    taken = (*captured, *masking)
    require(all(isinstance(n, fx.Node) for n in taken), "a captured number")
    devices = {n.meta["val"].device for n in (query, *taken)}
    require(len(devices) == 1, f"tensors of {len(devices)} devices")
    trace = _Trace(fakes, [n.meta["val"] for n in captured], [n.meta["val"] for n in masking])
    score: Any
    mask: Any
    score, mask = (attribute(part.module, n) for n in (score_mod, block_mask[-1]))
    outputs: Any = next(iter(graph.find_nodes(op="output"))).args[0]
    made = {n.args[1]: r for n, r in zip(outputs, results, strict=True)}
    full = trace.kernel(score, None, lower)
    return Attention(
        known[query].ref,
        _broadcast(known[key].ref),
        _broadcast(known[value].ref),
        scale,
        full if _takes_all(mask) else trace.kernel(score, mask, lower),
        full,
        {f"captured{i}": known[n].ref for i, n in enumerate(taken)},
        _blocks(block_mask[2:4], known),
        _blocks(block_mask[4:6], known),
        block_mask[10:12],
        *(made[i].ref if made.get(i) is not None else None for i in range(3)),
    )


def _takes_all(mask: fx.GraphModule) -> bool:
    """Whether a mask is but a constant: True."""
    calls = [n.target for n in mask.graph.nodes if n.op == "call_function"]
    return calls == [aten.new_ones.default]


def _blocks(nodes: Sequence[fx.Node | None], known: Mapping[fx.Node, Any]) -> Blocks | None:
    refs = [_broadcast(known[n].ref) for n in nodes if n is not None]
    return Blocks(*refs) if refs else None


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
    """The functions of one call: fake tensors of query, key and value, and of what score_mod and
    mask_mod captured."""

    fakes: Sequence[Tensor]
    captured: Sequence[Tensor]
    masking: Sequence[Tensor]

    def kernel(self, score_mod: Any, mask_mod: Any, lower: Lower) -> Kernel | None:
        """`where(mask_mod(...), score_mod(score, ...), -inf)` at all scores; without a mask_mod
        what becomes of scores. None where nothing does."""
        traced = self.traced(score_mod, mask_mod)
        (result,) = traced.graph.find_nodes(op="output")
        if result.args[0].op == "placeholder":
            return None
        try:
            nodes = fuse(lower(traced), _FUSE).nodes
        except UnsupportedGraph as error:
            raise CannotLower(str(error)) from error
        one = nodes[0] if len(nodes) == 1 else None
        require(isinstance(one, Kernel), f"{len(nodes)} kernels for what becomes of scores")
        assert isinstance(one, Kernel)
        return self.placed(one)

    def traced(self, score_mod: Any, mask_mod: Any) -> fx.GraphModule:
        """Both functions of all scores. These lie so that no two axes could be one, and there are
        two at least along each."""
        mode = next(x.fake_mode for x in self.fakes if isinstance(x, FakeTensor))
        first = len(self.captured)

        def functions(score: Tensor, *buffers: Tensor) -> Tensor:
            places = [torch.arange(n, dtype=torch.int32, device=score.device) for n in score.shape]
            scored = vmap_over_scores(score_mod, (0,), (None,) * first)
            out: Tensor = scored(score, *places, *buffers[:first])
            if mask_mod is not None:
                masked = vmap_over_scores(mask_mod, (), (None,) * len(self.masking))
                out = torch.where(masked(*places, *buffers[first:]), out, float("-inf"))
            return out.to(torch.float32)

        with own_composites(), mode:
            size = [n if not isinstance(n, int) or n > 1 else 2 for n in self.lengths]
            stride: list[Any] = [1]
            for n in reversed(size[1:]):
                stride.append(stride[-1] * (n + 1))
            score = torch.empty_strided(size, stride[::-1], device=self.fakes[0].device)
            buffers = (*self.captured, *self.masking)
            graph: fx.GraphModule = make_fx(functions, decompositions())(score, *buffers)
            _move(graph.graph, score.device)
        names = ["score", *(f"captured{i}" for i in range(len(buffers)))]
        for node, name in zip(graph.graph.find_nodes(op="placeholder"), names, strict=True):
            node.name = node.target = name
        return graph

    @property
    def lengths(self) -> tuple[Any, ...]:
        """Batches, heads, queries and keys."""
        query, key, _ = self.fakes
        return (*query.shape[:3], key.shape[2])

    def placed(self, kernel: Kernel) -> Kernel:
        """With its axes in the order of those of `score`, and of the lengths that there are."""
        stride = next((b.type.stride for b in kernel.buffers if b.name == "score"), ())
        loads = [s for s in statements(kernel) if isinstance(s, Load) and s.buffer == "score"]
        require(bool(loads), "what becomes of scores does not depend on them")
        axes: list[Axis] = []
        for step, length in zip(stride, self.lengths, strict=True):
            own = [
                a for a in kernel.axes if sympy.expand(loads[0].index.coeff(a.symbol) - step) == 0
            ]
            require(len(own) == 1 and len(kernel.axes) == 4, "scores of other places")
            axes.append(Axis(own[0].symbol, expr(length)))
        return replace(kernel, axes=tuple(axes))
