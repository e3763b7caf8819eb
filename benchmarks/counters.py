"""Skinny linears, compiled with and without templates that count in zeroed memory, in bf16.

    python benchmarks/counters.py --json counters.json
    python benchmarks/counters.py --only M=1 --explain

"eager" is torch's, "without" our program where no template may count, "ours" what is chosen,
"fills" how often a call zeroes memory. GPU microseconds that a call adds to a busy stream: medians
with a cold L2 cache, in turns. "fill" is what zeroing 4 KB takes by the same clock.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

import compile_cli
from compile_cli.cli.measure import relative_error
from compile_cli.cli.report import matmul_lines
from gemm_templates import device_info
from planner.matmul.counters import Account
from tuning import added_seconds
from wrapper_ir import ExternCall
from wrapper_ir.analysis import walk


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, hidden) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(hidden, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.gelu(up(x)))
        return x


class Heads(nn.Module):
    def __init__(self, long: int, *columns: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(long, n) for n in columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([head(x) for head in self.heads], 1)


CASES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    **{
        f"M={m}, 2 x (4096 -> 14336 -> 4096)": (lambda: Mlp(4096, 14336, 2), m, 4096)
        for m in (1, 8, 16, 64)
    },
    **{f"M={m}, 4 x (768 -> 3072 -> 768)": (lambda: Mlp(768, 3072, 4), m, 768) for m in (1, 16)},
    "M=16, 4096 -> 16": (lambda: Heads(4096, 16), 16, 4096),
    "M=32, 16384 -> 16, 32, 64": (lambda: Heads(16384, 16, 32, 64), 32, 16384),
    "M=128, 65536 -> 128": (lambda: Heads(65536, 128), 128, 65536),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("counters.json"))
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--explain", action="store_true", help="what was chosen, and every time")
    options = parser.parse_args()
    info = device_info("cuda")
    memory = torch.empty(1024, dtype=torch.int32, device="cuda")
    fill = 1e6 * added_seconds([memory.zero_], info.l2_bytes)[0]
    print(f"{info.name}, torch {torch.__version__}, fill {fill:.2f}")
    print(f"{'case':<40}{'eager':>9}{'without':>9}{'ours':>9}{'fills':>7}{'error':>10}")
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if options.only in name:
            rows.append(row := run(name, *case))
            print(
                f"{name:<40}{row['eager']:>9.1f}{row['without']:>9.1f}{row['ours']:>9.1f}"
                f"{row['fills']:>7}{row['error']:>10.1e}  {row['said']}",
                flush=True,
            )
            if options.explain:
                print("\n".join([*row["runs"], *row["choices"].values()]), flush=True)
            found = {"device": info.name, "fill": fill, "rows": rows}
            options.json.write_text(json.dumps(found, indent=1))


@torch.no_grad()
def run(name: str, make: Callable[[], nn.Module], m: int, k: int) -> dict[str, Any]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = make().to(torch.bfloat16).eval()
        x = torch.randn(m, k).to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        ours = compile_cli.compile(model, (x,), options={"cache_dir": folder})
        with patch.object(Account, "pays", lambda *_: False):
            without = compile_cli.compile(model, (x,), options={"cache_dir": folder})
        error = relative_error(ours(x), model(x))
        runs = [lambda: model(x), lambda: without(x), lambda: ours(x)]
        times = [1e6 * t for t in added_seconds(runs, device_info("cuda").l2_bytes)]
    externs = [o for o in walk(ours.graph.program.ops) if isinstance(o, ExternCall)]
    said = [line for line in ours.graph.explain().splitlines() if "counters for" in line]
    return {
        "case": name, "eager": times[0], "without": times[1], "ours": times[2], "error": error,
        "fills": sum(o.target == "aten.zero_.default" for o in externs),
        "said": "; ".join(map(str.strip, said)), "runs": matmul_lines(ours.graph),
        "choices": {k: choice.explain() for k, choice in ours.graph.matmuls.items()},
    }  # fmt: skip


if __name__ == "__main__":
    main()
