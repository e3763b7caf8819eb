"""C++ and Triton text, compiled and run, against Python's value."""

import importlib.util
import shutil
import subprocess

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
    evaluate,
    parse,
    symbol,
    to_cpp,
    to_python,
    to_triton,
)

A, B, N, IX, S0 = map(symbol, ["a", "b", "n", "i", "s0"])
RANGES = {A: (-770, 1024), B: (-65, 7), N: (-12, 64)}
WIDE = {A: (-(2**31), 2**31 - 1), B: (0, 2**31 - 1), N: (1, 2**20)}

EXTREMES = [
    {"a": a, "b": b, "n": n}
    for a in (-(2**31), -7, 2**31 - 1)
    for b in (0, 2**31 - 1)
    for n in (1, 2**20)
]


def run_cpp(tmp_path, texts, points, ctype="int64_t", flags=()):
    cases = "\n".join(f'  std::printf("%lld\\n", (long long)({t}));' for t in texts)
    calls = "\n".join(f"  f({p['a']}, {p['b']}, {p['n']});" for p in points)
    body = f"void f({ctype} a, {ctype} b, {ctype} n) {{\n{cases}\n}}\nint main() {{\n{calls}\n}}\n"
    source = f"{CPP_PRELUDE}\n#include <cstdio>\n{body}"
    (tmp_path / "t.cpp").write_text(source)
    command = ["g++", "-std=c++17", "-O0", "-Wall", "-Wno-unused", *flags, "t.cpp", "-o", "t"]
    subprocess.run(command, cwd=tmp_path, check=True)
    out = subprocess.run(["./t"], cwd=tmp_path, check=True, capture_output=True, text=True)
    return list(map(int, out.stdout.split()))


needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@needs_gxx
@pytest.mark.parametrize("ranges", [None, RANGES], ids=["signs-unknown", "ranges"])
def test_cpp_has_pythons_value(tmp_path, expressions, points, ranges):
    es = expressions(150, seed=1)
    got = run_cpp(tmp_path, [to_cpp(e, ranges=ranges) for e in es], points)
    assert got == [evaluate(e, p) for p in points for e in es]


@needs_gxx
def test_cpp_int32_widens_where_needed(tmp_path, expressions):
    es, texts = [], []
    for e in expressions(200, seed=2, bits=False):
        try:
            texts.append(to_cpp(e, "int32_t", WIDE))
        except OverflowRisk:
            continue
        es.append(e)
    assert len(es) > 50
    flags = ("-fsanitize=signed-integer-overflow", "-fno-sanitize-recover")
    got = run_cpp(tmp_path, texts, EXTREMES, "int32_t", flags)
    assert got == [evaluate(e, p) for p in EXTREMES for e in es]


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
    assert to_cpp(parse(text), ranges={IX: (0, 1000), S0: (0, 1000)}) == cpp


@pytest.mark.parametrize(
    ("text", "ranges", "triton"),
    [
        ("i*768 + a", None, "i*768 + a"),
        ("i//4%8", {IX: (0, 100)}, "i//4%8"),
        ("a//4", {A: (-3, 100)}, "floor_div(a, 4)"),
        ("(-3*a - 5)//7", {A: (0, 100)}, "-((a*3 + 11)//7)"),
        ("i*65536", {IX: (0, 2**20)}, "tl.cast(i, tl.int64)*65536"),
        ("i*65536", {IX: (0, 2**10)}, "i*65536"),
        ("i*1024 + a", {IX: (0, 2**21 - 1), A: (0, 1023)}, "i*1024 + a"),
        ("i*1024 + a", {IX: (0, 2**21 - 1), A: (0, 1024)}, "tl.cast(i*1024, tl.int64) + a"),
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
        to_triton(parse("a*b*n"), ranges=dict.fromkeys((A, B, N), (0, 2**31 - 1)))
    fits = to_triton(parse("a*b*n"), ranges=dict.fromkeys((A, B, N), (0, 2**31 - 1)), fits=64)
    assert fits == "tl.cast(a, tl.int64)*b*n"
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


MODULE = """
import triton, triton.language as tl

{prelude}

{kernels}
"""
KERNEL = """
@triton.jit
def k{i}(pa, pb, pn, out, count, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    ok = o < count
    a = tl.load(pa + o, mask=ok, other=1)
    b = tl.load(pb + o, mask=ok, other=1)
    n = tl.load(pn + o, mask=ok, other=1)
    tl.store(out + o, {text}, mask=ok)
"""


def load(path, text):
    """Triton reads the source of a kernel from its module's file."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_triton_has_pythons_value_in_the_interpreter(tmp_path, monkeypatch, expressions, points):
    """Both signs-unknown and ranges; then values at the ends of int32, which need widening."""
    triton, torch = pytest.importorskip("triton"), pytest.importorskip("torch")
    cases = [
        (e, to_triton(e, ranges=RANGES if k % 2 else None), points)
        for k, e in enumerate(expressions(20, seed=3))
    ]
    for e in expressions(40, seed=4, bits=False):
        try:
            cases.append((e, to_triton(e, 32, WIDE), EXTREMES))
        except OverflowRisk:
            continue
    assert len(cases) > 40
    kernels = "\n".join(KERNEL.format(i=i, text=t) for i, (_, t, _) in enumerate(cases))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    module = load(tmp_path / "kernels.py", MODULE.format(prelude=TRITON_PRELUDE, kernels=kernels))
    for i, (e, _, ps) in enumerate(cases):
        columns = [torch.tensor([p[k] for p in ps], dtype=torch.int32) for k in "abn"]
        out = torch.zeros(len(ps), dtype=torch.int64)
        kernel = getattr(module, f"k{i}")
        kernel[(1,)](*columns, out, len(ps), triton.next_power_of_2(len(ps)))
        assert out.tolist() == [evaluate(e, p) for p in ps], e


def test_triton_text_compiles_for_sm90(tmp_path, expressions):
    """Through the real compiler: all in one kernel, no GPU needed."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    texts = [
        to_triton(e, ranges=RANGES if k % 2 else None) for k, e in enumerate(expressions(20, 5))
    ]
    stores = "\n".join(f"    tl.store(out + {i}, {t})" for i, t in enumerate(texts))
    module = load(
        tmp_path / "compiled_kernels.py",
        f"import triton\nimport triton.language as tl\n\n\n{TRITON_PRELUDE}\n\n"
        f"@triton.jit\ndef k(a, b, n, out):\n{stores}\n",
    )
    signature = {"a": "i32", "b": "i32", "n": "i32", "out": "*i64"}
    source = ASTSource(fn=module.k, signature=signature)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert binary.asm["ptx"].count("st.global") >= len(texts)
