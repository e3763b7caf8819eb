"""Integer functions over sympy, with the semantics of Python's operators for every sign.

They fold literals and apply the laws that hold for all integers; laws that need a range are in
`symexpr.simplify`. A divisor is taken to be non-zero: `FloorDiv(s*i, s) -> i`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cmp_to_key, reduce
from math import gcd

import sympy
from sympy import Expr
from sympy.core.basic import Basic
from sympy.core.logic import fuzzy_and, fuzzy_or

from symexpr.errors import DivisionByZero, NonInteger

_ZERO, _ONE, _MINUS_ONE = sympy.S.Zero, sympy.S.One, sympy.S.NegativeOne
_by_structure = cmp_to_key(Basic.compare)


def symbol(name: str) -> sympy.Symbol:
    """The integer symbol of this name: the only kind that the library uses."""
    return sympy.Symbol(name, integer=True)


def _integer_args(function: str, *args: Expr) -> tuple[Expr, ...]:
    """The arguments, whole-valued floats made integers; raises NonInteger."""
    out = []
    for a in args:
        if a.is_Float and a == int(a):
            a = sympy.Integer(int(a))
        if not a.is_integer:
            raise NonInteger(function, a)
        out.append(a)
    return tuple(out)


def coefficient(term: Expr) -> tuple[int, Expr]:
    """`6*x*y -> (6, x*y)`, `x -> (1, x)`; a rational factor stays in the rest."""
    if term.is_Integer:
        return int(term), _ONE
    if term.is_Mul and term.args[0].is_Integer:
        return int(term.args[0]), term.func(*term.args[1:])
    return 1, term


def content(e: Expr) -> int:
    """Greatest common divisor of the integer coefficients of the terms of a sum."""
    g = 0
    for t in sympy.Add.make_args(e):
        g = gcd(g, coefficient(t)[0])
        if g == 1:
            break
    return g


def exact_quotient(term: Expr, divisor: Expr) -> Expr | None:
    """`term / divisor` where that is an integer for all values of the symbols, else None."""
    if term is _ZERO:
        return _ZERO
    c, rest = coefficient(term)
    if divisor.is_Integer:
        return (c // int(divisor)) * rest if c % int(divisor) == 0 else None
    if term == divisor:
        return _ONE
    if term.is_Add or not (term.free_symbols & divisor.free_symbols):
        return None
    q = term / divisor
    return q if q.is_integer else None


def exact_quotient_sum(e: Expr, divisor: Expr) -> Expr | None:
    """`exact_quotient` of every term of a sum."""
    parts = []
    for t in sympy.Add.make_args(e):
        q = exact_quotient(t, divisor)
        if q is None:
            return None
        parts.append(q)
    return sympy.Add(*parts)


def _split(e: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """`e = divisor*q + r` by whole terms."""
    q, r = [], []
    for t in sympy.Add.make_args(e):
        part = exact_quotient(t, divisor)
        (r.append(t) if part is None else q.append(part))
    return sympy.Add(*q), sympy.Add(*r)


def _scale_down(e: Expr, g: int) -> Expr:
    quotient = exact_quotient_sum(e, sympy.Integer(g))
    assert quotient is not None
    return quotient


def _cancel_factors(a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """`s*i, s*t -> i, t` for products with factors in common; None if there are none."""
    if a.is_Add or b.is_Add:
        return None
    common = [f for f in sympy.Mul.make_args(b) if not f.is_number]
    common = [f for f in common if f in sympy.Mul.make_args(a)]
    if not common:
        return None
    m = sympy.Mul(*common)
    return a / m, b / m


class _Integral(sympy.Function):  # type: ignore[misc]
    """Functions whose value is an integer."""

    is_integer = True


class FloorDiv(_Integral):
    """`a // b`: the quotient rounded to minus infinity."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            raise DivisionByZero(a, b, "FloorDiv")
        if not (a.is_Integer and b.is_Integer):
            a0, b0 = a, b
            if not a.is_integer or not b.is_integer:
                a, b = _clear_denominators(a, b)
            a, b = _integer_args("FloorDiv", a, b)
            if (a, b) != (a0, b0):
                return cls(a, b)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) // int(b))
        if a is _ZERO or b is _ONE:
            return a
        if b.is_Integer and int(b) < 0:
            return cls(-a, -b)
        q, r = _split(a, b)
        if q is not _ZERO:
            return q + cls(r, b)
        g = gcd(content(a), content(b))
        if g > 1:
            return cls(_scale_down(a, g), _scale_down(b, g))
        if a.func is cls and b.is_Integer:
            return cls(a.args[0], a.args[1] * b)
        cancelled = _cancel_factors(a, b)
        return None if cancelled is None else cls(*cancelled)

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return fuzzy_or([fuzzy_and([a.is_nonnegative, b.is_positive]),
                         fuzzy_and([a.is_nonpositive, b.is_negative])]) or None  # fmt: skip

    def _eval_is_negative(self) -> bool | None:
        a, b = self.args
        return fuzzy_or([fuzzy_and([a.is_negative, b.is_positive]),
                         fuzzy_and([a.is_positive, b.is_negative])]) or None  # fmt: skip


