"""Times kernels that transpose, and reductions along the rows of a matrix, under every candidate
schedule, beside torch.

    python libs/triton_emit/benchmarks/strides.py

Needs a GPU. Prints the memory throughput (bytes that must move, over the median time).
"""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
import triton

from loop_ir import Kernel, parse_kernel
from symexpr import evaluate
from triton_emit import Schedule, candidate_schedules, default_schedule, emit
from triton_rt import KernelParam, KernelSource, load_jit

TRANSPOSE = """
kernel to_channels_last(
    x: bf16[{b}, {c}, {p}] cuda:0,
    out y: bf16[{b}, {p}, {c}] cuda:0,
):
  parallel i0 < {b}, i1 < {p}, i2 < {c}:
    once:
      v0 = load x[i0*{bcp} + i2*{p} + i1] : bf16
      store y[i0*{bcp} + i1*{c} + i2] = v0
"""
NORM = """
kernel norm_channels_first(
    x: bf16[{b}, {c}, {p}] cuda:0,
    out y: bf16[{b}, {p}, {c}] cuda:0,
):
  parallel i0 < {b}, i1 < {p}:
    over r0 < {c}:
      v0 = load x[i0*{bcp} + r0*{p} + i1] : bf16
      v1 = cast(v0) : f32
      mean, m2 = reduce welford(v1) : f32
    once:
      v2 = const {c}.0 : f32
      v3 = div(m2, v2) : f32
      v4 = const 1e-06 : f32
      v5 = add(v3, v4) : f32
      v6 = rsqrt(v5) : f32
    over r0 < {c}:
      v7 = sub(v1, mean) : f32
      v8 = mul(v7, v6) : f32
      v9 = cast(v8) : bf16
      store y[i0*{bcp} + i1*{c} + r0] = v9
"""
COLUMNS = """
kernel column_sum(
    x: bf16[{p}, {c}] cuda:0,
    out y: f32[{c}] cuda:0,
):
  parallel i0 < {c}:
    over r0 < {p}:
      v0 = load x[r0*{c} + i0] : bf16
      v1 = cast(v0) : f32
      s = reduce sum(v1) : f32
    once:
      store y[i0] = s
"""


def to_last(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous()


def norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x.transpose(1, 2), x.shape[1:2], eps=1e-6)


def column_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0, dtype=torch.float32)


CASES: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], tuple[int, int, int]]] = [
    (TRANSPOSE, to_last, (32, 96, 3136)),
    (TRANSPOSE, to_last, (32, 768, 49)),
    (TRANSPOSE, to_last, (1, 8192, 8192)),
    (NORM, norm, (32, 96, 3136)),
    (NORM, norm, (32, 768, 196)),
    (COLUMNS, column_sum, (1, 768, 512)),
    (COLUMNS, column_sum, (1, 3072, 16384)),
]


def launcher(
    kernel: Kernel, schedule: Schedule, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], None]:
    emitted = emit(kernel, schedule)
    params = tuple(KernelParam(*p) for p in emitted.params)
    source = KernelSource(kernel.name, emitted.source, params, emitted.constants)
    args = [{"x": x, "y": y}[a] if isinstance(a, str) else int(a) for a in emitted.args]
    grid = tuple(int(evaluate(g, {})) for g in emitted.grid)
    run = load_jit(source)[grid]
    options = {"num_warps": schedule.num_warps, "num_stages": schedule.num_stages}
    return lambda: run(*args, **dict(emitted.constants), **options)


def timed(call: Callable[[], object]) -> float:
    return float(triton.testing.do_bench(call, warmup=5, rep=25, return_mode="median"))


def report(
    text: str, eager: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, int, int]
) -> None:
    b, c, p = sizes
    kernel = parse_kernel(text.format(b=b, c=c, p=p, bcp=c * p).strip())
    source, result = (next(t for t in kernel.buffers if t.name == n).type for n in "xy")
    x = torch.randn([int(n) for n in source.size], dtype=torch.bfloat16, device="cuda")
    expected = eager(x)
    y = torch.empty_like(expected)
    moved = sum(t.dtype.itemsize * int(sympy.Mul(*t.size)) for t in (source, result))
    ms = timed(lambda: eager(x))
    print(f"{kernel.name} {sizes}, {moved / 1e6:.0f} MB; torch {ms * 1e3:.1f} us")
    default = default_schedule(kernel, {})
    one_row = {"flat": Schedule("flat", 1024), "persistent": Schedule("persistent", 1, 1024, 2)}
    others = [one_row["flat"] if default.kind == "tiled" else one_row["persistent"]]
    if default.kind == "looped":
        others = [Schedule("looped", 1, 4096, 8)]
    for s in dict.fromkeys([*candidate_schedules(kernel, {}), *others]):
        run = launcher(kernel, s, x, y)
        run()
        torch.testing.assert_close(
            y, expected, rtol=2e-2, atol=2e-2 if y.dtype != x.dtype else 1e-2
        )
        ms = timed(run)
        mark = "  (default)" if s == default else ""
        print(
            f"  {s.kind:10} x {s.xblock:4} y {s.yblock:3} r {s.rblock:5} warps {s.num_warps:2}"
            f"  {ms * 1e3:7.1f} us  {moved / ms / 1e9:6.2f} TB/s{mark}",
            flush=True,
        )


def main() -> None:
    for case in CASES:
        report(*case)


if __name__ == "__main__":
    main()
