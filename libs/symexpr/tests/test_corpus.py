"""Real expressions: benchmarks/collect_corpus.py says where they come from."""

import random
import re
from pathlib import Path

import pytest

from symexpr import bounds, evaluate, parse, simplify, sstr, symbol, to_cpp, to_python, to_triton

CORPUS = Path(__file__).parent / "corpus.txt"


def operations(e):
    """The count of benchmarks/symexpr_speed.py."""
    own = 0
    if e.is_Add or e.is_Mul:
        own = len(e.args) - 1 - (e.is_Mul and e.args[0] == -1)
    elif e.is_Pow:
        own = int(e.exp) - 1
    elif e.args:
        own = {"ModularIndexing": 2, "Min": len(e.args) - 1, "Max": len(e.args) - 1}.get(
            type(e).__name__, 1
        )
    return own + sum(map(operations, e.args))


@pytest.fixture(scope="module")
def corpus():
    """(text, expression, ranges) of every line."""
    out = []
    for line in CORPUS.read_text().splitlines():
        if line.startswith("#"):
            continue
        text, _, limits = line.partition(" | ")
        ranges = {}
        for part in limits.split():
            name, _, ends = part.partition(":")
            ranges[symbol(name)] = tuple(parse(x) if x else None for x in ends.split(".."))
        out.append((text, parse(text), ranges))
    return out


def point(r, ranges):
    values = {}
    for s in sorted(ranges, key=lambda s: (not s.name.startswith("s"), s.name)):
        low, high = ranges[s]
        try:
            lo = 0 if low is None else evaluate(low, values)
            hi = lo + 30 if high is None else evaluate(high, values)
        except KeyError:
            return None
        if lo > hi:
            return None
        values[s.name] = r.choice([lo, hi, r.randint(lo, hi)])
    return values


def test_it_is_large_and_without_repetition(corpus):
    assert len(corpus) >= 2000
    assert len({e for _, e, _ in corpus}) == len(corpus)
    grids = sum(bool(re.fullmatch(r"\(.*\+ \d+\)//\d+", text)) for text, _, _ in corpus)
    assert len(corpus) - grids >= 2000
    assert CORPUS.stat().st_size < 500_000


def test_text_is_the_librarys_own(corpus):
    for text, e, _ in corpus:
        assert sstr(e) == text


@pytest.mark.parametrize("step", [8, pytest.param(2, marks=pytest.mark.slow)])
def test_simplify_keeps_values_and_never_adds_operations(corpus, step):
    r = random.Random(0)
    checked = 0
    for text, e, ranges in corpus[::step]:
        simple = simplify(e, ranges)
        assert simplify(simple, ranges) == simple, text
        assert operations(simple) <= operations(e), text
        low, high = bounds(e, ranges)
        for _ in range(3):
            values = point(r, ranges)
            if values is None:
                continue
            want = evaluate(e, values)
            assert evaluate(simple, values) == want, (text, values)
            assert (low is None or low <= want) and (high is None or want <= high), (text, values)
            checked += 1
    assert checked > 10000 // step


def test_every_target_prints_it(corpus):
    for text, e, ranges in corpus[1::4]:
        assert to_python(e) and to_cpp(e, ranges=ranges) and to_triton(e, 64, ranges), text
