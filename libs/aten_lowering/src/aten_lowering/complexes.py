"""Complex numbers as pairs of real ones: pointwise operators on them become arithmetic of kernels.

    x * y  ->  view_as_complex(stack([a c - b d, a d + b c], -1)), x = a + ib, y = c + id

The views at both ends cost nothing, so that products of rotary embeddings and spectra are kernels
with what is before and behind them."""

import cmath
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.layouts import by_operands, laid_as_fake

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
            kind = args[0].dtype if len(args) == 1 else torch.result_type(*args[:2])
            if kind not in _PARTS:
                return NotImplemented
            found = rule(*(pair(x, _PARTS[kind]) for x in args), **named)
            if found is NotImplemented:
                return NotImplemented
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
    real, imaginary = _product(y, alpha if isinstance(alpha, tuple) else pair(alpha, torch.float64))
    return x[0] + real, x[1] + imaginary


def _difference(x: Pair, y: Pair, alpha: Any = 1) -> Pair:
    scale = alpha if isinstance(alpha, tuple) else pair(alpha, torch.float64)
    return _scaled_sum(x, y, (-scale[0], -scale[1]))


_of_pairs(aten.add.Tensor, aten.add.Scalar)(_scaled_sum)
_of_pairs(aten.sub.Tensor, aten.sub.Scalar)(_difference)
_of_pairs(aten.rsub.Tensor, aten.rsub.Scalar)(lambda x, y, a=1: _difference(y, x, a))


@_of_pairs(aten.addcmul.default)
def _plus_product(x: Pair, y: Pair, z: Pair, value: Any = 1) -> Pair:
    return _scaled_sum(x, _product(y, z), value)


def _quotient(x: Pair, y: Pair) -> Any:
    """As `c10::complex` divides: by the larger part first, so that no square overflows."""
    (a, b), (c, d) = x, y
    if not isinstance(c, Tensor):
        if not isinstance(c, int | float) or not (c or d):
            return NotImplemented
        inverse = 1 / complex(c, d)
        return _product(x, (inverse.real, inverse.imag))
    d = d if isinstance(d, Tensor) else torch.zeros_like(c)
    wide, none = c.abs() >= d.abs(), (c == 0) & (d == 0)
    ratio = torch.where(wide, d, c) / torch.where(wide, c, d)
    scale = 1 / torch.where(wide, c + d * ratio, c * ratio + d)
    real = torch.where(wide, a + b * ratio, a * ratio + b) * scale
    imaginary = torch.where(wide, b - a * ratio, b * ratio - a) * scale
    return torch.where(none, a / c.abs(), real), torch.where(none, b / c.abs(), imaginary)


def _exp(x: Pair) -> Pair:
    """Of a real number, a real one: an infinite size has no angle then."""
    size, lost = x[0].exp(), x[0].isinf() & ~x[1].isfinite()
    imaginary = torch.where(lost & (size == 0), 0, size * x[1].sin())
    real = torch.where(lost, size, size * x[1].cos())
    return real, torch.where(x[1] == 0, x[1], imaginary)


def _one_more(x: Pair) -> Pair:
    """`1 + exp(-x)`."""
    real, imaginary = _exp((-x[0], -x[1]))
    return 1 + real, imaginary


def _log(x: Pair) -> Pair:
    """Of magnitudes near 1 by what is left of their squares."""
    size, large = torch.hypot(*x), torch.maximum(x[0].abs(), x[1].abs())
    small = torch.minimum(x[0].abs(), x[1].abs())
    near = torch.log1p((large - 1) * (large + 1) + small * small) / 2
    return torch.where((size > 0.5) & (size < 2), near, size.log()), torch.atan2(x[1], x[0])


def _sqrt(x: Pair) -> Pair:
    """The halves are of numbers whose magnitude would be infinite."""
    a, b = x
    root = (a.abs() / 2 + torch.hypot(a / 2, b / 2)).sqrt()
    other = torch.where(root == 0, 0, b.abs() / (2 * root))
    endless = a.isinf() & b.isfinite()
    other = torch.where(endless, 0, torch.where(b.isinf(), math.inf, other))
    right = a >= 0
    real = torch.where(b.isinf(), math.inf, torch.where(right, root, other))
    return real, torch.copysign(torch.where(right | a.isnan(), other, root), b)


