"""Batched matmuls, and matmuls of operands that are computed: compiled against eager, in bf16.

    python benchmarks/fused_matmuls.py                      # all cases
    python benchmarks/fused_matmuls.py --only int8 --explain
    python benchmarks/fused_matmuls.py --seconds 60 --json fused.json

"ours" is what the compiler chooses, "vendor" the same program with the vendor's matmuls (option
`gemm="extern"`). GPU microseconds: medians with a cold L2 cache, in turns, the host queued ahead.
"error" is the largest difference from eager, relative to its largest value.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import compile_cli
from compile_cli.cli.measure import relative_error
from compile_cli.cli.report import matmul_lines
from gemm_templates import device_info
from tuning import added_seconds


def bf16(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def int8(*size: int) -> torch.Tensor:
    return torch.randint(-127, 128, size, device="cuda", dtype=torch.int8)


def weights(m: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (bf16(m, 4096), int8(4096, 4096), bf16(4096) * 0.01)


def int8_linear(x: Any, q: Any, s: Any) -> Any:
    return F.linear(x, q.to(x.dtype) * s[:, None])


def scores(q: Any, k: Any, bias: Any) -> Any:
    return torch.matmul(q, k.mT) * 0.125 + bias


def gelu(a: Any, b: Any) -> Any:
    return F.gelu(torch.bmm(a, b))


def sums(c: Any, a: Any, b: Any) -> Any:
    return torch.baddbmm(c, a, b, alpha=0.125)


def gated(x: Any, g: Any, w: Any) -> Any:
    return (x * g) @ w


def swiglu(g: Any, u: Any, w: Any) -> Any:
    return F.linear(F.silu(g) * u, w)


Case = tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]
CASES: dict[str, Case] = {
    **{f"int8 linear, M={m}, 4096 -> 4096": (int8_linear, weights(m)) for m in (1, 16, 64, 1024)},
    "64 x [1024, 64] @ [64, 1024] * scale + bias": (
        scores,
        lambda: (bf16(64, 1024, 64), bf16(64, 1024, 64), bf16(1024, 1024)),
    ),
    "16 x [2048, 512] @ [512, 2048], gelu": (
        gelu,
        lambda: (bf16(16, 2048, 512), bf16(16, 512, 2048)),
    ),
    "4 x 16 heads of [1024, 64] * scale + mask for each of 4": (
        scores,
        lambda: (bf16(4, 16, 1024, 64), bf16(4, 16, 1024, 64), bf16(4, 1, 1024, 1024)),
    ),
    "baddbmm, 64 x [1024, 64] @ [64, 1024], a row for each": (
        sums,
        lambda: (bf16(64, 1, 1024), bf16(64, 1024, 64), bf16(64, 64, 1024)),
    ),
    "(x * gate) @ w, 1024 x 4096 x 4096": (
        gated,
        lambda: (bf16(1024, 4096), bf16(1024, 4096), bf16(4096, 4096)),
    ),
    "linear(silu(g) * u), 4096 x 4096 x 4096": (
        swiglu,
        lambda: (bf16(4096, 4096), bf16(4096, 4096), bf16(4096, 4096)),
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("fused_matmuls.json"))
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after that")
    parser.add_argument("--explain", action="store_true", help="every candidate's time")
    options = parser.parse_args()
    info = device_info("cuda")
    print(f"{info.name}, torch {torch.__version__}")
    print(f"{'case':<58}{'eager':>9}{'vendor':>9}{'ours':>9}{'error':>10}{'compile':>9}")
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    for name, (fn, make) in CASES.items():
        if options.only in name and time.monotonic() - started < options.seconds:
            rows.append(row := run(name, fn, make))
            print(
                f"{name:<58}{row['eager']:>9.1f}{row['vendor']:>9.1f}{row['ours']:>9.1f}"
                f"{row['error']:>10.1e}{row['compile_s']:>8.1f}s  {'; '.join(row['runs'])}",
                flush=True,
            )
            if options.explain:
                print("\n".join(row["choices"].values()), flush=True)
            options.json.write_text(json.dumps({"device": info.name, "rows": rows}, indent=1))


def run(
    name: str, fn: Callable[..., Any], make: Callable[[], tuple[torch.Tensor, ...]]
) -> dict[str, Any]:
    torch.manual_seed(0)
    args = make()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        start = time.monotonic()
        ours = compile_cli.compile(fn, args, options={"cache_dir": folder})
        seconds = time.monotonic() - start
        vendor = compile_cli.compile(fn, args, options={"cache_dir": folder, "gemm": "extern"})
        error = relative_error(ours(*args), fn(*args))
        runs = [lambda: fn(*args), lambda: vendor(*args), lambda: ours(*args)]
        times = [1e6 * t for t in added_seconds(runs, device_info("cuda").l2_bytes)]
    return {
        "case": name, "eager": times[0], "vendor": times[1], "ours": times[2], "error": error,
        "compile_s": seconds, "runs": matmul_lines(ours.graph),
        "choices": {k: choice.explain() for k, choice in ours.graph.matmuls.items()},
    }  # fmt: skip


if __name__ == "__main__":
    main()
