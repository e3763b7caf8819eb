"""C++ and Triton text, compiled and run, against Python's value."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import sympy
from symexpr import (
    CPP_PRELUDE,
    TRITON_PRELUDE,
    CeilDiv,
    FloorDiv,
    IntTrueDiv,
    OverflowRisk,
    PowByNatural,
    Printer,
    RoundToInt,
    UnsupportedByTarget,
    bounds,
    evaluate,
    parse,
    symbol,
    to_cpp,
    to_python,
    to_triton,
)

A, B, N, I, S0 = map(symbol, ["a", "b", "n", "i", "s0"])
RANGES = {A: (-770, 1024), B: (-65, 7), N: (-12, 64)}
WIDE = {A: (-(2**31), 2**31 - 1), B: (0, 2**31 - 1), N: (1, 2**20)}


def run_cpp(tmp_path, texts, points, ctype="int64_t", flags=()):
    cases = "\n".join(f'  std::printf("%lld\\n", (long long)({t}));' for t in texts)
    calls = "\n".join(f"  f({p['a']}, {p['b']}, {p['n']});" for p in points)
    source = f"{CPP_PRELUDE}\n#include <cstdio>\nvoid f({ctype} a, {ctype} b, {ctype} n) {{\n{cases}\n}}\nint main() {{\n{calls}\n}}\n"
    (tmp_path / "t.cpp").write_text(source)
    command = ["g++", "-std=c++17", "-O0", "-Wall", "-Wno-unused", "-Wno-parentheses", *flags, "t.cpp", "-o", "t"]
    subprocess.run(command, cwd=tmp_path, check=True)
    out = subprocess.run(["./t"], cwd=tmp_path, check=True, capture_output=True, text=True)
    return list(map(int, out.stdout.split()))


needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def fits(e, p, bits):
    low, high = bounds(e, {symbol(k): (v, v) for k, v in p.items()})
    return -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1)


@needs_gxx
@pytest.mark.parametrize("ranges", [None, RANGES], ids=["signs-unknown", "ranges"])
def test_cpp_has_pythons_value(tmp_path, expressions, points, ranges):
    es = expressions(150, seed=1)
    got = run_cpp(tmp_path, [to_cpp(e, ranges=ranges) for e in es], points)
    assert got == [evaluate(e, p) for p in points for e in es]


@needs_gxx
def test_cpp_int32_widens_where_needed(tmp_path, expressions):
    points = [{"a": a, "b": b, "n": n} for a in (-(2**31), -7, 2**31 - 1)
              for b in (0, 2**31 - 1) for n in (1, 2**20)]  # fmt: skip
    es, texts = [], []
    for e in expressions(400, seed=2, bits=False):
        try:
            texts.append(to_cpp(e, "int32_t", WIDE))
        except OverflowRisk:
            continue
        es.append(e)
    assert len(es) > 100
    flags = ("-fsanitize=signed-integer-overflow", "-fno-sanitize-recover")
    got = run_cpp(tmp_path, texts, points, "int32_t", flags)
    assert got == [evaluate(e, p) for p in points for e in es]


def test_python_grids():
    assert to_python(CeilDiv(S0 * 32, 128)) == "(s0*32 + 127)//128"
    assert to_python(CeilDiv(S0, N)) == "-(-s0//n)"


@pytest.mark.parametrize(
    ("text", "cpp"),
    [
        ("a//n", "symexpr::floor_div(a, n)"),
        ("i//4*4", "i/4*4"),
        ("i%4", "i%4"),
        ("i//4%8", "i/4%8"),
        ("i*5000000000", "i*5000000000LL"),
        ("a - 9223372036854775807", "a - 9223372036854775807LL"),
        ("1/(s0 + 20)", "static_cast<double>(1)/(s0 + 20)"),
        ("s0**-2", "static_cast<double>(1)/(s0*s0)"),
        ("Min(a, b, 3)", "std::min<int64_t>(std::min<int64_t>(3, a), b)"),
        ("Where(a < b and i >= 2, a, b)", "((a < b && i >= 2) ? a : b)"),
        ("a & 7", "(a & 7)"),
        ("a**3", "a*a*a"),
    ],
)
def test_cpp_text(text, cpp):
    assert to_cpp(parse(text), ranges={I: (0, 1000), S0: (0, 1000)}) == cpp


@pytest.mark.parametrize(
    ("text", "ranges", "triton"),
    [
        ("i*768 + a", None, "i*768 + a"),
        ("i//4%8", {I: (0, 100)}, "i//4%8"),
        ("a//4", {A: (-3, 100)}, "floor_div(a, 4)"),
        ("i*65536", {I: (0, 2**20)}, "tl.cast(i, tl.int64)*65536"),
        ("i*65536", {I: (0, 2**10)}, "i*65536"),
        ("i*1024 + a", {I: (0, 2**21 - 1), A: (0, 1023)}, "i*1024 + a"),
        ("i*1024 + a", {I: (0, 2**21 - 1), A: (0, 1024)}, "tl.cast(i*1024, tl.int64) + a"),
        ("i*768", {}, "tl.cast(i, tl.int64)*768"),
        ("Where(a < b, a, b)", None, "tl.where(a < b, a, b)"),
        ("not (a < b and b < n)", None, "((a >= b) | (b >= n))"),
        ("Max(a, b)", None, "tl.maximum(a, b)"),
    ],
)
def test_triton_text(text, ranges, triton):
    assert to_triton(parse(text), ranges=ranges) == triton


def test_what_no_target_can_do_is_refused_by_name():
    with pytest.raises(OverflowRisk, match="beyond 64 bits"):
        to_triton(parse("a*b*n"), ranges={s: (0, 2**31 - 1) for s in (A, B, N)})
    with pytest.raises(OverflowRisk):
        to_cpp(sympy.Integer(2**64) + A)
    with pytest.raises(UnsupportedByTarget, match="RoundToInt"):
        to_triton(RoundToInt(IntTrueDiv(A, B)))
    with pytest.raises(UnsupportedByTarget):
        to_triton(PowByNatural(A, N))
    with pytest.raises(UnsupportedByTarget):
        to_cpp(A, "int8_t")


class RustPrinter(Printer):
    """Rust in a few lines: i64 variables, Euclidean division for literal divisors."""

    target = "Rust"

    def visit_FloorDiv(self, e):
        x, d = map(self.visit, e.args)
        return self.call(f"{self.above(x, 12)}.div_euclid", d)

    def visit_Mod(self, e):
        x, d = map(self.visit, e.args)
        return self.call(f"{self.above(x, 12)}.rem_euclid", d)

    def visit_ModularIndexing(self, e):
        x, d, m = map(self.visit, e.args)
        return self.call(f"{self.above(x, 12)}.div_euclid({d.text}).rem_euclid", m)

    def visit_Min(self, e):
        first, *rest = map(self.visit, e.args)
        for t in rest:
            first = self.call(f"{self.above(first, 12)}.min", t)
        return first


def test_a_new_language_is_a_subclass():
    rust = RustPrinter()
    assert rust.print(FloorDiv(A + B, 4) * 32 + S0) == "(a + b).div_euclid(4)*32 + s0"
    assert rust.print(parse("Min(a, b//2)%8")) == "a.min(b.div_euclid(2)).rem_euclid(8)"


KERNEL = """
import numpy as np, torch, triton, triton.language as tl, pathlib, sys

