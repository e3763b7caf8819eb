"""Producers computed where they are loaded, whatever points these are, give what they gave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loop_ir import Graph, Kernel, fuse, interpret_graph, parse_graph, print_graph, verify


def agree(text: str) -> Graph:
    """The fused graph, of the same results as the one in `text`."""
    graph = parse_graph(text)
    fused = fuse(graph)
    verify(fused)
    assert parse_graph(print_graph(fused)) == fused
    rng = np.random.default_rng(0)
    sizes = [tuple(int(n) for n in i.type.size) for i in graph.inputs]
    x = [rng.standard_normal(size).astype(np.float32) for size in sizes]
    each = [interpret_graph(g, [a.copy() for a in x]) for g in (graph, fused)]
    for want, got in zip(*each, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    return fused


def kernels(graph: Graph) -> list[Kernel]:
    return [n for n in graph.nodes if isinstance(n, Kernel)]


REPEATED = """
graph g(
    x: f32[6, 8] cuda:0,
    y: f32[96] cuda:0,
):
  kernel repeat(
      x: f32[6, 8] cuda:0,
      out r: f32[6, 2, 8] cuda:0,
  ):
    parallel i0 < 6, i1 < 2, i2 < 8:
      once:
        v0 = load x[i0*8 + i2] : f32
        store r[i0*16 + i1*8 + i2] = v0
  kernel use(
      r: f32[6, 2, 8] cuda:0,
      y: f32[96] cuda:0,
      out z: f32[48, 2] cuda:0,
  ):
    parallel i0 < 48, i1 < 2:
      once:
        v0 = load r[i0*2 + i1] : f32
        v1 = load y[i0*2] : f32
        v2 = add(v0, v1) : f32
        store z[i0*2 + i1] = v2
  return (z: f32[48, 2] cuda:0)
"""


def test_an_axis_that_walks_over_several_is_cut() -> None:
    (kernel,) = kernels(agree(REPEATED))
    assert "//" not in print_graph(agree(REPEATED)) and "%" not in print_graph(agree(REPEATED))
    assert [str(a.extent) for a in kernel.axes] == ["6", "2", "4", "2"]


JOINED = """
graph g(
    x: f32[4, {n}, 2] cuda:0,
):
  kernel both(
      x: f32[4, {n}, 2] cuda:0,
      out s: f32[4, {n}] cuda:0,
      out d: f32[4, {n}] cuda:0,
  ):
    parallel i0 < 4, i1 < {n}:
      once:
        v0 = load x[i0*{n}*2 + i1*2] : f32
        v1 = load x[i0*{n}*2 + i1*2 + 1] : f32
        v2 = add(v0, v1) : f32
        store s[i0*{n} + i1] = v2
        v3 = sub(v0, v1) : f32
        store d[i0*{n} + i1] = v3
  kernel join(
      s: f32[4, {n}] cuda:0,
      d: f32[4, {n}] cuda:0,
      out y: f32[4, {n}*2] cuda:0,
  ):
    parallel i0 < 4, i1 < {n}*2:
      once:
        v0 = index i1 : i64
        v1 = const {n} : i64
        v2 = lt(v0, v1) : bool
        v3 = load s[i0*{n} + i1] if v2 else 0 : f32
        v4 = ge(v0, v1) : bool
        v5 = load d[i0*{n} + i1 - {n}] if v4 else 0 : f32
        v6 = where(v4, v5, v3) : f32
        v7 = const 0.5 : f32
        v8 = mul(v6, v7) : f32
        store y[i0*{n}*2 + i1] = v8
  return (y: f32[4, {n}*2] cuda:0)
"""


def joined(n: int) -> str:
    return JOINED.replace("{n}*2", str(2 * n)).replace("{n}", str(n))


def test_parts_of_one_kernel_that_lie_in_runs_are_stored_there_with_what_follows() -> None:
    fused = agree(joined(16))
    (kernel,) = kernels(fused)
    assert "if" not in print_graph(fused) and print_graph(fused).count("store y") == 2
    assert {b.name for b in kernel.buffers} == {"x", "y"}


def test_parts_of_one_kernel_that_interleave_are_computed_where_they_lie() -> None:
    fused = agree(joined(2))
    (kernel,) = kernels(fused)
    assert print_graph(fused).count("store y") == 1
    assert {b.name for b in kernel.buffers} == {"x", "y"}


NEAREST = """
graph g(
    x: f32[64, 3] cuda:0,
    y: f32[64, 3] cuda:0,
):
  kernel distance(
      x: f32[64, 3] cuda:0,
      y: f32[64, 3] cuda:0,
      out d: f32[64, 64] cuda:0,
  ):
    parallel i0 < 64, i1 < 64:
      over r0 < 3:
        v0 = load x[i0*3 + r0] : f32
        v1 = load y[i1*3 + r0] : f32
        v2 = sub(v0, v1) : f32
        v3 = mul(v2, v2) : f32
        v4 = reduce sum(v3) : f32
      once:
        store d[i0*64 + i1] = v4
  kernel nearest(
      d: f32[64, 64] cuda:0,
      out m: f32[64] cuda:0,
  ):
    parallel i0 < 64:
      over r0 < 64:
        v0 = load d[i0*64 + r0] : f32
        v1 = reduce min(v0) : f32
      once:
        store m[i0] = v1
  return (m: f32[64] cuda:0)
