"""Seconds to compile 32 layer-norm kernels for sm_90: in this process, in a pool, from the cache;
and one kernel of a module that imports torch: in a worker that starts, and in one that is there.

    python libs/triton_rt/benchmarks/compile.py [--workers 8] [--out compile.json]

Needs no GPU. All ways must give the same bytes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from triton_rt import (
    Binary,
    Cache,
    CompilePool,
    KernelParam,
    KernelSource,
    Target,
    Workers,
    compile_many,
    standalone_text,
)

TEXT = """
import triton
import triton.language as tl

@triton.jit
def layer_norm(x, w, b, y, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + row * n + i, i < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    d = tl.where(i < n, v - mean, 0.0)
    scale = tl.rsqrt(tl.sum(d * d, 0) / n + eps)
    out = d * scale * tl.load(w + i, i < n, other=0.0) + tl.load(b + i, i < n, other=0.0)
    tl.store(y + row * n + i, out.to(y.dtype.element_ty), i < n)
"""
KINDS = (("x", "*bf16"), ("w", "*f32"), ("b", "*f32"), ("y", "*bf16"), ("n", "i32"), ("eps", "f32"))
PARAMS = tuple(KernelParam(n, k, mutated=n == "y", aligned=k != "f32") for n, k in KINDS)
SOURCES = [
    KernelSource("layer_norm", TEXT, PARAMS, (("B", block),), num_warps=warps)
    for block in (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    for warps in (2, 4, 8, 16)
]


def timed(run: Callable[[], list[Binary]]) -> tuple[float, list[Binary]]:
    begin = time.perf_counter()
    out = run()
    return time.perf_counter() - begin, out


def one_kernel() -> Iterator[tuple[str, float]]:
    """A kernel of a module that imports torch, by its import and as a text that stands alone."""
    with tempfile.TemporaryDirectory() as folder:
        lines = TEXT.replace("layer_norm", "norm_of_a_model")
        Path(folder, "a_model_of_torch.py").write_text(f"import torch\n{lines}")
        sys.path.insert(0, folder)
        kernel = importlib.import_module("a_model_of_torch").norm_of_a_model
        imported = KernelSource.from_jit(kernel, dict(KINDS), {"B": 256}, mutated=("y",))
        text = standalone_text(kernel)
        assert text is not None
        for name, source in (
            ("imported", imported),
            ("standing alone", replace(imported, text=text)),
        ):
            workers = Workers()
            for state in ("starts", "is there"):
                with CompilePool(1, workers=workers) as pool:
                    job = replace(source, num_warps=4 if state == "starts" else 8)
                    spent, _ = timed(lambda j=job, p=pool: [p.submit(j, Target(90)).result()])
                yield f"{name}, worker {state}", spent
            workers.close()
        sys.path.remove(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "compile.json")
    options = parser.parse_args()
    target = Target(90)
    compile_many(SOURCES[:1], target)  # what the first compilation in a process loads
    seconds: dict[str, float] = {}
    seconds["in process"], expected = timed(lambda: compile_many(SOURCES, target))
    with tempfile.TemporaryDirectory() as folder, CompilePool(options.workers) as pool:
        cache = Cache(folder, 1 << 30)
        ways = {
            f"pool of {options.workers}, workers start": lambda: compile_many(
                SOURCES, target, pool=pool, cache=cache
            ),
            f"pool of {options.workers}, workers there": lambda: compile_many(
                SOURCES, target, pool=pool
            ),
            "from the cache": lambda: compile_many(SOURCES, target, cache=cache),
        }
        for name, way in ways.items():
            seconds[name], found = timed(way)
            assert found == expected, f"{name}: other binaries"
    for name, value in seconds.items():
        print(f"{name:28}{value:9.3f} s  {1e3 * value / len(SOURCES):8.2f} ms a kernel")
    for name, value in one_kernel():
        seconds[name] = value
        print(f"{name:28}{value:9.3f} s")
    options.out.write_text(json.dumps(seconds, indent=2) + "\n")


if __name__ == "__main__":
    main()
