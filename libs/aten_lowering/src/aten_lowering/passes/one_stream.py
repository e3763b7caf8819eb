"""Work that a model puts on streams of its own, on the stream of the call.

    with torch.cuda.stream(s):      await_streams([s])      # this stream waits for s
        y = f(x)               ->   y = f(x)
    event.record()                  record_here(event)      # whichever stream it was to be of
    ...                             release_streams([s])    # s waits for this stream

All runs one after the other, in an order that the model allows. Whoever waits for an event or works
on such a stream outside finds what eager leaves there. Streams and events are numbers in Dynamo's
table of objects; its graph calls methods of theirs, which AOTAutograd would call as it traces."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from aten_lowering.pool_offsets import LIBRARY
from aten_lowering.torch_compat import external_object


def _others(streams: Sequence[int]) -> list[tuple[torch.Stream, torch.Stream]]:
    """The streams that are not the current one of their device, each with that. Raises where that
    is captured: a graph has no other streams."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the model has streams of its own")
    found: list[torch.Stream] = [external_object(n) for n in streams]
    pairs = ((s, torch.accelerator.current_stream(s.device)) for s in found)
    return [(stream, current) for stream, current in pairs if stream != current]


def await_streams(streams: Sequence[int]) -> None:
    """The current stream waits for what these have been given."""
    for stream, current in _others(streams):
        current.wait_stream(stream)


def release_streams(streams: Sequence[int]) -> None:
    """These streams wait for what the current one has been given."""
    for stream, current in _others(streams):
        stream.wait_stream(current)


def synchronize_here(objects: Sequence[int]) -> None:
    """The host waits for events, and for the current streams of the devices of streams; for all
    devices where there are none."""
    for each in map(external_object, objects):
        each.synchronize()
        if isinstance(each, torch.Stream):
            torch.accelerator.current_stream(each.device).synchronize()
    if not objects:
        torch.accelerator.synchronize()


def record_here(objects: Sequence[int]) -> None:
    """Records events on the current stream."""
    for each in map(external_object, objects):
        each.record()


def wait_here(objects: Sequence[int]) -> None:
    """The current stream waits for events."""
    for each in map(external_object, objects):
        each.wait()


_CALLS: dict[Callable[[Sequence[int]], None], Any] = {}
for _call in (await_streams, release_streams, synchronize_here, record_here, wait_here):
    LIBRARY.define(f"{_call.__name__}(int[] objects) -> ()")
    LIBRARY.impl(_call.__name__, _call, "CompositeExplicitAutograd")
    _CALLS[_call] = getattr(torch.ops.aten_lowering, _call.__name__).default
    fx.node.has_side_effect(_CALLS[_call])

_OF_DEVICES = (torch.cuda.synchronize, torch.accelerator.synchronize)


@cache
def _for_tracing() -> None:
    """To say what calls give where tensors are fake takes torch as long as a small graph."""
    for call in _CALLS:
        torch.library.register_fake(f"aten_lowering::{call.__name__}", lambda _: None, lib=LIBRARY)


def one_stream(gm: fx.GraphModule) -> None:
    """Changes Dynamo's graph, if nodes are annotated with streams or call what is about some."""
    graph, streams, called = gm.graph, set[int](), False
    for node in list(graph.nodes):
        stream = (node.meta.get("custom") or {}).pop("stream", None)
        streams |= set() if stream is None else {stream}
        name, objects = _call_of(node)
        with graph.inserting_before(node):
            match name, objects:
                case "wait_stream" | "fork" | "join", about:
                    streams |= set(about)
                case "record_event", (event, on):
                    graph.call_function(_CALLS[record_here], ([event],))
                    streams.add(on)
                case "wait_event", (event, on):
                    graph.call_function(_CALLS[wait_here], ([event],))
                    streams.add(on)
                case "synchronize", about:
                    graph.call_function(_CALLS[synchronize_here], (list(about),))
                case _:
                    continue
        graph.erase_node(node)
        called = True
    if streams:
        first = next(n for n in graph.nodes if n.op not in ("placeholder", "get_attr"))
        with graph.inserting_before(first):
            graph.call_function(_CALLS[await_streams], (sorted(streams),))
        with graph.inserting_before(graph.output_node()):
            graph.call_function(_CALLS[release_streams], (sorted(streams),))
    if called or streams:
        _for_tracing()
        gm.recompile()


def _call_of(node: fx.Node) -> tuple[str, tuple[int, ...]]:
    """The name of what a node calls of streams and events, and which: an event before a stream. An
    empty name for anything else."""
    if node.op == "call_function":
        packet = str(getattr(node.target, "overloadpacket", node.target))
        if packet.startswith("streams."):
            return packet.removeprefix("streams."), tuple(node.args)  # type: ignore[arg-type]  # its schema
        return ("synchronize" if node.target in _OF_DEVICES else ""), ()
    of = [a for a in node.args if isinstance(a, fx.Node) and a.target is external_object]
    if node.op != "call_method" or not of or of != list(node.args) or node.users:
        return "", ()
    return str(node.target), tuple(int(str(a.args[0])) for a in reversed(of))
