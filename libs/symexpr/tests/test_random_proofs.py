"""z3 on random expressions: `simplify` is right for all integers within the ranges, and `bounds`
leaves out no value; then zero divisors, floats and sizes of search."""

import math
import random

import pytest
import sympy
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from symexpr import (
    CeilDiv,
    CeilToInt,
    DivisionByZero,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    RoundToInt,
    ToFloat,
    TruncToInt,
    Where,
    bounds,
    evaluate,
    known,
    parse,
    simplify,
    sstr,
    symbol,
    to_cpp,
    to_python,
    to_triton,
)
from symexpr.facts import Facts, facts

A, B, C, N = map(symbol, "abcn")
LITERALS = (2, 3, 4, 6, 8, 12, 16, 64, -2, -3)


class Meaning:
    """Expressions as z3 terms; divisions by their definition, for divisors of any sign."""

    def __init__(self):
        self.facts, self.count = [], 0

    def term(self, e):
        if e.is_Symbol:
            return z3.Int(e.name)
        if e.is_Integer:
            return z3.IntVal(int(e))
        if e in (sympy.true, sympy.false):
            return z3.BoolVal(bool(e))
        name = type(e).__name__
        args = [self.term(a) for a in e.args]
        if e.is_Add:
            return z3.Sum(args)
        if e.is_Mul:
            return z3.Product(args)
        if name == "FloorDiv":
            return self.divide(*args)[0]
        if name == "CeilDiv":
            return -self.divide(-args[0], args[1])[0]
        if name == "Mod":
            return self.divide(*args)[1]
        if name == "ModularIndexing":
            return self.divide(self.divide(args[0], args[1])[0], args[2])[1]
        if name in ("Min", "Max"):
            out = args[0]
            for a in args[1:]:
                out = z3.If((out <= a) if name == "Min" else (out >= a), out, a)
            return out
        if name == "Where":
            return z3.If(*args)
        if isinstance(e, sympy.core.relational.Relational):
            return {"<": args[0] < args[1], "<=": args[0] <= args[1], ">": args[0] > args[1],
                    ">=": args[0] >= args[1], "==": args[0] == args[1],
                    "!=": args[0] != args[1]}[e.rel_op]  # fmt: skip
        raise AssertionError(name)

    def divide(self, x, d):
        self.count += 1
        q, s = z3.Ints(f"q{self.count} s{self.count}")
        self.facts += [
            d != 0, x == d * q + s, z3.Implies(d > 0, z3.And(s >= 0, s < d)),
            z3.Implies(d < 0, z3.And(d < s, s <= 0)),
        ]  # fmt: skip
        return q, s


def random_expression(r, depth):
    if depth == 0 or r.random() < 0.1:
        return r.choice([A, B, C, A, B, sympy.Integer(r.randint(-5, 20))])
    x, y = random_expression(r, depth - 1), random_expression(r, depth - 1)
    d = r.choice(LITERALS)
    return r.choice([
        lambda: x + y, lambda: x - y, lambda: x * d, lambda: x * d + y, lambda: FloorDiv(x, d),
        lambda: Mod(x, d), lambda: CeilDiv(x, d), lambda: FloorDiv(x, d) * d + Mod(x, d),
        lambda: ModularIndexing(x, abs(d), r.choice(LITERALS)), lambda: Min(x, y),
        lambda: Max(x, y, d), lambda: Where(x < y, x, y),
    ])()  # fmt: skip


def test_simplify_and_bounds_hold_for_all_values():
    r = random.Random(0)
    proven = changed = 0
    for _ in range(400):
        e = random_expression(r, 3)
        ranges = {}
        for s in (A, B, C):
            low = r.choice([None, 0, 0, r.randint(-20, 20)])
            width = r.choice([None, 3, 7, 31, 767])
            ranges[s] = (low, None if low is None or width is None else low + width)
        simple = simplify(e, ranges)
        low, high = bounds(e, ranges)
        if not e.free_symbols or (simple == e and low is None and high is None):
            continue
        changed += simple != e
        m = Meaning()
        value, other = m.term(e), m.term(simple)
        claim = [value == other]
        claim += [] if low is None else [value >= low]
        claim += [] if high is None else [value <= high]
        solver = z3.Solver()
        solver.set("timeout", 400)
        solver.add(*m.facts)
        for s, (lo, hi) in ranges.items():
            solver.add(*([] if lo is None else [z3.Int(s.name) >= lo]))
            solver.add(*([] if hi is None else [z3.Int(s.name) <= hi]))
        solver.add(z3.Not(z3.And(*claim)))
        answer = solver.check()
        assert answer != z3.sat, (sstr(e), ranges, sstr(simple), (low, high), solver.model())
        proven += answer == z3.unsat
        if proven >= 30 and changed >= 18:
            break
    assert proven >= 30, proven