{prelude}

{kernels}

POINTS = {points}
COLUMNS = [torch.tensor([p[k] for p in POINTS], dtype=torch.{dtype}) for k in "abn"]
for kernel in [{names}]:
    out = torch.zeros(len(POINTS), dtype=torch.int64)
    kernel[(1,)](*COLUMNS, out, len(POINTS), triton.next_power_of_2(len(POINTS)))
    print(*out.tolist())
"""
ONE = """
@triton.jit
def k{i}(pa, pb, pn, out, count, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    ok = o < count
    a = tl.load(pa + o, mask=ok, other=1)
    b = tl.load(pb + o, mask=ok, other=1)
    n = tl.load(pn + o, mask=ok, other=1)
    tl.store(out + o, {text}, mask=ok)
"""


def run_triton(tmp_path, texts, points, dtype):
    kernels = "\n".join(ONE.format(i=i, text=t) for i, t in enumerate(texts))
    names = ", ".join(f"k{i}" for i in range(len(texts)))
    path = tmp_path / "kernels.py"
    path.write_text(
        KERNEL.format(prelude=TRITON_PRELUDE, kernels=kernels, points=points, names=names, dtype=dtype)
    )
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    out = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning:kernels", str(path)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.returncode == 0, textwrap.shorten(out.stderr[-3000:], 3000)
    return [list(map(int, line.split())) for line in out.stdout.splitlines()]


def test_triton_has_pythons_value_in_the_interpreter(tmp_path, expressions, points):
    pytest.importorskip("triton")
    es = expressions(60, seed=3)
    texts = [to_triton(e, ranges=None if i % 2 else RANGES) for i, e in enumerate(es)]
    got = run_triton(tmp_path, texts, points, "int32")
    assert got == [[evaluate(e, p) for p in points] for e in es]


def test_triton_widens_in_the_interpreter(tmp_path, expressions):
    pytest.importorskip("triton")
    points = [{"a": a, "b": b, "n": n} for a in (-(2**31), -7, 2**31 - 1)
              for b in (0, 2**31 - 1) for n in (1, 2**20)]  # fmt: skip
    es, texts = [], []
    for e in expressions(150, seed=4, bits=False):
        try:
            texts.append(to_triton(e, 32, WIDE))
        except OverflowRisk:
            continue
        es.append(e)
    got = run_triton(tmp_path, texts, points, "int32")
    assert got == [[evaluate(e, p) for p in points] for e in es]