"""


def test_sums_of_a_few_elements_are_computed_in_the_reduction_that_reads_them() -> None:
    (kernel,) = kernels(agree(NEAREST))
    assert {b.name for b in kernel.buffers} == {"x", "y", "m"}


FLAT = """
graph g(
    x: f32[{a}, {b}, {c}] cuda:0,
    w: f32[{c}] cuda:0,
):
  kernel make(
      x: f32[{a}, {b}, {c}] cuda:0,
      w: f32[{c}] cuda:0,
      out t: f32[{a}, {b}, {c}] cuda:0,
  ):
    parallel i0 < {a}, i1 < {b}, i2 < {c}:
      once:
        v0 = load x[i0*{bc} + i1*{c} + i2] : f32
        v1 = load w[i2] : f32
        v2 = mul(v0, v1) : f32
        store t[i0*{bc} + i1*{c} + i2] = v2
  kernel use(
      t: f32[{a}, {b}, {c}] cuda:0,
      out z: f32[{p}, {q}] cuda:0,
  ):
    parallel i0 < {p}, i1 < {q}:
      once:
        v0 = index i0*{q} + i1 - {low} : i64
        v1 = const 0 : i64
        v2 = ge(v0, v1) : bool
        v3 = const {total} : i64
        v4 = lt(v0, v3) : bool
        v5 = and(v2, v4) : bool
        v6 = load t[i0*{q} + i1 - {low}] if v5 else 0 : f32
        store z[i0*{q} + i1] = v6
  return (z: f32[{p}, {q}] cuda:0)
"""


@given(st.tuples(*[st.integers(1, 6)] * 5), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_any_flat_index_is_a_point_of_the_producer(sizes: tuple[int, ...], low: int) -> None:
    a, b, c, p, q = sizes
    names = {"a": a, "b": b, "c": c, "p": p, "q": q, "bc": b * c, "low": low, "total": a * b * c}
    text = FLAT.format(**names)
    assert len(kernels(agree(text.replace(" - 0]", "]").replace(" - 0 :", " :")))) == 1


def test_a_point_that_takes_a_long_formula_is_read() -> None:
    """With sizes that nobody knows, digits of a moved index do not come out of the division."""
    names = {
        "a": "s0 + 1", "b": "s1 + 4", "c": "s2 + 3", "bc": "(s1 + 4)*(s2 + 3)",
        "p": "s0*s1 + 2", "q": "(s1 + s0 + 3)*(s2 + s0 + 5)",
        "low": "(s1 + s2)*(s0 + s1)*2 - 6", "total": "s0*s1*s2",
    }  # fmt: skip
    text = FLAT.format(**{k: f"({v})" for k, v in names.items()})
    sizes = "".join(f"  where {s} in [1, *] hint 8\n" for s in ("s0", "s1", "s2"))
    text = text.replace("v3 = const", "v3 = index")
    for end in ("\n):\n", "\n  ):\n"):
        text = text.replace(end, end + sizes)
    graph = parse_graph(text)
    assert len(kernels(fuse(graph))) == 2


POOLED = """
graph g(
    x: f32[1024, 8] cuda:0,
):
  kernel both(
      x: f32[1024, 8] cuda:0,
      out y: f32[1024, 8] cuda:0,
      out h: f32[1024, 8] cuda:0,
  ):
    parallel i0 < 8192:
      once:
        v0 = load x[i0] : f32
        v1 = add(v0, v0) : f32
        store y[i0] = v1
        v2 = mul(v1, v0) : f32
        store h[i0] = v2
  kernel pool(
      h: f32[1024, 8] cuda:0,
      out z: f32[512, 8] cuda:0,
  ):
    parallel i0 < 512, i1 < 8:
      once:
        v0 = load h[i0*16 + i1] : f32
        v1 = load h[i0*16 + i1 + 8] : f32
        v2 = add(v0, v1) : f32
        store z[i0*8 + i1] = v2
  return (y: f32[1024, 8] cuda:0, z: f32[512, 8] cuda:0)
"""


def test_one_of_the_results_is_computed_where_it_is_read() -> None:
    first, second = kernels(agree(POOLED))
    assert {b.name for b in first.buffers} == {"x", "y"}
    assert {b.name for b in second.buffers} == {"x", "z"}


TABLE = """
graph g(
    x: f32[64] cuda:0,
):
  kernel table(
      x: f32[64] cuda:0,
      out t: f32[64] cuda:0,
  ):
    parallel i0 < 64:
      once:
        v0 = load x[i0] : f32
        v1 = {op}(v0) : f32
        store t[i0] = v1
  kernel use(
      t: f32[64] cuda:0,
      out y: f32[{n}, 64] cuda:0,
  ):
    parallel i0 < {n}, i1 < 64:
      once:
        v0 = load t[i1] : f32
        v1 = index i0 : i64
        v2 = cast(v1) : f32
        v3 = mul(v0, v2) : f32
        store y[i0*64 + i1] = v3
  return (y: f32[{n}, 64] cuda:0)
