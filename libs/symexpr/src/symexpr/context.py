"""Sizes of one program: what is known of each, what was assumed, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from symexpr.division import FloorDiv, Mod
from symexpr.errors import BadRange, GuardViolated
from symexpr.evaluation import evaluate
from symexpr.facts import End, Ranges
from symexpr.printing import sstr
from symexpr.simplification import bounds, simplify
from symexpr.structure import symbol


@dataclass(frozen=True)
class Guard:
    """An assumption for the host to check, and the place that asked for it."""

    condition: Any
    where: str

    def __str__(self) -> str:
        return f"{sstr(self.condition)}  # {self.where}"


class SizeContext:
    """Symbols with hints, ranges, divisors and aliases, and the guards taken so far.

    >>> sizes = SizeContext()
    >>> s0 = sizes.add("s0", hint=64, low=1, high=4096, divisor=8)
    >>> sizes.known(s0 * 4 >= 32), sizes.known_multiple_of(s0 * 3, 24)
    (True, True)
    >>> sizes.guard(s0 <= 128, "choice of kernel"), [str(g) for g in sizes.guards]
    (True, ['s0 <= 128  # choice of kernel'])
    >>> sizes.bounds(s0)
    (8, 128)
    """

    def __init__(self) -> None:
        self.guards: list[Guard] = []
        self._hints: dict[sympy.Symbol, int] = {}
        self._ranges: dict[sympy.Symbol, tuple[End, End]] = {}
        self._divisors: dict[sympy.Symbol, int] = {}
        self._aliases: dict[sympy.Symbol, sympy.Expr] = {}

    def add(
        self,
        name: str,
        *,
        hint: int | None = None,
        low: End = None,
        high: End = None,
        divisor: int = 1,
    ) -> sympy.Symbol:
        """A symbol in [low, high] that is a multiple of `divisor`; adding it again replaces what
        was said before. Raises BadRange if the hint is outside."""
        s = symbol(name)
        if divisor < 1:
            raise BadRange(f"divisor of `{name}` is {divisor}, expected at least 1")
        if hint is not None:
            inside = (not isinstance(low, int) or low <= hint) and (
                not isinstance(high, int) or hint <= high
            )
            if not inside or hint % divisor:
                raise BadRange(
                    f"hint {hint} of `{name}` is not a multiple of {divisor} in [{low}, {high}]"
                )
            self._hints[s] = hint
        self._ranges[s] = (low, high)
        self._divisors[s] = divisor
        return s

    def alias(self, name: str, e: Any) -> sympy.Symbol:
        """A symbol that always equals an expression of others."""
        s = symbol(name)
        e = self._unalias(sympy.sympify(e))
        if s in e.free_symbols:
            raise BadRange(f"`{name}` cannot be an alias of `{e}`, which mentions it")
        self._aliases = {k: v.xreplace({s: e}) for k, v in self._aliases.items()}
        self._aliases[s] = e
        return s

    @property
    def ranges(self) -> Ranges:
        """Ranges as `simplify` takes them."""
        return dict(self._ranges)

    @property
    def hints(self) -> Mapping[sympy.Symbol, int]:
        """Hints by symbol."""
        return dict(self._hints)

    def hint(self, e: Any) -> int:
        """The value at the hints. Raises MissingValue for a symbol without one."""
        value = evaluate(self._unalias(sympy.sympify(e)), self._hints)
        return value if isinstance(value, bool) else int(value)

    def simplify(self, e: Any) -> Any:
        """`symexpr.simplify` with ranges, divisors, aliases and guards."""
        e = self._unalias(sympy.sympify(e))
        scaled, ranges = self._scale(e)
        return self._unscale(simplify(scaled, ranges))

    def bounds(self, e: Any) -> tuple[int | None, int | None]:
        """`symexpr.bounds` with ranges, divisors, aliases and guards."""
        scaled, ranges = self._scale(self._unalias(sympy.sympify(e)))
        return bounds(simplify(scaled, ranges), ranges)

    def known(self, condition: Any) -> bool | None:
        """True or False where decided by ranges, divisors, aliases or guards."""
        simple: Any = self.simplify(condition)
        if simple in (sympy.true, sympy.false):
            return bool(simple)
        assumed = {self.simplify(g.condition) for g in self.guards}
        if simple in assumed:
            return True
        return False if sympy.Not(simple) in assumed else None

    def known_multiple_of(self, e: Any, n: int) -> bool:
        """Whether `e` is a multiple of `n` for all values."""
        return bool(self.simplify(Mod(sympy.sympify(e), n)) == 0)

    def guard(self, condition: Any, where: str) -> bool:
        """The truth of a condition at the hints, assumed from here on: recorded in `guards`
        unless it is known already, and learnt. Raises MissingValue without a hint."""
        known = self.known(condition)
        if known is not None:
            return known
        truth: bool = bool(self.hint(condition))
        assumed = self._unalias(condition if truth else sympy.Not(condition))
        parts = assumed.args if isinstance(assumed, sympy.And) else (assumed,)
        for part in parts:
            self.guards.append(Guard(part, where))
            self._learn(part)
        return truth

    def assume(self, condition: Any, where: str) -> None:
        """Like guard, for a condition that has to hold. Raises GuardViolated if what is known,
        or the hints, say otherwise."""
        if self.known(condition) is False or not self.guard(condition, where):
            raise GuardViolated(f"{where}: `{sstr(condition)}` does not hold for {self._hints}")

    def check(self, values: Mapping[Any, int]) -> None:
        """Raises GuardViolated, naming the place, for values that break a guard."""
        for g in self.guards:
            if not evaluate(g.condition, values):
                shown = {str(k): v for k, v in values.items()}
                raise GuardViolated(
                    f"{g.where}: assumed `{sstr(g.condition)}`, got {shown}; compile again for it"
                )

    # -- inside

    def _unalias(self, e: Any) -> Any:
        return e.xreplace(self._aliases) if self._aliases else e

    def _learn(self, rel: Any) -> None:
        """Narrows a range by `s <= 5`, sets an alias by `s == e`, a divisor by `s % n == 0`."""
        if not isinstance(rel, sympy.core.relational.Relational):
            return
        a, b, op = rel.lhs, rel.rhs, rel.rel_op
        if op == "==":
            self._learn_equal(a, b)
            return
        if b.is_Symbol and a.is_Integer:
            a, b = b, a
            op = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}[op]
        if not (a.is_Symbol and b.is_Integer):
            return
        low, high = self._ranges.get(a, (None, None))
        n = int(b)
        if op in ("<", "<="):
            high = _tighter(high, n - (op == "<"), min)
        elif op in (">", ">="):
            low = _tighter(low, n + (op == ">"), max)
        elif low == n:
            low = n + 1
        elif high == n:
            high = n - 1
        self._ranges[a] = (low, high)

    def _learn_equal(self, a: Any, b: Any) -> None:
        if a.func is Mod and a.args[0].is_Symbol and a.args[1].is_Integer and b == 0:
            s = a.args[0]
            self._divisors[s] = int(sympy.ilcm(self._divisors.get(s, 1), int(a.args[1])))
            return
        for s, e in ((b, a), (a, b)):
            if s.is_Symbol and s not in e.free_symbols and s not in self._aliases:
                low, high = self.bounds(s)
                self.alias(s.name, e)
                for t in [e] if e.is_Symbol else []:
                    old = self._ranges.get(t, (None, None))
                    self._ranges[t] = (_tighter(old[0], low, max), _tighter(old[1], high, min))
                return

    def _scale(self, e: Any) -> tuple[Any, Ranges]:
        """Each symbol with divisor d written as d*t."""
        scaled = {s: d * _quotient_symbol(s, d) for s, d in self._divisors.items() if d > 1}
        ranges: dict[sympy.Symbol, tuple[End, End]] = {}
        for s, (low, high) in self._ranges.items():
            if s in scaled:
                d = self._divisors[s]
                ends = bounds(s, {**self._ranges})
                ranges[_quotient_symbol(s, d)] = (
                    None if ends[0] is None else -(-ends[0] // d),
                    None if ends[1] is None else ends[1] // d,
                )
            else:
                ranges[s] = (_replace(low, scaled), _replace(high, scaled))
        return (e.xreplace(scaled) if scaled else e), ranges

    def _unscale(self, e: Any) -> Any:
        back = {_quotient_symbol(s, d): (s, d) for s, d in self._divisors.items() if d > 1}
        return _restore(e, back) if back else e


def _tighter(old: End, new: int | None, pick: Callable[[int, int], int]) -> End:
    if new is None or (old is not None and not isinstance(old, int)):
        return old
    return new if old is None else pick(old, new)


def _replace(end: End, scaled: Mapping[sympy.Symbol, sympy.Expr]) -> End:
    return end if end is None or isinstance(end, int) else end.xreplace(scaled)


def _quotient_symbol(s: sympy.Symbol, d: int) -> sympy.Symbol:
    return symbol(f"{s.name}//{d}")


def _restore(e: Any, back: Mapping[sympy.Symbol, tuple[sympy.Symbol, int]]) -> Any:
    """`d*t -> s`, and `t -> s // d` where no factor d is at hand."""
    if not e.free_symbols & set(back):
        return e
    if e.is_Symbol:
        s, d = back[e]
        return FloorDiv(s, d)
    if not e.is_Mul:
        return e.func(*(_restore(a, back) for a in e.args))
    c, factors = e.as_coeff_mul()
    out = []
    for f in factors:
        base, power = f.as_base_exp()
        if base not in back or not power.is_Integer:
            out.append(_restore(f, back))
            continue
        s, d = back[base]
        for _ in range(int(power)):
            whole = c.is_Integer and int(c) % d == 0
            c = c / d if whole else c
            out.append(s if whole else FloorDiv(s, d))
    return sympy.Mul(c, *out)
