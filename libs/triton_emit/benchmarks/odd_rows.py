"""Times copies whose rows begin at odd places, under schedules that give a thread neighbours and
under those that give them to neighbouring lanes, beside torch.

    python libs/triton_emit/benchmarks/odd_rows.py

Needs a GPU. Prints the memory throughput (bytes that must move, over the median time with a cold L2
cache); every result is compared with torch's, bit for bit.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F
import triton

from loop_ir import Kernel, parse_kernel
from symexpr import evaluate
from triton_emit import Schedule, default_schedule, emit
from triton_rt import Cache, CompilePool, KernelParam, KernelSource, LazyKernel

DTYPES = {"u8": torch.uint8, "bf16": torch.bfloat16, "f32": torch.float32}
ROWS = 4096
BLOCKS = ((1024, 4), (512, 2), (2048, 4), (2048, 8), (4096, 8))


@dataclass(frozen=True)
class Case:
    """y[store] = the largest of x0[loads[0]], x1[loads[1]], ... (of numbers that are not negative),
    over `points`. A load is the size of its tensor, its index, and the range of i1 inside which it
    is made (zero beyond), or None. `moved`: elements read and written."""

    name: str
    eager: Callable[..., torch.Tensor]
    points: tuple[int, ...]
    loads: tuple[tuple[tuple[int, ...], str, tuple[int, int] | None], ...]
    result: tuple[int, ...]
    store: str
    moved: int
    dtype: str = "bf16"

    def kernel(self) -> Kernel:
        t = self.dtype
        shape = ", ".join
        lines = [f"kernel {self.name.split()[0].strip(',')}("]
        for k, (size, _, _) in enumerate(self.loads):
            lines.append(f"    x{k}: {t}[{shape(map(str, size))}] cuda:0,")
        lines.append(f"    out y: {t}[{shape(map(str, self.result))}] cuda:0,\n):")
        axes = shape(f"i{k} < {n}" for k, n in enumerate(self.points))
        lines += [f"  parallel {axes}:", "    once:"]
        if any(inside for *_, inside in self.loads):
            lines.append("      at = index i1 : i64")
        for k, (_, index, inside) in enumerate(self.loads):
            given = ""
            if inside:
                lines += [f"      low{k} = const {inside[0]} : i64",
                          f"      high{k} = const {inside[1]} : i64",
                          f"      above{k} = ge(at, low{k}) : bool",
                          f"      below{k} = lt(at, high{k}) : bool",
                          f"      in{k} = and(above{k}, below{k}) : bool"]  # fmt: skip
                given = f" if in{k} else 0"
            lines.append(f"      v{k} = load x{k}[{index}]{given} : {t}")
        best = "v0"
        for k in range(1, len(self.loads)):
            lines.append(f"      best{k} = maximum({best}, v{k}) : {t}")
            best = f"best{k}"
        return parse_kernel("\n".join([*lines, f"      store y[{self.store}] = {best}"]))

    def inputs(self) -> list[torch.Tensor]:
        made = [torch.randint(0, 100, size, device="cuda") for size, *_ in self.loads]
        return [x.to(DTYPES[self.dtype]) for x in made]


def sliced(name: str, width: int, row: int, offset: int, dtype: str = "bf16") -> Case:
    """`width` columns of rows of `row` elements, from column `offset` on."""
    return Case(
        name, lambda x: x[:, offset : offset + width].contiguous(), (ROWS, width),
        (((ROWS, row), f"i0*{row} + i1 + {offset}", None),), (ROWS, width), f"i0*{width} + i1",
        2 * ROWS * width, dtype,
    )  # fmt: skip


def padded(name: str, dtype: str) -> Case:
    return Case(
        name, lambda x: F.pad(x, (0, 7)), (ROWS, 4104),
        (((ROWS, 4097), "i0*4097 + i1", (0, 4097)),), (ROWS, 4104), "i0*4104 + i1",
        ROWS * (4097 + 4104), dtype,
    )  # fmt: skip


def largest(name: str, aligned: int) -> Case:
    """The largest of a slice of odd rows, and of some aligned matrices."""
    other = ((ROWS, 4096), "i0*4096 + i1", None)
    return Case(
        name, lambda x, *more: reduce(torch.maximum, more, x[:, :4096]), (ROWS, 4096),
        (((ROWS, 4097), "i0*4097 + i1", None), *aligned * (other,)), (ROWS, 4096), "i0*4096 + i1",
        (2 + aligned) * ROWS * 4096,
    )  # fmt: skip


@cache
def odd_result() -> torch.Tensor:
    return torch.zeros(ROWS, 4097, dtype=torch.bfloat16, device="cuda")


def into_odd(x: torch.Tensor) -> torch.Tensor:
    odd_result()[:, :4096] = x
    return odd_result()


ODD_POINTS = 4097 * 4097
CASES = [
    padded("pad bf16", "bf16"),
    padded("pad f32", "f32"),
    sliced("slice 1 of 4097", 4096, 4097, 1),
    sliced("slice 1 of 4097, f32", 4096, 4097, 1, "f32"),
    sliced("slice 1 of 4097, u8", 4096, 4097, 1, "u8"),
    sliced("slice 4097 of 4104", 4097, 4104, 0),
    sliced("slice 2 of 4104", 4096, 4104, 2),
    sliced("slice 4 of 4104", 4096, 4104, 4),
    Case("cat", lambda a, b: torch.cat([a, b], 1), (ROWS, 8194),
         (((ROWS, 4097), "i0*4097 + i1", (0, 4097)),
          ((ROWS, 4097), "i0*4097 + i1 - 4097", (4097, 8194))),
         (ROWS, 8194), "i0*8194 + i1", 4 * ROWS * 4097),
    Case("into odd rows", into_odd, (ROWS, 4096), (((ROWS, 4096), "i0*4096 + i1", None),),
         (ROWS, 4097), "i0*4097 + i1", 2 * ROWS * 4096),
    largest("largest, a third odd", 1),
    largest("largest, a quarter odd", 2),
    Case("odd number of points", torch.clone, (ODD_POINTS,), (((ODD_POINTS,), "i0", None),),
         (ODD_POINTS,), "i0", 2 * ODD_POINTS),
    Case("every other", lambda x: x[::2].contiguous(), (1 << 24,), (((1 << 25,), "i0*2", None),),
         (1 << 24,), "i0", 3 << 24),
    Case("flip", lambda x: x.flip(1), (ROWS, 4096), (((ROWS, 4096), "i0*4096 - i1 + 4095", None),),
         (ROWS, 4096), "i0*4096 + i1", 2 * ROWS * 4096),
]  # fmt: skip


def schedules(kernel: Kernel) -> tuple[Schedule, list[Schedule]]:
    """The default, and what to time: each vector under it in its block, then the other blocks."""
    default = default_schedule(kernel, {})
    vectors = dict.fromkeys((0, default.vector, 1))
    out = [replace(default, vector=v) for v in vectors]
    out += [replace(default, vector=default.vector or 1, xblock=x, num_warps=w) for x, w in BLOCKS]
    return default, list(dict.fromkeys(out))


def loaded(kernel: Kernel, schedule: Schedule, kernels: Cache, pool: CompilePool) -> LazyKernel:
    emitted = emit(kernel, schedule)
    params = tuple(KernelParam(n, k, m, aligned=True) for n, k, m in emitted.params)
    source = KernelSource(
        kernel.name, emitted.source, params, emitted.constants, schedule.num_warps
    )
    lazy = LazyKernel(source, cache=kernels, pool=pool)
    lazy.prefetch()
    return lazy


def bound(
    lazy: LazyKernel, kernel: Kernel, schedule: Schedule, tensors: Sequence[torch.Tensor]
) -> Callable[[], object]:
    emitted = emit(kernel, schedule)
    by_name = {b.name: t for b, t in zip(kernel.buffers, tensors, strict=True)}
    args = [by_name[a] if isinstance(a, str) else int(a) for a in emitted.args]
    x, y, z = (int(evaluate(g, {})) for g in emitted.grid)
    return lambda: lazy.launch((x, y, z), *args)


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    ms = triton.testing.do_bench(call, warmup=3, rep=15, return_mode="median")
    return float(ms) * 1e-3


def report(case: Case, runs: list[tuple[Schedule, LazyKernel]], default: Schedule) -> None:
    kernel, inputs = case.kernel(), case.inputs()
    expected = case.eager(*inputs)
    moved = case.moved * DTYPES[case.dtype].itemsize
    seconds = timed(lambda: case.eager(*inputs))
    print(f"{case.name}: {moved / 1e6:.0f} MB; "
          f"torch {seconds * 1e6:.1f} us, {moved / seconds / 1e12:.2f} TB/s")  # fmt: skip
    for schedule, lazy in runs:
        y = torch.zeros(prod(case.result), dtype=expected.dtype, device="cuda")
        run = bound(lazy, kernel, schedule, [*inputs, y])
        run()
        assert torch.equal(y.view(case.result), expected), (case.name, schedule)
        seconds = timed(run)
        print(f"  vector {schedule.vector} x {schedule.xblock:4} warps {schedule.num_warps}  "
              f"{seconds * 1e6:7.1f} us  {moved / seconds / 1e12:5.2f} TB/s"
              f"{'  (default)' if schedule == default else ''}", flush=True)  # fmt: skip


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        CompilePool(max(1, (os.cpu_count() or 2) - 1)) as pool,
    ):
        kernels = Cache(Path(folder))
        plans = []
        for case in CASES:
            kernel = case.kernel()
            default, tried = schedules(kernel)
            plans.append((case, [(s, loaded(kernel, s, kernels, pool)) for s in tried], default))
        for plan in plans:
            report(*plan)


if __name__ == "__main__":
    main()
