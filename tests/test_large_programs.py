"""A host program of 5,000 ops: printed, parsed, verified, planned and emitted within seconds."""

from __future__ import annotations

import random
from time import process_time

import pytest

import cpp_emit
import fx_emit
from wrapper_ir import Program, parse_program, print_program, verify
from wrapper_ir.passes import DedupeKernels, InsertFrees, PlanMemory

OPS, SECONDS = 5_000, 3.0
KERNEL = """\
  kernel k{n}(a: *f32, b: *f32, out: *f32 mutated, n: i32) constants (B=128) warps 4 stages 1:
    import triton
    import triton.language as tl


    @triton.jit
    def k{n}(a, b, out, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + i, tl.load(a + i, i < n) * {n} + tl.load(b + i, i < n), i < n)
  end
"""


def large() -> str:
    """Launches, products, views and operators, each of some of the last six results."""
    rng = random.Random(0)
    text = "program large(x: f32[s0, 64] cuda:0, w: f32[64, 64] cuda:0):\n"
    text += "  where s0 in [1, 4096] hint 32\n  symbol s0 = x.size(0)\n"
    text += "".join(KERNEL.format(n=n) for n in range(200))
    type, made, ops = "f32[s0, 64] cuda:0", ["x"], 201
    while ops < OPS - 1:
        a, b = rng.choice(made[-6:]), rng.choice(made[-6:])
        out, kind = f"b{len(made)}", rng.choice("lllmv+")
        lines = {
            "l": f"  {out} = alloc {type}\n  launch k{rng.randrange(200)} "
            f"grid (CeilDiv(s0*64, 128), 1, 1) ({a}, {b}, {out}, s0*64)\n",
            "m": f"  {out} = extern aten.mm.default({a}, w) -> {type}\n",
            "v": f"  v{out} = view {a} f32[64, s0] cuda:0 stride (1, 64)\n"
            f"  {out} = extern aten.mm.default({b}, w) -> {type}\n",
            "+": f"  {out} = extern aten.add.Tensor({a}, {b}) -> {type}\n",
        }[kind]
        text, ops = text + lines, ops + lines.count("\n")
        made.append(out)
    return f"{text}  return ({made[-1]},)\n"


def through(text: str) -> Program:
    """Parsed, printed, verified, planned, and emitted in each form."""
    program = parse_program(text)
    assert parse_program(print_program(program)) == program
    verify(program)
    for step in (DedupeKernels(), InsertFrees(), PlanMemory()):
        program = step.run(program)
    verify(program)
    fx_emit.emit(program, "direct", load_kernel=lambda kernel: lambda *args: None, values=False)
    cpp_emit.emit(program, schemas=cpp_emit.torch_schema)
    return program


@pytest.mark.slow
def test_five_thousand_ops() -> None:
    text = large()
    through(text[: text.index("  b1 =")] + "  return (x,)\n")  # what is imported and set up once
    start = process_time()
    program = through(text)
    spent = process_time() - start
    assert spent < SECONDS
    assert len(program.ops) > OPS