@pytest.mark.parametrize("make", [
    FloorDiv, CeilDiv, Mod, IntTrueDiv, FloatTrueDiv, lambda a, b: ModularIndexing(a, b, 4),
    lambda a, b: ModularIndexing(a, 4, b),
])  # fmt: skip
def test_a_zero_divisor_is_refused_and_never_folded(make):
    for x in (A, sympy.Integer(0), sympy.Integer(-7), A * 4 + B):
        with pytest.raises(DivisionByZero):
            make(x, sympy.Integer(0))
    e = make(A * 4 + B, N)
    for ranges in ({}, {N: (0, 0)}, {N: (-1, 1)}, {N: (0, 5), A: (0, 3), B: (0, 3)}):
        simple = simplify(e, ranges)
        bounds(e, ranges)
        for target in (sstr, to_python, to_cpp, to_triton):
            assert target(e) and target(simple)
    with pytest.raises(DivisionByZero):
        evaluate(e, {"a": 1, "b": 2, "n": 0})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(-(2**60), 2**60), st.integers(-1000, 1000).filter(bool),
    st.sampled_from([(FloorToInt, math.floor), (CeilToInt, math.ceil), (TruncToInt, math.trunc),
                     (RoundToInt, round)]),
    st.integers(0, 5),
)  # fmt: skip
def test_rounded_floats_have_pythons_value(a, b, function, spread):
    make, python = function
    e = make(IntTrueDiv(A, B)) + make(ToFloat(A) / 2 + ToFloat(B))
    want = python(a / b) + python(float(a) / 2 + float(b))
    assert evaluate(e, {"a": a, "b": b}) == want
    ranges = {A: (a - spread, a + spread), B: (max(b - spread, 1) if b > 0 else b, max(b, -1))}
    assert evaluate(simplify(e, ranges), {"a": a, "b": b}) == want
    low, high = bounds(make(IntTrueDiv(A, B)), ranges)
    assert (low is None or low <= python(a / b)) and (high is None or python(a / b) <= high)


def test_rational_coefficients():
    assert bounds(A / 2 + sympy.Rational(1, 3), {A: (1, 4)}) == (0, 3)
    assert known(A / 2 < 2, {A: (0, 3)}) is True
    assert evaluate(A / 2 - B / 3, {"a": 1, "b": 0}) == 0.5


def test_no_value_in_between_is_beyond_the_peak(expressions, points):
    """What printing relies on to leave out checks of width."""
    ranges = {A: (-770, 1024), B: (-65, 7), N: (-12, 64)}
    f = facts(ranges)
    for e in expressions(200, seed=7):
        peak = f.peak(e, 1)
        for p in points[::5]:
            for part in sympy.preorder_traversal(e):
                if isinstance(part, sympy.Expr) and peak != math.inf:
                    assert abs(evaluate(part, p)) <= peak, (e, part, p)


def test_sums_of_thousands_of_terms():
    n = 1000
    pairs = " + ".join(f"x{k}//8*8 + x{k}%8" for k in range(n))
    assert simplify(parse(pairs)) == sympy.Add(*(symbol(f"x{k}") for k in range(n)))
    wide = parse("(" + " + ".join(f"x{k}*{8 * k + 8}" for k in range(n)) + " + j)//8")
    assert simplify(wide, {symbol("j"): (0, 7)}) == sympy.Add(
        *((k + 1) * symbol(f"x{k}") for k in range(n))
    )
    least = parse(f"Min({', '.join(f'x{k} + {k}' for k in range(n))}, 3)")
    assert simplify(least, {symbol(f"x{k}"): (3, 9) for k in range(n)}) == 3


def test_ends_that_no_point_satisfies_are_still_sound():
    """A point is only used where it lies within all ends."""
    f = Facts({A: (0, N - 5), N: (0, 10)})
    assert f.best(A + N) == (0, 15)
    assert known(A >= 0, {A: (0, N - 5), N: (0, 10)}) is True
