"""Random expressions and inputs: Python, C++ and Triton text against sympy's own value.

    python libs/symexpr/benchmarks/agreement.py [--expressions 2000] [--points 50] [--json FILE]
        [--device cpu|cuda]

Three quarters of the expressions are random, over all functions, with inputs and divisors of both
signs; one quarter are of the corpus, with inputs within their ranges. A value is worked out node by
node with sympy's numbers, floor, ceiling, Mod, Min and Max. C++ is compiled in batches of 500.
Triton runs in its interpreter, or on a GPU (--device cuda). Half of the texts are printed with
ranges (and 32-bit Triton integers), half without (64 bits).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import sympy

from symexpr import (
    CPP_PRELUDE,
    TRITON_PRELUDE,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    CeilDiv,
    FloorDiv,
    LShift,
    Max,
    Min,
    Mod,
    ModularIndexing,
    OverflowRisk,
    PowByNatural,
    RShift,
    Where,
    evaluate,
    parse,
    simplify,
    symbol,
    to_cpp,
    to_function,
    to_triton,
)

CORPUS = Path(__file__).parent.parent / "tests" / "corpus.txt"
SLOTS = 8  # inputs of one expression, at most
BATCH = 500  # expressions of one C++ program
GROUP = 25  # expressions of one Triton kernel
DIVISORS = (1, 2, 3, 4, 8, 12, 64, 768, -1, -3, -4)
NAMES = [f"v{k}" for k in range(SLOTS)]
V = [symbol(name) for name in NAMES]


class Case(NamedTuple):
    """An expression over v0, v1, ...; the ranges of those; rows of their values."""

    expr: Any
    ranges: dict[sympy.Symbol, tuple[Any, Any]]
    inputs: list[list[int]]


def random_expression(r: random.Random, depth: int) -> Any:
    """v0, v1: any sign; v2: not zero."""
    if depth == 0 or r.random() < 0.1:
        return r.choice([*V[:3], sympy.Integer(r.randint(-9, 40))])
    x, y = random_expression(r, depth - 1), random_expression(r, depth - 1)
    d: Any = r.choice([sympy.Integer(r.choice(DIVISORS)), V[2]])
    small = Mod(y, 5)
    makers: list[Callable[[], Any]] = [
        lambda: x + y, lambda: x + y, lambda: x - y,
        lambda: x * r.choice([2, 3, -1, 64, 768, V[0]]),
        lambda: FloorDiv(x, d), lambda: Mod(x, d), lambda: CeilDiv(x, d),
        lambda: ModularIndexing(x, d, r.choice(DIVISORS)),
        lambda: Min(x, y), lambda: Max(x, y, 7),
        lambda: Where(sympy.And(x < y, sympy.Or(V[0] <= V[1], sympy.Ne(V[2], 3))), x, y),
        lambda: Where(sympy.Not(sympy.And(x >= 0, sympy.Eq(y, V[1]))), y, x),
        lambda: BitwiseAnd(x, y), lambda: BitwiseOr(x, y), lambda: BitwiseXor(x, y),
        lambda: LShift(x, small), lambda: RShift(x, small),
        lambda: PowByNatural(x, r.randint(0, 2)),
    ]  # fmt: skip
    return r.choice(makers)()


def random_cases(r: random.Random, count: int, points: int) -> list[Case]:
    out: dict[Any, Case] = {}
    while len(out) < count:
        e = random_expression(r, 3)
        n = (1, 64) if r.random() < 0.5 else (-12, -1)
        ranges: dict[Any, Any] = {V[0]: (-770, 1024), V[1]: (-65, 7), V[2]: n}
        if not e.free_symbols or e in out:
            continue
        try:
            to_cpp(e, ranges=ranges)
        except OverflowRisk:
            continue
        ends = [ranges[v] for v in V[:3]]
        rows = [
            [r.choice([lo, hi, 0, r.randint(lo, hi)]) for lo, hi in ends] for _ in range(points)
        ]
        for row in rows:  # zero only where it is in the range
            row[2] = row[2] or n[0]
        out[e] = Case(e, ranges, rows)
    return list(out.values())


def corpus_cases(r: random.Random, count: int, points: int) -> list[Case]:
    lines = [x for x in CORPUS.read_text().splitlines() if not x.startswith("#")]
    r.shuffle(lines)
    out: list[Case] = []
    for line in lines:
        if len(out) == count:
            break
        text, _, limits = line.partition(" | ")
        names = [part.partition(":")[0] for part in limits.split()]
        if len(names) > SLOTS:
            continue
        new = {symbol(n): V[k] for k, n in enumerate(names)}
        ranges = {}
        for part in limits.split():
            name, _, ends = part.partition(":")
            low, _, high = ends.partition("..")
            ranges[new[symbol(name)]] = tuple(
                parse(x).xreplace(new) if x else None for x in (low, high)
            )
        rows = [corpus_row(r, ranges) for _ in range(points)]
        out.append(Case(parse(text).xreplace(new), ranges, rows))
    return out


def corpus_row(r: random.Random, ranges: dict[Any, Any]) -> list[int]:
    """A value of each symbol within its ends, which may refer to the others."""
    values: dict[str, int] = {}

    def value(s: Any) -> int:
        if s.name not in values:
            low, high = ranges[s]
            for end in (low, high):
                for t in end.free_symbols if end is not None else ():
                    value(t)
            lo = 0 if low is None else int(evaluate(low, values))
            hi = lo + 40 if high is None else max(lo, int(evaluate(high, values)))
            values[s.name] = r.choice([lo, hi, r.randint(lo, hi)])
        return values[s.name]

    return [value(s) for s in ranges]


_SYMPY: dict[str, Callable[..., Any]] = {
    "FloorDiv": lambda a, b: sympy.floor(sympy.Rational(a, b)),
    "CeilDiv": lambda a, b: sympy.ceiling(sympy.Rational(a, b)),
    "Mod": sympy.Mod,
    "ModularIndexing": lambda x, d, m: sympy.Mod(sympy.floor(sympy.Rational(x, d)), m),
    "Min": sympy.Min, "Max": sympy.Max,
    "Where": lambda c, a, b: sympy.Piecewise((a, c), (b, True)),
    "LShift": lambda a, n: a * 2**n, "RShift": lambda a, n: sympy.floor(a / 2**n),
    "BitwiseAnd": lambda *a: _fold(int.__and__, a), "BitwiseOr": lambda *a: _fold(int.__or__, a),
    "BitwiseXor": lambda *a: _fold(int.__xor__, a), "PowByNatural": sympy.Pow,
}  # fmt: skip


def _fold(op: Callable[[int, int], int], args: Any) -> Any:
    first, *rest = map(int, args)
    for a in rest:
        first = op(first, a)
    return sympy.Integer(first)


def sympy_value(e: Any, env: dict[Any, Any]) -> Any:
    """By sympy's own numbers and functions, from the leaves up."""
    if e.is_Symbol:
        return env[e]
    if not e.args:
        return e
    args = [sympy_value(a, env) for a in e.args]
    return _SYMPY.get(type(e).__name__, e.func)(*args)


