"""Sums as terms with integer coefficients, and the ways to write them that rules look for."""

from math import gcd
from typing import Any

import sympy

from symexpr.division import FloorDiv, Mod, ModularIndexing
from symexpr.facts import Facts
from symexpr.intervals import MAX_EXACT_FLOAT
from symexpr.structure import coefficient, content, exact_quotient

_ZERO, _ONE = sympy.S.Zero, sympy.S.One


def step_of(mod: Any) -> Any:
    """The divisor d of `x // d % m`, 1 for `x % m`."""
    return mod.args[1] if mod.func is ModularIndexing else _ONE


def is_exact(e: Any, f: Facts) -> bool:
    """Whether a float holds every value of an expression."""
    lo, hi = f.interval(e)
    return lo >= -MAX_EXACT_FLOAT and hi <= MAX_EXACT_FLOAT


def term_map(e: Any) -> dict[Any, int]:
    """Terms of a sum without their integer coefficients, and those."""
    out: dict[Any, int] = {}
    for t in sympy.Add.make_args(e):
        c, rest = coefficient(t)
        out[rest] = out.get(rest, 0) + c
    return out


def too_long(e: Any, terms: dict[Any, int]) -> bool:
    """Whether a sum that holds one term more than `e` has too few for all of it."""
    return len(sympy.Add.make_args(e)) >= len(terms)


def scaled_terms(scale: Any, e: Any) -> dict[Any, int]:
    """`_term_map` of a product, multiplied out."""
    if scale.is_Integer and not any(
        t.is_Mul and any(f.is_Add for f in t.args) for t in sympy.Add.make_args(e)
    ):
        return {rest: int(scale) * c for rest, c in term_map(e).items()}
    return term_map(sympy.expand_mul(scale * e))


def add_term(terms: dict[Any, int], key: Any, c: int) -> None:
    """Adds a multiple of a term to a sum, in place."""
    terms[key] = terms.get(key, 0) + c
    if not terms[key]:
        del terms[key]


def has_term(terms: dict[Any, int], key: Any, needed: int) -> bool:
    """Whether a sum holds `needed` of a term (a constant may be taken apart freely)."""
    return terms.get(key, 0) == needed or (key is _ONE and key in terms)


def mod_factors(term: Any) -> list[tuple[Any, Any]]:
    """`(x % m, the other factors)` for each such factor of a product."""
    factors = sympy.Mul.make_args(term)
    return [
        (g, _ONE if g is term else term / g) for g in factors if g.func in (Mod, ModularIndexing)
    ]


def open_mods(a: Any, modulus: Any) -> Any:
    """`a` with `c*(x % n)` replaced by `c*x` where the modulus divides c*n; None if unchanged."""
    out, changed = [], False
    for t in sympy.Add.make_args(a):
        for g, factor in mod_factors(t):
            if exact_quotient(factor * g.args[-1], modulus) is not None:
                t, changed = factor * FloorDiv(g.args[0], step_of(g)), True
                break
        out.append(t)
    return sympy.Add(*out) if changed else None


def groupings(a: Any, b: Any, f: Facts) -> list[tuple[Any, Any, Any]]:
    """Ways to write `a = g*x + r` with g > 0 a common factor of some terms and of b, and
    0 <= r < g; the largest g first, of which the first suffices."""
    terms = sympy.Add.make_args(a)
    out = []
    for g in _common_factors(terms, b):
        x: list[Any] = []
        r: list[Any] = []
        for t in terms:
            q = exact_quotient(t, g)
            (r.append(t) if q is None else x.append(q))
        if not x:
            continue
        rest = sympy.Add(*r)
        if rest.is_Integer and g.is_Integer:  # keep 0 <= rest < g by moving whole g's
            x.append(sympy.Integer(int(rest) // int(g)))
            rest = sympy.Integer(int(rest) % int(g))
        if rest is _ZERO:
            if g.is_Integer or f.positive(g):
                out.append((g, sympy.Add(*x), rest))
                break
        elif f.positive(g) and f.within(rest, g):
            out.append((g, sympy.Add(*x), rest))
            break
    return out


def _common_factors(terms: tuple[Any, ...], b: Any) -> list[Any]:
    cb = content(b)
    literals: set[int] = set()
    for t in terms:
        literals.add(gcd(coefficient(t)[0], cb))
    base = [f for f in sympy.Mul.make_args(b) if not f.is_number]
    symbolic: list[Any] = []
    if base and not b.is_Add:
        for t in terms:
            common = [f for f in base if f in sympy.Mul.make_args(t)]
            if common:
                m = sympy.Mul(*common)
                symbolic += [gcd(coefficient(t)[0], cb) * m, m]
    elif b.is_Add and any(exact_quotient(t, b) is not None for t in terms):
        symbolic.append(b)
    unique = list(dict.fromkeys(symbolic))
    return unique + [sympy.Integer(g) for g in sorted(literals, reverse=True) if g > 1]
