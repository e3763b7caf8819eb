"""Triton's IR builder, with numpy arrays in the place of IR values.

Extends `triton.runtime.interpreter.InterpreterBuilder` and replaces what differs from the GPU
there: bfloat16 and float8 arithmetic (upstream computes on the bits), rounding of down-casts
(upstream truncates), NaN handling of minimum and maximum, saturating float -> int casts, dots of
bfloat16, and scalar loops where numpy has a vector form."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir as _ir
from triton.runtime.interpreter import InterpreterOptions, TensorHandle

from triton_rt.errors import NotInterpretable
from triton_rt.interp import libdevice
from triton_rt.interp.floats import is_packed, narrow, numpy_dtype, widen
from triton_rt.interp.memory_builder import MemoryBuilder
from triton_rt.interp.operators import quotient, remainder

Array = np.ndarray[Any, Any]
Handle = Any  # triton.runtime.interpreter.TensorHandle

# These are compile-time only on the GPU, so the interpreter has the limits of sm_80 and later.
_MIN_DOT_K = {8: 32}


def _of(op: Callable[..., Any]) -> Callable[..., Handle]:
    """The method that applies a function of arrays to the values of its arguments."""
    return lambda self, *args: self._apply(op, *args)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Rounded once: the product of two float32 is exact in float64; of two float64 has 64 bits."""
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    out: Array = (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(a.dtype)
    return out


class NumpyBuilder(MemoryBuilder):
    """One per interpreter; `memory`, `grid_dim`, `grid_idx`, `tma` and `arguments`, those of the
    kernel as words of eight bytes, are set for each run."""

    def __init__(self) -> None:
        super().__init__()
        # Integers wrap, as they do on the GPU without TRITON_DEBUG.
        self.options = InterpreterOptions(sanitize_overflow=False)
        self.codegen_fns = {
            "min_dot_size": lambda a, b: (1, 1, _MIN_DOT_K.get(a.scalar.primitive_bitwidth, 16))
        }
        self.grid_dim: tuple[int, int, int] = (1, 1, 1)
        self.grid_idx: tuple[int, int, int] = (0, 0, 0)
        self.clock = 0  # nanoseconds
        self.arguments: Sequence[int] = ()

    def get_bf16(self, value: float) -> Handle:
        """A constant of type bf16, whose bits are kept in 16-bit integers."""
        return TensorHandle(narrow(np.array([value], np.float32), tl.bfloat16), tl.bfloat16)

    def get_null_value(self, type: Any) -> Handle:
        """Zero of any scalar type."""
        return TensorHandle(np.zeros(1, dtype=numpy_dtype(type.scalar)), type.scalar)

    def cast_impl(self, src: Handle, dst_type: Any) -> Handle:
        """A conversion between element types, rounding to nearest."""
        source, target = src.dtype.scalar, dst_type.scalar
        data = widen(src.data, source)
        if is_packed(target):
            return TensorHandle(narrow(data, target), target)
        return TensorHandle(data.astype(numpy_dtype(target)), target)

    def create_fp_to_fp(self, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
        """A conversion between floating-point types; toward zero for packed ones only."""
        source, target = src.dtype.scalar, dst_type.scalar
        toward_zero = rounding_mode == _ir.ROUNDING_MODE.RTZ
        data = widen(src.data, source)
        if is_packed(target):
            return TensorHandle(narrow(data, target, toward_zero), target)
        if toward_zero:
            raise NotInterpretable(f"rounding {source} -> {target} toward zero")
        return TensorHandle(data.astype(numpy_dtype(target)), target)

    def create_fp_to_si(self, src: Handle, dst_type: Any) -> Handle:
        return self._float_to_int(src, dst_type, signed=True)

    def create_fp_to_ui(self, src: Handle, dst_type: Any) -> Handle:
        return self._float_to_int(src, dst_type, signed=False)

    def _float_to_int(self, src: Handle, dst_type: Any, signed: bool) -> Handle:
        """PTX `cvt.rzi`: toward zero, out-of-range values to the nearest end, NaN to zero."""
        kind = numpy_dtype(dst_type.scalar)
        target = np.dtype(f"{'i' if signed else 'u'}{kind.itemsize}")
        limits = np.iinfo(target)
        data = np.trunc(widen(src.data, src.dtype.scalar).astype(np.float64))
        inside = (data >= float(limits.min)) & (data < float(limits.max) + 1)
        out = np.where(inside, data, 0).astype(target)
        out = np.where(data >= float(limits.max) + 1, limits.max, out)
        out = np.where(data < float(limits.min), limits.min, out)
        return TensorHandle(out.astype(target).view(kind), dst_type.scalar)

    def _apply(self, op: Callable[..., Any], *args: Handle) -> Handle:
        dtype = args[0].dtype.scalar
        if dtype.is_ptr() or not is_packed(dtype):
            out = op(*(a.data for a in args))
            if out.dtype == np.bool_ and dtype.name != "int1":
                return TensorHandle(out, tl.int1)
            want = numpy_dtype(dtype)
            return TensorHandle(out if out.dtype == want else out.astype(want), dtype)
        out = op(*(widen(a.data, a.dtype.scalar) for a in args))
        if out.dtype == np.bool_:
            return TensorHandle(out, tl.int1)
        return TensorHandle(narrow(out, dtype), dtype)

    def binary_op(self, lhs: Handle, rhs: Handle, op: Callable[..., Any]) -> Handle:
        """A numpy function of two operands of one type."""
        return self._apply(op, lhs, rhs)

    def unary_op(self, arg: Handle, op: Callable[..., Any]) -> Handle:
        """A numpy function of one operand."""
        return self._apply(op, arg)

    # IEEE 754 minNum/maxNum: a number wins over NaN; minimumf/maximumf propagate it.
    create_minnumf, create_maxnumf = _of(np.fmin), _of(np.fmax)
    # Ordered comparisons are false on NaN, unordered ones true; numpy's are ordered but `!=`.
    create_fcmpONE = _of(lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b))
    create_fabs = _of(np.abs)
    create_rsqrt = _of(lambda x: (1 / np.sqrt(x)).astype(x.dtype))
    create_erf = _of(lambda x: torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy())
    create_idiv = _of(quotient)
    create_srem = create_urem = _of(remainder)

    def create_ashr(self, lhs: Handle, rhs: Handle) -> Handle:
        """A shift to the right that repeats the sign."""
        data = lhs.data
        signed = data.view(f"i{data.itemsize}") if data.dtype.kind == "u" else data
        out = np.right_shift(signed, rhs.data.astype(signed.dtype))
        return TensorHandle(out.astype(signed.dtype).view(data.dtype), lhs.dtype.scalar)

    def create_lshr(self, lhs: Handle, rhs: Handle) -> Handle:
        """A shift to the right that brings zeros."""
        data = np.ascontiguousarray(lhs.data)
        unsigned = data.view(f"u{data.itemsize}")
        out = np.right_shift(unsigned, rhs.data.astype(unsigned.dtype))
        return TensorHandle(out.view(data.dtype), lhs.dtype.scalar)

    def create_select(self, cond: Handle, lhs: Handle, rhs: Handle) -> Handle:
        out = np.where(cond.data, lhs.data, rhs.data)
        return TensorHandle(out.astype(rhs.data.dtype, copy=False), rhs.dtype.scalar)

    def create_clampf(self, arg: Handle, lo: Handle, hi: Handle, propagate_nans: Any) -> Handle:
        """A value within bounds; NaN stays NaN, or gives the lower bound, as asked."""
        if propagate_nans == _ir.PROPAGATE_NAN.ALL:
            return self._apply(lambda x, a, b: np.minimum(np.maximum(x, a), b), arg, lo, hi)
        return self._apply(lambda x, a, b: np.fmin(np.fmax(x, a), b), arg, lo, hi)

    create_fma = _of(_fma)

    def create_dot(
        self, a: Handle, b: Handle, d: Handle, input_precision: Any, max_num_imprecise_acc: Any
    ) -> Handle:
        """Accumulates in float32 (int32, float64), whatever the input precision of the GPU."""
        lhs, rhs = widen(a.data, a.dtype.scalar), widen(b.data, b.dtype.scalar)
        if lhs.dtype == np.float16:
            lhs, rhs = lhs.astype(np.float32), rhs.astype(np.float32)
        elif lhs.dtype.kind in "iu":
            lhs, rhs = lhs.astype(np.int32), rhs.astype(np.int32)
        out = np.matmul(lhs, rhs)
        out = out + d.data.astype(out.dtype)
        return TensorHandle(out.astype(d.data.dtype), d.dtype.scalar)

    def create_reshape(self, arg: Handle, shape: Any, allow_reorder: Any) -> Handle:
        return TensorHandle(arg.data.reshape(tuple(shape)), arg.dtype.scalar)

    def create_splat(self, ret_ty: Any, arg: Handle) -> Handle:
        data = np.broadcast_to(arg.data.reshape(-1)[:1], tuple(ret_ty.shape))
        return TensorHandle(data, arg.dtype.scalar)

    def create_unsplat(self, arg: Handle) -> Handle:
        return TensorHandle(arg.data.reshape(-1)[:1], arg.dtype.scalar)

    def create_bitcast(self, src: Handle, dst_type: Any) -> Handle:
        target = numpy_dtype(dst_type.scalar)
        return TensorHandle(np.ascontiguousarray(src.data).view(target), dst_type.scalar)

    def create_addptr(self, ptr: Handle, offset: Handle) -> Handle:
        size = numpy_dtype(ptr.get_element_ty()).itemsize
        step = offset.data.astype(np.int64) * np.int64(size)
        return TensorHandle(ptr.data + step.view(np.uint64), ptr.dtype.scalar)

    def create_histogram(self, data: Handle, bins: int, mask: Handle | None) -> Handle:
        values = (
            data.data if mask is None else data.data[np.broadcast_to(mask.data, data.data.shape)]
        )
        counts = np.bincount(values.reshape(-1).astype(np.int64), minlength=bins)[:bins]
        return TensorHandle(counts.astype(np.int32), tl.int32)

    def create_assert(self, condition: Handle, message: str, *_: Any) -> None:
        if not np.all(condition.data):
            raise AssertionError(message)

    def create_extern_elementwise(
        self, lib: str, path: str, symbol: str, args: list[Handle], ret_type: Any, is_pure: bool
    ) -> Handle:
        out = libdevice.call(symbol, [a.data for a in args])
        return TensorHandle(out.astype(numpy_dtype(ret_type.scalar), copy=False), ret_type.scalar)

    def create_dot_scaled(self, *args: Any, **kwargs: Any) -> Any:
        raise NotInterpretable("tl.dot_scaled: microscaling formats run on a GPU only")