def expected(cases: list[Case]) -> list[list[int]]:
    return [
        [int(sympy_value(c.expr, dict(zip(V, map(sympy.Integer, row), strict=False))))
         for row in c.inputs]
        for c in cases
    ]  # fmt: skip


def python_values(cases: list[Case]) -> list[list[int]]:
    out = []
    for c in cases:
        f = to_function(c.expr, NAMES[: len(c.ranges)])
        out.append([int(f(*row)) for row in c.inputs])
    return out


def simplified_values(cases: list[Case]) -> list[list[int]]:
    """The same text after `simplify` under the ranges."""
    return python_values([c._replace(expr=simplify(c.expr, c.ranges)) for c in cases])


def cpp_values(cases: list[Case], folder: Path) -> list[list[int]]:
    out: list[list[int]] = []
    for start in range(0, len(cases), BATCH):
        batch = cases[start : start + BATCH]
        functions, calls = [], []
        for i, c in enumerate(batch):
            text = to_cpp(c.expr, ranges=None if (start + i) % 2 else c.ranges)
            names = ", ".join(f"int64_t {n}" for n in NAMES[: len(c.ranges)])
            functions.append(f"static int64_t f{i}({names}) {{ return {text}; }}")
            for row in c.inputs:
                arguments = ", ".join(f"{x}LL" for x in row)
                calls.append(f'  std::printf("%lld\\n", (long long)f{i}({arguments}));')
        source = "\n".join([CPP_PRELUDE, "#include <cstdio>", *functions, "int main() {",
                            *calls, "}", ""])  # fmt: skip
        (folder / "t.cpp").write_text(source)
        command = ["g++", "-std=c++17", "-O0", "-w", "t.cpp", "-o", "t"]
        subprocess.run(command, cwd=folder, check=True)
        done = subprocess.run(["./t"], cwd=folder, check=True, capture_output=True, text=True)
        values = iter(map(int, done.stdout.split()))
        out += [[next(values) for _ in c.inputs] for c in batch]
    return out


