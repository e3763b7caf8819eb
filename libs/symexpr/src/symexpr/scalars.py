"""Floats and their rounding, powers, shifts and bits."""

import math
import operator
from collections.abc import Callable
from functools import reduce

import sympy
from sympy import Expr

from symexpr.division import FloorDiv
from symexpr.errors import DivisionByZero, NonInteger, TooLarge
from symexpr.limits import MAX_EXPONENT, check_bits, finite, power_bits, quotient, to_float
from symexpr.structure import Applied, Integral, by_structure, coefficient, integer_args

_ZERO, _ONE, _MINUS_ONE = sympy.S.Zero, sympy.S.One, sympy.S.NegativeOne


class _Real(Applied):
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
            return sympy.Float(quotient(int(a), int(b)))
        return None


class FloatTrueDiv(_Real):
    """`a / b` of floats."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            raise DivisionByZero(a, b, "FloatTrueDiv")
        if a.is_number and b.is_number:
            divisor = to_float(b, "FloatTrueDiv")
            if divisor == 0:  # a number too small for a float
                raise DivisionByZero(a, b, "FloatTrueDiv")
            return sympy.Float(to_float(a, "FloatTrueDiv") / divisor)
        return None


class ToFloat(_Real):
    """`float(a)`."""

    nargs = 1

    @classmethod
    def eval(cls, a: Expr) -> Expr | None:
        if a.is_Integer or a.is_Float:
            return sympy.Float(to_float(a, "ToFloat"))
        return a if a.func in (ToFloat, IntTrueDiv, FloatTrueDiv) else None


class _Rounding(Integral):
    nargs = 1
    _round: Callable[[float], int] = staticmethod(int)

    @classmethod
    def eval(cls, a: Expr) -> Expr | None:
        if a.is_integer and not a.is_Float:
            return a
        if a.is_Rational:
            return sympy.Integer(cls._round(a))
        if a.is_Float:
            return sympy.Integer(cls._round(finite(a, cls.__name__)))
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


def power(base: Expr, exponent: Expr) -> Expr:
    """`sympy.Pow`. Raises TooLarge for a number that is, or an exponent no index needs."""
    if exponent.is_Integer:
        if base.is_Rational:
            bits = max(power_bits(int(n), int(exponent)) for n in (base.p, base.q))
            check_bits(bits, f"power {exponent}")
        elif abs(int(exponent)) > MAX_EXPONENT:
            raise TooLarge(f"power {exponent}: exponents are at most {MAX_EXPONENT}")
        elif base.is_Mul:
            check_bits(power_bits(coefficient(base)[0], int(exponent)), f"power {exponent}")
    return sympy.Pow(base, exponent)


class PowByNatural(Integral):
    """`base ** exponent` of integers, exponent >= 0."""

    nargs = 2

    @classmethod
    def eval(cls, base: Expr, exponent: Expr) -> Expr | None:
        base, exponent = integer_args("PowByNatural", base, exponent)
        if exponent.is_Integer:
            if int(exponent) < 0:
                raise NonInteger("PowByNatural", base**exponent)
            return power(base, exponent)
        return _ONE if base is _ONE else None

    def _eval_is_positive(self) -> bool | None:
        return True if self.args[0].is_positive else None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[0].is_nonnegative or self.args[1].is_even else None


class LShift(Integral):
    """`a << n`; a literal shift becomes a product."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, n: Expr) -> Expr | None:
        a, n = integer_args("LShift", a, n)
        if n.is_Integer:
            if int(n) < 0:
                raise NonInteger("LShift by a negative count", n)
            check_bits(int(n) + coefficient(a)[0].bit_length(), "LShift")
            return a * 2 ** int(n)
        return a if a is _ZERO else None


class RShift(Integral):
    """`a >> n`; a literal shift becomes a floor division."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, n: Expr) -> Expr | None:
        a, n = integer_args("RShift", a, n)
        if n.is_Integer:
            if int(n) < 0:
                raise NonInteger("RShift by a negative count", n)
            check_bits(int(n), "RShift")
            return FloorDiv(a, 2 ** int(n))
        return a if a is _ZERO or a is _MINUS_ONE else None


class _Bitwise(Integral):
    """Commutative, associative; `neutral` is dropped, `absorbing` wins."""

    _op: Callable[[int, int], int] = staticmethod(operator.and_)
    _neutral = 0
    _absorbing: int | None = None
    _idempotent = True

    @classmethod
    def eval(cls, *args: Expr) -> Expr | None:
        flat: list[Expr] = []
        for a in integer_args(cls.__name__, *args):
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
        rest.sort(key=by_structure)
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