def _clear_denominators(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`x/2 + 1, 3 -> x + 2, 6`: rational coefficients moved to the divisor, sign kept."""
    lcm = 1
    for e in (a, b):
        for t in sympy.Add.make_args(e):
            c = t.as_coeff_Mul()[0]
            if c.is_Rational:
                lcm = lcm * int(c.q) // gcd(lcm, int(c.q))
    if lcm == 1:
        return a, b
    scale = [sympy.Add(*(t * lcm for t in sympy.Add.make_args(e))) for e in (a, b)]
    return scale[0], scale[1]


class CeilDiv(_Integral):
    """`-(-a // b)`: the quotient rounded to plus infinity. With a literal divisor it becomes
    `(a + b - 1) // b` at once."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            raise DivisionByZero(a, b, "CeilDiv")
        if not a.is_integer or not b.is_integer:
            a0, b0 = a, b
            a, b = _clear_denominators(a, b)
            a, b = _integer_args("CeilDiv", a, b)
            if (a, b) != (a0, b0):
                return cls(a, b)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(-(-int(a) // int(b)))
        if a is _ZERO or b is _ONE:
            return a
        if b.is_Integer:
            return cls(-a, -b) if int(b) < 0 else FloorDiv(a + (b - 1), b)
        q, r = _split(a, b)
        if q is not _ZERO:
            return q + cls(r, b)
        g = gcd(content(a), content(b))
        if g > 1:
            return cls(_scale_down(a, g), _scale_down(b, g))
        cancelled = _cancel_factors(a, b)
        return None if cancelled is None else cls(*cancelled)

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return fuzzy_and([a.is_nonnegative, b.is_positive]) or None

    def _eval_is_positive(self) -> bool | None:
        a, b = self.args
        return fuzzy_and([a.is_positive, b.is_positive]) or None


class Mod(_Integral):
    """`a % b`: the remainder with the sign of the divisor."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            raise DivisionByZero(a, b, "Mod")
        a0, b0 = a, b
        a, b = _integer_args("Mod", a, b)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) % int(b))
        if a is _ZERO or b is _ONE or b is _MINUS_ONE:
            return _ZERO
        if b.is_Integer and int(b) < 0:
            return -cls(-a, -b)
        if b.is_Integer:
            r = sympy.Add(*(_reduce_coefficient(t, int(b)) for t in sympy.Add.make_args(a)))
        else:
            r = _split(a, b)[1]
        if r != a:
            return cls(r, b)
        g = gcd(content(a), content(b))
        if g > 1:
            return g * cls(_scale_down(a, g), _scale_down(b, g))
        if a.func is FloorDiv:
            return ModularIndexing(a.args[0], a.args[1], b)
        if a.func is cls and exact_quotient(a.args[1], b) is not None:
            return cls(a.args[0], b)
        if a.func is cls and exact_quotient(b, a.args[1]) is not None and b.is_Integer:
            return a  # both positive literals, the inner one smaller
        return cls(a, b) if (a, b) != (a0, b0) else None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[1].is_positive else None

    def _eval_is_nonpositive(self) -> bool | None:
        return True if self.args[1].is_negative else None


def _reduce_coefficient(term: Expr, modulus: int) -> Expr:
    """`5*x -> x` modulo 4; towards zero, so that signs stay."""
    c, rest = coefficient(term)
    small = int(math.copysign(abs(c) % modulus, c)) if abs(c) < 2**50 else c % modulus
    return term if small == c else small * rest


class ModularIndexing(_Integral):
    """`(x // divisor) % modulus`: one coordinate of a flat index."""

    nargs = 3

    @classmethod
    def eval(cls, x: Expr, divisor: Expr, modulus: Expr) -> Expr | None:
        if modulus.is_zero:
            raise DivisionByZero(x, modulus, "ModularIndexing")
        x0, d0, m0 = x, divisor, modulus
        (modulus,) = _integer_args("ModularIndexing", modulus)
        q = FloorDiv(x, divisor)
        if q.func is not FloorDiv:
            return Mod(q, modulus)
        if modulus is _ONE or modulus is _MINUS_ONE:
            return _ZERO
        if modulus.is_Integer and int(modulus) < 0:
            return -Mod(-q, -modulus)
        if (*q.args, modulus) != (x0, d0, m0):
            return cls(*q.args, modulus)
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[2].is_positive else None

    def _eval_is_nonpositive(self) -> bool | None:
        return True if self.args[2].is_negative else None


def _decided(x: bool | None) -> bool | None:
    return x


class _Extreme(sympy.Function):  # type: ignore[misc]
    """Flattens, folds literals, drops arguments that another one always beats."""

    @classmethod
    def _beats(cls, difference: Expr) -> bool:
        """Whether a wins over b, given the literal a - b."""
        raise TypeError("abstract")

    @classmethod
    def eval(cls, *args: Expr) -> Expr | None:
        if not args:
            raise TypeError(f"{cls.__name__} needs an argument")
        flat: list[Expr] = []
        for a in args:
            flat.extend(a.args if a.func is cls else (a,))
        kept: list[Expr] = []
        for a in flat:
            if a.is_extended_real is False or a is sympy.S.NaN:
                raise NonInteger(cls.__name__, a)
            beaten = False
            for k in list(kept):
                d = a - k
                if d.is_number:
                    if d.is_zero or not cls._beats(d):
                        beaten = True
                        break
                    kept.remove(k)
            if not beaten:
                kept.append(a)
        if len(kept) == 1:
            return kept[0]
        kept.sort(key=_by_structure)
        return None if tuple(kept) == tuple(args) else cls(*kept)

    def _eval_is_integer(self) -> bool | None:
        return fuzzy_and([a.is_integer for a in self.args]) or None

    def _eval_is_extended_real(self) -> bool | None:
        return _decided(fuzzy_and([a.is_extended_real for a in self.args]))

    def _eval_is_finite(self) -> bool | None:
        return fuzzy_and([a.is_finite for a in self.args]) or None


class Min(_Extreme):
    """The smallest of its arguments."""

    @classmethod
    def _beats(cls, difference: Expr) -> bool:
        return bool(difference < 0)

    def _eval_is_nonnegative(self) -> bool | None:
        return _decided(fuzzy_and([a.is_nonnegative for a in self.args]))

    def _eval_is_positive(self) -> bool | None:
        return _decided(fuzzy_and([a.is_positive for a in self.args]))

    def _eval_is_negative(self) -> bool | None:
        return _decided(fuzzy_or([a.is_negative for a in self.args]))


class Max(_Extreme):
    """The largest of its arguments."""

    @classmethod
    def _beats(cls, difference: Expr) -> bool:
        return bool(difference > 0)

    def _eval_is_nonnegative(self) -> bool | None:
        return _decided(fuzzy_or([a.is_nonnegative for a in self.args]))

    def _eval_is_positive(self) -> bool | None:
        return _decided(fuzzy_or([a.is_positive for a in self.args]))

    def _eval_is_negative(self) -> bool | None:
        return _decided(fuzzy_and([a.is_negative for a in self.args]))


class Where(sympy.Function):  # type: ignore[misc]
    """`a if condition else b`."""

    nargs = 3

    @classmethod
    def eval(cls, condition: Basic, a: Expr, b: Expr) -> Expr | None:
        if condition == sympy.true:
            return a
        if condition == sympy.false:
            return b
        return a if a == b else None

    def _eval_is_integer(self) -> bool | None:
        return fuzzy_and([a.is_integer for a in self.args[1:]]) or None

    def _eval_is_extended_real(self) -> bool | None:
        return fuzzy_and([a.is_extended_real for a in self.args[1:]]) or None

    def _eval_is_finite(self) -> bool | None:
        return fuzzy_and([a.is_finite for a in self.args[1:]]) or None

    def _eval_is_commutative(self) -> bool:
        return True

    def _eval_is_nonnegative(self) -> bool | None:
        return fuzzy_and([a.is_nonnegative for a in self.args[1:]]) or None

    def _eval_is_positive(self) -> bool | None:
        return fuzzy_and([a.is_positive for a in self.args[1:]]) or None


class _Real(sympy.Function):  # type: ignore[misc]
    """Functions whose value is a float."""

    is_real = True


class IntTrueDiv(_Real):
    """`a / b` of integers as a float, correctly rounded as Python's."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            raise DivisionByZero(a, b, "IntTrueDiv")
        if a.is_Integer and b.is_Integer:
            return sympy.Float(int(a) / int(b))
        return None


class FloatTrueDiv(_Real):
    """`a / b` of floats."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            raise DivisionByZero(a, b, "FloatTrueDiv")
        if a.is_number and b.is_number:
            return sympy.Float(float(a) / float(b))
        return None


class ToFloat(_Real):
    """`float(a)`."""

    nargs = 1

    @classmethod
    def eval(cls, a: Expr) -> Expr | None:
        if a.is_Integer or a.is_Float:
            return sympy.Float(float(a))
        return a if a.func in (ToFloat, IntTrueDiv, FloatTrueDiv) else None


class _Rounding(_Integral):
    nargs = 1
    _round: Callable[[float], int] = staticmethod(int)

    @classmethod
    def eval(cls, a: Expr) -> Expr | None:
        if a.is_integer and not a.is_Float:
            return a
        if a.is_Rational:
            return sympy.Integer(cls._round(a))
        if a.is_Float:
            return sympy.Integer(cls._round(float(a)))
        return None


class FloorToInt(_Rounding):
    """`math.floor(a)`."""

    _round = staticmethod(math.floor)


class CeilToInt(_Rounding):
    """`math.ceil(a)`."""

    _round = staticmethod(math.ceil)


class TruncToInt(_Rounding):
    """`math.trunc(a)`."""

    _round = staticmethod(lambda a: int(a))


class RoundToInt(_Rounding):
    """`round(a)`: halves to even."""

    _round = staticmethod(lambda a: round(a))


class PowByNatural(_Integral):
    """`base ** exponent` of integers, exponent >= 0."""

    nargs = 2

    @classmethod
    def eval(cls, base: Expr, exponent: Expr) -> Expr | None:
        base, exponent = _integer_args("PowByNatural", base, exponent)
        if exponent.is_Integer:
            if int(exponent) < 0:
                raise NonInteger("PowByNatural", base**exponent)
            return base**exponent
        return _ONE if base is _ONE else None

    def _eval_is_positive(self) -> bool | None:
        return True if self.args[0].is_positive else None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[0].is_nonnegative or self.args[1].is_even else None


class LShift(_Integral):
    """`a << n`; a literal shift becomes a product."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, n: Expr) -> Expr | None:
        a, n = _integer_args("LShift", a, n)
        if n.is_Integer:
            if int(n) < 0:
                raise NonInteger("LShift by a negative count", n)
            return a * 2 ** int(n)
        return a if a is _ZERO else None


class RShift(_Integral):
    """`a >> n`; a literal shift becomes a floor division."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, n: Expr) -> Expr | None:
        a, n = _integer_args("RShift", a, n)
        if n.is_Integer:
            if int(n) < 0:
                raise NonInteger("RShift by a negative count", n)
            return FloorDiv(a, 2 ** int(n))
        return a if a is _ZERO or a is _MINUS_ONE else None


class _Bitwise(_Integral):
    """Commutative, associative; `neutral` is dropped, `absorbing` wins."""

    _op: Callable[[int, int], int] = staticmethod(operator.and_)
    _neutral = 0
    _absorbing: int | None = None
    _idempotent = True

    @classmethod
    def eval(cls, *args: Expr) -> Expr | None:
        flat: list[Expr] = []
        for a in _integer_args(cls.__name__, *args):
            flat.extend(a.args if a.func is cls else (a,))
        literal = reduce(cls._op, (int(a) for a in flat if a.is_Integer), cls._neutral)
        rest: list[Expr] = []
        for a in flat:
            if a.is_Integer:
                continue
            if a not in rest:
                rest.append(a)
            elif not cls._idempotent:
                rest.remove(a)
        if literal == cls._absorbing:
            return sympy.Integer(literal)
        rest.sort(key=_by_structure)
        if literal != cls._neutral:
            rest.append(sympy.Integer(literal))
        if len(rest) < 2:
            return rest[0] if rest else sympy.Integer(cls._neutral)
        return None if tuple(rest) == tuple(args) else cls(*rest)


class BitwiseAnd(_Bitwise):
    """`a & b`."""

    _neutral = -1
    _absorbing = 0


class BitwiseOr(_Bitwise):
    """`a | b`."""

    _op = staticmethod(operator.or_)
    _absorbing = -1


class BitwiseXor(_Bitwise):
    """`a ^ b`."""

    _op = staticmethod(operator.xor)
    _idempotent = False


FUNCTIONS: dict[str, type[sympy.Function]] = {
    f.__name__: f
    for f in (
        FloorDiv, CeilDiv, Mod, ModularIndexing, Min, Max, Where, IntTrueDiv, FloatTrueDiv, ToFloat,
        FloorToInt, CeilToInt, TruncToInt, RoundToInt, PowByNatural, LShift, RShift, BitwiseAnd,
        BitwiseOr, BitwiseXor,
    )
}  # fmt: skip
