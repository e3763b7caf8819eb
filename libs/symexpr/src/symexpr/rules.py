"""Rewrite rules that need ranges. One rule is one function: `(e, facts) -> Expr | None`, None
where it does not apply; arguments are simplified already. Divisors are not zero."""

from collections.abc import Callable
from typing import Any

import sympy

from symexpr import sums_of_terms
from symexpr.choice import Max
from symexpr.division import CeilDiv, FloorDiv, Mod, ModularIndexing
from symexpr.facts import Facts
from symexpr.intervals import INF
from symexpr.structure import exact_quotient, exact_quotient_sum, times, total

Rule = Callable[[Any, Facts], Any]
_ZERO, _ONE = sympy.S.Zero, sympy.S.One
_FUEL = 64
_PAIRWISE = 16
_MEMO_SIZE = 20_000
SIMPLE = sympy.Dummy()  # remembered for what simplifies to itself


def floor_div_by_bounds(e: Any, f: Facts) -> Any:
    """`x // d -> k`, when every quotient in the ranges is k."""
    lo, hi = f.interval(e)
    if lo == hi and abs(lo) != INF:
        return sympy.Integer(lo)
    quotient = f.quotient(*e.args)
    return None if quotient is None else sympy.Integer(quotient)


def floor_div_drop_remainder(e: Any, f: Facts) -> Any:
    """`(g*x + r) // (g*d) -> x // d`, when 0 <= r < g and d > 0; with r = 0 for any d."""
    a, b = e.args
    for g, x, _ in sums_of_terms.groupings(a, b, f):
        d = exact_quotient(b, g)
        if d is not None and f.positive(d):
            return FloorDiv(x, d)
    return None


def floor_div_nested(e: Any, f: Facts) -> Any:
    """`(x // a) // b -> x // (a*b)`, when b > 0."""
    a, b = e.args
    if a.func is FloorDiv and f.positive(b):
        return FloorDiv(a.args[0], a.args[1] * b)
    return None


def floor_div_of_mod(e: Any, f: Facts) -> Any:
    """`(x // a % (d*m)) // d -> x // (a*d) % m`, when d > 0 and m > 0."""
    inner, d = e.args
    if inner.func not in (Mod, ModularIndexing) or not f.positive(d):
        return None
    m = exact_quotient(inner.args[-1], d)
    if m is None or not f.positive(m):
        return None
    return ModularIndexing(inner.args[0], sums_of_terms.step_of(inner) * d, m)


def ceil_div_to_floor_div(e: Any, f: Facts) -> Any:
    """`CeilDiv(x, d) -> (x + d - 1) // d`, when d > 0."""
    x, d = e.args
    return FloorDiv(x + d - 1, d) if f.positive(d) else None


def mod_by_bounds(e: Any, f: Facts) -> Any:
    """`x % m -> x - k*m`, when `x // m` is k for all x."""
    x, m = e.args
    quotient = f.quotient(x, m)
    return None if quotient is None else x - quotient * m


def mod_of_mods(e: Any, f: Facts) -> Any:
    """`(a + c*(x % n)) % m -> (a + c*x) % m`, when m divides c*n; also for `x // d % n`."""
    a, m = e.args
    x = sums_of_terms.open_mods(a, m)
    return None if x is None else Mod(x, m)


def mod_factor(e: Any, f: Facts) -> Any:
    """`(g*x + r) % (g*m) -> g*(x % m) + r`, when 0 <= r < g and m > 0."""
    a, b = e.args
    for g, x, r in sums_of_terms.groupings(a, b, f):
        m = exact_quotient(b, g)
        if m is not None and g is not _ONE and f.positive(m):
            return g * Mod(x, m) + r
    return None


def modular_by_quotient(e: Any, f: Facts) -> Any:
    """`x // d % m -> q % m`, when `x // d` simplifies to q; `-> x // d`, when 0 <= x // d < m."""
    x, d, m = e.args
    q = FloorDiv(x, d)
    simple = _first(RULES["FloorDiv"], q, f) if q.func is FloorDiv else q
    if simple is not None and simple != q:
        return Mod(simple, m)
    return q if f.within(q, m) else None


def modular_of_mods(e: Any, f: Facts) -> Any:
    """`(a + c*(x % n)) // d % m -> (a + c*x) // d % m`, when d*m divides c*n and d > 0."""
    a, d, m = e.args
    if not f.positive(d):
        return None
    x = sums_of_terms.open_mods(a, d * m)
    return None if x is None else ModularIndexing(x, d, m)


