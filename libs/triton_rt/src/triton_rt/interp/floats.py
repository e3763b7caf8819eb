"""Float formats that numpy lacks: bfloat16 as uint16 bits, float8 as uint8 bits."""

from typing import Any

import numpy as np
import torch
import triton.language as tl

Array = np.ndarray[Any, Any]

_FP8 = {"fp8e4nv": (torch.float8_e4m3fn, 448.0), "fp8e5": (torch.float8_e5m2, 57344.0)}


def is_packed(dtype: Any) -> bool:
    """Whether values of this Triton type are held as bits, and must be widened to be computed."""
    return bool(dtype.is_bf16()) or dtype.name in _FP8


def widen(data: Array, dtype: Any) -> Array:
    """Bits of a packed format -> float32, exactly; other arrays unchanged."""
    if dtype.is_bf16():
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.name in _FP8:
        bits = torch.from_numpy(np.ascontiguousarray(data))
        wide: Array = bits.view(_FP8[dtype.name][0]).to(torch.float32).numpy()
        return wide
    return data


def narrow(data: Array, dtype: Any, toward_zero: bool = False) -> Array:
    """float -> bits of a packed format, to nearest even; float8 saturates, as `cvt.satfinite`."""
    wide = np.ascontiguousarray(data, dtype=np.float32)
    if dtype.is_bf16():
        bits = wide.view(np.uint32)
        if toward_zero:
            rounded = bits >> np.uint32(16)
        else:
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        nan = np.isnan(wide)
        if nan.any():
            rounded = np.where(nan, np.uint32(0x7FFF), rounded)
        return rounded.astype(np.uint16)
    torch_dtype, largest = _FP8[dtype.name]
    clipped = torch.from_numpy(wide).clamp(-largest, largest).to(torch_dtype)
    out: Array = clipped.view(torch.uint8).numpy()
    return out


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """How the interpreter holds a scalar Triton type; pointers are uint64 addresses."""
    if dtype.is_ptr():
        return np.dtype(np.uint64)
    try:
        return _NUMPY[dtype.name]
    except KeyError:
        raise TypeError(f"the interpreter has no element type {dtype.name}") from None


_NUMPY: dict[str, np.dtype[Any]] = {
    "int1": np.dtype(np.bool_),
    **{t.name: np.dtype(t.name) for t in (tl.int8, tl.int16, tl.int32, tl.int64)},
    **{t.name: np.dtype(t.name) for t in (tl.uint8, tl.uint16, tl.uint32, tl.uint64)},
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    "fp8e4nv": np.dtype(np.uint8),
    "fp8e5": np.dtype(np.uint8),
}
