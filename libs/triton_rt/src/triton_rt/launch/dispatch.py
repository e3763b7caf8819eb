"""A callable `dispatch(grid, *args)` that launches: native where it can be built, else Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from triton_rt.binary import Binary
from triton_rt.errors import CudaError
from triton_rt.kinds import torch_dtype
from triton_rt.launch import driver as cuda
from triton_rt.launch import native
from triton_rt.launch.args import pack
from triton_rt.source import KernelParam

Resolve = Callable[[int, int], "Entry"]


@dataclass(frozen=True)
class Entry:
    """A loaded variant, with all that a launch of it needs."""

    function: int
    context: int
    threads: int
    shared_bytes: int
    num_ctas: int
    cooperative: bool
    pdl: bool
    global_scratch_bytes: int
    profile_scratch_bytes: int

    @classmethod
    def load(cls, binary: Binary, device: int) -> Entry:
        """Loads a binary on a device and describes its launches."""
        loaded = cuda.driver().load(binary, device)
        return cls(
            loaded.function,
            loaded.context,
            32 * binary.num_warps,
            binary.shared_bytes,
            binary.num_ctas,
            binary.cooperative,
            binary.pdl,
            binary.global_scratch_bytes,
            binary.profile_scratch_bytes,
        )

    def as_tuple(self) -> tuple[int, ...]:
        return (
            self.function,
            self.context,
            self.threads,
            self.shared_bytes,
            self.num_ctas,
            int(self.cooperative),
            int(self.pdl),
            self.global_scratch_bytes,
            self.profile_scratch_bytes,
        )

    def attributes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Launch attributes as (number, words), as `cuLaunchKernelEx` takes them."""
        out: list[tuple[int, tuple[int, ...]]] = []
        if self.pdl:
            out.append((cuda.LAUNCH_PDL, (1,)))
        if self.cooperative:
            out.append((cuda.LAUNCH_COOPERATIVE, (1,)))
        if self.num_ctas > 1:
            out.append((cuda.LAUNCH_CLUSTER, (self.num_ctas, 1, 1)))
            out.append((cuda.LAUNCH_CLUSTER_POLICY, (1,)))
        return out


def make_dispatcher(
    name: str,
    params: tuple[KernelParam, ...],
    resolve: Resolve,
    on_cpu: Callable[..., None],
) -> Callable[..., None]:
    """A callable `dispatch(grid, *args)`.

    `resolve(alignment, device)` gives the variant of a new pair of actual alignment mask and
    device; it is asked once for each. `on_cpu(grid, *args)` takes calls with CPU tensors.
    """
    module = native.extension()
    if module is None:
        return PythonDispatcher(name, params, resolve, on_cpu)
    kinds = [p.kind for p in params]
    return module.Dispatcher(  # type: ignore[no-any-return]
        name,
        kinds,
        [torch_dtype(k[1:]) if k.startswith("*") else None for k in kinds],
        lambda alignment, device: resolve(alignment, device).as_tuple(),
        on_cpu,
        lambda grid, *args: _explain(name, params, grid, args),
        _current_device,
        _raw_stream(),
        _scratch,
        _failed,
    )


class PythonDispatcher:
    """The launcher without a C compiler: slower by some ten microseconds, same checks."""

    def __init__(
        self,
        name: str,
        params: tuple[KernelParam, ...],
        resolve: Resolve,
        on_cpu: Callable[..., None],
    ) -> None:
        self.name = name
        self.params = params
        self.resolve = resolve
        self.on_cpu = on_cpu
        self.entries: dict[tuple[int, int], Entry] = {}

    def __call__(self, grid: Any, *args: Any) -> None:
        packed = pack(self.name, self.params, grid, args)
        device = _current_device() if packed.device is None else packed.device
        if device < 0:
            self.on_cpu(grid, *args)
            return
        if 0 in packed.grid:
            return
        key = (packed.alignment, device)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = self.resolve(*key)
        programs = packed.grid[0] * packed.grid[1] * packed.grid[2] * entry.num_ctas
        keep = [
            _scratch(programs * size, device) if size else None
            for size in (entry.global_scratch_bytes, entry.profile_scratch_bytes)
        ]
        tail = [(0 if t is None else t.data_ptr()).to_bytes(8, "little") for t in keep]
        x, y, z = packed.grid
        cuda.driver().launch(
            entry.function,
            entry.context,
            (x * entry.num_ctas, y, z),
            entry.threads,
            entry.shared_bytes,
            int(_raw_stream()(device)),
            entry.attributes(),
            packed.values + tail,
        )


def _explain(name: str, params: tuple[KernelParam, ...], grid: Any, args: tuple[Any, ...]) -> None:
    """Raises the error of a call that the native launcher refused."""
    pack(name, params, grid, args)


def _current_device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def _raw_stream() -> Callable[[int], int]:
    getter: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
    return getter


def _scratch(size: int, device: int) -> torch.Tensor:
    """Memory of the current stream: torch's allocator hands it out again in stream order only."""
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


def _failed(code: int, name: str) -> None:
    try:
        cuda.driver().check(code, "cuLaunchKernel")
    except CudaError as error:
        raise CudaError(f"launch of {name}: {error}") from None
