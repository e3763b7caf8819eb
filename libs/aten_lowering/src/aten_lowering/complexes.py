"""Complex numbers as pairs of real ones: pointwise operators on them become arithmetic of kernels.

    x * y  ->  view_as_complex(stack([a c - b d, a d + b c], -1)), x = a + ib, y = c + id

The views at both ends cost nothing, so that products of rotary embeddings and spectra are kernels
with what is before and behind them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.layouts import by_operands, laid_as_fake
from aten_lowering.registry import named, of_ranks

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


def of_pairs(
    *ops: OpOverload, turned: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a rule that gives both parts of a complex result, or a real one, of the arguments as
    pairs of parts; it lies as TensorIterator lays it out. turned: which is given the second one
    before the first."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*args: Any, **named: Any) -> Any:
            if not any(map(_is_complex, args)):
                return NotImplemented
            kind = args[0].dtype if len(args) == 1 else torch.result_type(*args[:2])
            if kind not in _PARTS:
                return NotImplemented
            found = rule(*(pair(x, _PARTS[kind]) for x in args), **named)
            if found is NotImplemented:
                return NotImplemented
            result = found if isinstance(found, Tensor) else joined(*found)
            return by_operands(result, *(args[1::-1] if turned else args))

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


def pairs(x: Tensor, kind: torch.dtype) -> Tensor:
    """Both parts in a last dimension, as they lie if they do."""
    if x.is_complex() and not x.is_conj() and _PARTS[x.dtype] is kind:
        return torch.view_as_real(x)
    return torch.stack(_parts(x, kind), -1)


def _parts(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both as tensors; -0 stays what it is."""
    real, imaginary = pair(x, kind)
    return real, imaginary if x.is_complex() else torch.zeros_like(real)


def joined(real: Tensor, imaginary: Tensor) -> Tensor:
    """Both parts as complex numbers."""
    return torch.view_as_complex(torch.stack(aten.broadcast_tensors.default([real, imaginary]), -1))


