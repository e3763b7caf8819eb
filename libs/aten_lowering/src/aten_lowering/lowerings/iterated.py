"""Functions that take as many steps as their arguments say: orthogonal polynomials, zeta, the
greatest common divisor."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch._ops import OpOverload

from aten_lowering.builder import Value
from aten_lowering.elementwise import arithmetic, elementwise, function
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


@elementwise(table, aten.gcd.default)
def gcd(x: Value, y: Value) -> Value:
    """The greatest number that divides both, not negative but for the least integer."""
    return arithmetic(x)("gcd", y)


@elementwise(table, aten.lcm.default)
def lcm(x: Value, y: Value) -> Value:
    """The least number that both divide; 0 of zeros. In 32 bits at least, as C's."""
    divisor = gcd(x, y)
    if x.dtype.itemsize < 4:
        x, y, divisor = (v.to(DType.i32) for v in (x, y, divisor))
    return divisor("eq", 0).choose(0, abs(x("truncdiv", divisor) * y))


def _overloads(name: str, *scalars: str) -> list[OpOverload]:
    packet = getattr(aten, name)
    return [getattr(packet, overload) for overload in ("default", *scalars)]


@function(table, *_overloads("special_zeta", "other_scalar", "self_scalar"))
def zeta(x: Value, q: Value) -> Value:
    """The sum of `(q + k)^-x` over all k >= 0, infinite at whole q <= 0."""
    pole = x("eq", 1) | (q <= 0) & q("eq", q("floor"))
    return (x < 1).choose(math.nan, pole.choose(math.inf, x("zeta", q)))


# -- orthogonal polynomials: of `x`, and of the order as a whole number that is not negative


def _odd(n: Value) -> Value:
    return (n - 2 * (0.5 * n)("floor"))("eq", 1)


def _chebyshev(x: Value, n: Value, kind: str, shifted: bool) -> Value:
    """Of the first kind to the fourth (t, u, v, w). Between -1 and 1 higher orders are quotients
    of circular functions, at whose ends, and of orders up to 6 or 8, eager has the recurrence, too.
    Below 0 by symmetry, where angles near pi would lose bits: v and w are each other's."""
    if shifted:
        x = x + x - 1
    a, angle, one = abs(x), abs(x)("acos"), n.number(1)
    half = (n + 0.5) * angle
    near = {
        "t": (n * angle)("cos"),
        "u": ((n + 1) * angle)("sin") / ((1 - a) * (1 + a))("sqrt"),
        "v": half("cos") / (0.5 * (1 + a))("sqrt"),
        "w": half("sin") / (0.5 * (1 - a))("sqrt"),
    }
    ends = {"t": one, "u": n + 1, "v": one, "w": n + n + 1}
    first = {"t": x, "u": x + x, "v": x + x - 1, "w": x + x + 1}
    end, negative = a("eq", 1), x < 0
    value = end.choose(ends[kind], near[kind])
    if other := {"v": "w", "w": "v"}.get(kind):
        value = negative.choose(end.choose(ends[other], near[other]), value)
    value = (negative & _odd(n)).choose(-value, value)
    closed = end | (n > (6 if kind == "t" or shifted else 8)) & (a < 1)
    return closed.seldom(value, x("chebyshev", first[kind], closed.choose(0, n)))


def _hermite(x: Value, n: Value, scale: int) -> Value:
    """The physicists' (a scale of 2) or the statisticians' (1), up to the order that eager has."""
    most = 128 if x.dtype is DType.f32 else 512
    value = (scale * x)("hermite", scale, (n > most).choose(0, n))
    return (n > most).choose(math.nan, value)


def _laguerre(x: Value, n: Value) -> Value:
    return x("laguerre", x("eq", 0).choose(0, n))


def _legendre(x: Value, n: Value) -> Value:
    end = abs(x)("eq", 1)
    at_end = ((x < 0) & _odd(n)).choose(-1, x.number(1))
    return end.choose(at_end, x("legendre", end.choose(0, n)))


_POLYNOMIALS: dict[str, Callable[[Value, Value], Value]] = {
    "hermite_polynomial_h": partial(_hermite, scale=2),
    "hermite_polynomial_he": partial(_hermite, scale=1),
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}
for _kind in "tuvw":
    for _prefix in ("", "shifted_"):
        _POLYNOMIALS[f"{_prefix}chebyshev_polynomial_{_kind}"] = partial(
            _chebyshev, kind=_kind, shifted=bool(_prefix)
        )


def _of_order(x: Value, n: Value, polynomial: Callable[[Value, Value], Value] = _legendre) -> Value:
    """0 of orders below 0 and of such as are no numbers."""
    known = (n > -1) & (n < math.inf)
    return known.choose(polynomial(x, known.choose(n("trunc"), 0)), 0)


for _name, _polynomial in _POLYNOMIALS.items():
    _ops = _overloads(f"special_{_name}", "x_scalar", "n_scalar")
    function(table, *_ops)(partial(_of_order, polynomial=_polynomial))
