"""Parts one by one: text, errors, evaluation, floors, loops, contexts, torch's names."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import sympy

import symexpr
from symexpr import (
    ArrayDomain,
    BadRange,
    CeilDiv,
    CeilToInt,
    DivisionByZero,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    MissingValue,
    Mod,
    ModularIndexing,
    NonInteger,
    ParseError,
    RoundToInt,
    ToFloat,
    TruncToInt,
    UnknownFunction,
    bounds,
    evaluate,
    from_torch,
    known,
    parse,
    replace_floor,
    simplify,
    sstr,
    symbol,
    to_torch,
)

A, B, C, D, IX, J, X, S0, S1 = map(symbol, ["a", "b", "c", "d", "i", "j", "x", "s0", "s1"])


# -- text


@pytest.mark.parametrize(
    "text",
    [
        "b*(c + d) + a", "(a + b)*(c + d)", "-a", "a - b", "a/b/c", "1/a**2", "a**2", "a**(b + 1)",
        "s0*32 + i0//4", "-(a//b)", "a//b*c*3", "c - a//b*3", "-(a//b*3)", "a//b//c", "a//(b//c)",
        "a%b*(a//c)", "(a + b)%(c + 1)", "1/(s0 + 20)", "-a//b", "a//(b*c)", "2**a", "(-2)**a",
        "a*3/2", "a/2", "3/2", "1 - a", "CeilDiv(a, b)", "i0//768%12", "Min(3, a, b)",
        "Where(a < b, a, b)", "a < b and (a > 3 or b > c)", "not (a < b and c < d)", "a == b",
        "a != 3", "a <= 3", "(a << b) + 1", "(a & b) + (a | c)", "a ^ b & c", "IntTrueDiv(a, b)*2",
        "i0*768 + i1*64 + i2 + i10", "s0*x0*32 + x0*7 + 1", "True", "a*0.5", "a**(1/2)",
        "ToFloat(a)", "-5", "0", "i2//64*64 + i2%64", "a*b + c*d", "-a - b",
    ],
)  # fmt: skip
def test_text_is_stable(text):
    assert sstr(parse(text)) == text
    assert parse(sstr(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("a + foo(b)", 4, "unknown function `foo`"),
        ("a +", 3, "invalid syntax"),
        ("", 0, "invalid syntax"),
        ("  a + 'x'", 6, "no number"),
        ("a if b else c", 5, "condition is due"),
        ("a + (b < c)", 5, "number is due"),
        ("FloorDiv(a)", 0, "2 arguments|takes exactly"),
        ("~a", 0, "no meaning"),
        ("a[0]", 0, "Subscript"),
    ],
)
def test_parse_errors_show_the_position(text, position, reason):
    with pytest.raises(ParseError, match=reason) as err:
        parse(text)
    assert err.value.position == position


def test_errors_are_named():
    with pytest.raises(DivisionByZero):
        FloorDiv(A, 0)
    with pytest.raises(DivisionByZero):
        evaluate(Mod(A, B), {"a": 1, "b": 0})
    for text in ("1 / a", "1.5 / a", "FloatTrueDiv(1.5, a)", "FloatTrueDiv(1.5, ToFloat(a))"):
        with pytest.raises(DivisionByZero):
            evaluate(parse(text), {"a": 0})
    with pytest.raises(DivisionByZero, match="range"):
        symexpr.check_divisors(FloorDiv(A, B) + 1 / S0, {B: (1, None)})
    symexpr.check_divisors(FloorDiv(A, B) + 1 / S0, {B: (1, None), S0: (None, -1)})
    with pytest.raises(NonInteger, match=r"symexpr\.symbol"):
        Mod(sympy.Symbol("y"), 2)
    with pytest.raises(NonInteger):
        Mod(sympy.Rational(1, 2), 2)
    with pytest.raises(UnknownFunction, match="sin"):
        sstr(sympy.sin(A))
    with pytest.raises(UnknownFunction, match="sin"):
        bounds(sympy.sin(A), {})
    with pytest.raises(UnknownFunction, match="sin"):
        from_torch(sympy.sin(A))
    with pytest.raises(MissingValue, match="`b`"):
        evaluate(A + B, {"a": 1})
    with pytest.raises(MissingValue, match="`b`"):
        symexpr.to_function((A, B), ["a"])
    with pytest.raises(BadRange, match="empty"):
        simplify(A, {A: (3, 2)})
    with pytest.raises(BadRange, match="itself"):
        bounds(A, {A: (0, B), B: (0, A)})


def test_import_needs_no_torch_and_costs_little():
    """A twentieth of what sympy costs was measured."""
    code = (
        "import sys; from time import thread_time; start = thread_time(); "
        "import sympy; between = thread_time(); import symexpr; end = thread_time(); "
        "assert not {'torch', 'numpy'} & {*sys.modules}; print((end - between) / (between - start))"
    )

    def part():
        return float(subprocess.run([sys.executable, "-c", code], **text, check=True).stdout)

    text = {"capture_output": True, "text": True}
    assert any(part() < 0.09 for _ in range(10))


# -- evaluation


def test_evaluate_computes_common_subexpressions_once():
    calls = []

    class Counting(symexpr.Domain):
        def floordiv(self, a, b):
            calls.append((a, b))
            return a // b

    e = parse("a//3*b + Min(a//3, 7)")
    assert evaluate(e, {A: -4, B: 5}, Counting()) == -12
    assert calls == [(-4, 3)]


def test_evaluate_over_arrays():
    np = pytest.importorskip("numpy")
    e = parse("Where(a < 3, a//4%3, Max(a, b) - CeilDiv(a, 3))")
    a = np.arange(-20, 20)
    want = [evaluate(e, {"a": int(v), "b": 7}) for v in a]
    assert evaluate(e, {"a": a, "b": 7}, ArrayDomain(np)).tolist() == want


def test_float_functions_follow_python():
    third = IntTrueDiv(A, 3)
    for a in (-7, -3, 0, 4, 2**60 + 1):
        env = {"a": a}
        assert evaluate(FloorToInt(third), env) == (a / 3) // 1
        assert evaluate(RoundToInt(IntTrueDiv(A, 2)), env) == round(a / 2)
        assert evaluate(TruncToInt(third), env) == int(a / 3)
        assert evaluate(CeilToInt(third), env) == -((-a / 3) // 1)
    assert ToFloat(sympy.Integer(3)) == sympy.Float(3.0)
    assert third.is_real and FloorToInt(third).is_integer
    assert int(FloorDiv(X, 3).evalf(subs={X: 7})) == 2


def test_signs_reach_sympy():
    p = sympy.Symbol("p", integer=True, positive=True)
    assert Mod(A, p).is_nonnegative and FloorDiv(p, p + 1).is_nonnegative
    assert Max(A, p).is_positive and Min(p, p + A * A + 1).is_integer
    assert Mod(A, B).is_nonnegative is None


# -- floors


@pytest.mark.parametrize(
    ("e", "want"),
    [
        (sympy.floor(X / 3), "x//3"),
        (sympy.floor((X + 1) / 3), "(x + 1)//3"),
        (sympy.floor(X * sympy.Rational(2, 3) + sympy.Rational(1, 6)), "(x*4 + 1)//6"),
        (sympy.floor(X / S0), "x//s0"),
        (sympy.floor(-X / S0), "-x//s0"),
        (sympy.floor(X / S0 + A / S1), "(s0*a + s1*x)//(s0*s1)"),
        (sympy.floor(sympy.floor(X / 3) / S0), "x//3//s0"),
        (sympy.ceiling(X / 128), "(x + 127)//128"),
        (sympy.floor((X + 1) / (2 * (S0 + 1))), "(x + 1)//(s0*2 + 2)"),
        (2 * sympy.floor((S0 - 1) / 2) + 1, "(s0 - 1)//2*2 + 1"),
        (sympy.floor(sympy.together(X / 3 + A / 2)), "(x*2 + a*3)//6"),
        (sympy.floor(-(X + 1) / 3), "(-x - 1)//3"),
        (sympy.floor(X), "x"),
    ],
)
def test_replace_floor(e, want):
    got = replace_floor(e)
    assert got == parse(want), sstr(got)
    assert not got.has(sympy.floor, sympy.ceiling)
    for x in (-7, 0, 11):
        point = {X: x, S0: 3, S1: 4, A: 5}
        assert evaluate(got, point) == e.subs(point)


# -- bounds


@pytest.mark.parametrize(
    ("text", "ranges", "want"),
    [
        ("i*768 + j", {IX: (0, 31), J: (0, 767)}, (0, 24575)),
        ("(i*768 + j)//4", {IX: (0, 31), J: (0, 767)}, (0, 6143)),
        ("-i//3", {IX: (-7, 8)}, (-3, 2)),
        ("i*4%6", {IX: (0, 31)}, (0, 4)),
        ("i*4%6 + 1", {IX: (0, 31)}, (1, 5)),
        ("i%8", {IX: (16, 20)}, (0, 4)),
        ("s0 - j", {J: (0, S0 - 1), S0: (1, None)}, (1, None)),
        ("s0*i + j - s0*32", {IX: (0, 31), J: (0, S0 - 1), S0: (1, None)}, (None, -1)),
        ("a//b", {A: (10, 20), B: (-2, 3)}, (-20, 20)),
        ("a", {}, (None, None)),
        ("Min(a, 4)", {}, (None, 4)),
        ("2**a", {A: (0, 5)}, (1, 32)),
        ("IntTrueDiv(a, 2)", {A: (0, 5)}, (0, 3)),
    ],
)
def test_bounds(text, ranges, want):
    assert bounds(parse(text), ranges) == want


def test_affine_bounds_are_exact():
    for low in (-3, 0, 2):
        for d in (1, 3, 4, -5):
            e = parse(f"(i*4 - j*3 + 2)//{d}")
            values = [evaluate(e, {IX: i, J: j}) for i in range(low, low + 4) for j in range(3)]
            found = bounds(e, {IX: (low, low + 3), J: (0, 2)})
            assert found == (min(values), max(values))


# -- torch


def test_from_and_to_torch():
    t = pytest.importorskip("torch.utils._sympy.functions")
    x = sympy.Symbol("x", integer=True, positive=True)
    y = sympy.Symbol("y", integer=True, nonnegative=True)
    e = (
        t.FloorDiv(x, 4) + t.PythonMod(x, 3) + t.Mod(y, 5) + t.ModularIndexing(x, 4, 8)
        + t.Max(x, y) + t.Min(x, y, 9) + t.CleanDiv(x * y, y + 1) + t.CeilDiv(x, y + 1)
        + t.Where(x < y, x, y) + t.LShift(x, y) + t.FloorToInt(t.IntTrueDiv(x, y + 1))
        + t.PowByNatural(y, x) + t.Identity(x)
    )  # fmt: skip
    ours = from_torch(e)
    assert ours.free_symbols == {symbol("x"), symbol("y")}
    assert not any(type(f).__module__.startswith("torch") for f in ours.atoms(sympy.Function))
    for vx, vy in [(1, 0), (7, 3), (40, 9)]:
        assert evaluate(ours, {"x": vx, "y": vy}) == from_torch(e.subs({x: vx, y: vy}))
    assert parse(sstr(ours)) == ours
    assert from_torch(to_torch(ours, t)) == ours
    assert from_torch(3) == 3 and from_torch(sympy.floor(x / 3)) == FloorDiv(symbol("x"), 3)
    assert from_torch(sympy.Max(x, y)) == Max(symbol("x"), symbol("y"))


def test_from_torch_takes_relations_and_symints():
    t = pytest.importorskip("torch.utils._sympy.functions")
    s = sympy.Symbol("s0", integer=True, positive=True)

    class Node:
        expr = t.FloorDiv(s, 2)

    class SymInt:
        node = Node()

    assert from_torch(SymInt()) == FloorDiv(S0, 2)
    numbers = pytest.importorskip("torch.utils._sympy.numbers")
    with pytest.raises(UnknownFunction, match="IntInfinity"):
        from_torch(numbers.int_oo)
    assert from_torch(sympy.Eq(t.Mod(s, 8), 0)) == sympy.Eq(Mod(S0, 8), 0)


# -- documents, speed


def test_readme_example_runs():
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    code = readme.split("```python\n", 1)[1].split("```", 1)[0]
    exec(compile(code, "README.md", "exec"), {})


def test_readme_lists_every_rule():
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    tables = [*symexpr.rules.RULES.values(), symexpr.rules.RELATION_RULES]
    assert all(f"`{r.__name__}`" in readme for table in tables for r in table)


def test_simplify_is_quick(microseconds):
    """117 microseconds were measured."""
    e = parse("(i*768 + j)//64%12*2048 + (i*768 + j)%64")
    numbers = itertools.count()
    spent = microseconds(lambda: simplify(e, {IX: (0, 31 + next(numbers)), J: (0, 767)}), 180)
    assert spent < 180


def test_known_relations_between_symbols():
    ranges = {J: (0, S0 - 1), S0: (1, None), IX: (0, 31)}
    assert known(J < S0, ranges) is True
    assert known(S0 * IX + J < 32 * S0, ranges) is True
    assert known(S0 * IX + J < 31 * S0, ranges) is None
    assert known(CeilDiv(S0, 8) * 8 >= S0, ranges) is True
    assert known(FloorDiv(S0, 8) * 8 <= S0, ranges) is True
    assert known(ModularIndexing(J, 3, 5) < 5, {}) is True
    halved = {J: (0, 2 * S0 - 1), S0: (1, None)}  # at most S0 - 1/2, and whole
    assert known(FloorDiv(J, 2) < S0, halved) is True
    assert known(FloorDiv(J + 1, 2) < S0, halved) is None
