"""Complex numbers as pairs of real ones: pointwise operators on them become arithmetic of kernels.

    x * y  ->  view_as_complex(stack([a c - b d, a d + b c], -1)), x = a + ib, y = c + id

The views at both ends cost nothing, so that products of rotary embeddings and spectra are kernels
with what is before and behind them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.layouts import by_operands

aten = torch.ops.aten
COMPLEX: dict[OpOverload, Callable[..., Any]] = {}

_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
Part = Any  # a real tensor or number
Pair = tuple[Part, Part]


def _enter(*ops: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        COMPLEX.update(dict.fromkeys(ops, rule))
        return rule

    return register


def _of_pairs(*ops: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a rule that gives both parts of a complex result, or a real one, of the arguments as
    pairs of parts; it lies as TensorIterator lays it out."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*args: Any, **named: Any) -> Any:
            if not any(map(_is_complex, args)):
                return NotImplemented
            kind = torch.result_type(*args) if len(args) > 1 else args[0].dtype
            if kind not in _PARTS:
                return NotImplemented
            found = rule(*(pair(x, _PARTS[kind]) for x in args), **named)
            result = found if isinstance(found, Tensor) else joined(*found)
            return by_operands(result, *args)

        return _enter(*ops)(apply)

    return register


def _is_complex(x: Any) -> bool:
    return x.is_complex() if isinstance(x, Tensor) else isinstance(x, complex)


def pair(x: Any, kind: torch.dtype) -> Pair:
    """The real and the imaginary part, which of a real number is 0."""
    if isinstance(x, complex):
        return x.real, x.imag
    if not isinstance(x, Tensor):  # a dynamic size has no parts
        return x, 0.0
    if not x.is_complex():
        return x.to(kind), 0.0
    seen = torch.view_as_real(x.conj() if x.is_conj() else x).to(kind)
    real, imaginary = seen.select(-1, 0), seen.select(-1, 1)
    return real, -imaginary if x.is_conj() else imaginary


def joined(real: Tensor, imaginary: Tensor) -> Tensor:
    """Both parts as complex numbers."""
    return torch.view_as_complex(torch.stack(aten.broadcast_tensors.default([real, imaginary]), -1))


def _product(x: Pair, y: Pair) -> Pair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


_of_pairs(aten.mul.Tensor, aten.mul.Scalar)(_product)


def _scaled_sum(x: Pair, y: Pair, alpha: Any = 1) -> Pair:
    """Eager multiplies with alpha as a complex number, be it one: infinity times 0 is NaN."""
    real, imaginary = _product(y, pair(alpha, torch.float64))
    return x[0] + real, x[1] + imaginary


_of_pairs(aten.add.Tensor)(_scaled_sum)


@_of_pairs(aten.sub.Tensor)
def _difference(x: Pair, y: Pair, alpha: Any = 1) -> Pair:
    return _scaled_sum(x, y, -alpha)


@_of_pairs(aten.neg.default)
def _neg(x: Pair) -> Pair:
    return -x[0], -x[1]


@_of_pairs(aten.conj_physical.default, aten._conj_physical.default)
def _conjugate(x: Pair) -> Pair:
    return x[0], -x[1]


@_of_pairs(aten.abs.default)
def _abs(x: Pair) -> Tensor:
    return torch.hypot(*x)


@_enter(aten.angle.default)
def _angle(x: Tensor) -> Any:
    if x.dtype not in _PARTS:
        return NotImplemented
    real, imaginary = pair(x, _PARTS[x.dtype])
    return torch.atan2(imaginary, real).contiguous()


@_of_pairs(aten.sgn.default)
def _sgn(x: Pair) -> Pair:
    size = torch.hypot(*x)
    real, imaginary = (torch.where(size == 0, 0, part / size) for part in x)
    return real, imaginary


@_enter(aten.complex.default)
def _complex(real: Tensor, imaginary: Tensor) -> Any:
    if real.dtype not in _PARTS.values():
        return NotImplemented
    return by_operands(joined(real, imaginary), real, imaginary)


@_enter(aten.polar.default)
def _polar(size: Tensor, angle: Tensor) -> Any:
    if size.dtype not in _PARTS.values():
        return NotImplemented
    return by_operands(joined(size * angle.cos(), size * angle.sin()), size, angle)


@_enter(aten.sum.default, aten.sum.dim_IntList)
def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if x.dtype not in _PARTS or dtype not in (None, x.dtype):
        return NotImplemented
    seen = torch.view_as_real(x.conj() if x.is_conj() else x)
    dims = [d % x.dim() for d in dim or range(x.dim())] if x.dim() else []
    total = torch.view_as_complex(seen.sum(dims, keepdim).contiguous() if dims else seen.clone())
    return torch.conj_physical(total) if x.is_conj() else total


@_enter(aten.slice_scatter.default)
def _slice_scatter(x: Tensor, source: Tensor, dim: int = 0, *span: Any) -> Any:
    lazy = x.is_conj() or source.is_conj()
    if x.dtype not in _PARTS or source.dtype is not x.dtype or lazy or not x.is_contiguous():
        return NotImplemented
    seen = torch.view_as_real(x), torch.view_as_real(source)
    return torch.view_as_complex(aten.slice_scatter(*seen, dim % x.dim(), *span))


@_enter(aten.new_zeros.default)
def _new_zeros(x: Tensor, size: Sequence[Any], **more: Any) -> Any:
    kind = _PARTS.get(more.pop("dtype", None) or x.dtype)
    if kind is None:
        return NotImplemented
    return torch.view_as_complex(x.new_zeros([*size, 2], dtype=kind, **more))


@_enter(aten.clone.default)
def _clone(x: Tensor, *, memory_format: Any = torch.preserve_format) -> Any:
    if x.dtype not in _PARTS or memory_format in (torch.channels_last, torch.channels_last_3d):
        return NotImplemented
    result = joined(*pair(x, _PARTS[x.dtype]))
    return result if memory_format is torch.contiguous_format else by_operands(result, x)


@_enter(aten._to_copy.default)
def _to_copy(x: Tensor, *, dtype: Any = None, device: Any = None, **more: Any) -> Any:
    if not isinstance(x, Tensor):  # `vmap` decomposes with the numbers among the operands
        return NotImplemented
    dtype = dtype or x.dtype
    moves = device not in (None, x.device) or more.get("memory_format") is not None
    others = {torch.complex32, torch.bool if x.is_complex() else None}
    if moves or not {x.dtype, dtype} & set(_PARTS) or {x.dtype, dtype} & others:
        return NotImplemented
    real, imaginary = pair(x, _PARTS.get(dtype) or _PARTS[x.dtype])
    if dtype in _PARTS:
        return by_operands(joined(real, imaginary + torch.zeros_like(real)), x)
    return by_operands(real.to(dtype, copy=True), x)
