"""Captured graphs, and the memory that several of them share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Recording:
    """A captured graph: `replay()` queues it; `outputs` are what the callable returned, whose
    tensors hold new values after each replay."""

    replay: Callable[[], None]
    outputs: Any
    release: Callable[[], None]


class Recorder(Protocol):
    """What a `GraphedCallable` needs of CUDA; tests put another in its place."""

    def refuses(self, tensors: list[torch.Tensor]) -> str | None:
        """Why these arguments cannot be captured now; None if they can."""
        ...

    def busy(self) -> bool:
        """Whether another graph is being captured on the current stream."""
        ...

    def record(self, fn: Callable[..., Any], args: Sequence[Any]) -> Recording:
        """Captures one call; raises `RuntimeError` if something in it cannot be captured."""
        ...

    def order(self, device: torch.device) -> None:
        """Makes the device's current stream wait for the last replay of the same pool."""
        ...


@dataclass
class _Lane:
    """A pool's memory on one device. Captures share memory only if they share a stream too."""

    stream: torch.cuda.Stream
    handle: Any = None
    live: int = 0  # graphs that hold the handle: torch refuses one that nothing holds any more
    last: torch.cuda.Stream | None = None  # where the last replay was queued
    number: int = -1  # of that stream


class GraphPool:
    """Memory that graphs share, since only one of them runs at a time.

    Give one pool to callables that are called one after another: their intermediates then take the
    memory of the largest, not of the sum. Replays from several streams or threads are put in order.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._lanes: dict[torch.device, _Lane] = {}

    def refuses(self, tensors: list[torch.Tensor]) -> str | None:
        """Why a call of these tensors cannot be captured, in words; None if it can."""
        devices = {t.device for t in tensors}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            return f"its tensors are on {', '.join(sorted(map(str, devices))) or 'no device'}"
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return "an argument requires grad"
        return "the stream is being captured by another graph" if self.busy() else None

    def busy(self) -> bool:
        """Whether another graph is being captured on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def record(self, fn: Callable[..., Any], args: Sequence[Any]) -> Recording:
        """Captures one call into a graph, with memory of this pool. Raises what `fn` does."""
        device = next(a.device for a in args if isinstance(a, torch.Tensor))
        lane = self._lane(device)
        if lane.handle is None:
            lane.handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            callers = torch.cuda.current_stream()
            capture = torch.cuda.graph(
                graph, pool=lane.handle, stream=lane.stream, capture_error_mode="thread_local"
            )
            try:
                with torch.no_grad(), capture:
                    outputs = fn(*args)
            except BaseException:
                torch.cuda.set_stream(callers)
                _abandon(device, lane)
                raise
        lane.live += 1

        def release() -> None:
            torch.cuda.synchronize(device)  # a replay may still run
            graph.reset()
            lane.live -= 1
            if not lane.live:
                lane.handle = None

        return Recording(graph.replay, outputs, release)

    def order(self, device: torch.device) -> None:
        """Lets the current stream wait for the stream that used the pool's memory last."""
        if device.type != "cuda":
            return
        lane, number = self._lane(device), torch._C._cuda_getCurrentRawStream(device.index)
        if lane.number != number:
            current = torch.cuda.current_stream(device)
            if lane.last is not None:
                current.wait_stream(lane.last)
            lane.last, lane.number = current, number

    def _lane(self, device: torch.device) -> _Lane:
        lane = self._lanes.get(device)
        if lane is None:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own
            lane = self._lanes[device] = _Lane(stream)
        return lane


def _abandon(device: torch.device, lane: _Lane) -> None:
    """Undoes what a failed capture leaves behind in torch 2.11: its allocator and its generator go
    on as if the capture were under way: the one frees no memory that another stream has used
    (pytorch/pytorch#180395, in 2.12, where there is nothing left to undo), the other draws no more
    numbers until a capture has ended well."""
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, lane.handle)
        torch._C._cuda_releasePool(device.index, lane.handle)
    graph = torch.cuda.graph(torch.cuda.CUDAGraph(), stream=lane.stream)
    with contextlib.suppress(RuntimeError), graph:
        torch.zeros(1, device=device)
    if not lane.live:
        lane.handle = None
