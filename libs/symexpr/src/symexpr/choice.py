"""Min, Max and Where."""

from collections.abc import Callable

import sympy
from sympy import Expr
from sympy.core.basic import Basic
from sympy.core.logic import fuzzy_and, fuzzy_or

from symexpr.errors import NonInteger
from symexpr.structure import Applied, by_structure


def decided(x: bool | None) -> bool | None:
    """What sympy's logic of three values, which has no types, says; None is not known."""
    return x


def _all(fact: str, first: int = 0) -> Callable[[Applied], bool | None]:
    """The method that says a fact of which it is known that all arguments, from `first` on, have
    it."""

    def holds(self: Applied) -> bool | None:
        return fuzzy_and([getattr(a, fact) for a in self.args[first:]]) or None

    return holds


class _Extreme(Applied):
    """Flattens, folds literals, drops arguments that another one always beats."""

    # Whether it is above 0 where each of its arguments is, or one of them; likewise below.
    _above: Callable[..., bool | None]
    _below: Callable[..., bool | None]

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
        best: dict[Expr, Expr] = {}  # of those that differ by a number: by their other terms
        for a in flat:
            if a.is_extended_real is False or a is sympy.S.NaN:
                raise NonInteger(cls.__name__, a)
            rest = sympy.S.Zero if a.is_number else a.as_coeff_Add()[1]
            if rest not in best or cls._beats(a - best[rest]):
                best[rest] = a
        kept = list(best.values())
        if len(kept) == 1:
            return kept[0]
        kept.sort(key=by_structure)
        return None if tuple(kept) == tuple(args) else cls(*kept)

    _eval_is_integer, _eval_is_finite = _all("is_integer"), _all("is_finite")

    def _eval_is_extended_real(self) -> bool | None:
        return decided(fuzzy_and([a.is_extended_real for a in self.args]))

    def _eval_is_nonnegative(self) -> bool | None:
        return decided(self._above([a.is_nonnegative for a in self.args]))

    def _eval_is_positive(self) -> bool | None:
        return decided(self._above([a.is_positive for a in self.args]))

    def _eval_is_negative(self) -> bool | None:
        return decided(self._below([a.is_negative for a in self.args]))


class Min(_Extreme):
    """The smallest of its arguments."""

    _above, _below = staticmethod(fuzzy_and), staticmethod(fuzzy_or)

    @classmethod
    def _beats(cls, difference: Expr) -> bool:
        return bool(difference < 0)


class Max(_Extreme):
    """The largest of its arguments."""

    _above, _below = staticmethod(fuzzy_or), staticmethod(fuzzy_and)

    @classmethod
    def _beats(cls, difference: Expr) -> bool:
        return bool(difference > 0)


class Where(Applied):
    """`a if condition else b`."""

    nargs = 3

    @classmethod
    def eval(cls, condition: Basic, a: Expr, b: Expr) -> Expr | None:
        if condition == sympy.true:
            return a
        if condition == sympy.false:
            return b
        return a if a == b else None

    _eval_is_integer, _eval_is_finite = _all("is_integer", 1), _all("is_finite", 1)
    _eval_is_extended_real = _all("is_extended_real", 1)
    _eval_is_nonnegative, _eval_is_positive = _all("is_nonnegative", 1), _all("is_positive", 1)

    def _eval_is_commutative(self) -> bool:
        return True