def product(x: Pair, y: Pair) -> Pair:
    """Of two complex numbers."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


of_pairs(aten.mul.Tensor, aten.mul.Scalar)(product)


def scaled_sum(x: Pair, y: Pair, alpha: Any = 1) -> Pair:
    """Eager multiplies with alpha as a complex number, be it one: infinity times 0 is NaN."""
    real, imaginary = product(y, alpha if isinstance(alpha, tuple) else pair(alpha, torch.float64))
    return x[0] + real, x[1] + imaginary


def _difference(x: Pair, y: Pair, alpha: Any = 1) -> Pair:
    scale = alpha if isinstance(alpha, tuple) else pair(alpha, torch.float64)
    return scaled_sum(x, y, (-scale[0], -scale[1]))


of_pairs(aten.add.Tensor, aten.add.Scalar)(scaled_sum)
of_pairs(aten.sub.Tensor, aten.sub.Scalar)(_difference)
of_pairs(aten.rsub.Tensor, aten.rsub.Scalar, turned=True)(
    lambda x, y, alpha=1: _difference(y, x, alpha)
)


@of_pairs(aten.addcmul.default)
def _plus_product(x: Pair, y: Pair, z: Pair, value: Any = 1) -> Pair:
    return scaled_sum(x, product(y, z), value)


@of_pairs(aten.neg.default)
def _neg(x: Pair) -> Pair:
    return -x[0], -x[1]


@of_pairs(aten.conj_physical.default, aten._conj_physical.default)
def _conjugate(x: Pair) -> Pair:
    return x[0], -x[1]


@of_pairs(aten.abs.default)
def _abs(x: Pair) -> Tensor:
    return torch.hypot(*x)


@_enter(aten.angle.default)
def _angle(x: Tensor) -> Any:
    if x.dtype not in _PARTS:
        return NotImplemented
    real, imaginary = pair(x, _PARTS[x.dtype])
    return torch.atan2(imaginary, real).contiguous()


@of_pairs(aten.sgn.default)
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


def selection(mask: Tensor, x: Pair, y: Pair) -> Pair:
    """`x` where the mask is true, else `y`."""
    real, imaginary = (torch.where(mask, a, b) for a, b in zip(x, y, strict=True))
    return real, imaginary


@_enter(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _where(mask: Tensor, x: Any, y: Any) -> Any:
    kind = torch.result_type(x, y)
    if kind not in _PARTS:
        return NotImplemented
    found = joined(*selection(mask, pair(x, _PARTS[kind]), pair(y, _PARTS[kind])))
    return by_operands(found, mask, x, y)


def _is_not_zero(x: Pair) -> Part:
    return (x[0] != 0) | (x[1] != 0)


of_pairs(aten.eq.Tensor, aten.eq.Scalar)(lambda x, y: (x[0] == y[0]) & (x[1] == y[1]))
of_pairs(aten.ne.Tensor, aten.ne.Scalar)(lambda x, y: (x[0] != y[0]) | (x[1] != y[1]))
of_pairs(aten.isnan.default)(lambda x: x[0].isnan() | x[1].isnan())
of_pairs(aten.logical_not.default)(lambda x: (x[0] == 0) & (x[1] == 0))
of_pairs(aten.logical_and.default)(lambda x, y: _is_not_zero(x) & _is_not_zero(y))
of_pairs(aten.logical_or.default)(lambda x, y: _is_not_zero(x) | _is_not_zero(y))
of_pairs(aten.logical_xor.default)(lambda x, y: _is_not_zero(x) ^ _is_not_zero(y))


@_enter(aten.linalg_vector_norm.default)
def _norm(x: Tensor, *more: Any, dtype: Any = None) -> Any:
    """That of magnitudes."""
    if x.dtype not in _PARTS or dtype is not None:
        return NotImplemented
    return aten.linalg_vector_norm.default(x.abs(), *more)


@_enter(aten.ones_like.default)
def _ones_like(x: Tensor, **more: Any) -> Any:
    return aten.full_like.default(x, 1, **more) if x.dtype in _PARTS else NotImplemented


@_enter(aten.scalar_tensor.default)
def _scalar_tensor(value: Any, *, dtype: Any = None, **more: Any) -> Any:
    if dtype not in _PARTS:
        return NotImplemented
    parts = pair(value, _PARTS[dtype])
    return joined(*(aten.scalar_tensor.default(v, dtype=_PARTS[dtype], **more) for v in parts))


@_enter(aten.mean.default, aten.mean.dim)
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    total = _sum(x, dim, keepdim, dtype=dtype)
    if total is NotImplemented or x.numel() == 0:
        return NotImplemented
    seen = torch.view_as_real(total)
    return torch.view_as_complex(seen * (total.numel() / x.numel()))


def _by_parts(*ops: OpOverload) -> None:
    """Enters operators that move elements, or sum them up, as the same of the real and of the
    imaginary parts; a real number or tensor beside complex ones has no imaginary part."""

    def rule(op: OpOverload) -> Callable[..., Any]:
        names = [a.name for a in op._schema.arguments]
        values = {i for i, name in enumerate(names) if name in _VALUES}

        def apply(*args: Any, **named: Any) -> Any:
            tensors = [x for x in pytree.tree_leaves((args, named)) if isinstance(x, Tensor)]
            kinds = {x.dtype for x in tensors if x.is_floating_point() or x.is_complex()}
            moved = [x for x, name in zip(args, names, strict=False) if name not in _REAL]
            real = {id(x) for x in pytree.tree_leaves(moved)}
            if not any(k.is_complex for k in kinds) or named.get("dtype"):
                return NotImplemented  # floats of 8 bits have no type in common with others
            kind = _PARTS.get(functools.reduce(torch.promote_types, kinds))
            if kind is None:
                return NotImplemented
            # one buffer, not one of each part; a number may lie elsewhere, a pair of numbers not
            if op in _STORED and len({x.device for x in tensors}) == 1:
                if named.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
                    rows = op(args[0].movedim(1, -1), memory_format=torch.contiguous_format)
                    return rows.movedim(-1, 1)

                def whole(x: Any) -> Any:
                    turns = isinstance(x, Tensor) and (x.is_complex() or id(x) in real)
                    return pairs(x, kind) if turns else x

                rest = args[1:]
                if op is aten.flip.default:
                    rest = ([d % args[0].dim() for d in args[1]] if args[0].dim() else [],)
                made = op(*pytree.tree_map(whole, (args[0], *rest)), **named)
                made = made if made.stride(-1) == 1 else made.contiguous()
                return laid_as_fake(torch.view_as_complex(made), op, *args, **named)

            def part(x: Any, which: int) -> Any:
                if isinstance(x, Tensor) and x.is_complex():
                    return pair(x, kind)[which]
                if isinstance(x, Tensor) and id(x) in real:
                    return x.new_zeros(x.shape, dtype=kind) if which else x.to(kind)
                return x

            def parts(which: int) -> Any:
                given = [
                    pair(x, kind)[which] if i in values and x is not None else x
                    for i, x in enumerate(args)
                ]
                return op(*pytree.tree_map(lambda x: part(x, which), given), **named)

            return laid_as_fake(joined(parts(0), parts(1)), op, *args, **named)

        return apply

    for op in ops:
        COMPLEX[op] = rule(op)


# What is stored as it is read; of dimensions from the front.
_STORED = frozenset(named("flip copy clone alias_copy index_put _unsafe_index_put"))
_VALUES = ("value", "fill_value")
_REAL = (*_VALUES, "index", "indices", "mask")  # what may be real beside complex numbers
_MOVES = """
flip index_select gather cat repeat tril triu constant_pad_nd index.Tensor select_scatter
fill.Scalar full_like masked_fill.Scalar masked_fill.Tensor copy cumsum slice_scatter index_put
_unsafe_index.Tensor alias_copy clone zeros_like diag_embed diagonal_scatter as_strided_scatter
scatter_add scatter.src _unsafe_index_put index_fill.int_Tensor index_fill.int_Scalar
"""
_PADS = ("reflection_pad{}d", "reflection_pad{}d_backward", "replication_pad{}d")
_by_parts(*named(_MOVES), *(op for name in _PADS for op in of_ranks(name, 1, 2, 3)))


@_enter(aten.new_zeros.default)
def _new_zeros(x: Tensor, size: Sequence[Any], **more: Any) -> Any:
    kind = _PARTS.get(more.pop("dtype", None) or x.dtype)
    if kind is None:
        return NotImplemented
    return torch.view_as_complex(x.new_zeros([*size, 2], dtype=kind, **more))


@_enter(aten.zeros.default)
def _zeros(size: Sequence[Any], *, dtype: Any = None, **more: Any) -> Any:
    if dtype not in _PARTS:
        return NotImplemented
    return torch.view_as_complex(torch.zeros([*size, 2], dtype=_PARTS[dtype], **more))


@_enter(aten._to_copy.default)
def _to_copy(x: Tensor, *, dtype: Any = None, device: Any = None, **more: Any) -> Any:
    if not isinstance(x, Tensor):  # `vmap` decomposes with the numbers among the operands
        return NotImplemented
    dtype = dtype or x.dtype
    moves = device not in (None, x.device) or more.get("memory_format") is not None
    others = {torch.complex32, torch.bool if x.is_complex() else None}
    if moves or not {x.dtype, dtype} & set(_PARTS) or {x.dtype, dtype} & others:
        return NotImplemented
    real, imaginary = _parts(x, _PARTS.get(dtype) or _PARTS[x.dtype])
    if dtype in _PARTS:
        return by_operands(joined(real, imaginary), x)
    return by_operands(real.to(dtype, copy=True), x)
