"""Functions of complex numbers as pairs of real ones: quotients, roots, powers, circular and
hyperbolic functions and their inverses. Infinities and NaN as C99 has them."""

import cmath
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.complexes import COMPLEX as COMPLEX
from aten_lowering.complexes import Pair, of_pairs, product, scaled_sum, selection

aten = torch.ops.aten


def _quotient(x: Pair, y: Pair) -> Any:
    """As `c10::complex` divides: by the larger part first, so that no square overflows."""
    (a, b), (c, d) = x, y
    if not isinstance(c, Tensor):
        if not isinstance(c, int | float) or not (c or d):
            return NotImplemented
        inverse = 1 / complex(c, d)
        return product(x, (inverse.real, inverse.imag))
    d = d if isinstance(d, Tensor) else torch.zeros_like(c)
    wide, none = c.abs() >= d.abs(), (c == 0) & (d == 0)
    ratio = torch.where(wide, d, c) / torch.where(wide, c, d)
    scale = 1 / torch.where(wide, c + d * ratio, c * ratio + d)
    real = torch.where(wide, a + b * ratio, a * ratio + b) * scale
    imaginary = torch.where(wide, b - a * ratio, b * ratio - a) * scale
    return torch.where(none, a / c.abs(), real), torch.where(none, b / c.abs(), imaginary)


def _exp(x: Pair) -> Pair:
    """Of a real number, a real one: an infinite size has no angle then. A part may be finite where
    the size is not: a factor of large ones is last."""
    a, b = x
    most = 88 if a.dtype is torch.float32 else 700
    size = torch.where(a > most, a - most, a).exp()
    rest = torch.where(a > most, torch.full_like(a, math.exp(most)), 1.0)
    lost = a.isinf() & ~b.isfinite()
    imaginary = torch.where(lost & (size == 0), 0, size * b.sin() * rest)
    real = torch.where(lost, size, size * b.cos() * rest)
    return real, torch.where(b == 0, b, imaginary)


def _sigmoid(x: Pair, times: Pair | None = None) -> Any:
    """`1 / (1 + exp(-x))`, on the left `exp(x) / (1 + exp(x))`, of which none is infinite."""
    left = x[0] < 0
    small = _exp(selection(left, x, (-x[0], -x[1])))
    first = (1.0, 0.0) if times is None else times
    above = selection(left, small if times is None else product(times, small), first)
    return _quotient(above, (1 + small[0], small[1]))


def _log(x: Pair) -> Pair:
    """Of magnitudes near 1 by what is left of their squares; of those at the ends of the range by
    that of a number between."""
    size, large = torch.hypot(*x), torch.maximum(x[0].abs(), x[1].abs())
    tiny = large < torch.finfo(large.dtype).tiny * 2**30
    scale = torch.where(tiny, 2.0**64, 0.5).to(large.dtype)
    other = torch.hypot(x[0] * scale, x[1] * scale).log()
    other = other + torch.where(tiny, -64 * math.log(2), math.log(2)).to(large.dtype)
    wide = torch.where(size.isinf() | tiny, other, size.log())
    small = torch.minimum(x[0].abs(), x[1].abs())
    near = torch.log1p((large - 1) * (large + 1) + small * small) / 2
    return torch.where((size > 0.5) & (size < 2), near, wide), torch.atan2(x[1], x[0])


def _sqrt(x: Pair) -> Pair:
    """Of eighths, since magnitudes of large numbers may be infinite; small ones are enlarged."""
    a, b = x
    tiny = torch.maximum(a.abs(), b.abs()) < 1
    scale = torch.where(tiny, 2.0**65, 0.125).to(a.dtype)
    root = (a.abs() * scale + torch.hypot(a * scale, b * scale)).sqrt()
    root = root * torch.where(tiny, 2.0**-33, 2.0).to(a.dtype)
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
        return torch.where(large, half * angle * (half * sign), function * angle)

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
    real = torch.where(large, a.sign() + 0 * far, beta * (1 + size * size).sqrt() * size / below)
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
    half = torch.hypot(a / 2, b / 2)
    far = half > 1e8
    tall = torch.where(far, half.log() + math.log(4), torch.asinh(c * f - d * e).abs())
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
    near = torch.where((large == 1) & (b.abs() < 1e-9), (math.log(2) - b.abs().log()) / 2, near)
    real = torch.where(size > 1e8, torch.where(size.isinf(), 0, large / size / size), near)
    angle = torch.atan2(2 * b, (1 - a) * (1 + a) - b.square()) / 2
    far = math.pi / 2 - torch.where(size.isinf(), 0, b.abs() / size / size)
    angle = torch.where(size > 1e8, torch.copysign(far, b), angle)
    return torch.where(a == 0, a, torch.copysign(real, a)), torch.where(b.isnan(), b, angle)


