"""Numbers and texts beyond the stated limits are refused by name, at once."""

from __future__ import annotations

import random
import time

import pytest
import sympy

from symexpr import (
    LShift,
    ParseError,
    PowByNatural,
    RShift,
    SymexprError,
    TooLarge,
    bounds,
    evaluate,
    parse,
    sstr,
    symbol,
)
from symexpr.limits import MAX_BITS, MAX_DEPTH

a, b = symbol("a"), symbol("b")

HUGE = [
    "1 << 99999999999", "9**9**9", "a >> 9999999999", "a << 9999999999", "9**9**9**9 + a",
    "2**-99999999999", "(1/2)**99999999999", "(3*a)**9999999", "(a + 1)**9999999", "a**9999999999",
    "PowByNatural(9, 999999999)", "LShift(1, 99999999999)", "RShift(a, 99999999999)",
    "1" * 1300, "0x" + "f" * 4000, "*".join(["9" * 1000] * 5), "+".join(["a*" + "9" * 1234] * 3),
    "FloorToInt(1e999)", "FloorToInt(1e300**9)", "ToFloat(10**400)", "IntTrueDiv(10**400, 1)",
    "FloatTrueDiv(10**400, 3)", "a // 9**9**9", "Min(a, 7**7**7**7)", "(2**4000)**9000",
]  # fmt: skip
WRONG = [
    "9" * 4301, "(" * 100_000, "-" * 100_000 + "1", "(" * 100_000 + "a" + ")" * 100_000,
    "not " * 5000 + "a < 1", "a+" * 90_000 + "a", "a//" * 5000 + "a", "Min(" * 40_000,
    "[" * 50_000, "a if a < 1 else " * 3000 + "a", "\0", "a\0b", "9" * 2_000_000, "a" * 2_000_000,
    "FloorToInt(" * 150 + "a" + ")" * 150, "\ud800", "a\n+ b", "0" * 90_000 + "9",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "error"), [(t, TooLarge) for t in HUGE] + [(t, ParseError) for t in WRONG],
    ids=lambda x: x[:20].encode("unicode_escape").decode() if isinstance(x, str) else None,
)  # fmt: skip
def test_text_is_refused_at_once(text, error):
    start = time.process_time()
    with pytest.raises(error) as caught:
        parse(text)
    assert time.process_time() - start < 20
    assert len(str(caught.value)) < 1000


def test_constructors_and_values():
    for make in (
        lambda: LShift(a, sympy.Integer(10**11)), lambda: RShift(a, sympy.Integer(10**11)),
        lambda: PowByNatural(sympy.Integer(3), sympy.Integer(10**11)),
        lambda: PowByNatural(a, sympy.Integer(10**11)),
        lambda: evaluate(LShift(a, b), {a: 1, b: 10**11}),
        lambda: evaluate(PowByNatural(a, b), {a: 7, b: 10**11}),
        lambda: evaluate(a**b, {a: -7, b: 10**11}),
        lambda: evaluate(PowByNatural(PowByNatural(a, b), b), {a: 2, b: 2000}),
        lambda: evaluate(parse("IntTrueDiv(a, b)"), {a: 10**400, b: 1}),
        lambda: evaluate(parse("ToFloat(a)"), {a: 10**400}),
    ):  # fmt: skip
        with pytest.raises(TooLarge):
            make()
    assert evaluate(RShift(a, b), {a: -5, b: 10**11}) == -1
    assert evaluate(PowByNatural(a, b), {a: -1, b: 10**11}) == 1
    assert parse(f"1 << {MAX_BITS - 1}") == 2 ** (MAX_BITS - 1)


def test_bounds_of_what_is_not_computed():
    """They are open upwards, and hold downwards."""
    nested = PowByNatural(PowByNatural(PowByNatural(a, b), b), b)
    low, high = bounds(nested, {a: (2, 3), b: (4000, 4096)})
    assert 1 <= low <= 2**MAX_BITS and high is None
    assert 1 <= bounds(a**1000, {a: (2**10, 2**11)})[0] <= 2**10_000
    assert bounds(parse("a**1001"), {a: (-(2**10), 3)})[0] is None
    low, high = bounds(parse("a**1001"), {a: (-(2**12), -(2**11))})
    assert low is None and -(2 ** (11 * 1001)) <= high < 0


def test_the_depth_that_is_read_is_handled():
    text = "(" * (MAX_DEPTH - 2) + "a" + "//b)" * (MAX_DEPTH - 2)
    e = parse(text)
    assert parse(sstr(e)) == e
    assert isinstance(evaluate(e, {a: 10**9, b: 3}), int)
    assert bounds(e, {a: (0, 100), b: (1, 9)})[0] == 0


WORDS = """a b 0 1 9 99999 1e9 .5 1e999 ( ) ( ) + - * / // % ** << >> & | ^ ~ < <= == != , not
    and or if else Min( Max( Where( FloorDiv( Mod( CeilDiv( ModularIndexing( PowByNatural( True
    IntTrueDiv( ToFloat( FloorToInt( RoundToInt( [ ] { } ' \\ . : = := lambda # é None"""


def test_names_of_digits_sort():
    for name in ("s" + "9" * 5000, "s٣x"):
        e = symbol("a2") * symbol("a10") + symbol("a2") * sympy.Symbol(name, integer=True)
        assert parse(sstr(e)) == e


TOKENS = [*WORDS.split(), "\n", "\x0c", '"']


@pytest.mark.parametrize("seed", range(8))
def test_random_text(seed):
    """An expression, or an error of the library; never another, never a hang."""
    rng = random.Random(seed)
    good = ["a*32 + b//4", "Min(3, a, b)*2", "(a - 1)%b", "a if a < b else b", "a//64%12 << 3"]
    for _ in range(150):
        if rng.random() < 0.5:
            text = " ".join(rng.choices(TOKENS, k=rng.randrange(1, 12)))
        else:
            chars = list(rng.choice(good))
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(chars))
                chars[at : at + rng.randrange(2)] = rng.choice(TOKENS)
            text = "".join(chars)
        start = time.process_time()
        try:
            e = parse(text)
            assert parse(sstr(e)) == e
        except SymexprError:
            pass
        assert time.process_time() - start < 20, text
