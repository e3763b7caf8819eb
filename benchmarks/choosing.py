"""What a decision costs for a problem never seen: nothing compiled, no worker running.

    python benchmarks/choosing.py --json choosing.json

cold: `choose` with a pool of its own, from the start of the workers to the decision. compiled: once
more, with the kernels on disk. stored: from the store on disk. first call: the public function on
tensors, which for rows at odd places tries copies, too; what it keeps goes into a folder of this
run, not the user's. Bars: 3 s and 1 ms.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from gemm_cases import GROUPS, Case

import gemm_templates as g
from triton_rt import Cache, CompilePool

COLD, STORED = 3.0, 1e-3  # s
CASES = {
    "plain": ("2048 square", "8192 square"), "skinny": ("8x4096x4096",),
    "odd": ("4097 square",), "split_k": ("64x64x16384 f16",),
    "fused": ("gelu 16384x3072x768",), "fp8": ("row-wise 4096x4096x4096",),
    "bmm": ("16x2048x2048x512",),
}  # fmt: skip


def cases() -> list[Case]:
    found = [c for group in GROUPS for c in group.cases(False)
             if c.name in CASES.get(group.name, ())]  # fmt: skip
    assert len(found) == sum(map(len, CASES.values()))
    return found


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    began = perf_counter()
    result = run()
    torch.cuda.synchronize()
    return perf_counter() - began, result


def measured(case: Case, folder: Path, workers: int) -> dict[str, Any]:
    tensors = case.make("cuda")
    task = case.task(*tensors)
    task.extern(task.inputs)  # the vendor's library is loaded
    cache = Cache(folder / "kernels")

    def decide(store: str) -> Any:
        with CompilePool(workers) as pool:
            build = functools.partial(g.bind, pool=pool, cache=cache)
            return g.choose(
                task.problem, task.examples or task.inputs, task.extern,
                store=g.Store(folder / store), build=build, force=True,
            )  # fmt: skip

    cold, choice = seconds(lambda: decide("first"))
    compiled, _ = seconds(lambda: decide("second"))
    stored, again = seconds(
        lambda: g.choose(task.problem, task.inputs, task.extern, store=g.Store(folder / "first"))
    )
    assert again.config == choice.config and again.reason == "stored"
    row = {"case": case.name, "cold_s": cold, "compiled_s": compiled, "stored_ms": stored * 1e3,
           "runs": len(choice.times), "failures": dict(choice.failures)}  # fmt: skip
    if case.public:
        public = case.public
        row["first_call_s"], _ = seconds(lambda: public(*tensors))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("choosing.json"))
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("choosing.py measures on a GPU, and there is none")
    info = g.device_info("cuda")
    print(f"{info.name}, torch {torch.__version__}, {os.cpu_count()} cores, "
          f"{options.workers} workers\n{'case':<30}{'cold s':>8}{'compiled':>10}{'stored ms':>11}"
          f"{'first call':>12}{'runs':>6}")  # fmt: skip
    rows = []
    home = tempfile.TemporaryDirectory()
    os.environ["XDG_CACHE_HOME"] = home.name
    os.environ.pop("TRITON_RT_CACHE_DIR", None)
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            row = measured(case, Path(folder), options.workers)
        rows.append(row)
        first = f"{row['first_call_s']:.2f}" if "first_call_s" in row else "-"
        print(f"{row['case']:<30}{row['cold_s']:>8.2f}{row['compiled_s']:>10.2f}"
              f"{row['stored_ms']:>11.2f}{first:>12}{row['runs']:>6}", flush=True)  # fmt: skip
        torch.cuda.empty_cache()
    home.cleanup()
    late = [r["case"] for r in rows if r["cold_s"] > COLD or r["stored_ms"] > STORED * 1e3]
    print(f"over {COLD:.0f} s cold or {STORED * 1e3:.0f} ms stored: {', '.join(late) or 'none'}")
    result = {"device": info.name, "torch": torch.__version__, "rows": rows}
    options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
