import itertools
import random

import pytest
import sympy

from symexpr import (
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    CeilDiv,
    FloorDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    Where,
    symbol,
)

_NAMES = ("a", "b", "n")
_DIVISORS = [1, 2, 3, 4, 8, 12, 64, 768, -1, -3, -4]


def _random_expression(r: random.Random, depth: int, bits: bool) -> sympy.Expr:
    if depth == 0 or r.random() < 0.1:
        return r.choice([*map(symbol, _NAMES), sympy.Integer(r.randint(-9, 40))])
    x, y = (_random_expression(r, depth - 1, bits) for _ in range(2))
    d = r.choice([sympy.Integer(r.choice(_DIVISORS)), symbol("n")])
    kind = r.randrange(13 if bits else 10)
    if kind < 2:
        return x + y
    if kind == 2:
        return x * r.choice([2, 3, -1, 64, 768, symbol("a")])
    if kind == 3:
        return x - y
    if kind == 4:
        return FloorDiv(x, d)
    if kind == 5:
        return Mod(x, d)
    if kind == 6:
        return ModularIndexing(x, d, r.choice(_DIVISORS))
    if kind == 7:
        return CeilDiv(x, d)
    if kind == 8:
        return r.choice([Min, Max])(x, y)
    if kind == 9:
        a, b, n = map(symbol, _NAMES)
        return Where(sympy.And(x < y, sympy.Or(a <= b, sympy.Ne(n, 3))), x, y)
    return [BitwiseAnd, BitwiseOr, BitwiseXor][kind - 10](x, y)


@pytest.fixture(scope="session")
def expressions():
    """`expressions(count, seed)`: random expressions over a, b and a non-zero n."""

    def make(count: int, seed: int, depth: int = 3, bits: bool = True) -> list[sympy.Expr]:
        r = random.Random(seed)
        out = [_random_expression(r, depth, bits) for _ in range(count * 2)]
        return list(dict.fromkeys(e for e in out if e.free_symbols))[:count]

    return make


@pytest.fixture(scope="session")
def points():
    """Values of a, b and n with every combination of signs."""
    return [
        {"a": a, "b": b, "n": n}
        for a, b, n in itertools.product(
            [-770, -13, -1, 0, 5, 41, 1024], [-65, 0, 7], [-12, -1, 3, 64]
        )
    ]