def merge_div_mod(e: Any, f: Facts) -> Any:
    """`m*(x // (d*m)) + x // d % m -> x // d`, times any factor, when m > 0 or d = 1; also where
    `x // (d*m)` has been simplified to something else."""
    terms = sums_of_terms.term_map(e)
    changed = False
    for t, c in list(terms.items()):
        for mod, factor in sums_of_terms.mod_factors(t):
            x, d, m = mod.args[0], sums_of_terms.step_of(mod), mod.args[-1]
            if terms.get(t) != c or (d is not _ONE and not f.positive(m)):
                continue
            quotient = simplify_with(FloorDiv(x, d * m), f)
            if quotient is _ZERO or sums_of_terms.too_long(quotient, terms):
                continue
            needed = sums_of_terms.scaled_terms(c * factor * m, quotient)
            if all(sums_of_terms.has_term(terms, k, v) for k, v in needed.items()):
                changed = True
                for k, v in needed.items():
                    sums_of_terms.add_term(terms, k, -v)
                sums_of_terms.add_term(terms, t, -c)
                for k, v in sums_of_terms.term_map(c * factor * FloorDiv(x, d)).items():
                    sums_of_terms.add_term(terms, k, v)
    return sympy.Add(*(times(c, t) for t, c in terms.items())) if changed else None


def merge_digits(e: Any, f: Facts) -> Any:
    """`m*(x // (d*m) % n) + x // d % m -> x // d % (m*n)`, times any factor, when m > 0, n > 0."""
    terms = sums_of_terms.term_map(e)
    digits: dict[tuple[Any, Any], list[tuple[Any, int, Any, Any]]] = {}
    for t, c in terms.items():
        for mod, factor in sums_of_terms.mod_factors(t):
            digits.setdefault((mod.args[0], sums_of_terms.step_of(mod)), []).append(
                (t, c, mod.args[-1], factor)
            )
    if all(len(found) == 1 for found in digits.values()) and len(digits) < 2:
        return None
    for (x, d), found in digits.items():
        for t, c, m, factor in found:
            for t2, c2, n, factor2 in digits.get((x, d * m), ()):
                if c2 * factor2 == c * factor * m and f.positive(m) and f.positive(n):
                    return e - c * t - c2 * t2 + c * factor * ModularIndexing(x, d, m * n)
    return None


def subtract_multiple(e: Any, f: Facts) -> Any:
    """`x - d*(x // d) -> x % d`, times any factor."""
    terms = sums_of_terms.term_map(e)
    changed = False
    for t, c in list(terms.items()):
        for g in sympy.Mul.make_args(t):
            if g.func is not FloorDiv or terms.get(t) != c:
                continue
            x, d = g.args
            if (d.is_Integer and c % int(d)) or sums_of_terms.too_long(x, terms):
                continue
            scale = exact_quotient(-c * (_ONE if t is g else t / g), d)
            if scale is None:
                continue
            needed = sums_of_terms.scaled_terms(scale, x)
            if all(sums_of_terms.has_term(terms, k, v) for k, v in needed.items()):
                changed = True
                for k, v in needed.items():
                    sums_of_terms.add_term(terms, k, -v)
                sums_of_terms.add_term(terms, t, -c)
                for k, v in sums_of_terms.term_map(scale * Mod(x, d)).items():
                    sums_of_terms.add_term(terms, k, v)
    return sympy.Add(*(times(c, t) for t, c in terms.items())) if changed else None


def extreme_by_bounds(e: Any, f: Facts) -> Any:
    """`Min(a, b) -> a`, when a <= b; `Max(a, b) -> b`."""
    keep = list(e.args)
    if len(keep) > _PAIRWISE:  # ends only: pairs would be too many
        sign = 1 if e.func is Max else -1
        low = {a: min(sign * x for x in f.interval(a)) for a in keep}
        first = max(keep, key=lambda a: low[a])
        kept = [a for a in keep if a is first or max(sign * x for x in f.interval(a)) > low[first]]
        return e.func(*kept) if len(kept) < len(keep) else None
    for a in e.args:
        for b in keep:
            if a is b or a not in keep:
                continue
            d = b - a if e.func is Max else a - b
            if f.nonnegative(d):  # a is never needed
                keep.remove(a)
                break
    return e.func(*keep) if len(keep) < len(e.args) else None


