"""Tensor descriptors on CPU tensors: what a copy through one reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from triton._C.libtriton import ir as _ir
from triton.runtime.interpreter import TensorHandle

from triton_rt.interp.floats import is_packed, narrow, numpy_dtype, widen
from triton_rt.tma import ALIGNMENT, Violation, raise_violation, violations

Array = np.ndarray[Any, Any]
Handle = Any  # triton.runtime.interpreter.TensorHandle

_KIND = _ir.DESCRIPTOR_REDUCE_KIND
_REDUCE = {
    _KIND.ADD: np.add,
    _KIND.MIN: np.minimum,
    _KIND.MAX: np.maximum,
    _KIND.AND: np.bitwise_and,
    _KIND.OR: np.bitwise_or,
    _KIND.XOR: np.bitwise_xor,
}


@dataclass
class Descriptor:
    """A descriptor's fields as numbers; `base` is the pointer's handle."""

    base: Handle
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: Any
    is_signed: bool
    tma: bool

    @classmethod
    def make(
        cls,
        base: Handle,
        shape: list[Handle],
        strides: list[Handle],
        block: list[int],
        is_signed: bool,
        padding: Any,
        tma: bool,
    ) -> Descriptor:
        """Raises `TensorMapRule` where a kernel with TMA breaks one of its rules."""
        sizes, steps = ([int(s.data.item()) for s in given] for given in (shape, strides))
        out = cls(base, sizes, steps, [int(n) for n in block], padding, is_signed, tma)
        if tma:
            out._check(written=False)
        return out

    def _check(self, written: bool) -> None:
        """Raises `TensorMapRule` where TMA could not do this, or would do more than this."""
        size, address = numpy_dtype(self.element).itemsize, int(self.base.data.item())
        shape, strides = tuple(self.shape), tuple(self.strides)
        broken = tuple(violations(address, shape, strides, size, written=written))
        raise_violation(f"a descriptor of shape {shape}, strides {strides}", broken)

    @property
    def element(self) -> Any:
        """The Triton type of its elements."""
        return self.base.dtype.element_ty

    def pointers(self, offsets: list[Handle], written: bool) -> tuple[Handle, Array]:
        """Where the elements of a block lie, and which of them are inside of the tensor."""
        if self.tma:
            if written:
                self._check(written=True)
            self._check_start(offsets[-1])
        return self._at(
            [
                np.asarray(offset.data).reshape(-1)[0].astype(np.int64)
                + np.arange(n, dtype=np.int64)
                for offset, n in zip(offsets, self.block_shape, strict=True)
            ]
        )

    def _check_start(self, inner: Handle) -> None:
        start = int(np.asarray(inner.data).reshape(-1)[0]) * numpy_dtype(self.element).itemsize
        if start % ALIGNMENT:
            # Triton's documentation of `load` and `store`; the GPU stops at an illegal instruction.
            text = f"a block must begin at a multiple of {ALIGNMENT} bytes of a row"
            raise_violation("a block's offset", [Violation("offset alignment", start, text)])

    def rows(self, rows: Handle, column: Handle, written: bool) -> tuple[Handle, Array]:
        """The same for a gather: any rows, and columns from `column` on."""
        if self.tma:
            if written:
                self._check(written=True)
            self._check_start(column)
        first = np.asarray(column.data).reshape(-1)[0].astype(np.int64)
        along = first + np.arange(self.block_shape[-1], dtype=np.int64)
        return self._at([rows.data.astype(np.int64), along])

    def _at(self, indices: list[Array]) -> tuple[Handle, Array]:
        size = numpy_dtype(self.element).itemsize
        at: Array = np.zeros([1] * len(indices), dtype=np.int64)
        inside: Array = np.ones([1] * len(indices), dtype=bool)
        for axis, index in enumerate(indices):
            index = index.reshape([-1 if d == axis else 1 for d in range(len(indices))])
            at = at + index * self.strides[axis]
            inside = inside & (index >= 0) & (index < self.shape[axis])
        base = np.asarray(self.base.data).reshape(-1)[0]
        # Addresses of elements outside may wrap: they are masked.
        pointers = base.astype(np.uint64) + (at * size).astype(np.uint64)
        return TensorHandle(pointers, self.base.dtype.scalar), inside


def combine(kind: Any, old: Array, new: Array, element: Any, is_signed: bool) -> Array:
    """One step of a descriptor reduction on stored bits: rounded to the element type, as the TMA
    unit does."""
    if element.is_floating():
        wide: Array = _REDUCE[kind](widen(old, element), widen(new, element))
        return narrow(wide, element) if is_packed(element) else wide.astype(old.dtype)
    view = f"{'i' if is_signed else 'u'}{old.itemsize}"
    out: Array = _REDUCE[kind](old.view(view), new.view(view))
    return out.view(old.dtype)
