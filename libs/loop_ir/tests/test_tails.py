"""What follows a reduction at all points is computed where it is read, and gives what it gave."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import Graph, Kernel, fuse_with_report, interpret_graph, parse_graph, verify
from loop_ir.ir.names import statements

NORM = """
graph g(
    x: f32[{n}, 8] cuda:0,
    w: f32[8] cuda:0,
):
  kernel norm(
      x: f32[{n}, 8] cuda:0,
      w: f32[8] cuda:0,
      out y: f32[{n}, 8] cuda:0,
  ):
    parallel i0 < {n}:
      over r0 < 8:
        v0 = load x[i0*8 + r0] : f32
        v1, v2 = reduce welford(v0) : f32
      once:
        v3 = const 1e-05 : f32
        v4 = add(v2, v3) : f32
        v5 = rsqrt(v4) : f32
      over r0 < 8:
        v6 = sub(v0, v1) : f32
        v7 = mul(v6, v5) : f32
        v8 = load w[r0] : f32
        v9 = mul(v7, v8) : f32
        store y[i0*8 + r0] = v9
"""
POOL = """
  kernel pool(
      y: f32[{n}, 8] cuda:0,
      out z: f32[{half}, 4] cuda:0,
  ):
    parallel i0 < {half}, i1 < 4:
      once:
        v0 = load y[i0*16 + i1*2] : f32
        v1 = load y[i0*16 + i1*2 + 1] : f32
        v2 = add(v0, v1) : f32
        v3 = load y[i0*16 + i1*2 + 8] : f32
        v4 = add(v2, v3) : f32
        v5 = load y[i0*16 + i1*2 + 9] : f32
        v6 = add(v4, v5) : f32
        store z[i0*4 + i1] = v6
  return (z: f32[{half}, 4] cuda:0{more})
"""
COLUMNS = """
  kernel columns(
      y: f32[{n}, 8] cuda:0,
      out z: f32[8] cuda:0,
  ):
    parallel i0 < 8:
      over r0 < {n}:
        v0 = load y[r0*8 + i0] : f32
        v1 = reduce max(v0) : f32
      once:
        store z[i0] = v1
  return (z: f32[8] cuda:0)
"""


def fused(text: str, n: int, more: str = "") -> tuple[Graph, list[str]]:
    """The fused graph, which agrees with that of the text, and the kinds of what was fused."""
    graph = parse_graph(text.format(n=n, half=n // 2, more=more))
    got, report = fuse_with_report(graph)
    verify(got)
    if n <= 64:
        rng = np.random.default_rng(0)
        x = [rng.standard_normal((n, 8)).astype(np.float32), np.ones(8, np.float32)]
        x += [np.ones(n, np.float32)] * (len(graph.inputs) - 2)
        given = [[a.copy() for a in x] for _ in (graph, got)]
        results = [interpret_graph(g, a) for g, a in zip((graph, got), given, strict=True)]
        for want, have in zip(*results, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
        for want, have in zip(*given, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
    return got, [f.kind for f in report.fusions]


@pytest.mark.parametrize("reader", [POOL, COLUMNS])
def test_the_numbers_of_rows_are_stored_instead_of_the_rows(reader: str) -> None:
    for n in (64, 1 << 20):
        got, kinds = fused(NORM + reader, n)
        kernels = [k for k in got.nodes if isinstance(k, Kernel)]
        assert "tail" in kinds
        assert not any(b.name == "y" for k in kernels for b in k.buffers)
        # a root is computed once a row, not at each point that reads it
        roots = [k.name for k in kernels for s in statements(k) if getattr(s, "op", "") == "rsqrt"]
        assert len(roots) == 1 and roots[0] != kernels[-1].name


def test_rows_that_are_a_result_are_stored() -> None:
    got, kinds = fused(NORM + POOL, 64, ", y: f32[64, 8] cuda:0")
    assert "tail" not in kinds and len(got.nodes) == 2


def test_no_rows_at_all() -> None:
    fused(NORM + POOL, 0)
    fused(NORM + POOL, 2)


def test_numbers_that_a_norm_keeps_in_place_do_not_hinder_it() -> None:
    text = (NORM + POOL).replace(
        "    w: f32[8] cuda:0,\n):", "    w: f32[8] cuda:0,\n    m: f32[{n}] cuda:0,\n):"
    )
    text = text.replace(
        "      out y: f32[{n}, 8]", "      out m: f32[{n}] cuda:0,\n      out y: f32[{n}, 8]"
    )
    text = text.replace(
        "        v5 = rsqrt(v4) : f32\n",
        """        v5 = rsqrt(v4) : f32
        v10 = load m[i0] : f32
        v11 = add(v10, v1) : f32
        store m[i0] = v11
""",
    )
    got, kinds = fused(text, 64)
    assert "tail" in kinds
    assert not any(b.name == "y" for k in got.nodes if isinstance(k, Kernel) for b in k.buffers)


# a norm of groups of three channels, and the sum of each channel of it
GROUPS = """
graph g(
    x: f32[s0, 6, 35] cuda:0,
    w: f32[6] cuda:0,
):
  where s0 in [0, 1000000] hint 100000
  kernel norm(
      x: f32[s0, 6, 35] cuda:0,
      w: f32[6] cuda:0,
      out t: f32[s0, 6, 35] cuda:0,
  ):
    where s0 in [0, 1000000] hint 100000
    parallel i0 < s0, i1 < 2:
      over r0 < 3, r1 < 35:
        v0 = load x[i0*210 + i1*105 + r0*35 + r1] : f32
        v1 = mul(v0, v0) : f32
        v2 = reduce sum(v1) : f32
      once:
        v3 = rsqrt(v2) : f32
      over r0 < 3, r1 < 35:
        v4 = mul(v0, v3) : f32
        v5 = load w[i1*3 + r0] : f32
        v6 = mul(v4, v5) : f32
        store t[i0*210 + i1*105 + r0*35 + r1] = v6
  kernel channels(
      t: f32[s0, 6, 35] cuda:0,
      out y: f32[s0, 6] cuda:0,
  ):
    where s0 in [0, 1000000] hint 100000
    parallel i0 < s0, i1 < 6:
      over r0 < 35:
        v0 = load t[i0*210 + i1*35 + r0] : f32
        v1 = reduce sum(v0) : f32
      once:
        store y[i0*6 + i1] = v1
  return (y: f32[s0, 6] cuda:0)
"""


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_whose_parts_are_rows_of_the_reader(rows: int) -> None:
    """A channel is a part of a group: neither index is made of the other's axes."""
    got, report = fuse_with_report(parse_graph(GROUPS))
    verify(got)
    assert [f.kind for f in report.fusions] == ["tail"]
    assert not any(b.name == "t" for k in got.nodes if isinstance(k, Kernel) for b in k.buffers)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 6, 35)).astype(np.float32)
    w = rng.standard_normal(6).astype(np.float32)
    exact = x.astype(np.float64).reshape(rows, 2, 105)
    exact = exact / np.sqrt(np.square(exact).sum(-1, keepdims=True))
    exact = (exact.reshape(rows, 6, 35) * w[:, None]).sum(-1)
    (sums,) = interpret_graph(got, [x, w])
    np.testing.assert_allclose(np.reshape(sums, exact.shape), exact, rtol=1e-4, atol=1e-5)
