"""Speed on the corpus of real expressions, beside torch's functions and sympy's printers.

    python benchmarks/symexpr_speed.py [--json FILE] [--rounds 5] [--no-peer]

Work: parse the text, simplify under the ranges, print in four languages. The peer does the same
with `torch.utils._sympy.functions`, `sympy.sympify` (how torch reads expressions back), the
simplification of Inductor's `sizevars` and torch's own printers; it gets the same expressions, on
symbols that are known to be non-negative, as torch makes them. Every round is a fresh process that
has imported what it needs and computed nothing: caches are cold at the first expression, and
warm up over the corpus as they do over a model. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent.parent / "libs" / "symexpr" / "tests" / "corpus.txt"
STAGES = ("parse", "simplify", "text", "python", "cpp", "triton")
SIZES = (125, 250, 500, 1000, 2000)


def lines() -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """(expression, symbol -> (low, high) as text, "" where open)."""
    for line in CORPUS.read_text().splitlines():
        if not line.startswith("#"):
            text, _, limits = line.partition(" | ")
            ranges = {}
            for part in limits.split():
                name, _, ends = part.partition(":")
                low, _, high = ends.partition("..")
                ranges[name] = (low, high)
            yield text, ranges


def ops(e: Any) -> int:
    """Operations: n - 1 for a sum or product of n, a sign 0, 1 for a function (ModularIndexing
    2, and n - 1 for a Min of n)."""
    own = 0
    if e.is_Add:
        own = len(e.args) - 1
    elif e.is_Mul:
        own = len(e.args) - 1 - (e.args[0] == -1)
    elif e.is_Pow:
        own = int(e.exp) - 1 if e.exp.is_Integer and e.exp > 0 else 1
    elif e.args:
        name = type(e).__name__
        own = 2 if name == "ModularIndexing" and e.args[1] != 1 else 1
        own = len(e.args) - 1 if name in ("Min", "Max", "And", "Or") else own
    return own + sum(map(ops, e.args))


def timed(seconds: dict[str, float], stage: str, work: Callable[..., Any], *args: Any) -> Any:
    start = time.perf_counter()
    out = work(*args)
    seconds[stage] += time.perf_counter() - start
    return out


def ours() -> dict[str, Any]:
    from symexpr import (
        OverflowRisk,
        bounds,
        parse,
        simplify,
        sstr,
        symbol,
        to_cpp,
        to_python,
        to_triton,
    )

    def triton(e: Any, ranges: Any) -> str:
        """As the emitter does: 32 bits where the ranges show that they are enough."""
        low, high = bounds(e, ranges)
        if low is not None and high is not None and low > -(2**31) and high < 2**31:
            try:
                return to_triton(e, 32, ranges)
            except OverflowRisk:
                pass
        return to_triton(e, 64, ranges)

    work = [
        (text, {symbol(k): tuple(parse(x) if x else None for x in v) for k, v in limits.items()})
        for text, limits in lines()
    ]
    _clear()
    seconds, counts = dict.fromkeys(STAGES, 0.0), []
    for text, ranges in work:
        e = timed(seconds, "parse", parse, text)
        e = timed(seconds, "simplify", simplify, e, ranges)
        timed(seconds, "text", sstr, e)
        timed(seconds, "python", to_python, e)
        timed(seconds, "cpp", lambda e, r: to_cpp(e, ranges=r), e, ranges)
        timed(seconds, "triton", triton, e, ranges)
        counts.append(ops(e))
    return {"seconds": seconds, "ops": counts}


def peer() -> dict[str, Any]:
    import sympy
    import torch.utils._sympy.functions as functions
    from torch._inductor.codegen.cpp_utils import CppPrinter
    from torch._inductor.codegen.triton import TritonPrinter
    from torch._inductor.sizevars import SizeVarAllocator
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.printers import PythonPrinter
    from torch.utils._sympy.value_ranges import ValueRanges

    from symexpr import parse, to_torch

    def symbols(names: Any) -> dict[str, Any]:
        return {n: sympy.Symbol(n, integer=True, nonnegative=True) for n in names}

    def translate(text: str, local: dict[str, Any]) -> Any:
        e = to_torch(parse(text), functions)
        return e.xreplace({s: local[s.name] for s in e.free_symbols})

    names = ("FloorDiv", "ModularIndexing", "PythonMod", "Mod", "Min", "Max", "Where")
    namespace = {n: getattr(functions, n) for n in names}
    work, env = [], {}
    for text, limits in lines():
        local = symbols(limits)
        loops, sizes = {}, {}
        for name, (low, high) in limits.items():
            if name.startswith("s"):
                upper = int(high) if high else sympy.oo
                sizes[local[name]] = ValueRanges(int(low), upper)
            elif high:
                loops[local[name]] = translate(high, local) + 1
        work.append((sympy.sstr(translate(text, local)), local, loops, sizes))
    # one allocator per set of sizes, as per graph; made before the clock starts
    for _, _, _, sizes in work:
        key = tuple(sorted((s.name, r.lower, r.upper) for s, r in sizes.items()))
        if key not in env:
            shapes = ShapeEnv()
            shapes.var_to_range.update(sizes)
            env[key] = SizeVarAllocator(shapes)
    _clear()
    python, cpp, triton = PythonPrinter(), CppPrinter(), TritonPrinter()
    seconds, counts = dict.fromkeys(STAGES, 0.0), []
    for text, local, loops, sizes in work:
        allocator = env[tuple(sorted((s.name, r.lower, r.upper) for s, r in sizes.items()))]
        e = timed(seconds, "parse", sympy.sympify, text, {**namespace, **local})
        e = timed(seconds, "simplify", allocator.simplify_with_ranges, e, loops)
        timed(seconds, "text", sympy.sstr, e)
        timed(seconds, "python", python.doprint, e)
        timed(seconds, "cpp", cpp.doprint, e)
        timed(seconds, "triton", triton.doprint, e)
        counts.append(ops(e))
    return {"seconds": seconds, "ops": counts}


def _clear() -> None:
    """What preparing the work left in caches."""
    from sympy.core.cache import clear_cache

    from symexpr.facts import _facts

    clear_cache()
    _facts.cache_clear()


def growth() -> dict[str, list[float]]:
    """Seconds for sums of 125 to 2,000 terms: parse, simplify and print, caches cold."""
    import gc

    from symexpr import parse, simplify, sstr, symbol, to_cpp, to_python, to_triton

    shapes: dict[str, Callable[[int], str]] = {
        "x1*1 + x2*2 + ...": lambda n: " + ".join(f"x{k}*{k + 1}" for k in range(n)),
        "(x1 + 1)//8 + (x2 + 2)//8 + ...": lambda n: " + ".join(
            f"(x{k} + {k + 1})//{8 + k % 5}" for k in range(n)
        ),
        "x1//8*8 + x1%8 + ...": lambda n: " + ".join(f"x{k}//8*8 + x{k}%8" for k in range(n // 2)),
        "(x1*8 + x2*16 + ... + j)//8": lambda n: (
            "(" + " + ".join(f"x{k}*{8 * (k + 1)}" for k in range(n)) + " + j)//8"
        ),
        "s0*x1 + s0*x2%7 + ...": lambda n: " + ".join(
            f"s0*x{k}" if k % 2 else f"s0*x{k}%7" for k in range(n)
        ),
        "Min(x1, x2, ...)": lambda n: f"Min({', '.join(f'x{k}' for k in range(n))})",
    }
    out: dict[str, list[float]] = {}
    for name, make in shapes.items():
        out[name] = []
        for n in SIZES:
            text = make(n)
            ranges = {symbol(f"x{k}"): (0, 1000 + k) for k in range(n)}
            ranges |= {symbol("j"): (0, 7), symbol("s0"): (1, 4096)}
            best = math.inf
            for _ in range(3 if n <= 500 else 1):
                _clear()
                gc.collect()
                start = time.perf_counter()
                e = simplify(parse(text), ranges)
                sstr(e)
                to_python(e)
                to_cpp(e, ranges=ranges)
                to_triton(e, 32, ranges)
                best = min(best, time.perf_counter() - start)
            out[name].append(best)
    return out


def exponent(seconds: list[float]) -> float:
    """Slope of log(time) over log(size), least squares: 1 is linear."""
    x, y = [math.log(n) for n in SIZES], [math.log(s) for s in seconds]
    return statistics.linear_regression(x, y).slope


def imports(rounds: int) -> dict[str, float]:
    """Seconds to import sympy, and symexpr, in fresh processes."""
    out = {}
    for module in ("sympy", "symexpr"):
        code = (
            f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        )
        runs = [float(_run([sys.executable, "-c", code])) for _ in range(rounds + 1)]
        out[module] = statistics.median(runs[1:])
    return out


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure(worker: str, rounds: int) -> dict[str, Any]:
    """Medians over fresh processes."""
    runs = [json.loads(_run([sys.executable, __file__, "--worker", worker])) for _ in range(rounds)]
    seconds = {s: statistics.median(r["seconds"][s] for r in runs) for s in STAGES}
    total = statistics.median(sum(r["seconds"].values()) for r in runs)
    return {"seconds": seconds, "total": total, "ops": runs[0]["ops"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--worker", choices=["ours", "peer", "growth"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps({"ours": ours, "peer": peer, "growth": growth}[options.worker]()))
        return

    count = sum(1 for _ in lines())
    mine = measure("ours", options.rounds)
    result: dict[str, Any] = {"expressions": count, "rounds": options.rounds, "symexpr": mine}
    print(f"{count} expressions, microseconds each, medians of {options.rounds} fresh processes")
    theirs = None
    if not options.no_peer:
        theirs = result["torch"] = measure("peer", options.rounds)
    print(f"{'':10}{'symexpr':>10}" + (f"{'torch':>10}{'ratio':>8}" if theirs else ""))
    for stage in (*STAGES, "total"):
        a = mine["total"] if stage == "total" else mine["seconds"][stage]
        row = f"{stage:10}{a / count * 1e6:10.1f}"
        if theirs:
            b = theirs["total"] if stage == "total" else theirs["seconds"][stage]
            row += f"{b / count * 1e6:10.1f}{b / a:8.1f}"
        print(row)
    if theirs:
        pairs = list(zip(mine["ops"], theirs["ops"], strict=True))
        result["less_simple"] = [
            text for (text, _), (a, b) in zip(lines(), pairs, strict=True) if a > b
        ]
        print(
            f"operations after simplification: {sum(a for a, _ in pairs)} and "
            f"{sum(b for _, b in pairs)}; fewer in {sum(a < b for a, b in pairs)}, "
            f"more in {len(result['less_simple'])}"
        )
        for text in result["less_simple"][:20]:
            print("  more:", text)
    result["growth"] = json.loads(_run([sys.executable, __file__, "--worker", "growth"]))
    print(
        f"milliseconds for sums of {', '.join(map(str, SIZES))} terms, and the exponent of growth"
    )
    for name, seconds in result["growth"].items():
        row = "".join(f"{s * 1e3:9.1f}" for s in seconds)
        print(f"  {name:34}{row}   {exponent(seconds):.2f}")
    result["imports"] = imports(options.rounds)
    extra = result["imports"]["symexpr"] - result["imports"]["sympy"]
    print(f"import: sympy {result['imports']['sympy']:.3f} s, symexpr {extra * 1e3:.0f} ms more")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
