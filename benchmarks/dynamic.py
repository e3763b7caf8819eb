"""One compilation for every batch, against one for each: linear + gelu in bf16, M dynamic.

    python benchmarks/dynamic.py                    # 4096 x 4096 and 768 -> 3072, beside the peer
    python benchmarks/dynamic.py --between          # and at sizes between the rungs
    python benchmarks/dynamic.py --no-inductor --json dynamic.json

For each M: our compilation with M dynamic, our compilation for that M alone, torch.compile of the
peer with dynamic=True, and eager. "gpu" is the median over calls with a cold L2 cache, the
candidates in turns, the host queued ahead; "wall" a call from an idle GPU until it is done.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import compile_cli
from compile_cli.cli.report import matmul_lines
from gemm_templates import device_info
from tuning import added_seconds

SIZES = (1, 16, 128, 1024, 8192)
BETWEEN = (3, 17, 40, 100, 200, 384, 700, 1500, 3000, 5000, 12000)
LAYERS = ((4096, 4096), (768, 3072))
HINT = 64


class Layer(nn.Module):
    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.linear = nn.Linear(k, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("dynamic.json"))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="of M")
    parser.add_argument("--between", action="store_true", help="sizes between the rungs, too")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--emit", default="fx", help="host program: fx, hop or cpp")
    options = parser.parse_args()
    sizes = [int(m) for m in options.sizes.split(",")]
    info = device_info("cuda")
    print(f"{info.name}, torch {torch.__version__}, host program {options.emit}")
    rows: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache, torch.no_grad():
        settings = {"emit": options.emit, "cache_dir": cache}
        for k, n in LAYERS:
            torch.manual_seed(0)
            layer = Layer(k, n).cuda().to(torch.bfloat16).eval()
            given = torch.randn(HINT, k, device="cuda", dtype=torch.bfloat16)
            layer(given)
            began = time.perf_counter()
            ours = compile_cli.compile(layer, (given,), dynamic={0: {0}}, options=settings)
            seconds = time.perf_counter() - began
            print(f"\n{k} -> {n}: compiled with M dynamic in {seconds:.1f} s")
            print("\n".join(matmul_lines(ours.graph)).replace("; ", "\n    "))
            layers.append(
                {"k": k, "n": n, "compile_s": seconds, "matmuls": matmul_lines(ours.graph)}
            )
            peer = None if options.no_inductor else inductor(layer)
            names = f"{'static':>9}{'peer':>9}{'eager':>9}"
            print(
                f"{'M':>6}  gpu us{'dynamic':>9}{names}{'ratio':>7}  wall us{'dynamic':>9}{names}"
            )
            for m in sorted((*sizes, *(BETWEEN if options.between else ()))):
                x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
                static = compile_cli.compile(layer, (x,), options=settings)
                calls = {"dynamic": ours, "static": static, "eager": layer}
                if peer is not None:
                    calls["peer"] = peer
                rows.append({"k": k, "n": n, "m": m, **compare(calls, layer, x)})
                rows[-1]["static_runs"] = matmul_lines(static.graph)
                show(rows[-1])
    worst = max(r["dynamic_gpu_us"] / r["static_gpu_us"] for r in rows)
    print(f"\ndynamic over static, at worst: {worst:.3f}")
    result = {"device": info.name, "torch": torch.__version__, "layers": layers, "rows": rows}
    options.json.write_text(json.dumps(result, indent=1))


def inductor(layer: nn.Module) -> Callable[[torch.Tensor], Any]:
    torch._dynamo.reset()
    return torch.compile(layer, dynamic=True)


def compare(calls: dict[str, Any], layer: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Microseconds of each on x, and how far each is from float64."""
    exact = layer.double()(x.double())
    layer.to(torch.bfloat16)
    out: dict[str, float] = {}
    for name, call in calls.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = call(x).double()
        out[f"{name}_error"] = float((got - exact).norm() / exact.norm())
        assert out[f"{name}_error"] < 1e-2, (name, x.shape, out)
    runs = [lambda call=call: call(x) for call in calls.values()]
    info = device_info("cuda")
    repeats = [added_seconds(runs, info.l2_bytes) for _ in range(5)]
    for name, times in zip(calls, zip(*repeats, strict=True), strict=True):
        out[f"{name}_gpu_us"] = median(times) * 1e6
    for name, run in zip(calls, runs, strict=True):
        out[f"{name}_wall_us"] = wall(run) * 1e6
    return out


def wall(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(60):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times)


def show(row: dict[str, Any]) -> None:
    def at(kind: str) -> str:
        found = (row.get(f"{name}_{kind}_us") for name in ("dynamic", "static", "peer", "eager"))
        return "".join(f"{t:>9.1f}" if t is not None else f"{'-':>9}" for t in found)

    ratio = row["dynamic_gpu_us"] / row["static_gpu_us"]
    print(f"{row['m']:>6}{'':>8}{at('gpu')}{ratio:>7.3f}{'':>9}{at('wall')}", flush=True)


if __name__ == "__main__":
    main()
