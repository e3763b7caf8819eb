"""Scratch memory of kernels: where the descriptors lie that a kernel makes on the device."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch

from triton_rt.compiler import Binary
from triton_rt.errors import WorkspaceTooSmall

#: Bytes of a descriptor in memory, and its alignment there.
DESCRIPTOR_BYTES = 128

#: `allocator(size, alignment, stream)`, sizes in bytes, returns an object with `data_ptr()`: what
#: `triton.set_allocator` takes. `stream` is the driver's handle.
Allocator = Callable[[int, int, int | None], Any]

_allocator: ContextVar[Allocator | None] = ContextVar("triton_rt_allocator", default=None)


def set_allocator(allocator: Allocator | None) -> None:
    """Who provides the scratch memory of launches in this context (`contextvars`); None: an
    allocator set with `triton.set_allocator`, else torch's caching one.

    The launch holds what the allocator returned until it is queued; then the memory must stay
    valid until the kernel has run. Tensors of torch's caching allocator do: they are recorded on
    the launch's stream."""
    _allocator.set(allocator)


@contextmanager
def use_allocator(allocator: Allocator) -> Iterator[None]:
    """`set_allocator` for a block of code."""
    token = _allocator.set(allocator)
    try:
        yield
    finally:
        _allocator.reset(token)


def allocate(size: int, device: int, stream: int) -> Any:
    """Scratch memory for a launch on a stream of a device; raises `WorkspaceTooSmall`."""
    allocator = _allocator.get() or _tritons()
    if isinstance(allocator, Workspace):
        return allocator.memory(size, device, stream)
    where = torch.device("cuda", device)
    if allocator is None:
        # Of the current stream: torch hands it out again in the order of that stream only.
        return torch.empty(size, dtype=torch.uint8, device=where)
    there = torch.cuda.current_device() == device
    with nullcontext() if there else torch.cuda.device(where):
        out = allocator(size, DESCRIPTOR_BYTES, stream)
        if isinstance(out, torch.Tensor):
            if out.nbytes < size or out.get_device() != device:
                raise WorkspaceTooSmall(
                    f"the allocator gave {out.nbytes} bytes on {out.device}; {size} on {where} "
                    "were asked for"
                )
            out.record_stream(torch.cuda.current_stream(where))
    if out.data_ptr() % DESCRIPTOR_BYTES:
        raise WorkspaceTooSmall(
            f"the allocator gave memory at {out.data_ptr():#x}, which is not a multiple of "
            f"{DESCRIPTOR_BYTES} bytes"
        )
    return out


def _tritons() -> Allocator | None:
    """What `triton.set_allocator` has set; None without it, or while Triton is not imported."""
    module = sys.modules.get("triton.runtime._allocation")
    if module is None:
        return None
    found = module._allocator.get()
    return None if isinstance(found, module.NullAllocator) else found


class Workspace:
    """Memory for the descriptors that a kernel makes, kept from launch to launch.

    `num_programs * num_descriptors` descriptors; the default of `num_programs` is the number of
    multiprocessors, which is the grid of a persistent kernel. It is an allocator: `with
    workspace.use(): kernel(grid, ...)` launches from it, as does `triton.set_allocator(workspace)`.
    Each stream has its own memory, made at its first launch: launches of one stream follow each
    other, so that they may share it. (With programmatic dependent launch they overlap: such kernels
    must not share a workspace.) A CUDA graph holds the memory by its address: keep the workspace as
    long as the graph. A launch that needs more raises `WorkspaceTooSmall`."""

    def __init__(self, num_descriptors: int, num_programs: int | None = None) -> None:
        if num_descriptors < 1 or (num_programs is not None and num_programs < 1):
            raise WorkspaceTooSmall(
                f"a workspace of {num_programs} programs with {num_descriptors} descriptors is "
                "empty"
            )
        self.num_descriptors = num_descriptors
        self.num_programs = num_programs
        self._memory: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, binary: Binary, num_programs: int | None = None) -> Workspace:
        """For a compiled kernel; its scratch memory is counted in descriptors, rounded up."""
        size = binary.global_scratch_bytes * binary.num_ctas
        return cls(max(1, -(-size // DESCRIPTOR_BYTES)), num_programs)

    def programs(self, device: int) -> int:
        """`num_programs`, or the multiprocessors of a device."""
        if self.num_programs is not None:
            return self.num_programs
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    def nbytes(self, device: int = 0) -> int:
        """Bytes for each stream of a device."""
        return self.programs(device) * self.num_descriptors * DESCRIPTOR_BYTES

    def __call__(self, size: int, alignment: int, stream: int | None) -> torch.Tensor:
        """The memory of a stream of the current device: as Triton calls an allocator."""
        if DESCRIPTOR_BYTES % max(1, alignment):
            raise WorkspaceTooSmall(
                f"a launch needs memory at multiples of {alignment} bytes; the workspace's are of "
                f"{DESCRIPTOR_BYTES}"
            )
        return self.memory(size, torch.cuda.current_device(), stream or 0)

    def memory(self, size: int, device: int, stream: int) -> torch.Tensor:
        """The memory of a stream of a device, of at least `size` bytes."""
        found = self._memory.get((device, stream)) or self._make(device, stream)
        if size > found[0]:
            raise WorkspaceTooSmall(
                f"a launch needs {size} bytes; the workspace has {found[0]} "
                f"({self.programs(device)} programs x {self.num_descriptors} descriptors of "
                f"{DESCRIPTOR_BYTES} bytes): make it larger, or launch fewer programs"
            )
        return found[1]

    def _make(self, device: int, stream: int) -> tuple[int, torch.Tensor]:
        with self._lock:
            found = self._memory.get((device, stream))
            if found is None:
                room = self.nbytes(device)
                where = torch.device("cuda", device)
                found = room, torch.empty(room, dtype=torch.uint8, device=where)
                self._memory[device, stream] = found
        return found

    @contextmanager
    def use(self) -> Iterator[Workspace]:
        """Launches inside take their scratch memory from here."""
        with use_allocator(self):
            yield self

    def clear(self) -> None:
        """Frees the memory of all streams, in their order."""
        with self._lock:
            self._memory.clear()
