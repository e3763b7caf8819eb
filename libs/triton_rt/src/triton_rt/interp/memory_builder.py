"""Loads, stores, descriptors and atomics of Triton's IR, on numpy arrays of addresses."""

from typing import Any

import numpy as np
from triton._C.libtriton import interpreter as _native
from triton._C.libtriton import ir as _ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from triton_rt.interp.descriptors import Descriptor, combine
from triton_rt.interp.floats import is_packed, narrow, numpy_dtype, widen
from triton_rt.interp.memory import Memory

Array = np.ndarray[Any, Any]
Handle = Any  # triton.runtime.interpreter.TensorHandle


def _stretched(data: Array, shape: tuple[int, ...]) -> Array:
    """One element for each of the pointers of that shape, which most often there are."""
    return np.ascontiguousarray(data if data.shape == shape else np.broadcast_to(data, shape))


class MemoryBuilder(InterpreterBuilder):  # type: ignore[misc]  # Triton has no types
    """What reads and writes memory; `memory` and `tma` are set for each run."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(())
        #: Whether descriptors stand for tensor maps, with the rules of TMA.
        self.tma = True

    def _checked(self, pointers: Array, mask: Array | None, itemsize: int, what: str) -> Array:
        """Which of the pointers are accessed, if all that are may be."""
        if mask is not None:
            mask = _stretched(mask, pointers.shape)
        self.memory.check(pointers, mask, itemsize, what)
        return np.ones(pointers.shape, bool) if mask is None else mask

    def create_load(self, ptr: Handle, _cache: Any, _evict: Any, _volatile: Any) -> Handle:
        return self._load(ptr, None, None)

    def create_store(self, ptr: Handle, val: Handle, _cache: Any, _evict: Any) -> None:
        self._store(ptr, val, None)

    def create_masked_load(
        self, ptrs: Handle, mask: Any, other: Handle | None, _c: Any, _e: Any, _v: Any
    ) -> Handle:
        return self._load(ptrs, getattr(mask, "data", mask), other)

    def create_masked_store(self, ptrs: Handle, value: Handle, mask: Any, _c: Any, _e: Any) -> None:
        self._store(ptrs, value, getattr(mask, "data", mask))

    def create_tensor_pointer_load(
        self, ptr: Any, boundary_check: Any, padding_option: Any, _c: Any, _e: Any, _v: Any
    ) -> Handle:
        """Reads a block pointer's elements inside of the checked dimensions, padding the others."""
        ptrs, mask = ptr.materialize_pointers(boundary_check)
        return self._load(ptrs, mask, self._padding(ptrs, padding_option))

    def create_tensor_pointer_store(
        self, ptr: Any, value: Handle, boundary_check: Any, _c: Any, _e: Any
    ) -> None:
        ptrs, mask = ptr.materialize_pointers(boundary_check)
        self._store(ptrs, value, mask)

    def create_make_tensor_descriptor(
        self, base: Handle, shape: Any, strides: Any, block: Any, is_signed: bool, padding: Any
    ) -> Descriptor:
        """A descriptor that the kernel makes, checked as the TMA unit would where `tma` is set."""
        return Descriptor.make(base, shape, strides, block, is_signed, padding, self.tma)

    def create_descriptor_load(
        self, desc: Descriptor, indices: list[Handle], _c: Any, _e: Any
    ) -> Handle:
        """Reads a block; what lies outside of the tensor is the descriptor's padding."""
        ptrs, mask = desc.pointers(indices, written=False)
        return self._load(ptrs, mask, self._padding(ptrs, desc.padding))

    def create_descriptor_store(
        self, desc: Descriptor, value: Handle, indices: list[Handle]
    ) -> None:
        ptrs, mask = desc.pointers(indices, written=True)
        self._store(ptrs, value, mask)

    def create_descriptor_gather(
        self, desc: Descriptor, rows: Handle, column: Handle, _type: Any
    ) -> Handle:
        ptrs, mask = desc.rows(rows, column, written=False)
        return self._load(ptrs, mask, self._padding(ptrs, desc.padding))

    def create_descriptor_scatter(
        self, desc: Descriptor, value: Handle, rows: Handle, column: Handle
    ) -> None:
        ptrs, mask = desc.rows(rows, column, written=True)
        self._store(ptrs, value, mask)

    def create_descriptor_reduce(
        self, kind: Any, desc: Descriptor, value: Handle, indices: list[Handle]
    ) -> None:
        ptrs, mask = desc.pointers(indices, written=True)
        element = desc.element
        dtype = numpy_dtype(element)
        flat = np.flatnonzero(self._checked(ptrs.data, mask, dtype.itemsize, "reduction"))
        pointers = ptrs.data.reshape(-1)[flat]
        data = np.broadcast_to(value.data, ptrs.data.shape).reshape(-1)[flat]
        data = data.view(dtype) if data.dtype != dtype else data
        # Elements that share an address (a stride of 0) are added one after the other.
        together = len(np.unique(pointers)) == len(pointers)
        step = max(1, len(pointers)) if together else 1
        for at in range(0, len(pointers), step):
            where = np.ascontiguousarray(pointers[at : at + step])
            active = np.ones(where.shape, dtype=bool)
            old = _native.load(where, active, np.zeros(where.shape, dtype), dtype)
            out = combine(kind, old, data[at : at + step], element, desc.is_signed)
            _native.store(where, np.ascontiguousarray(out), active)

    def _padding(self, ptrs: Handle, option: Any) -> Handle | None:
        if option != _ir.PADDING_OPTION.PAD_NAN:
            return None
        element = ptrs.get_element_ty()
        nan = np.full(ptrs.data.shape, np.nan, dtype=np.float32)
        data = narrow(nan, element) if is_packed(element) else nan.astype(numpy_dtype(element))
        return TensorHandle(data, element)

    def _load(self, ptrs: Handle, mask: Array | None, other: Handle | None) -> Handle:
        element = ptrs.get_element_ty()
        dtype = numpy_dtype(element)
        pointers = np.ascontiguousarray(ptrs.data)
        active = self._checked(pointers, mask, dtype.itemsize, "load")
        fill = (
            np.zeros(pointers.shape, dtype=dtype)
            if other is None
            else _stretched(other.data, pointers.shape)
        )
        if fill.dtype != dtype:
            fill = fill.view(dtype)
        return TensorHandle(_native.load(pointers, active, fill, dtype), element)

    def _store(self, ptrs: Handle, value: Handle, mask: Array | None) -> None:
        dtype = numpy_dtype(ptrs.get_element_ty())
        pointers = np.ascontiguousarray(ptrs.data)
        active = self._checked(pointers, mask, dtype.itemsize, "store")
        data = _stretched(value.data, pointers.shape)
        if data.dtype != dtype:
            data = data.view(dtype) if data.itemsize == dtype.itemsize else data.astype(dtype)
        _native.store(pointers, data, active)

    def create_atomic_rmw(
        self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any
    ) -> Handle:
        """Combines values with memory in order, and gives what was there before each."""
        element = ptr.get_element_ty()
        pointers = np.ascontiguousarray(ptr.data)
        active = self._checked(pointers, mask.data, numpy_dtype(element).itemsize, "atomic")
        data = _stretched(val.data, pointers.shape)
        if element.is_bf16() and op == _ir.ATOMIC_OP.FADD:
            return self._atomic_add_bf16(pointers, data, active, element)
        out = _native.atomic_rmw(
            self.ir_rmw_op_to_interpreter_rmw_op[op],
            pointers,
            data,
            active,
            self.ir_sem_to_interpreter_sem[sem],
        )
        return TensorHandle(out, val.dtype.scalar)

    def _atomic_add_bf16(self, ptrs: Array, data: Array, active: Array, element: Any) -> Handle:
        old = np.zeros(ptrs.shape, dtype=np.uint16)
        one = np.ones(1, dtype=bool)
        for at in np.flatnonzero(active):
            where = ptrs.reshape(-1)[at : at + 1]
            before = _native.load(where, one, np.zeros(1, np.uint16), np.dtype(np.uint16))
            total = widen(before, element) + widen(data.reshape(-1)[at : at + 1], element)
            _native.store(where, narrow(total, element), one)
            old.reshape(-1)[at] = before[0]
        return TensorHandle(old, element)

    def create_atomic_cas(
        self, ptr: Handle, cmp: Handle, val: Handle, sem: Any, scope: Any
    ) -> Handle:
        itemsize = numpy_dtype(ptr.get_element_ty()).itemsize
        self.memory.check(ptr.data, None, itemsize, "atomic")
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def create_int_to_ptr(self, src: Handle, dst_type: Any) -> Handle:
        """An address from a number: from here on, loads outside of the arguments are not told, but
        of an address inside of them."""
        address = src.data.astype(np.uint64)
        self.memory.unknown |= not self.memory.holds(address)
        return TensorHandle(address, dst_type.scalar)

    def create_ptr_to_int(self, src: Handle, dst_type: Any) -> Handle:
        return TensorHandle(src.data.astype(numpy_dtype(dst_type.scalar)), dst_type.scalar)
