"""The fastest of some kernels, measured on the arguments that it will run on."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_rt.errors import NoGPU, TritonRTError
from triton_rt.lazy import LazyKernel

if TYPE_CHECKING:
    import torch

Grid = int | tuple[int, ...]


@dataclass(frozen=True)
class Tuned:
    """`winner` indexes the candidates; `times` are medians in milliseconds, by candidate, and
    infinite for one that failed, whose message is in `failures`."""

    winner: int
    times: tuple[float, ...]
    failures: tuple[tuple[int, str], ...] = ()


def autotune(
    candidates: Sequence[tuple[LazyKernel, Grid]],
    args: Sequence[Any],
    *,
    repeats: int = 20,
    warmup: int = 3,
    flush_bytes: int = 256 << 20,
) -> Tuned:
    """Measures (kernel, grid) pairs on the same arguments and returns the fastest.

    Each run is timed alone by CUDA events, after a write of `flush_bytes` that evicts the L2
    cache; the median of `repeats` counts. Arguments that a kernel mutates have their first values
    again afterwards. Raises `NoGPU` on CPU tensors, and the last failure if every candidate fails.
    """
    import torch

    if not candidates:
        raise ValueError("autotune needs at least one candidate")
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if not tensors or not all(t.is_cuda for t in tensors):
        raise NoGPU(
            "autotune measures on a GPU, and got CPU tensors or none: an interpreter's time says "
            "nothing about a kernel; choose by a cost model there"
        )
    device = tensors[0].device
    with torch.cuda.device(device):
        # Storages, not views: a kernel may write through one argument what another one aliases.
        mutated = {
            a.untyped_storage().data_ptr(): a.untyped_storage()
            for kernel, _ in candidates
            for p, a in zip(kernel.source.params, args, strict=True)
            if p.mutated
        }
        saved = {key: storage.clone() for key, storage in mutated.items()}

        def restore() -> None:
            for key, storage in mutated.items():
                storage.copy_(saved[key])

        for kernel, _ in candidates:
            # One that does not compile says so again when it is measured.
            with contextlib.suppress(TritonRTError):
                kernel.prefetch(alignment=kernel.alignment(*args))
        flush = torch.empty(max(1, flush_bytes), dtype=torch.uint8, device=device)
        times: list[float] = []
        failures: list[tuple[int, str]] = []
        last: TritonRTError | None = None
        for index, (kernel, grid) in enumerate(candidates):
            try:
                times.append(_measure(kernel, grid, args, restore, flush, repeats, warmup))
            except TritonRTError as error:
                # Candidates may exceed the device's resources: they lose, the others go on.
                times.append(float("inf"))
                failures.append((index, f"{type(error).__name__}: {error}"))
                last = error
        restore()
        if len(failures) == len(candidates):
            assert last is not None
            raise last
    return Tuned(min(range(len(times)), key=times.__getitem__), tuple(times), tuple(failures))


def _measure(
    kernel: LazyKernel,
    grid: Grid,
    args: Sequence[Any],
    restore: Any,
    flush: torch.Tensor,
    repeats: int,
    warmup: int,
) -> float:
    import torch

    for _ in range(warmup):
        restore()
        kernel.launch(grid, *args)
    torch.cuda.synchronize()
    pairs = []
    for _ in range(repeats):
        restore()
        flush.zero_()
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        kernel.launch(grid, *args)
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) for begin, end in pairs))
