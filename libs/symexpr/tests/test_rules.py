"""Every rule: an example of `before -> after`, a case where it must not fire, and a proof.

A proof states the rule over mathematical integers. Divisions are replaced by their definition:
`x // d` is the q with `x = d*q + s`, where `0 <= s < d` if d > 0 and `d < s <= 0` if d < 0."""

import pytest
import z3

from symexpr import FloorToInt, IntTrueDiv, evaluate, parse, rules, simplify, sstr, symbol
from symexpr.facts import Facts

X, Y, G, D, M, N, K, R, C, S0, IX, J = map(
    symbol, ["x", "y", "g", "d", "m", "n", "k", "r", "c", "s0", "i", "j"]
)
POSITIVE = dict.fromkeys((D, M, N, S0, G), (1, None))

# rule -> (before, ranges, after); the last of each list shows a case that has to stay
EXAMPLES = {
    "floor_div_by_bounds": [
        ("x//8", {X: (16, 23)}, "2"), ("x//8", {X: (-8, -1)}, "-1"),
        ("j//s0", {J: (0, S0 - 1)}, "0"), ("(j - 3)//s0", {J: (0, 2), S0: (3, None)}, "-1"),
        ("(j - 3)//s0", {J: (0, 3), S0: (3, None)}, "(j - 3)//s0"), ("x//8", {X: (0, 8)}, "x//8"),
    ],
    "floor_div_drop_remainder": [
        ("(i*768 + j)//1536", {J: (0, 767)}, "i//2"), ("(i*4 + 1)//8", {}, "i//2"),
        ("(s0*i + j)//(s0*4)", {J: (0, S0 - 1), S0: (1, None)}, "i//4"),
        ("(i*768 + j)//1536", {J: (0, 768)}, "(i*768 + j)//1536"),
    ],
    "floor_div_nested": [
        ("x//m//n", POSITIVE, "x//(m*n)"), ("x//m//n", {M: (1, None)}, "x//m//n"),
    ],
    "floor_div_of_mod": [
        ("x%(d*m)//d", POSITIVE, "x//d%m"), ("x//3%12//4", {}, "x//12%3"),
        ("x%(d*m)//d", {M: (1, None)}, "x%(d*m)//d"),
    ],
    "ceil_div_to_floor_div": [
        ("CeilDiv(x, d)", POSITIVE, "(x - 1)//d + 1"), ("CeilDiv(x, d)", {}, "CeilDiv(x, d)"),
    ],
    "mod_by_bounds": [
        ("x%8", {X: (0, 7)}, "x"), ("x%8", {X: (-8, -1)}, "x + 8"),
        ("x%8", {X: (16, 20)}, "x - 16"),
        ("j%s0", {J: (0, S0 - 1)}, "j"), ("x%8", {X: (0, 8)}, "x%8"),
    ],
    "mod_of_mods": [
        ("(y + x%12*2)%8", {}, "(x*2 + y)%8"), ("(y + x%12)%8", {}, "(x%12 + y)%8"),
    ],
    "mod_factor": [
        ("(i*4 + j)%12", {J: (0, 3)}, "i%3*4 + j"), ("(i*4 + j)%12", {J: (0, 4)}, "(i*4 + j)%12"),
    ],
    "modular_by_quotient": [
        ("(i*768 + j)//768%4", {J: (0, 767)}, "i%4"), ("x//4%8", {X: (0, 31)}, "x//4"),
        ("x//4%8", {X: (0, 32)}, "x//4%8"),
    ],
    "modular_of_mods": [
        ("(y + x%12)//2%3", {}, "(x + y)//2%3"), ("(y + x%12)//2%4", {}, "(x%12 + y)//2%4"),
    ],
    "merge_div_mod": [
        ("x//d*d + x%d", {}, "x"), ("x//12*24 + x//4%3*8", {}, "x//4*8"),
        ("x//d*d + y%d", {}, "x//d*d + y%d"), ("x//(d*m)*m + x//d%m", POSITIVE, "x//d"),
        ("x//(d*m)*m + x//d%m", {}, "x//(d*m)*m + x//d%m"),
    ],
    "merge_digits": [
        ("x//64%4*64 + x%64", {}, "x%256"), ("x//64%4*32 + x%64", {}, "x//64%4*32 + x%64"),
    ],
    "subtract_multiple": [
        ("x - x//d*d", {}, "x%d"), ("y + x*3 - x//8*24", {}, "x%8*3 + y"),
        ("x - x//8*4", {}, "x - x//8*4"),
    ],
    "extreme_by_bounds": [
        ("Min(x, 8)", {X: (0, 8)}, "x"), ("Max(j, s0)", {J: (0, S0 - 1)}, "s0"),
        ("Min(x, 8)", {X: (0, 9)}, "Min(8, x)"),
    ],
    "where_decided": [
        ("Where(x < 8, x, y)", {X: (0, 7)}, "x"), ("Where(x < 8, x, y)", {X: (8, 9)}, "y"),
        ("Where(x < 8, x, y)", {X: (0, 9)}, "Where(x < 8, x, y)"),
    ],
    "rounded_quotient": [
        ("FloorToInt(IntTrueDiv(x, 3))", {X: (0, 2**53)}, "x//3"),
        ("CeilToInt(IntTrueDiv(x, 3))", {X: (0, 2**53)}, "(x + 2)//3"),
        ("TruncToInt(IntTrueDiv(x, 3))", {X: (0, 9)}, "x//3"),
        ("RoundToInt(ToFloat(x))", {X: (0, 9)}, "x"),
        ("FloorToInt(IntTrueDiv(x, 3))", {X: (0, 2**54)}, "FloorToInt(IntTrueDiv(x, 3))"),
    ],
    "relation_decided": [
        ("x < 8", {X: (0, 7)}, "True"), ("x == 8", {X: (0, 7)}, "False"),
        ("j + i*s0 < s0*32", {J: (0, S0 - 1), IX: (0, 31), S0: (1, None)}, "True"),
        ("x < 8", {X: (0, 8)}, "x < 8"),
    ],
    "relation_divide": [
        ("i*768 + j < s0*768", {J: (0, 767)}, "i < s0"),
        ("i*768 + j >= 1536", {J: (0, 767)}, "i >= 2"),
        ("i*768 + j < s0*768", {J: (0, 768)}, "i*768 + j < s0*768"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rule", EXAMPLES)
def test_examples(rule):
    for before, ranges, after in EXAMPLES[rule]:
        assert sstr(simplify(parse(before), ranges)) == after, before


ALL_RULES = {r.__name__ for table in (*rules.RULES.values(), rules.RELATION_RULES) for r in table}


def test_every_rule_has_an_example_and_a_proof():
    assert set(EXAMPLES) == ALL_RULES
    assert {n.removeprefix("prove_") for n in globals() if n.startswith("prove_")} == ALL_RULES
    for table in (*rules.RULES.values(), rules.RELATION_RULES):
        assert all("->" in (rule.__doc__ or "") for rule in table)


class Proof:
    """Facts about divisions are added as they are named; `holds` asks for a counterexample."""

    def __init__(self):
        self.solver = z3.Solver()
        self.solver.set("timeout", 20_000)
        self.count = 0

    def ints(self, names):
        return z3.Ints(names)

    def given(self, *facts):
        self.solver.add(*facts)

    def divide(self, x, d):
        """(x // d, x % d) for any d != 0."""
        self.count += 1
        q, s = z3.Ints(f"q{self.count} s{self.count}")
        self.solver.add(
            d != 0, x == d * q + s, z3.Implies(d > 0, z3.And(s >= 0, s < d)),
            z3.Implies(d < 0, z3.And(d < s, s <= 0)),
        )  # fmt: skip
        return q, s

    def is_quotient(self, x, d, q):
        """`q` is `x // d`: the remainder that it leaves lies in the half-open range."""
        s = x - d * q
        return z3.And(z3.Implies(d > 0, z3.And(s >= 0, s < d)),
                      z3.Implies(d < 0, z3.And(d < s, s <= 0)))  # fmt: skip

    def is_mod(self, x, d, s, q):
        """`s` is `x % d`, with `q` as the quotient that shows it."""
        return z3.And(x == d * q + s, self.is_quotient(x, d, q))

    def holds(self, claim):
        self.solver.push()
        self.solver.add(z3.Not(claim))
        answer = self.solver.check()
        assert answer == z3.unsat, (answer, self.solver.model() if answer == z3.sat else "")
        self.solver.pop()

    def lemma(self, claim):
        """Proven, then used."""
        self.holds(claim)
        self.given(claim)


def prove_floor_div_by_bounds(p):
    x, d = p.ints("x d")
    p.given(x >= 0, x < d)
    p.holds(p.is_quotient(x, d, z3.IntVal(0)))
    p = Proof()
    x, d = p.ints("x d")
    p.given(x + d >= 0, x < 0)
    p.holds(p.is_quotient(x, d, z3.IntVal(-1)))
    # a literal divisor: the quotient is monotone, so equal at both ends is equal between
    p = Proof()
    x, low, high, k = p.ints("x low high k")
    for literal in (1, 2, 3, 8, 768):
        ql, qh, q = (p.divide(v, z3.IntVal(literal))[0] for v in (low, high, x))
        p.holds(z3.Implies(z3.And(low <= x, x <= high, ql == k, qh == k), q == k))


def prove_floor_div_drop_remainder(p):
    g, x, r, d = p.ints("g x r d")
    p.given(g > 0, r >= 0, r < g, d > 0)
    q, s = p.divide(x, d)
    p.given(s * g <= (d - 1) * g)  # s <= d - 1, times g > 0
    p.given(s * g >= 0, (d - 1) * g == d * g - g, g * x == g * d * q + g * s)
    p.holds(p.is_quotient(g * x + r, g * d, q))


def prove_floor_div_nested(p):
    x, a, b = p.ints("x a b")
    for sign in (1, -1):
        p = Proof()
        p.given(b > 0, a > 0 if sign > 0 else a < 0)
        q, s = p.divide(x, a)
        q2, t = p.divide(q, b)
        if sign > 0:
            p.given(a * t <= a * (b - 1), a * t >= 0)  # 0 <= t <= b - 1, times a > 0
        else:
            p.given(a * t >= a * (b - 1), a * t <= 0)
        p.given(a * (b - 1) == a * b - a, x == a * b * q2 + a * t + s)
        p.given(a * b > 0 if sign > 0 else a * b < 0)
        p.holds(p.is_quotient(x, a * b, q2))


def prove_floor_div_of_mod(p):
    # y = x // a; (y % (d*m)) // d = (y // d) % m, and (x // a) // d = x // (a*d) by nesting
    y, d, m = p.ints("y d m")
    p.given(d > 0, m > 0, d * m > 0)
    k, rest = p.divide(y, d * m)
    q, s = p.divide(rest, d)
    # y = d*(m*k + q) + s, so y // d = m*k + q, whose remainder by m is q if 0 <= q < m
    p.holds(y == d * m * k + d * q + s)
    p.lemma(q >= 0)
    p.given(z3.Implies(q >= m, d * q >= d * m))
    p.holds(q < m)


def prove_ceil_div_to_floor_div(p):
    x, d = p.ints("x d")
    p.given(d > 0)
    q, _ = p.divide(-x, d)
    p.holds(p.is_quotient(x + d - 1, d, -q))


def prove_mod_by_bounds(p):
    x, m, k = p.ints("x m k")
    p.given(m != 0)
    q, s = p.divide(x, m)
    p.given(q == k)
    p.holds(s == x - k * m)
    p = Proof()
    p.given(x >= 0, x < m)
    p.holds(p.is_mod(x, m, x, z3.IntVal(0)))


def prove_mod_of_mods(p):
    # x % n = x - n*k, and c*n = m*j: the two sides differ by m*j*k
    a, c, x, n, m, j = p.ints("a c x n m j")
    k, s = p.divide(x, n)
    p.given(m != 0, c * n == m * j)
    q, t = p.divide(a + c * s, m)
    p.given(c * (n * k) == (m * j) * k, c * x == c * (n * k) + c * s)
    p.holds(a + c * x == m * (q + j * k) + t)
    p.holds(p.is_mod(a + c * x, m, t, q + j * k))


def prove_mod_factor(p):
    g, x, r, m = p.ints("g x r m")
    p.given(g > 0, m > 0, r >= 0, r < g)
    q, s = p.divide(x, m)
    p.given(g * s <= g * (m - 1), g * s >= 0, g * (m - 1) == g * m - g)
    p.given(g * x == g * m * q + g * s)
    p.holds(p.is_mod(g * x + r, g * m, g * s + r, q))


def prove_modular_by_quotient(p):
    # `x // d % m` is `q % m` by definition; `q % m -> q` when 0 <= q < m is mod_by_bounds
    q, m = p.ints("q m")
    p.given(q >= 0, q < m)
    p.holds(p.is_mod(q, m, q, z3.IntVal(0)))


def prove_modular_of_mods(p):
    # c*n = d*m*j: the numerators differ by d*(m*j*k), the quotients by m*j*k
    a, c, x, n, d, m, j = p.ints("a c x n d m j")
    p.given(d > 0, m != 0, c * n == d * m * j)
    k, s = p.divide(x, n)
    q, t = p.divide(a + c * s, d)
    p.given(c * (n * k) == (d * m * j) * k, c * x == c * (n * k) + c * s)
    p.holds(a + c * x == d * (q + m * j * k) + t)
    p.holds(p.is_quotient(a + c * x, d, q + m * j * k))
    q2, u = p.divide(q, m)
    p.holds(p.is_mod(q + m * j * k, m, u, q2 + j * k))


def prove_merge_div_mod(p):
    # y = x // d; x // (d*m) = y // m by floor_div_nested (m > 0), or because d = 1
    y, m, f = p.ints("y m f")
    q, s = p.divide(y, m)
    p.holds(f * (m * q + s) == f * y)


def test_proofs_of_the_laws_that_constructors_apply():
    p = Proof()
    x, d, k, g = p.ints("x d k g")
    q, s = p.divide(x, d)
    p.holds(p.is_quotient(x + d * k, d, q + k))  # whole terms move out, any sign
    p.holds(p.is_mod(x + d * k, d, s, q + k))
    p.holds(p.is_quotient(-x, -d, q))  # negative literal divisors
    p.holds(p.is_mod(-x, -d, -s, q))
    p.given(g > 0, g * x == g * d * q + g * s)
    p.given(z3.Implies(d > 0, z3.And(g * s >= 0, g * s < g * d)))
    p.given(z3.Implies(d < 0, z3.And(g * s <= 0, g * s > g * d)))
    p.holds(p.is_quotient(g * x, g * d, q))  # common factors
    p.holds(p.is_mod(g * x, g * d, g * s, q))
    p = Proof()
    x, d = p.ints("x d")
    q, s = p.divide(-x, d)
    p.holds(z3.Implies(d > 0, z3.And((-q - 1) * d < x, x <= -q * d)))  # CeilDiv is -(-x // d)


def prove_merge_digits(p):
    y, m, n = p.ints("y m n")
    p.given(m > 0, n > 0, m * n > 0)
    q, low = p.divide(y, m)
    top, high = p.divide(q, n)
    p.given(m * high <= m * (n - 1), m * high >= 0, m * (n - 1) == m * n - m)
    p.given(y == m * n * top + m * high + low)
    p.holds(p.is_mod(y, m * n, m * high + low, top))


def prove_subtract_multiple(p):
    x, d, f = p.ints("x d f")
    q, s = p.divide(x, d)
    p.given(f * x == f * (d * q + s))
    p.holds(f * x - f * (d * q) == f * s)


def prove_extreme_by_bounds(p):
    a, b = p.ints("a b")
    p.given(a <= b)
    p.holds(z3.And(z3.If(a < b, a, b) == a, z3.If(a > b, a, b) == b))


def prove_where_decided(p):
    a, b = p.ints("a b")
    p.holds(z3.And(z3.If(True, a, b) == a, z3.If(False, a, b) == b))


def prove_rounded_quotient(p):
    # a/b is not an integer and n is the next one above: n - a/b >= 1/b. Half the spacing of
    # doubles just below n is at most n * 2**-54, and n*b <= a + b <= 2**54: it never reaches n.
    a, b, n = p.ints("a b n")
    p.given(b > 0, b <= 2**53, a > 0, a <= 2**53)
    p.given(n * b > a, (n - 1) * b < a)
    p.given(n * b < a + b)
    p.holds(z3.And(n * b - a >= 1, n * b < 2**54))


def prove_relation_decided(p):
    a, b = p.ints("a b")
    p.holds((b - a >= 1) == (a < b))
    p.holds((a - b >= 0) == z3.Not(a < b))


def prove_relation_divide(p):
    g, x, y, r = p.ints("g x y r")
    p.given(g > 0, r >= 0, r < g)
    p.given(z3.Implies(x < y, g * x <= g * (y - 1)), z3.Implies(x >= y, g * x >= g * y))
    p.given(g * (y - 1) == g * y - g)
    p.holds((g * x + r < g * y) == (x < y))


@pytest.mark.parametrize("rule", sorted(ALL_RULES))
def test_proof(rule):
    globals()[f"prove_{rule}"](Proof())


def test_floor_of_a_rounded_quotient_at_the_edge():
    rounded = FloorToInt(IntTrueDiv(X, Y))
    f = Facts({X: (-(2**53), 2**53), Y: (1, 2**53)})
    assert rules.rounded_quotient(rounded, f) == parse("x//y")
    for a in (2**53, 2**53 - 1, 2**52 + 1, -(2**53), -(2**53) + 1):
        for b in (1, 2, 3, 7, 2**26 + 1, 2**52 - 1, 2**53 - 1):
            assert int((a / b) // 1) == a // b


def test_divisors_of_any_sign():
    """Rules without a sign condition, at every sign."""
    for text in (
        "x//d*d + x%d",
        "x - x//d*d",
        "x//(d*m)*m + x//d%m",
        "x//12*12 + x//4%3*4",
        "x//m//d",
        "x%(d*m)//d",
        "x//d//m%d",
        "(x + y%(d*m)*m)//d%m",
    ):
        e, simple = parse(text), simplify(parse(text))
        names = sorted(s.name for s in e.free_symbols)
        for x in range(-30, 31, 7):
            for d in (-5, -2, -1, 1, 3):
                for m in (-4, -1, 2, 3):
                    env = {
                        k: v for k, v in {"x": x, "y": 3 - x, "d": d, "m": m}.items() if k in names
                    }
                    assert evaluate(e, env) == evaluate(simple, env), (text, env)
