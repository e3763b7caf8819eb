"""Our matmul templates against cuBLAS (and Inductor): one table, and a JSON file.

    python benchmarks/gemm.py                    # the MLP shapes of an encoder, squares
    python benchmarks/gemm.py --inductor         # and torch.compile(mode="max-autotune")
    python benchmarks/gemm.py --all --only mlp   # every legal config, to judge the cost model
    python benchmarks/gemm.py --json gemm.json

Every time is the median over calls that start with a cold L2 cache, the candidates in turns.
"eager" is the vendor's matmul followed by the epilogue as kernels of its own.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from gemm_templates import Inputs, Problem, Store, bind, candidates, choose, device_info
from gemm_templates.choice import measure
from gemm_templates.epilogues import GELU_NARROW, RELU, residual_of
from triton_rt import CompilePool

ALIGNED = frozenset({"a", "b", "bias", "out"})


@dataclass(frozen=True)
class Case:
    name: str
    problem: Problem
    inputs: Callable[[], Inputs]
    eager: Callable[[Inputs], torch.Tensor]


def linear_case(name: str, m: int, n: int, k: int, end: str) -> Case:
    """`x[m, k] @ w[n, k].T + bias` in bf16, with an epilogue."""
    residual = residual_of("bf16", 2, stride=(n, 1)) if end == "residual" else None
    epilogue = {"gelu": GELU_NARROW, "relu": RELU, "residual": residual}.get(end)
    problem = Problem(
        m, n, k, b_stride=(1, k), bias=None if end == "plain" else "bf16", epilogue=epilogue,
        aligned=ALIGNED,
    )  # fmt: skip

    def inputs() -> Inputs:
        torch.manual_seed(0)
        make = {"dtype": torch.bfloat16, "device": "cuda"}
        x = torch.randn(m, k, **make)
        w = torch.randn(n, k, **make) / k**0.5
        bias = None if end == "plain" else torch.randn(n, **make)
        extra = torch.randn(m, n, **make)
        operands = (extra,) if end == "residual" else ()
        return Inputs(x, w.t(), torch.empty(m, n, **make), bias, operands)

    def eager(t: Inputs) -> torch.Tensor:
        out = F.linear(t.a, t.b.t(), t.bias)
        if end == "residual":
            return out + t.operands[0]
        return {"gelu": F.gelu, "relu": F.relu}.get(end, lambda x: x)(out)

    return Case(name, problem, inputs, eager)


def cases() -> list[Case]:
    found = []
    for end in ("plain", "bias", "gelu", "relu"):
        found.append(linear_case(f"mlp up {end}", 16384, 3072, 768, end))
    for end in ("plain", "bias", "residual"):
        found.append(linear_case(f"mlp down {end}", 16384, 768, 3072, end))
    found.append(linear_case("qkv bias", 16384, 2304, 768, "bias"))
    found.append(linear_case("proj residual", 16384, 768, 768, "residual"))
    for size in (1024, 2048, 4096, 8192):
        found.append(linear_case(f"square {size}", size, size, size, "plain"))
    found.append(linear_case("odd 1000 gelu", 1000, 1000, 1000, "gelu"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("gemm.json"))
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--all", action="store_true", help="measure every legal config")
    parser.add_argument("--inductor", action="store_true")
    options = parser.parse_args()
    info = device_info("cuda")
    print(f"{info.name}, torch {torch.__version__}, cuda {torch.version.cuda}")
    head = f"{'case':<18}{'ours us':>9}{'eager us':>10}{'speedup':>9}{'TFLOP/s':>9}"
    print(f"{head}{'inductor us':>13}{'choose s':>10}  best template")
    rows = []
    pool = CompilePool(os.cpu_count() or 1)
    build = functools.partial(bind, pool=pool)
    for case in cases():
        if options.only not in case.name:
            continue
        found = candidates(case.problem, info, limit=1000) if options.all else None
        given = case.inputs()
        case.eager(given)  # the vendor's library starts up
        torch.cuda.synchronize()
        began = time.perf_counter()
        choice = choose(
            case.problem, given, case.eager, found, store=Store(), build=build, force=True
        )
        seconds = time.perf_counter() - began
        times = dict(choice.times)
        eager = times.pop("extern")
        best = min(times, key=lambda label: times[label]) if times else None
        inductor = None
        if options.inductor:
            torch._dynamo.reset()  # cases share code: each would count as a recompilation
            compiled = torch.compile(case.eager, mode="max-autotune-no-cudagraphs")
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled(given)
                inductor = measure([lambda f=compiled, g=given: f(g)], info)[0]
        ours = times[best] if best else float("nan")
        rows.append(
            {
                "case": case.name,
                "problem": str(case.problem),
                "ours_us": ours * 1e6,
                "eager_us": eager * 1e6,
                "inductor_us": inductor and inductor * 1e6,
                "best": best,
                "chosen": str(choice.config) if choice.config else "extern",
                "times_us": {label: t * 1e6 for label, t in times.items()},
                "choose_s": seconds,
                "predicted_us": {c.label: c.predicted * 1e6 for c in choice.candidates},
                "failures": dict(choice.failures),
            }
        )
        shown = f"{inductor * 1e6:.1f}" if inductor else "-"
        print(
            f"{case.name:<18}{ours * 1e6:>9.1f}{eager * 1e6:>10.1f}{eager / ours:>8.2f}x"
            f"{case.problem.flops / ours / 1e12:>9.0f}{shown:>13}{seconds:>10.2f}  {best}",
            flush=True,
        )
        if options.all:
            print(choice.explain(), flush=True)
        for label, why in choice.failures:
            print(f"  {label} failed: {why}")
    pool.close()
    result = {"device": info.name, "torch": torch.__version__, "rows": rows}
    options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