def _hyperbolic(x: Pair, even: bool) -> Pair:
    """`cosh` (even), or `sinh`: of large numbers half of the exponential is a factor twice."""
    a, b = x
    half = (a.abs() / 2).exp()
    large = a.abs() > 20

    def part(function: Tensor, angle: Tensor, odd: bool) -> Tensor:
        sign = torch.copysign(torch.full_like(a, 0.5), a) if odd else 0.5
        return torch.where(large, half * (sign * angle) * half, function * angle)

    real = part(a.cosh() if even else a.sinh(), b.cos(), not even)
    real = torch.where(a.isinf() & ~b.isfinite(), a.abs(), real)
    imaginary = part(a.sinh() if even else a.cosh(), b.sin(), even)
    if not even:
        return torch.where(a == 0, a, real), torch.where(b == 0, b, imaginary)
    return real, torch.where(((a == 0) | (b == 0)) & imaginary.isnan(), 0, imaginary)


def _tanh(x: Pair) -> Pair:
    """As Kahan computes it (Branch cuts for complex elementary functions)."""
    a, b = x
    angle, size = b.tan(), a.sinh()
    beta = 1 + angle * angle
    below = 1 + beta * size * size
    far = torch.where(a.isinf() & ~b.isfinite(), 0, 4 * b.sin() * b.cos() * (-2 * a.abs()).exp())
    large = a.abs() > 11 if a.dtype is torch.float32 else a.abs() > 22
    real = torch.where(large, a.sign(), beta * (1 + size * size).sqrt() * size / below)
    imaginary = torch.where(large, far, angle / below)
    return torch.where(a == 0, a, real), torch.where(b == 0, b, imaginary)


