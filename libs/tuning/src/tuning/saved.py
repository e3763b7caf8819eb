"""The first values of what candidates mutate, kept in as little memory as will do."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from triton_rt.driver import driver

_CHUNK = 64 << 20


@dataclass(frozen=True)
class Span:
    """Bytes `start` to `end` of the storage at address `base`, on a device."""

    base: int
    start: int
    end: int
    device: torch.device
    storage: torch.UntypedStorage = field(compare=False, repr=False)

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return self.end - self.start

    def view(self) -> torch.Tensor:
        """The bytes themselves, as a tensor that shares their memory."""
        empty = torch.empty(0, dtype=torch.uint8, device=self.device)
        return empty.set_(self.storage, self.start, (self.bytes,), (1,))


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and the one past the last, that a tensor's elements have in its storage."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return start, start
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (int(reach) + 1) * size


def spans(tensors: Iterable[torch.Tensor]) -> list[Span]:
    """What tensors hold, each byte once: overlapping extents of a storage are joined."""
    by_storage: dict[int, list[Span]] = {}
    for tensor in tensors:
        start, end = extent(tensor)
        if end > start:
            storage = tensor.untyped_storage()
            base = storage.data_ptr()
            span = Span(base, start, end, tensor.device, storage)
            by_storage.setdefault(base, []).append(span)
    out: list[Span] = []
    for parts in by_storage.values():
        parts.sort(key=lambda s: s.start)
        merged = [parts[0]]
        for part in parts[1:]:
            last = merged[-1]
            if part.start < last.end:
                end = max(last.end, part.end)
                merged[-1] = Span(last.base, last.start, end, last.device, last.storage)
            else:
                merged.append(part)
        out += merged
    return out


class Saved:
    """A copy of spans: on the device while that takes at most half of its free memory, else in
    pinned host memory, in chunks. `restore` is asynchronous, on the current stream.

    Device memory is the driver's, not torch's: `free` gives it back for good."""

    def __init__(self, what: list[Span], *, device_limit: int | None = None) -> None:
        self.spans = what
        self.device_bytes = 0
        self._on_device: list[tuple[Span, int]] = []
        self._on_host: list[tuple[torch.Tensor, torch.Tensor]] = []
        for span in what:
            if span.device.type != "cuda":
                self._on_host.append((span.view(), span.view().clone()))
                continue
            free = torch.cuda.mem_get_info(span.device)[0] // 2
            limit = free if device_limit is None else device_limit - self.device_bytes
            copy = allocate(span.bytes) if span.bytes <= limit else 0
            if copy:
                self._on_device.append((span, copy))
                self.device_bytes += span.bytes
                _copy(copy, span.base + span.start, span.bytes)
                continue
            for at in range(0, span.bytes, _CHUNK):
                chunk = span.view()[at : at + _CHUNK]
                host = torch.empty(chunk.numel(), dtype=torch.uint8, pin_memory=True)
                self._on_host.append((chunk, host.copy_(chunk)))

    def restore(self) -> None:
        """Puts the first values back."""
        for span, copy in self._on_device:
            _copy(span.base + span.start, copy, span.bytes)
        for live, host in self._on_host:
            live.copy_(host, non_blocking=True)

    def free(self) -> None:
        """After the last `restore` has run on the device."""
        for _, copy in self._on_device:
            release(copy)
        self._on_device.clear()
        self._on_host.clear()


def allocate(size: int) -> int:
    """Device memory of the current context, past torch's allocator; 0 if there is not enough."""
    address = ctypes.c_uint64()
    library = driver().library
    return address.value if library.cuMemAlloc_v2(ctypes.byref(address), _size(size)) == 0 else 0


def release(address: int) -> None:
    """Gives `allocate`d memory back."""
    driver().call("cuMemFree_v2", ctypes.c_uint64(address))


def fill(address: int, size: int) -> None:
    """Writes zeros on the current stream."""
    driver().call(
        "cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(0), _size(size), _stream()
    )


def _copy(target: int, source: int, size: int) -> None:
    driver().call(
        "cuMemcpyDtoDAsync_v2",
        ctypes.c_uint64(target),
        ctypes.c_uint64(source),
        _size(size),
        _stream(),
    )


def _size(size: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(size)


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