"""


def test_functions_of_few_arguments_are_kept_where_they_would_not_hide() -> None:
    for op, n, left in (("sin", 1 << 20, 2), ("neg", 1 << 20, 1), ("sin", 1 << 10, 1)):
        assert len(fuse(parse_graph(TABLE.format(op=op, n=n))).nodes) == left
    agree(TABLE.format(op="sin", n=8))


def test_a_result_beside_one_that_changes_what_it_reads_is_stored() -> None:
    """It was computed again from what the kernel had written."""
    text = POOLED.replace("x: f32[1024, 8] cuda:0,\n      out y:", "out x:")
    text = text.replace("store y[i0]", "store x[i0]").replace("(y: f32[1024, 8] cuda:0, z", "(z")
    agree(text)


SHORT = """
graph g(
    x: f32[64, 3] cuda:0,
):
  kernel row(
      x: f32[64, 3] cuda:0,
      out u: f32[64, 3] cuda:0,
      out c: f32[64, 3] cuda:0,
  ):
    parallel i0 < 64:
      over r0 < 3:
        v0 = load x[i0*3 + r0] : f32
        v1 = mul(v0, v0) : f32
        v2 = reduce sum(v1) : f32
        v3 = scan sum(v0){scan} : f32
        store c[i0*3 + r0] = v3
      once:
        v4 = sqrt(v2) : f32
      over r0 < 3:
        v5 = div(v0, v4) : f32
        store u[i0*3 + r0] = v5
  kernel pick(
      u: f32[64, 3] cuda:0,
      c: f32[64, 3] cuda:0,
      out z: f32[64, 64] cuda:0,
  ):
    parallel i0 < 64, i1 < 64:
      once:
        v0 = load u[i0*3 + 1] : f32
        v1 = load c[i1*3 + 2] : f32
        v2 = load c[i1*3] : f32
        v3 = mul(v0, v1) : f32
        v4 = add(v3, v2) : f32
        store z[i0*64 + i1] = v4
  return (z: f32[64, 64] cuda:0)
"""


def test_rows_of_a_few_elements_are_computed_again_at_each_point() -> None:
    for scan in ("", " reverse"):
        (kernel,) = kernels(agree(SHORT.format(scan=scan)))
        assert {b.name for b in kernel.buffers} == {"x", "z"}


PADDED = """
graph g(
    x: f32[6] cuda:0,
):
  kernel inner(
      x: f32[6] cuda:0,
      out p: f32[8] cuda:0,
  ):
    parallel i0 < 8:
      once:
        v0 = index i0 : i64
        v1 = const 2 : i64
        v2 = ge(v0, v1) : bool
        v9 = load x[i0 - 2] if v2 else 0 : f32
        store p[i0] = v9
  kernel outer(
      p: f32[8] cuda:0,
      out y: f32[{n}] cuda:0,
  ):
    parallel i0 < {n}:
      once:
        v0 = index i0 : i64
        v1 = const {less} : i64
        v9_mask = lt(v0, v1) : bool
        v3 = load p[i0] if v9_mask else 0 : f32
        v3_other = const 1.0 : f32
        v4 = add(v3, v3_other) : f32
        store y[i0] = v4
  return ({results})
"""


@pytest.mark.parametrize("n, more", [(8, ", p: f32[8] cuda:0"), (10, "")])
def test_what_a_masked_load_comes_to_takes_no_name_of_the_reader(n: int, more: str) -> None:
    """At the points of what it reads, where that is stored too, and at others."""
    text = PADDED.format(n=n, less=n - 2, results=f"y: f32[{n}] cuda:0{more}")
    assert "load p" not in print_graph(agree(text))


WINDOWS = """
graph g(
    x: f32[N] cuda:0,
):
  kernel power(
      x: f32[N] cuda:0,
      out p: f32[N] cuda:0,
  ):
    parallel i0 < N:
      once:
        v0 = load x[i0] : f32
        v1 = const 0.75 : f32
        v2 = OP(v0, v1) : f32
        store p[i0] = v2
  kernel window(
      p: f32[N] cuda:0,
      out y: f32[M] cuda:0,
  ):
    parallel i0 < M:
      once:
        v0 = load p[i0] : f32
        v1 = load p[i0 + 1] : f32
        v2 = add(v0, v1) : f32
        v3 = load p[i0 + 2] : f32
        v4 = add(v2, v3) : f32
        store y[i0] = v4
  return (y: f32[M] cuda:0)
"""


@pytest.mark.parametrize(("op", "left"), [("pow", 2), ("div", 1)])
def test_powers_are_not_computed_again_for_each_window(op: str, left: int) -> None:
    text = WINDOWS.replace("OP", op).replace("N", str(1 << 24)).replace("M", str((1 << 24) - 2))
    assert len(kernels(fuse(parse_graph(text)))) == left
