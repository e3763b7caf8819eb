"""A counter beside a reduction is no kernel of its own."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import interpret_kernel, parse_kernel
from loop_ir.fusion.join_numbers import JoinNumbers
from loop_ir.ir.nodes import Graph, GraphInput, Kernel
from loop_ir.ir.verify_kernel import KernelVerifier

COUNTER = """
kernel count(
    out n: i64[] cpu,
):
  single:
    once:
      v0 = load n[0] : i64
      v1 = const 1 : i64
      v2 = add(v0, v1) : i64
      store n[0] = v2
"""
ROWS = """
kernel rows(
    x: f32[3, 2, 4] cpu,
    out y: f32[3, 2] cpu,
):
  parallel i0 < 3, i1 < 2:
    over r0 < 4:
      v0 = load x[i0*8 + i1*4 + r0] : f32
      v1 = reduce sum(v0) : f32
    once:
      store y[i0*2 + i1] = v1
"""
POINTS = ROWS.replace("    over r0 < 4:\n", "    once:\n").replace(" + r0", "").replace(
    "      v1 = reduce sum(v0) : f32\n    once:\n", "      v1 = neg(v0) : f32\n"
)  # fmt: skip


def joined(*texts: str, inputs: tuple[str, ...] = ("n", "x")) -> tuple[Kernel, ...]:
    kernels = tuple(map(parse_kernel, texts))
    types = {b.name: b.type for k in kernels for b in k.buffers}
    given = tuple(GraphInput(name, types[name]) for name in inputs)
    nodes = JoinNumbers().run(Graph("g", given, kernels, ())).nodes
    assert all(isinstance(n, Kernel) for n in nodes)
    return nodes  # type: ignore[return-value]  # just asserted


@pytest.mark.parametrize("texts", [(COUNTER, ROWS), (ROWS, COUNTER)])
def test_the_first_row_counts(texts: tuple[str, ...]) -> None:
    (kernel,) = joined(*texts)
    KernelVerifier(kernel).run()
    x = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    memory = {"x": x, "y": np.zeros((3, 2), np.float32), "n": np.array(41)}
    memory = interpret_kernel(kernel, memory)
    assert memory["n"] == 42
    assert np.array_equal(memory["y"], x.sum(2))


def test_what_stays_apart() -> None:
    assert len(joined(COUNTER, POINTS)) == 2, "no kernel that reduces"
    some = ROWS.replace("[3, 2", "[s0, 2").replace("< 3", "< s0")
    for low, kernels in ((0, 2), (1, 1)):
        sized = some.replace("):\n", f"):\n  where s0 in [{low}, 9] hint 3\n", 1)
        assert len(joined(COUNTER, sized)) == kernels, "is there a first row?"
    assert len(joined(COUNTER, ROWS, inputs=("x",))) == 2, "no input of the graph"
    reader = POINTS.replace("kernel rows", "kernel other").replace("y:", "z:").replace(" y[", " z[")
    reader = reader.replace("x: f32[3, 2, 4]", "n: i64[]").replace(
        "x[i0*8 + i1*4] : f32", "n[0] : i64"
    )
    reader = reader.replace("neg(v0) : f32", "cast(v0) : f32")
    assert len(joined(COUNTER, ROWS, reader)) == 3, "another kernel reads the number"