def _expm1(x: Pair) -> Pair:
    half = (x[1] / 2).sin()
    return x[0].expm1() * x[1].cos() - 2 * half * half, _exp(x)[1]


def _log1p(x: Pair) -> Pair:
    a, b = x
    small = torch.log1p(a * (2 + a) + b * b) / 2
    size, angle = _log((a + 1, b))
    return torch.where(torch.hypot(a, b) < 0.5, small, size), angle


def _power(x: Pair, y: Pair) -> Any:
    """Few exponents that are numbers are eager's own cases; 0 to any power is 0 on the right."""
    rule = None if isinstance(y[0], Tensor) or y[1] else _POWERS.get(y[0])
    if rule is not None:
        return rule(x)
    if not isinstance(x[0], Tensor):
        if x == (1, 0):
            return _POWERS[0](y)
        if not (x[0] or x[1]):
            return NotImplemented
        number = cmath.log(complex(*x))
        if not number.imag:
            return _exp((y[0] * number.real, y[1] * number.real))
        return _exp(product(y, (number.real, number.imag)))
    x = x[0], x[1] if isinstance(x[1], Tensor) else torch.full_like(x[0], x[1])
    real, imaginary = _exp(product(_log(x), y))
    none = (x[0] == 0) & (x[1] == 0)
    return selection(none & (y[0] > 0), (0.0, 0.0), (real, imaginary))


def _inverse(x: Pair) -> Any:
    return _quotient((1.0, 0.0), x)


_POWERS: dict[Any, Callable[[Pair], Any]] = {
    0: lambda x: (torch.ones_like(x[0]), torch.zeros_like(x[0])), 1: lambda x: x,
    0.5: _sqrt, 2: lambda x: product(x, x), 3: lambda x: product(product(x, x), x), -1: _inverse,
    -2: lambda x: _inverse(product(x, x)), -0.5: lambda x: _inverse(_sqrt(x)),
}  # fmt: skip
_FUNCTIONS: dict[OpOverload, Callable[[Pair], Any]] = {
    aten.reciprocal.default: _inverse, aten.square.default: _POWERS[2],
    aten.rsqrt.default: _POWERS[-0.5], aten.sqrt.default: _sqrt,
    aten.exp.default: _exp, aten.expm1.default: _expm1, aten.log1p.default: _log1p,
    aten.exp2.default: lambda x: _exp((x[0] * math.log(2), x[1] * math.log(2))),
    aten.log.default: _log,
    aten.log2.default: lambda x: tuple(part / math.log(2) for part in _log(x)),
    aten.log10.default: lambda x: tuple(part / math.log(10) for part in _log(x)),
    aten.sigmoid.default: _sigmoid, aten.silu.default: lambda x: _sigmoid(x, x),
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
    of_pairs(_op)(_rule)
of_pairs(aten.div.Tensor, aten.div.Scalar)(_quotient)
of_pairs(aten.addcdiv.default)(lambda x, y, z, value=1: scaled_sum(x, _quotient(y, z), value))
of_pairs(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)(_power)
of_pairs(aten.tanh_backward.default)(lambda grad, y: product(grad, _of_square(y)))


@of_pairs(aten.sigmoid_backward.default)
def _sigmoid_backward(grad: Pair, y: Pair) -> Pair:
    real, imaginary = product(y, (1 - y[0], -y[1]))
    return product(grad, (real, -imaginary))


def _of_square(y: Pair) -> Pair:
    """`conj(1 - y * y)`."""
    real, imaginary = product(y, y)
    return 1 - real, imaginary
