"""Every op of host programs in every form that they take. `pytest -m slow -s` prints the matrix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import cpp_emit
from compile_cli.hosts import Outside, build_program
from compile_cli.options import Options
from compile_cli.record import Record
from fx_emit import TorchRuntime
from planner import Kernels
from wrapper_ir import Op, Program, interpret, parse_program, print_program, verify
from wrapper_ir.analysis import programs, walk

TRITON = """\
  kernel double(x: *f32, y: *f32 mutated, n: i32) constants (B=16) warps 1 stages 1:
    import triton
    import triton.language as tl


    @triton.jit
    def double(x, y, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i, i < n) * 2, i < n)
  end
"""
CPP = """\
  kernel double(x: *f32, y: *f32 mutated, n: i64) cpp:
    extern "C" void kernel_double(const float* x, float* y, int64_t n) {
      for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 2;
    }
  end
"""
BLOCKS = """\
  kernel blocks(t: tensordesc<f32[1,4]>, u: tensordesc<f32[1,4]> mutated) warps 1 stages 1:
    import triton
    import triton.language as tl


    @triton.jit
    def blocks(t, u):
        u.store([tl.program_id(0), 0], t.load([tl.program_id(0), 0]) + 1)
  end
  d = describe e block (1, 4)
  launch blocks grid (s0, 1, 1) (d, d)
"""
TEXT = """\
program every(x: f32[s0, 4] cpu, p: bool[] cpu):
  where s0 in [2, 64] hint 4
  where u0 in [0, *]
  where u1 in [0, *]
  symbol s0 = x.size(0)
  assert s0 < 64 "rows"
  # a line for the reader
{kernel}  subgraph twice(y: f32[n, 4] cpu, n: int):
    where n in [2, 64]
    two = constant f32[] cpu "two"
    z = extern aten.mul.Tensor(y, two) -> f32[n, 4] cpu
    return (z,)
  subgraph same(y: f32[n, 4] cpu, n: int):
    z = extern aten.clone.default(y) -> f32[n, 4] cpu
    return (z,)
  subgraph part(y: f32[n, 4] cpu, z: f32[n, 4] cpu, n: int) captured:
    where n in [2, 64]
    copy y -> z
    w = extern aten.clone.default(y) -> f32[n, 4] cpu
    return (w,)
  subgraph choose = if (twice, same)
  c = constant f32[4] cpu "c"
  two = constant f32[] cpu "two"
  b = alloc f32[s0, 4] cpu
  launch double grid (CeilDiv(s0, 4), 1, 1) (x, b, s0*4)
  e = extern aten.mul.Tensor(b, c) -> f32[s0, 4] cpu
{blocks}  v = view e f32[s0] cpu stride (4,)
  (f,) = extern subgraph.choose(p, e, s0) -> (f32[s0, 4] cpu,)
  o = comm_alloc f32[4] cpu group "0"
  device cpu
  z = workspace f32[4] cpu
  launch double grid (1, 1, 1) (z, z, 4)
  stream 1
  wait 0
  extern aten.mul.out(c, two, out=o) mutates (o,)
  stream 0
  wait 1
  comm_free o
  at = extern aten.nonzero.default(v) binds (u0,) -> i64[u0, 1] cpu
  last = extern aten.max.default(at) -> i64[] cpu
  symbol u1 = last.item()
  r = reuse b f32[s0*4] cpu
  if s0 > 3:
    extern aten.zero_.default(r) mutates (r,)
  else:
    w = view e f32[s0*4] cpu
    extern aten.copy_.default(r, w) mutates (r,)
  (g,) = extern subgraph.part(f, x, s0) mutates (x,) -> (f32[s0, 4] cpu,)
  free e
  return (g, at, r, u0 + u1)
"""
CONSTANTS = {"c": torch.arange(1.0, 5.0), "two": torch.tensor(2.0)}
ON_A_GPU = {("Describe", "cpp aot"): "tests/gpu/test_cpp_emit.py"}


def ops_of(program: Program) -> set[str]:
    return {type(op).__name__ for p in programs(program) for op in walk(p.ops)}


def emitted(program: Program, emit: Any) -> Callable[..., Any]:
    options = Options(emit=emit)
    kernels = Kernels(options)
    with kernels.compiling():
        return build_program(program, kernels, Outside(CONSTANTS), options, Record())[1]


def ahead(program: Program, folder: Path) -> Callable[..., Any]:
    text = cpp_emit.emit(program, "aot", schemas=cpp_emit.torch_schema)
    path = cpp_emit.build(text, folder, program.name)
    callbacks = cpp_emit.Callbacks(address=Kernels(Options()).loops.address)
    return cpp_emit.load(path, program, callbacks, CONSTANTS)


@pytest.mark.slow
def test_every_op_in_every_form(libraries: Path, own_cache: Path) -> None:
    whole = parse_program(TEXT.format(kernel=TRITON, blocks=BLOCKS))
    alone = parse_program(TEXT.format(kernel=CPP, blocks=""))
    runtime = TorchRuntime(Kernels(Options()).launcher, {})

    def interpreted(program: Program) -> Callable[..., Any]:
        return lambda *args: interpret(program, args, runtime, CONSTANTS)

    forms: dict[str, tuple[Program, Callable[..., Any]]] = {
        "interpret": (whole, interpreted(whole)),
        "round trip": (whole, interpreted(parse_program(print_program(whole)))),
        "fx direct": (whole, emitted(whole, "fx")),
        "fx hop": (whole, emitted(whole, "hop")),
        "cpp lazy": (whole, emitted(whole, "cpp")),
        "cpp aot": (alone, ahead(alone, libraries)),
    }
    ran: dict[str, set[str]] = {}
    for form, (program, run) in forms.items():
        verify(program)
        for rows, p in ((5, True), (2, False)):
            torch.manual_seed(rows)
            x = torch.rand(rows, 4)
            e = x * 2 * CONSTANTS["c"] + (program is whole)
            f = e * 2 if p else e
            got = tuple(run(x, torch.tensor(p)))
            filled = torch.zeros(rows * 4) if rows > 3 else e.flatten()
            torch.testing.assert_close(got, (f, torch.arange(rows)[:, None], filled, 2 * rows - 1))
            assert torch.equal(x, got[0])
        ran[form] = ops_of(program)
    names = [op.__name__ for op in get_args(Op)]
    lines = [f"{'':15}" + "".join(f"{form:12}" for form in forms)]
    for name in names:
        lines.append(
            f"{name:15}" + "".join(f"{'ran' if name in o else '':12}" for o in ran.values())
        )
    print("\n" + "\n".join(lines))  # noqa: T201  # the matrix is for readers
    missing = {(name, form) for form, o in ran.items() for name in names if name not in o}
    assert missing == set(ON_A_GPU)
