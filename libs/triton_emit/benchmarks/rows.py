"""Times every candidate schedule of add + layer norm on bf16 rows, and a flat kernel beside it.

    python libs/triton_emit/benchmarks/rows.py [columns ...]

Needs a GPU. Prints the memory throughput (bytes that must move, over the median time).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import sympy
import torch
import triton

from loop_ir import Kernel, parse_kernel
from symexpr import evaluate
from triton_emit import Schedule, candidate_schedules, default_schedule, emit
from triton_rt import KernelParam, KernelSource, load_jit

ROWS = 16384

ROW_TEXT = """
kernel add_norm(
    x: bf16[{m}, {n}] cuda:0,
    y: bf16[{m}, {n}] cuda:0,
    w: bf16[{n}] cuda:0,
    b: bf16[{n}] cuda:0,
    out s: bf16[{m}, {n}] cuda:0,
    out o: bf16[{m}, {n}] cuda:0,
):
  parallel i0 < {m}:
    over r0 < {n}:
      v0 = load x[i0*{n} + r0] : bf16
      v1 = cast(v0) : f32
      v2 = load y[i0*{n} + r0] : bf16
      v3 = cast(v2) : f32
      v4 = add(v1, v3) : f32
      v5 = cast(v4) : bf16
      store s[i0*{n} + r0] = v5
      mean, m2 = reduce welford(v4) : f32
    once:
      v6 = const {n}.0 : f32
      v7 = div(m2, v6) : f32
      v8 = const 1e-05 : f32
      v9 = add(v7, v8) : f32
      v10 = rsqrt(v9) : f32
    over r0 < {n}:
      v11 = sub(v4, mean) : f32
      v12 = mul(v11, v10) : f32
      v13 = load w[r0] : bf16
      v14 = cast(v13) : f32
      v15 = mul(v12, v14) : f32
      v16 = load b[r0] : bf16
      v17 = cast(v16) : f32
      v18 = add(v15, v17) : f32
      v19 = cast(v18) : bf16
      store o[i0*{n} + r0] = v19
"""

FLAT_TEXT = """
kernel gelu_bias(
    x: bf16[{m}, {n}] cuda:0,
    b: bf16[{n}] cuda:0,
    out o: bf16[{m}, {n}] cuda:0,
):
  parallel i0 < {m}, i1 < {n}:
    once:
      v0 = load x[i0*{n} + i1] : bf16
      v1 = cast(v0) : f32
      v2 = load b[i1] : bf16
      v3 = cast(v2) : f32
      v4 = add(v1, v3) : f32
      v5 = const 0.5 : f32
      v6 = mul(v4, v5) : f32
      v7 = const 0.7071067811865476 : f32
      v8 = mul(v4, v7) : f32
      v9 = erf(v8) : f32
      v10 = const 1.0 : f32
      v11 = add(v9, v10) : f32
      v12 = mul(v6, v11) : f32
      v13 = cast(v12) : bf16
      store o[i0*{n} + i1] = v13
"""


def launcher(kernel: Kernel, schedule: Schedule) -> Callable[[], None]:
    """A launch on random tensors."""
    emitted = emit(kernel, schedule)
    tensors = {
        b.name: torch.randn([int(n) for n in b.type.size], dtype=torch.bfloat16, device="cuda")
        for b in kernel.buffers
    }
    params = tuple(KernelParam(*p) for p in emitted.params)
    source = KernelSource(kernel.name, emitted.source, params, emitted.constants)
    args = [tensors[a] if isinstance(a, str) else int(a) for a in emitted.args]
    grid = tuple(int(evaluate(g, {})) for g in emitted.grid)
    run = load_jit(source)[grid]
    options = {"num_warps": schedule.num_warps, "num_stages": schedule.num_stages}
    return lambda: run(*args, **dict(emitted.constants), **options)


def report(text: str, columns: int) -> None:
    kernel = parse_kernel(text.format(m=ROWS, n=columns).strip())
    moved = sum(2 * int(sympy.Mul(*b.type.size)) for b in kernel.buffers)
    default = default_schedule(kernel, {})
    print(f"{kernel.name}, {ROWS} x {columns} bf16, {moved / 1e6:.0f} MB")
    for s in candidate_schedules(kernel, {}):
        ms = triton.testing.do_bench(launcher(kernel, s), warmup=10, rep=40, return_mode="median")
        mark = "  (default)" if s == default else ""
        print(f"  {s.kind:10} xblock {s.xblock:4} rblock {s.rblock:5} warps {s.num_warps:2}"
              f"  {ms * 1e3:7.1f} us  {moved / ms / 1e9:6.2f} TB/s{mark}")  # fmt: skip


def main() -> None:
    for columns in [int(a) for a in sys.argv[1:]] or [768, 1024, 2048, 4096]:
        report(ROW_TEXT, columns)
    report(FLAT_TEXT, 3072)


if __name__ == "__main__":
    main()
