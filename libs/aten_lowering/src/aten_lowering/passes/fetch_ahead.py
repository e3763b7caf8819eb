"""Copies from the host to a GPU, where the caller need not wait for them, begin one ahead.

    a = x.to("cuda", non_blocking=True)      a = fetch(x, "cuda")
    u = f(a)                                 b = fetch(y, "cuda")
    b = y.to("cuda", non_blocking=True)  ->  u = f(fetched(a))
    v = g(u, b)                              v = g(u, fetched(b))

Weights that a host keeps are copied while the layer before is computed; so two of them are held. A
stream of its own copies what lies in locked pages (`pin_memory`); the rest is copied as it was."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from aten_lowering.passes.base import aten, call
from aten_lowering.pool_offsets import LIBRARY

_COPY = "_copy_under_way"
"""The attribute of a tensor that `fetch` gave: its `Copy`, or None where it was copied at once."""


class Copy:
    """A copy that nobody waited for yet. end: when it has been made. stream: where its tensor's
    memory was allocated; if the tensor dies before anybody waits, since an operator has raised,
    that stream waits before the memory is something else's."""

    def __init__(self, end: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        self.end, self.stream = end, stream

    def __del__(self) -> None:
        self.stream.wait_event(self.end)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch


def fetch(x: Tensor, device: torch.device) -> Tensor:
    """Begins a copy, which is there after `fetched`."""
    if device.type != "cuda" or not x.is_pinned():
        result = x.to(device, non_blocking=True)
        setattr(result, _COPY, None)
        return result
    result, stream = torch.empty_like(x, device=device), _stream(device)
    own = torch.cuda.current_stream(device)
    stream.wait_stream(own)  # its memory was something else's
    with torch.cuda.stream(stream):
        result.copy_(x, non_blocking=True)
        setattr(result, _COPY, Copy(stream.record_event(), own))
    return result


def fetched(x: Tensor) -> Tensor:
    """The current stream waits for a copy; for all of them where the tensor is another than the
    one that `fetch` gave."""
    stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
    if stream is not None and not hasattr(x, _COPY):
        stream.wait_stream(_stream(x.device))
    elif stream is not None and (copy := getattr(x, _COPY)) is not None:
        stream.wait_event(copy.end)
        copy.stream = stream  # has waited: it does so again for nothing
        setattr(x, _COPY, None)
    return x


LIBRARY.define("fetch(Tensor x, Device device) -> Tensor")
LIBRARY.define("fetched(Tensor(a) x) -> Tensor(a)")
LIBRARY.impl("fetch", fetch, "CompositeExplicitAutograd")
LIBRARY.impl("fetched", fetched, "CompositeExplicitAutograd")
torch.library.register_fake(
    "aten_lowering::fetch", lambda x, device: torch.empty_like(x, device=device), lib=LIBRARY
)
torch.library.register_fake("aten_lowering::fetched", torch.empty_like, lib=LIBRARY)
_FETCH = torch.ops.aten_lowering.fetch.default
_FETCHED = torch.ops.aten_lowering.fetched.default


def fetch_ahead(graph: fx.Graph) -> None:
    """Changes the graph where inputs are copied so, and nothing waits for other streams, which may
    be what fills them."""
    ours = (n.target for n in graph.nodes if str(n.target).startswith("aten_lowering."))
    if any(not op._schema.returns for op in ours):
        return
    inputs = graph.find_nodes(op="placeholder")
    copies = graph.find_nodes(op="call_function", target=aten._to_copy.default)
    groups: list[list[fx.Node]] = []  # those of a layer: nothing is computed between
    for node in filter(_is_fetch, copies):
        if groups and groups[-1][-1].next is node:
            groups[-1].append(node)
        else:
            groups.append([node])
    ahead = inputs[-1].next if inputs else None
    for group in groups:
        with group[0].meta["val"].fake_mode:
            with graph.inserting_before(ahead):
                begun = [call(graph, _FETCH, n.args[0], n.meta["val"].device) for n in group]
            with graph.inserting_before(group[0]):
                ends = [call(graph, _FETCHED, node) for node in begun]
        for node, end in zip(group, ends, strict=True):
            node.replace_all_uses_with(end)
            graph.erase_node(node)
        ahead = ends[0]


def _is_fetch(node: fx.Node) -> bool:
    """All of an input, which nothing writes, as it is, and nobody waits."""
    x: Any = node.args[0]
    if x.op != "placeholder" or any(map(_writes, x.users)):
        return False
    asked = {name for name, value in node.kwargs.items() if value not in (None, False)}
    given, made = x.meta["val"], node.meta["val"]
    alike = given.dtype == made.dtype and given.stride() == made.stride()
    apart = given.device.type == "cpu" and made.device.type == "cuda"
    return alike and apart and asked - {"dtype", "layout"} == {"device", "non_blocking"}


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
