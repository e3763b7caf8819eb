"""The address ranges that an interpreted kernel may touch."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from triton_rt.errors import OutOfBounds

Array = np.ndarray[Any, Any]


class Memory:
    """Half-open address ranges, merged and sorted; `check` refuses any access outside of them."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        for low, high in sorted(r for r in ranges if r[0] < r[1]):
            if merged and low <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        self.starts = np.array([r[0] for r in merged], dtype=np.uint64)
        self.ends = np.array([r[1] for r in merged], dtype=np.uint64)
        #: Set once a kernel makes a pointer from an integer: its target is then unknown here.
        self.unknown = False

    def holds(self, addresses: Array) -> bool:
        """Whether all of them lie inside of the ranges."""
        index = np.searchsorted(self.starts, addresses, side="right").astype(np.int64) - 1
        return bool(self.ends.size) and bool(((index >= 0) & (addresses < self.ends[index])).all())

    def check(self, pointers: Array, mask: Array | None, itemsize: int, what: str) -> None:
        """Raises `OutOfBounds` unless every active element lies inside one range. mask: an element
        for each pointer."""
        if self.unknown:
            return
        active = pointers if mask is None else pointers[mask]
        if active.size == 0:
            return
        low, high = active.min(), active.max() + np.uint64(itemsize)
        if self.starts.size:
            at = int(np.searchsorted(self.starts, low, side="right")) - 1
            if at >= 0 and high <= self.ends[at] and high > low:
                return
            index = np.searchsorted(self.starts, active, side="right").astype(np.int64) - 1
            ends = self.ends[np.maximum(index, 0)]
            bad = (index < 0) | (active + np.uint64(itemsize) > ends)
            if not bad.any():
                return
            address, count = int(active[bad].flat[0]), int(bad.sum())
        else:
            address, count = int(low), int(active.size)
        raise OutOfBounds(
            f"{what} of {itemsize} bytes at {address:#x} ({count} of {active.size} active "
            f"elements) is outside of every tensor argument's storage; nearest storage "
            f"{self._nearest(address)}. Check the mask and the strides of this access."
        )

    def _nearest(self, address: int) -> str:
        if not self.starts.size:
            return "none: the kernel has no tensor arguments"
        spans = [(int(a), int(b)) for a, b in zip(self.starts, self.ends, strict=True)]
        low, high = min(spans, key=lambda s: max(s[0] - address, address - s[1], 0))
        where = f"{address - high} bytes past its end" if address >= high else ""
        where = f"{low - address} bytes before its start" if address < low else where
        return f"[{low:#x}, {high:#x}): {where or 'inside, but the element crosses its end'}"