def where_decided(e: Any, f: Facts) -> Any:
    """`Where(c, a, b) -> a`, when c is known; `-> b`, when its negation is."""
    known = f.known(e.args[0])
    return None if known is None else e.args[1 if known else 2]


def rounded_quotient(e: Any, f: Facts) -> Any:
    """`FloorToInt(IntTrueDiv(a, b)) -> a // b`, `CeilToInt` likewise, `TruncToInt` when the
    quotient is not negative: when |a| and |b| are at most 2**53 (floats are exact so far, and a
    quotient of such integers never rounds up to an integer it does not reach)."""
    inner = e.args[0]
    if inner.func.__name__ == "ToFloat" and sums_of_terms.is_exact(inner.args[0], f):
        return inner.args[0]
    if inner.func.__name__ != "IntTrueDiv" or not all(
        sums_of_terms.is_exact(a, f) for a in inner.args
    ):
        return None
    a, b = inner.args
    name = e.func.__name__
    if name == "FloorToInt" or (name == "TruncToInt" and f.nonnegative(a) and f.positive(b)):
        return FloorDiv(a, b)
    return CeilDiv(a, b) if name == "CeilToInt" else None


def relation_decided(e: Any, f: Facts) -> Any:
    """`a < b -> True | False`, when the ranges decide it; any relation."""
    known = f.known(e)
    return None if known is None else (sympy.true if known else sympy.false)


def relation_divide(e: Any, f: Facts) -> Any:
    """`g*x + r < g*y -> x < y` and `g*y <= g*x + r -> y <= x`, when 0 <= r < g."""
    a, b, op = e.lhs, e.rhs, e.rel_op
    if op in (">", "<="):
        a, b = b, a
    elif op not in ("<", ">="):
        return None
    for g, x, _ in sums_of_terms.groupings(a, b, f):
        y = exact_quotient_sum(b, g)
        if y is not None and g is not _ONE:
            return {
                "<": sympy.Lt(x, y),
                ">=": sympy.Ge(x, y),
                ">": sympy.Gt(y, x),
                "<=": sympy.Le(y, x),
            }[op]
    return None


RELATION_RULES: tuple[Rule, ...] = (relation_decided, relation_divide)
_ROUNDINGS = ("FloorToInt", "CeilToInt", "TruncToInt", "RoundToInt")
RULES: dict[str, tuple[Rule, ...]] = {
    "FloorDiv": (floor_div_by_bounds, floor_div_drop_remainder, floor_div_nested, floor_div_of_mod),
    "CeilDiv": (ceil_div_to_floor_div,),
    "Mod": (mod_by_bounds, mod_of_mods, mod_factor),
    "ModularIndexing": (modular_by_quotient, modular_of_mods),
    "Add": (merge_div_mod, merge_digits, subtract_multiple),
    **dict.fromkeys(("Min", "Max"), (extreme_by_bounds,)),
    "Where": (where_decided,),
    **dict.fromkeys(_ROUNDINGS, (rounded_quotient,)),
}


def simplify_with(e: Any, f: Facts) -> Any:
    """`simplify` under facts that exist already; `e` itself, if it is simple."""
    if not e.args:
        return e
    found = f.simplified.get(e)
    if found is None:
        if len(f.simplified) > _MEMO_SIZE:
            f.simplified.clear()
        found = _run(e, f)
        f.simplified[found] = SIMPLE
        if found is e:
            return e
        f.simplified[e] = found
    return e if found is SIMPLE else found


def _run(e: Any, f: Facts) -> Any:
    fuel = _FUEL
    while fuel and e.args:
        fuel -= 1
        args = [simplify_with(a, f) for a in e.args]
        if any(a is not b for a, b in zip(args, e.args, strict=True)):
            e = total(args) if e.is_Add else e.func(*args)
            if e in f.simplified:
                return simplify_with(e, f)
            continue
        table = RELATION_RULES if e.is_Relational else RULES.get(type(e).__name__, ())
        new = _first(table, e, f)
        if new is None:
            return e
        e = new
    return e


def _first(rules: tuple[Rule, ...], e: Any, f: Facts) -> Any:
    for rule in rules:
        out = rule(e, f)
        if out is not None and out != e:
            return out
    return None
