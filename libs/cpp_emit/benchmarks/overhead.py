"""Microseconds of host time that a call, a tensor, an operator and a launch cost.

    python libs/cpp_emit/benchmarks/overhead.py

Prints the median of 7 rounds. The launch figures need a GPU and triton_rt.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import cpp_emit
from wrapper_ir import DefineKernel, parse_program

KERNEL = """\
  kernel nothing(a: *f32 mutated, n: i32) warps 4 stages 3:
    import triton
    import triton.language as tl


    @triton.jit
    def nothing(a, n):
        if n < 0:
            tl.store(a, 0.0)
  end
"""


def micros(call: Callable[[], Any], number: int = 2000) -> float:
    for _ in range(number // 10):
        call()
    rounds = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(number):
            call()
        rounds.append((time.perf_counter() - start) / number * 1e6)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return statistics.median(rounds)


def loaded(text: str, folder: str, **callbacks: Any) -> Any:
    program = parse_program(text)
    source = cpp_emit.emit(program, schemas=cpp_emit.torch_schema)
    start = time.perf_counter()
    path = cpp_emit.build(source, folder, program.name)
    seconds = time.perf_counter() - start
    return cpp_emit.load(path, program, cpp_emit.Callbacks(**callbacks)), seconds


def inputs(count: int, device: str) -> str:
    return ", ".join(f"x{i}: f32[4, 4] {device}" for i in range(count))


def host(folder: str) -> None:
    x = torch.randn(4, 4)
    for count in (1, 100):
        run, seconds = loaded(
            f"program t{count}({inputs(count, 'cpu')}):\n  return (x0,)\n", folder
        )
        args = [x] * count
        print(
            f"call with {count} tensors, nothing done: {micros(lambda r=run, a=args: r(*a)):.2f} us"
        )
    print(f"g++ on that text: {seconds:.2f} s")
    body = "".join(
        f"  b{i} = extern aten.mm.default(x0, x0) -> f32[4, 4] cpu\n  free b{i}\n"
        for i in range(20)
    )
    run, _ = loaded(f"program mm({inputs(1, 'cpu')}):\n{body}  return (x0,)\n", folder)
    base, _ = loaded(f"program mm0({inputs(1, 'cpu')}):\n  return (x0,)\n", folder)
    cost = (micros(lambda: run(x)) - micros(lambda: base(x))) / 20
    print(f"extern aten.mm through the dispatcher: {cost:.2f} us; torch.mm: "
          f"{micros(lambda: torch.mm(x, x)):.2f} us")  # fmt: skip
    body = "".join("  launch nothing grid (1, 1, 1) (x0, 1)\n" for _ in range(20))
    run, _ = loaded(
        f"program calls({inputs(1, 'cpu')}):\n{KERNEL}{body}  return (x0,)\n",
        folder,
        launch=lambda *_: None,
    )
    cost = (micros(lambda: run(x)) - micros(lambda: base(x))) / 20
    print(f"launch called back in Python: {cost:.2f} us")


def gpu(folder: str) -> None:
    import triton_rt

    def compile(kernel: DefineKernel, alignment: int, *_: Any) -> Any:
        params = tuple(triton_rt.KernelParam(p.name, p.kind, p.mutated) for p in kernel.params)
        source = triton_rt.KernelSource(kernel.name, kernel.source, params)
        return triton_rt.compile(source, triton_rt.Target.current(), alignment=alignment)

    x = torch.randn(4, 4, device="cuda")
    body = "".join("  launch nothing grid (1, 1, 1) (x0, 1)\n" for _ in range(100))
    head = f"({inputs(1, 'cuda:0')}):\n{KERNEL}"
    run, _ = loaded(f"program launches{head}{body}  return (x0,)\n", folder, compile=compile)
    one, _ = loaded(
        f"program one{head}  launch nothing grid (1, 1, 1) (x0, 1)\n  return (x0,)\n",
        folder,
        compile=compile,
    )
    many, single = micros(lambda: run(x), 100), micros(lambda: one(x), 100)
    print(
        f"call with one launch: {single:.2f} us; each further launch: {(many - single) / 99:.2f} us"
    )
    body = "".join(f"  b{i} = alloc f32[4, 4] cuda:0\n  free b{i}\n" for i in range(100))
    allocs, _ = loaded(f"program allocs{head}{body}  return (x0,)\n", folder, compile=compile)
    base, _ = loaded(f"program none{head}  return (x0,)\n", folder, compile=compile)
    cost = (micros(lambda: allocs(x), 100) - micros(lambda: base(x), 100)) / 100
    print(f"alloc and free on the GPU: {cost:.2f} us")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        host(folder)
        if torch.cuda.is_available():
            gpu(folder)
