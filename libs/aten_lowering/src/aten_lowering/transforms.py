"""Fourier transforms: where their results lie.

torch's fake tensors take the dimensions in the order in which they are given, and give strides by
which elements share places where that is not the order of memory (`fft2(x, dim=(2, 0))` for CUDA);
of MKL they know no order at all. The rules are those of ATen/native/{cuda,mkl}/SpectralOps.cpp."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
_MOST = 3  # dimensions that cuFFT transforms at once
_Ints = list[int]


OPERATORS = (aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default)


def fake(mode: Any, op: OpOverload, x: Tensor, dim: Sequence[int], *args: Any) -> Any:
    """The rule for fake tensors of a transform `op(x, dim, normalization, ...)`."""
    dims = [d % x.dim() for d in dim]
    if not dims or not (x.is_cuda or (x.device.type == "cpu" and torch._C.has_mkl)):
        return NotImplemented
    size, dtype = list(x.shape), x.dtype
    if op == aten._fft_r2c.default:
        dtype = dtype.to_complex()
        size[dims[-1]] = size[dims[-1]] // 2 + 1 if args[1] else size[dims[-1]]
    elif op == aten._fft_c2r.default:
        dtype, size[dims[-1]] = dtype.to_real(), args[1]
    strides = (_cufft if x.is_cuda else _mkl)(op, x, dims, size)
    with mode:
        return torch.empty_strided(size, strides, dtype=dtype, device=x.device)


def _mkl(op: OpOverload, x: Tensor, dims: _Ints, size: _Ints) -> _Ints:
    free = len(dims) - (op != aten._fft_c2c.default)  # what is real has its dimension last
    others = [d for d in range(x.dim()) if d not in dims]
    order = [*_sorted(others, x.stride()), *_sorted(dims[:free], x.stride()), *dims[free:]]
    return _dense(size, order)


def _cufft(op: OpOverload, x: Tensor, dims: _Ints, size: _Ints) -> _Ints:
    strides, half, last = list(x.stride()), list(size), dims[-1:]
    whole = len(dims) <= _MOST and dims[:2] != [0, 1]  # of what is real
    if op == aten._fft_c2c.default:
        return _in_parts(strides, size, dims)
    if op == aten._fft_c2r.default:
        if whole or len(dims) == 1:
            return _run(_dense(x.shape, range(x.dim())), size, dims)
        return _run(_in_parts(strides, x.shape, dims[:-1]), size, last)
    if whole or len(dims) == 1:
        return _run(strides, size, dims)
    half[last[0]] = x.shape[last[0]] // 2 + 1
    if half[last[0]] != size[last[0]]:  # the other half is written beside it
        return _dense(size, range(x.dim()))
    return _in_parts(_run(strides, half, last), half, dims[:-1])


def _in_parts(strides: _Ints, size: Sequence[int], dims: _Ints) -> _Ints:
    """The strides after complex transforms, those of the smallest strides first."""
    while dims:
        dims = _sorted(dims, strides)
        strides, dims = _run(strides, size, dims[-_MOST:]), dims[:-_MOST]
    return strides


def _run(strides: _Ints, size: Sequence[int], dims: _Ints) -> _Ints:
    """The strides after one call of cuFFT: these dimensions lie innermost."""
    others = [d for d in range(len(size)) if d not in dims]
    return _dense(size, [*_sorted(others, strides), *dims])


def _sorted(dims: _Ints, strides: Sequence[int]) -> _Ints:
    return sorted(dims, key=lambda d: strides[d], reverse=True)


def _dense(size: Sequence[int], order: Sequence[int]) -> _Ints:
    """Strides without gaps of dimensions in this order, the last one innermost."""
    strides, step = [0] * len(size), 1
    for d in reversed(order):
        strides[d], step = step, step * size[d]
    return strides