def _turned(rule: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """`i f(-i x)`: `sin` of `sinh`."""

    def turned(x: Pair) -> Pair:
        real, imaginary = rule((x[1], -x[0]))
        return -imaginary, real

    return turned


def _arc(x: Pair, sine: bool) -> Pair:
    """`asin`, or `acos`, as Kahan computes them; where squares would be infinite, by logarithms."""
    a, b = x
    (c, d), (e, f) = _sqrt((1 - a, -b)), _sqrt((1 + a, b))
    size = torch.hypot(a, b)
    far = size > 1e8
    tall = torch.where(far, size.log() + math.log(2), torch.asinh(c * f - d * e).abs())
    if sine:
        wide = torch.where(far, torch.atan2(a, b.abs()), torch.atan2(a, c * e - d * f))
        return torch.where(a == 0, a, wide), torch.copysign(tall, b)
    wide = torch.where(far, torch.atan2(b.abs(), a), 2 * torch.atan2(c, e))
    return torch.where(a == 0, math.pi / 2, wide), torch.copysign(tall, -b)


def _acosh(x: Pair) -> Pair:
    real, imaginary = _arc(x, sine=False)
    return imaginary.abs(), torch.copysign(real, x[1])


def _atanh(x: Pair) -> Pair:
    a, b = x
    large, size = a.abs(), torch.hypot(a, b)
    near = torch.log1p(4 * large / ((1 - large).square() + b.square())) / 4
    real = torch.where(size > 1e8, torch.where(size.isinf(), 0, large / size / size), near)
    angle = torch.atan2(2 * b, (1 - a) * (1 + a) - b.square()) / 2
    angle = torch.where(size > 1e8, torch.copysign(torch.full_like(b, math.pi / 2), b), angle)
    return torch.where(a == 0, a, torch.copysign(real, a)), torch.where(b.isnan(), b, angle)


def _expm1(x: Pair) -> Pair:
    half = (x[1] / 2).sin()
    return x[0].expm1() * x[1].cos() - 2 * half * half, _exp(x)[1]


def _log1p(x: Pair) -> Pair:
    a, b = x
    small = torch.log1p(a * (2 + a) + b * b) / 2
    size = torch.where(torch.hypot(a, b) < 0.5, small, torch.hypot(a + 1, b).log())
    return size, torch.atan2(b, a + 1)


def _power(x: Pair, y: Pair) -> Any:
    """Few exponents that are numbers are eager's own cases; 0 to any power is 0 on the right."""
    rule = None if isinstance(y[0], Tensor) or y[1] else _POWERS.get(y[0])
    if rule is not None:
        return rule(x)
    if not isinstance(x[0], Tensor):
        if not (x[0] or x[1]):
            return NotImplemented
        number = cmath.log(complex(*x))
        return _exp(_product(y, (number.real, number.imag)))
    x = x[0], x[1] + torch.zeros_like(x[0])
    real, imaginary = _exp(_product(_log(x), y))
    none = (x[0] == 0) & (x[1] == 0)
    return _selection(none & (y[0] > 0), (0.0, 0.0), (real, imaginary))


def _inverse(x: Pair) -> Any:
    return _quotient((1.0, 0.0), x)


_POWERS: dict[Any, Callable[[Pair], Any]] = {
    0.5: _sqrt, 2: lambda x: _product(x, x), 3: lambda x: _product(_product(x, x), x), -1: _inverse,
    -2: lambda x: _inverse(_product(x, x)), -0.5: lambda x: _inverse(_sqrt(x)),
}  # fmt: skip
_FUNCTIONS: dict[OpOverload, Callable[[Pair], Any]] = {
    aten.reciprocal.default: _inverse, aten.square.default: _POWERS[2],
    aten.rsqrt.default: _POWERS[-0.5], aten.sqrt.default: _sqrt,
    aten.exp.default: _exp, aten.expm1.default: _expm1, aten.log1p.default: _log1p,
    aten.exp2.default: lambda x: _exp((x[0] * math.log(2), x[1] * math.log(2))),
    aten.log.default: _log,
    aten.log2.default: lambda x: tuple(part / math.log(2) for part in _log(x)),
    aten.log10.default: lambda x: tuple(part / math.log(10) for part in _log(x)),
    aten.sigmoid.default: lambda x: _inverse(_one_more(x)),
    aten.silu.default: lambda x: _quotient(x, _one_more(x)),
    aten.sinh.default: functools.partial(_hyperbolic, even=False),
    aten.cosh.default: functools.partial(_hyperbolic, even=True), aten.tanh.default: _tanh,
    aten.sin.default: _turned(functools.partial(_hyperbolic, even=False)),
    aten.cos.default: lambda x: _hyperbolic((-x[1], x[0]), even=True),
    aten.tan.default: _turned(_tanh),
    aten.asin.default: functools.partial(_arc, sine=True),
    aten.acos.default: functools.partial(_arc, sine=False),
    aten.asinh.default: _turned(functools.partial(_arc, sine=True)),
    aten.acosh.default: _acosh, aten.atanh.default: _atanh, aten.atan.default: _turned(_atanh),
}  # fmt: skip
for _op, _rule in _FUNCTIONS.items():
    _of_pairs(_op)(_rule)
_of_pairs(aten.div.Tensor, aten.div.Scalar)(_quotient)
_of_pairs(aten.addcdiv.default)(lambda x, y, z, value=1: _scaled_sum(x, _quotient(y, z), value))
_of_pairs(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)(_power)
_of_pairs(aten.tanh_backward.default)(lambda grad, y: _product(grad, _of_square(y)))
_of_pairs(aten.sigmoid_backward.default)(
    lambda grad, y: _product(grad, _conjugate(_product(y, (1 - y[0], -y[1]))))
)


def _of_square(y: Pair) -> Pair:
    """`conj(1 - y * y)`."""
    real, imaginary = _product(y, y)
    return 1 - real, imaginary


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


def _selection(mask: Tensor, x: Pair, y: Pair) -> Pair:
    real, imaginary = (torch.where(mask, a, b) for a, b in zip(x, y, strict=True))
    return real, imaginary


@_enter(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _where(mask: Tensor, x: Any, y: Any) -> Any:
    kind = torch.result_type(x, y)
    if kind not in _PARTS:
        return NotImplemented
    found = joined(*_selection(mask, pair(x, _PARTS[kind]), pair(y, _PARTS[kind])))
    return by_operands(found, mask, x, y)


@_enter(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    if x.dtype not in _PARTS:
        return NotImplemented
    kind = _PARTS[x.dtype]
    return joined(*_selection(mask, pair(value, kind), pair(x, kind)))


def _is_not_zero(x: Pair) -> Tensor:
    return (x[0] != 0) | (x[1] != 0)


_of_pairs(aten.eq.Tensor, aten.eq.Scalar)(lambda x, y: (x[0] == y[0]) & (x[1] == y[1]))
_of_pairs(aten.ne.Tensor, aten.ne.Scalar)(lambda x, y: (x[0] != y[0]) | (x[1] != y[1]))
_of_pairs(aten.isnan.default)(lambda x: x[0].isnan() | x[1].isnan())
_of_pairs(aten.logical_not.default)(lambda x: (x[0] == 0) & (x[1] == 0))
_of_pairs(aten.logical_and.default)(lambda x, y: _is_not_zero(x) & _is_not_zero(y))
_of_pairs(aten.logical_or.default)(lambda x, y: _is_not_zero(x) | _is_not_zero(y))
_of_pairs(aten.logical_xor.default)(lambda x, y: _is_not_zero(x) ^ _is_not_zero(y))


@_enter(aten.linalg_vector_norm.default)
def _norm(x: Tensor, *more: Any, dtype: Any = None) -> Any:
    """That of magnitudes."""
    if x.dtype not in _PARTS or dtype is not None:
        return NotImplemented
    return aten.linalg_vector_norm.default(x.abs(), *more)


@_enter(aten.zeros_like.default)
def _zeros_like(x: Tensor, **more: Any) -> Any:
    return _full_like(x, 0, **more)


@_enter(aten.ones_like.default)
def _ones_like(x: Tensor, **more: Any) -> Any:
    return _full_like(x, 1, **more)


def _full_like(x: Tensor, value: Any, **more: Any) -> Any:
    usual = all(v is None for k, v in more.items() if k not in ("pin_memory", "device"))
    if x.dtype not in _PARTS or not usual or more.get("device") not in (None, x.device):
        return NotImplemented
    real, imaginary = pair(x, _PARTS[x.dtype])
    return by_operands(joined(torch.full_like(real, value), torch.zeros_like(imaginary)), x)


@_enter(aten.scalar_tensor.default)
def _scalar_tensor(value: Any, *, dtype: Any = None, **more: Any) -> Any:
    if dtype not in _PARTS:
        return NotImplemented
    parts = pair(value, _PARTS[dtype])
    return joined(*(aten.scalar_tensor.default(v, dtype=_PARTS[dtype], **more) for v in parts))


@_enter(aten.copy.default)
def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    if not isinstance(x, Tensor) or not isinstance(source, Tensor):
        return NotImplemented
    same = x.dtype is source.dtype and x.shape == source.shape and x.device == source.device
    lazy = x.is_conj() or source.is_conj()
    if x.dtype not in _PARTS or not same or lazy or not x.is_contiguous():
        return NotImplemented
    return joined(*pair(source, _PARTS[x.dtype]))


@_enter(aten.mean.default, aten.mean.dim)
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    total = _sum(x, dim, keepdim, dtype=dtype)
    if total is NotImplemented or x.numel() == 0:
        return NotImplemented
    seen = torch.view_as_real(total)
    return torch.view_as_complex(seen * (total.numel() / x.numel()))


@_enter(aten.cumsum.default)
def _cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    if x.dtype not in _PARTS or dtype is not None or x.is_conj() or not x.dim():
        return NotImplemented
    return torch.view_as_complex(torch.view_as_real(x).cumsum(dim % x.dim()).contiguous())


@_enter(aten.index_put.default)
def _index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    same = x.dtype in _PARTS and values.dtype is x.dtype and x.is_contiguous()
    if not same or x.is_conj() or values.is_conj() or x.device != values.device:
        return NotImplemented
    seen = torch.view_as_real(x), torch.view_as_real(values)
    return torch.view_as_complex(aten.index_put.default(seen[0], indices, seen[1], accumulate))


def _by_parts(*ops: OpOverload) -> None:
    """Enters operators that move elements, or sum them up, as the same of the real and of the
    imaginary parts; a real number or tensor beside complex ones has no imaginary part."""

    def rule(op: OpOverload) -> Callable[..., Any]:
        names = [a.name for a in op._schema.arguments]
        values = {i for i, name in enumerate(names) if name in _VALUES}

        def apply(*args: Any, **named: Any) -> Any:
            tensors = [x for x in pytree.tree_leaves((args, named)) if isinstance(x, Tensor)]
            kinds = {x.dtype for x in tensors if x.is_floating_point() or x.is_complex()}
            whole = functools.reduce(torch.promote_types, kinds, torch.bool)
            moved = [x for x, name in zip(args, names, strict=False) if name not in _REAL]
            real = {id(x) for x in pytree.tree_leaves(moved)}
            if whole not in _PARTS or named.get("dtype"):
                return NotImplemented
            kind = _PARTS[whole]

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


_VALUES = ("value", "fill_value")
_REAL = (*_VALUES, "index", "indices")  # what may be real beside complex numbers
_by_parts(
    aten.flip.default, aten.index_select.default, aten.gather.default, aten.cat.default,
    aten.repeat.default, aten.tril.default, aten.triu.default, aten.constant_pad_nd.default,
    aten.index.Tensor, aten.select_scatter.default, aten.fill.Scalar, aten.full_like.default,
    aten._unsafe_index.Tensor, aten.alias_copy.default, aten.diag_embed.default,
    aten.diagonal_scatter.default, aten.as_strided_scatter.default,
    aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default,
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default,
    aten.reflection_pad1d_backward.default, aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default, aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default,
)  # fmt: skip


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


@_enter(aten.zeros.default)
def _zeros(size: Sequence[Any], *, dtype: Any = None, **more: Any) -> Any:
    if dtype not in _PARTS:
        return NotImplemented
    return torch.view_as_complex(torch.zeros([*size, 2], dtype=_PARTS[dtype], **more))


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
