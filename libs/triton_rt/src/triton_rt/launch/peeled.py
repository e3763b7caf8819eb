"""An elementwise kernel that keeps wide accesses on views that are not aligned."""

from __future__ import annotations

from typing import Any, Literal

from triton_rt.launch.args import CONGRUENT
from triton_rt.launch.dispatch import make_dispatcher
from triton_rt.launch.lazy import LazyKernel
from triton_rt.launch.loading import Entry
from triton_rt.source import KernelSource, overlapped, peel


class PeeledKernel(LazyKernel):
    """A `LazyKernel` of an elementwise kernel that keeps wide accesses on views.

    Arguments whose pointers are all off from 16-byte alignment by the same number of elements run
    the rewritten kernel (`peel`), all others the variants of a `LazyKernel`; nothing is cloned, and
    mutation is in place. Both kernels are `overlapped` where asked, "early" or "late". Raises
    `NotPeelable` where the kernel is not of the form `peel` takes.
    """

    def __init__(
        self,
        source: KernelSource,
        *,
        overlap: Literal["early", "late"] | None = None,
        **options: Any,
    ) -> None:
        made = peel(source)
        shifted = made.source
        if overlap is not None:
            source = overlapped(source, early=overlap == "early")
            shifted = overlapped(shifted, early=overlap == "early")
        super().__init__(source, **options)
        self.peeled = LazyKernel(shifted, **options)
        # What stays aligned when the others are shifted: pointers that every element reads.
        self._kept = sum(
            1 << i
            for i, (p, shift) in enumerate(zip(source.params, made.shifts, strict=True))
            if p.is_pointer and not shift
        )
        self.launch = make_dispatcher(
            source.name, source.params, self._choose, self._interpret, peel=made.shifts
        )

    def _choose(self, alignment: int, device: int) -> Entry:
        if alignment & CONGRUENT:
            return self.peeled._resolve(alignment & self._kept, device)
        return self._resolve(alignment, device)
