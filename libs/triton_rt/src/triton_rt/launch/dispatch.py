"""A callable `dispatch(grid, *args)` that launches: native where it can be built, else Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from triton_rt import driver as cuda
from triton_rt.element_types import torch_dtype
from triton_rt.errors import CooperativeGridTooLarge, CudaError, OutOfRegisters
from triton_rt.launch import hooks, native, torch_abi, workspace
from triton_rt.launch.args import OWN_BITS, pack, rest_of
from triton_rt.launch.loading import Entry
from triton_rt.launch.slots import split
from triton_rt.source import KernelParam, flatten

Resolve = Callable[[int, int], Entry]


def make_dispatcher(
    name: str, params: tuple[KernelParam, ...], resolve: Resolve, on_cpu: Callable[..., None]
) -> Dispatch:
    """A callable `dispatch(grid, *args)`; `dispatch.clear()` forgets the variants it resolved.

    `resolve(alignment, device)` gives the variant of a new pair of actual alignment mask and
    device; it is asked once for each. `on_cpu(grid, *args)` takes calls with CPU tensors."""
    module = native.extension()
    if module is None:
        return PythonDispatcher(name, params, resolve, on_cpu)
    rest = rest_of(params)
    number = functools.cache(functools.partial(torch_abi.dtype_number, module))

    def native_resolve(alignment: int, device: int) -> tuple[Any, ...]:
        own = alignment & ((1 << OWN_BITS) - 1)
        return resolve(own | rest if alignment >> OWN_BITS else own, device).as_tuple()

    dispatcher: Dispatch = module.Dispatcher(
        name,
        tuple(_record(p, number) for p in params),
        native_resolve,
        on_cpu,
        lambda grid, *args: pack(name, params, grid, args),  # raises what is wrong with a call
        _current_device,
        _raw_stream(),
        _scratch,
        _failed,
        # Tests replace the getter; then it, and not torch, is to be asked.
        _raw_stream() is getattr(torch._C, "_cuda_getCurrentRawStream", None),
    )
    return _Flattening(dispatcher) if any("." in p.name for p in params) else dispatcher


def _record(
    param: KernelParam, number: Callable[[torch.dtype], int]
) -> tuple[str, torch.dtype | None, int]:
    if not param.is_pointer and not param.is_descriptor:
        return (param.kind, None, -1)
    dtype = torch_dtype(param.element)
    return (param.kind, dtype, number(dtype))


class Dispatch(Protocol):
    """One launch a call."""

    def __call__(self, grid: Any, *args: Any) -> None: ...

    def clear(self) -> None:
        """Forgets the variants: the next launch resolves them anew."""


class _Flattening:
    """The native launcher takes no tuples: their elements, one after the other."""

    def __init__(self, inner: Dispatch) -> None:
        self.inner = inner
        self.clear = inner.clear

    def __call__(self, grid: Any, *args: Any) -> None:
        self.inner(grid, *flatten(args))


@dataclass(eq=False)
class PythonDispatcher:
    """The launcher without a C compiler: slower by some ten microseconds, same checks."""

    name: str
    params: tuple[KernelParam, ...]
    resolve: Resolve
    on_cpu: Callable[..., None]
    entries: dict[tuple[int, int], Entry] = field(default_factory=dict)

    def clear(self) -> None:
        """Forgets the variants: the next launch resolves them anew."""
        self.entries.clear()

    def __call__(self, grid: Any, *args: Any) -> None:
        packed = pack(self.name, self.params, grid, args)
        device = _current_device() if packed.device is None else packed.device
        if device < 0:
            self.on_cpu(grid, *args)
            return
        if 0 in packed.grid:
            return
        alignment = packed.alignment
        entry = self.entries.get((alignment, device))
        if entry is None:
            entry = self.entries[alignment, device] = self.resolve(alignment, device)
        programs = packed.grid[0] * packed.grid[1] * packed.grid[2] * entry.num_ctas
        keep = [
            _scratch(programs * size, device) if size else None
            for size in (entry.global_scratch_bytes, entry.profile_scratch_bytes)
        ]
        tail = [(0 if t is None else t.data_ptr()).to_bytes(8, "little") for t in keep]
        values = self._expand(entry, flatten(args), packed.values)
        x, y, z = packed.grid
        stream = int(_raw_stream()(device))
        record = (self.name, packed.grid, device, stream, entry.threads, entry.shared_bytes)
        hooks.run_before(*record, alignment, entry.function)
        code = cuda.driver().launch(
            entry.function,
            entry.context,
            (x * entry.num_ctas, y, z),
            entry.threads,
            entry.shared_bytes,
            stream,
            entry.attributes(),
            values + tail,
        )
        if code:
            shape = (packed.grid, entry.threads, entry.shared_bytes, entry.num_ctas)
            _failed(code, self.name, *shape, entry.function, device)
        hooks.run_after(*record, alignment, entry.function)

    def _expand(self, entry: Entry, args: tuple[Any, ...], packed: list[bytes]) -> list[bytes]:
        """Descriptors become what this variant takes for them."""
        if not entry.slots:
            return packed
        slots = iter(entry.slots)
        out: list[bytes] = []
        for param, arg, value in zip(self.params, args, packed, strict=True):
            out += split(next(slots)(arg), entry.head) if param.is_descriptor else [value]
        return out


def _current_device() -> int:
    if not torch.cuda.is_available():
        return -1
    torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's own
    return torch.cuda.current_device()


def _raw_stream() -> Callable[[int], int]:
    getter: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
    return getter


def _scratch(size: int, device: int) -> Any:
    """Scratch memory of the current stream, from the allocator that is set."""
    return workspace.allocate(size, device, int(_raw_stream()(device)))


def _failed(
    code: int,
    name: str,
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int,
    num_ctas: int,
    function: int,
    device: int,
) -> None:
    """Raises the error of a launch that the driver refused."""
    opened = cuda.driver()
    what = f"launch of {name} on cuda:{device} with grid {grid}, {threads} threads, {shared_bytes} "
    what += f"bytes of shared memory, clusters of {num_ctas}"
    if code == cuda.ERROR_OUT_OF_RESOURCES:
        registers = opened.registers(function)
        raise OutOfRegisters(
            f"{what}: {threads} threads x {registers} registers do not fit the "
            f"{opened.device(device).registers} of a block: use fewer warps or smaller tiles"
        )
    if code == cuda.ERROR_COOPERATIVE_TOO_LARGE:
        resident = opened.resident_blocks(function, threads, shared_bytes, device)
        blocks = grid[0] * grid[1] * grid[2] * num_ctas
        raise CooperativeGridTooLarge(
            f"{what}: a cooperative launch needs its {blocks} blocks resident at once, this GPU "
            f"holds {resident} of this kernel: use a grid of at most {resident // num_ctas}"
        )
    try:
        opened.check(code, "cuLaunchKernel")
    except CudaError as error:
        raise CudaError(f"{what}: {error}") from None
