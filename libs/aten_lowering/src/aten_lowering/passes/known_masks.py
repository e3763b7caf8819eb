"""Masks of attention that are the same in every call.

    attention(q, k, v, where(arange(n) <= arange(n)[:, None], 0, -inf))
        ->   attention(q, k, v, None, is_causal=True)

Models make the masks of batches without padding of counted places alone. Kernels of attention skip
the half of the keys that no query sees only where they are told so, and read a mask otherwise."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from aten_lowering.extern import bind, rebind
from aten_lowering.passes.base import tensor
from aten_lowering.passes.purity import is_pure, mutates
from aten_lowering.registry import named
from aten_lowering.torch_compat import unset_fake_temporarily

aten = torch.ops.aten

_WAYS = ("cudnn_attention", "efficient_attention", "flash_attention_for_cpu")
_CALLS = named(
    "scaled_dot_product_attention",
    *(f"_scaled_dot_product_{way}{end}" for way in _WAYS for end in ("", "_backward")),
)
_MASK = ("attn_mask", "attn_bias")
_MOST = 2**25  # elements of a tensor that is computed to look at a mask
# What torch adds to the scores of 16-bit attention in the place of infinity: nothing is left of
# their exponentials.
_NOTHING = -65504.0


def known_masks(graph: fx.Graph) -> None:
    """Calls whose masks are computed of no input take none where it is true everywhere, and are
    causal where it is a lower triangle of as many queries as keys."""
    calls = [n for target in _CALLS for n in graph.find_nodes(op="call_function", target=target)]
    given = {n: bind(n, target) for n in calls if isinstance(target := n.target, OpOverload)}
    names = {n: next(name for name in _MASK if name in args) for n, args in given.items()}
    masked = {n: m for n, name in names.items() if isinstance(m := given[n][name], fx.Node)}
    if not masked or mutates(graph):
        return
    known: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_known(node) and known.issuperset(node.all_input_nodes):
            known.add(node)
    meanings = _meanings(graph, known.intersection(masked.values()))
    for node, mask in masked.items():
        meaning = meanings.get(mask)
        queries, keys = (given[node][name].meta["val"].shape[-2] for name in ("query", "key"))
        size = tuple(mask.meta["val"].shape[-2:])
        causal = meaning == "causal" and size == (queries, keys)
        if not given[node]["is_causal"] and (causal or meaning == "all"):
            rebind(node, **{names[node]: None}, is_causal=causal)


def _is_known(node: fx.Node) -> bool:
    """Whether what the operands say is all that it takes to know it, in few elements, and alike on
    every device: what compares floats may differ."""
    value = tensor(node)
    if value is None or not is_pure(node) or not isinstance(node.target, OpOverload):
        return False
    few = all(isinstance(n, int) for n in value.shape) and value.numel() <= _MOST
    floats = [n for n in map(tensor, node.all_input_nodes) if n is None or n.is_floating_point()]
    return few and (value.is_floating_point() or not floats)


def _meanings(graph: fx.Graph, masks: set[fx.Node]) -> dict[fx.Node, str | None]:
    """What each mask says, computed on the CPU; what is used up is freed."""
    needed = set(masks)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    uses = Counter(n for node in needed for n in node.all_input_nodes)
    values: dict[fx.Node, Tensor] = {}
    found: dict[fx.Node, str | None] = {}

    def given(arg: Any) -> Any:
        return torch.device("cpu") if isinstance(arg, torch.device) else values.get(arg, arg)

    with unset_fake_temporarily(), torch.no_grad(), _one_thread():
        for node in filter(needed.__contains__, graph.nodes):
            target: Any = node.target
            args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), given)
            values[node] = target(*args, **kwargs)
            if node in masks:
                found[node] = _meaning(values[node])
            uses.subtract(node.all_input_nodes)
            for spent in [n for n in values if not uses[n]]:
                del values[spent]
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch's threads take longer to start, and to wait for each other, than a mask takes one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _meaning(mask: Tensor) -> str | None:
    """`all` keys are seen, or those of a lower triangle (`causal`)."""
    for dim, stride in enumerate(mask.stride()):
        if stride == 0 and mask.shape[dim] > 1:
            mask = mask.narrow(dim, 0, 1)
    seen = mask if mask.dtype is torch.bool else mask == 0
    if seen is not mask and not (seen | (mask <= _NOTHING)).all():
        return None
    if seen.all():
        return "all"
    triangle = seen.dim() > 1 and torch.equal(seen, torch.ones_like(seen).tril())
    return "causal" if triangle else None