def triton_module(cases: list[Case]) -> str:
    """Kernels of GROUP expressions: inputs [expression, slot, point] to [expression, point]."""
    parts = ["import triton", "import triton.language as tl", "", "", TRITON_PRELUDE]
    for start in range(0, len(cases), GROUP):
        head = f"def k{start // GROUP}(p, out, COUNT, BLOCK: tl.constexpr):"
        lines = ["", "", "@triton.jit", head]
        lines += ["    o = tl.arange(0, BLOCK)", "    ok = o < COUNT"]
        for i, c in enumerate(cases[start : start + GROUP]):
            checked = (start + i) % 2 == 0
            try:
                text = to_triton(c.expr, 32, c.ranges) if checked else to_triton(c.expr, 64)
                bits = 32 if checked else 64
            except OverflowRisk:  # an index of more than 32 bits in between
                text, bits = to_triton(c.expr, 64, c.ranges), 64
            for k in range(len(c.ranges)):
                load = f"tl.load(p + {i * SLOTS + k} * COUNT + o, mask=ok, other=1)"
                lines.append(f"    v{k} = {load}.to(tl.int{bits})")
            lines.append(f"    tl.store(out + {i} * COUNT + o, {text}, mask=ok)")
        parts += lines
    return "\n".join([*parts, ""])


def triton_values(cases: list[Case], folder: Path, device: str) -> list[list[int]]:
    import triton

    (folder / "kernels.py").write_text(triton_module(cases))
    spec = importlib.util.spec_from_file_location("kernels", folder / "kernels.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = device == "cpu"
        spec.loader.exec_module(module)
        return run_kernels(module, cases, device)


def run_kernels(module: Any, cases: list[Case], device: str) -> list[list[int]]:
    import torch

    points = len(cases[0].inputs)
    block = 1 << (points - 1).bit_length()
    out: list[list[int]] = []
    for start in range(0, len(cases), GROUP):
        group = cases[start : start + GROUP]
        table = torch.ones(len(group), SLOTS, points, dtype=torch.int64)
        for i, case in enumerate(group):
            values = torch.tensor(case.inputs, dtype=torch.int64)
            table[i, : values.shape[1]] = values.T
        result = torch.zeros(len(group), points, dtype=torch.int64, device=device)
        getattr(module, f"k{start // GROUP}")[(1,)](table.to(device), result, points, block)
        out += result.tolist()
    return out


def compare(
    expressions: int, points: int, seed: int = 0, device: str = "cpu",
    targets: tuple[str, ...] = ("python", "simplified", "cpp", "triton"),
) -> dict[str, Any]:  # fmt: skip
    """Figures, and every disagreement: (target, expression, input, value, expected value)."""
    r = random.Random(seed)
    real = expressions // 4
    cases = random_cases(r, expressions - real, points) + corpus_cases(r, real, points)
    start = time.perf_counter()
    want = expected(cases)
    seconds = {"sympy": time.perf_counter() - start}
    wrong: list[Any] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs: dict[str, Callable[[], list[list[int]]]] = {
            "python": lambda: python_values(cases), "simplified": lambda: simplified_values(cases),
            "cpp": lambda: cpp_values(cases, folder),
            "triton": lambda: triton_values(cases, folder, device),
        }  # fmt: skip
        for target in targets:
            if target == "cpp" and shutil.which("g++") is None:
                continue
            start = time.perf_counter()
            got = runs[target]()
            seconds[target] = time.perf_counter() - start
            for c, g, w in zip(cases, got, want, strict=True):
                for row, x, y in zip(c.inputs, g, w, strict=True):
                    if x != y:
                        wrong.append((target, str(c.expr), row, x, y))
    pairs = sum(len(c.inputs) for c in cases)
    return {"pairs": pairs, "expressions": len(cases), "seconds": seconds, "wrong": wrong,
            "device": device}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expressions", type=int, default=2000)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = compare(options.expressions, options.points, options.seed, options.device)
    targets = [t for t in result["seconds"] if t != "sympy"]
    print(f"{result['pairs']} pairs of {result['expressions']} expressions; "
          f"{', '.join(targets)} against sympy: {len(result['wrong'])} disagreements")  # fmt: skip
    for entry in result["wrong"][:20]:
        print("  ", *entry)
    print("seconds:", {k: round(v, 1) for k, v in result["seconds"].items()})
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["wrong"]))


if __name__ == "__main__":
    main()
