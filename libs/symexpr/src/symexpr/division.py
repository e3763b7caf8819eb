"""Divisions and remainders, with the semantics of Python's operators for every sign."""

import math
from math import gcd

import sympy
from sympy import Expr
from sympy.core.logic import fuzzy_and, fuzzy_or

from symexpr import structure
from symexpr.errors import DivisionByZero

_ZERO, _ONE, _MINUS_ONE = sympy.S.Zero, sympy.S.One, sympy.S.NegativeOne


class _Quotient(structure.Integral):
    """A quotient, rounded to an integer. What is said of both ways of rounding is here."""

    nargs = 2

    @classmethod
    def _of_literals(cls, a: int, b: int) -> int:
        raise TypeError("abstract")

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        _check_divisor(cls, a, b)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(cls._of_literals(int(a), int(b)))
        a0, b0 = a, b
        if not (structure.integral(a) and structure.integral(b)):
            a, b = structure.clear_denominators(a, b)
        a, b = structure.integer_args(cls.__name__, a, b)
        if (a, b) != (a0, b0):
            return cls(a, b)
        if a is _ZERO or b is _ONE:
            return a
        if b.is_Integer and int(b) < 0:
            return cls(-a, -b)
        if b.is_Integer and cls is CeilDiv:
            return FloorDiv(a + (b - 1), b)
        q, r = structure.split_terms(a, b)
        if q is not _ZERO:
            return structure.total([*sympy.Add.make_args(q), cls(r, b)])
        g = gcd(structure.content(a), structure.content(b))
        if g > 1:
            return cls(structure.scale_down(a, g), structure.scale_down(b, g))
        if a.func is cls and b.is_Integer:
            return cls(a.args[0], a.args[1] * b)
        cancelled = structure.cancel_factors(a, b)
        return None if cancelled is None else cls(*cancelled)


def _check_divisor(of: type, a: Expr, b: Expr) -> None:
    if b.is_Number and b.is_zero:
        raise DivisionByZero(a, b, of.__name__)


class FloorDiv(_Quotient):
    """`a // b`: the quotient rounded to minus infinity."""

    @classmethod
    def _of_literals(cls, a: int, b: int) -> int:
        return a // b

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        one_way = fuzzy_and([a.is_nonnegative, b.is_positive])
        other_way = fuzzy_and([a.is_nonpositive, b.is_negative])
        return fuzzy_or([one_way, other_way]) or None

    def _eval_is_negative(self) -> bool | None:
        a, b = self.args
        one_way = fuzzy_and([a.is_negative, b.is_positive])
        other_way = fuzzy_and([a.is_positive, b.is_negative])
        return fuzzy_or([one_way, other_way]) or None


class CeilDiv(_Quotient):
    """`-(-a // b)`: the quotient rounded to plus infinity. With a literal divisor it becomes
    `(a + b - 1) // b` at once."""

    @classmethod
    def _of_literals(cls, a: int, b: int) -> int:
        return -(-a // b)

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return fuzzy_and([a.is_nonnegative, b.is_positive]) or None

    def _eval_is_positive(self) -> bool | None:
        a, b = self.args
        return fuzzy_and([a.is_positive, b.is_positive]) or None


class _Remainder(structure.Integral):
    """What has the sign of its last argument."""

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[-1].is_positive else None

    def _eval_is_nonpositive(self) -> bool | None:
        return True if self.args[-1].is_negative else None


class Mod(_Remainder):
    """`a % b`: the remainder with the sign of the divisor."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        _check_divisor(cls, a, b)
        a0, b0 = a, b
        a, b = structure.integer_args("Mod", a, b)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) % int(b))
        if a is _ZERO or b is _ONE or b is _MINUS_ONE:
            return _ZERO
        if b.is_Integer and int(b) < 0:
            return -cls(-a, -b)
        if b.is_Integer:
            r = sympy.Add(*(_reduce_coefficient(t, int(b)) for t in sympy.Add.make_args(a)))
        else:
            r = structure.split_terms(a, b)[1]
        if r != a:
            return cls(r, b)
        g = gcd(structure.content(a), structure.content(b))
        if g > 1:
            return g * cls(structure.scale_down(a, g), structure.scale_down(b, g))
        if a.func is FloorDiv:
            return ModularIndexing(a.args[0], a.args[1], b)
        if a.func is cls and structure.exact_quotient(a.args[1], b) is not None:
            return cls(a.args[0], b)
        if a.func is cls and structure.exact_quotient(b, a.args[1]) is not None and b.is_Integer:
            return a  # both positive literals, the inner one smaller
        return cls(a, b) if (a, b) != (a0, b0) else None


def _reduce_coefficient(term: Expr, modulus: int) -> Expr:
    """`5*x -> x` modulo 4; towards zero, so that signs stay."""
    c, rest = structure.coefficient(term)
    small = int(math.copysign(abs(c) % modulus, c)) if abs(c) < 2**50 else c % modulus
    return term if small == c else small * rest


class ModularIndexing(_Remainder):
    """`(x // divisor) % modulus`: one coordinate of a flat index."""

    nargs = 3

    @classmethod
    def eval(cls, x: Expr, divisor: Expr, modulus: Expr) -> Expr | None:
        _check_divisor(cls, x, modulus)
        x0, d0, m0 = x, divisor, modulus
        (modulus,) = structure.integer_args("ModularIndexing", modulus)
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
