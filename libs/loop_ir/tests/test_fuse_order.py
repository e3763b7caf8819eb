"""Pairs that fuse where other pairs change the order of the kernels."""

from __future__ import annotations

import random

import numpy as np

from loop_ir import (
    Device,
    DType,
    Extern,
    Graph,
    TensorRef,
    TensorType,
    fuse,
    interpret_graph,
    parse_graph,
)
from loop_ir.fusion.dependencies import Dependencies
from loop_ir.ir import reads, writes

# `one` and `two` read the same tensor, and are fused first; then `right` comes before `left`.
CROSSED = """
graph g(
    big: f32[64, 64] cuda:0,
    small: f32[64, 30] cuda:0,
):
  kernel one(
      big: f32[64, 64] cuda:0,
      out p: f32[64] cuda:0,
  ):
    parallel i0 < 64:
      over r0 < 64:
        v0 = load big[i0*64 + r0] : f32
        v1 = reduce sum(v0) : f32
      once:
        store p[i0] = v1
  kernel left(
      small: f32[64, 30] cuda:0,
      p: f32[64] cuda:0,
      out y: f32[64, 30] cuda:0,
  ):
    parallel i0 < 64, i1 < 30:
      once:
        v0 = load small[i0*30 + i1] : f32
        v1 = load p[63 - i0] : f32
        v2 = mul(v0, v1) : f32
        store y[i0*30 + i1] = v2
  kernel right(
      small: f32[64, 30] cuda:0,
      out q: f32[64, 30] cuda:0,
  ):
    parallel i0 < 64, i1 < 30:
      once:
        v0 = load small[i0*30 + i1] : f32
        v1 = exp(v0) : f32
        store q[i0*30 + i1] = v1
  kernel two(
      big: f32[64, 64] cuda:0,
      q: f32[64, 30] cuda:0,
      out z: f32[64] cuda:0,
  ):
    parallel i0 < 64:
      over r0 < 64:
        v0 = load big[i0*64 + r0] : f32
        v1 = reduce max(v0) : f32
      once:
        v2 = load q[1890 - i0*30] : f32
        v3 = mul(v1, v2) : f32
        store z[i0] = v3
  return (y: f32[64, 30] cuda:0, z: f32[64] cuda:0, q: f32[64, 30] cuda:0)
"""


def test_pairs_that_others_put_in_another_order():
    graph = parse_graph(CROSSED)
    fused = fuse(graph)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(n).astype(np.float32) for n in ((64, 64), (64, 30))]
    for want, got in zip(interpret_graph(graph, given), interpret_graph(fused, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert len(fused.nodes) == 3


def test_order_of_merged_nodes() -> None:
    """The order that is kept up to date while nodes merge has each before those that need it."""
    type = TensorType(DType.f32, (4,), (1,), Device("cpu"))

    def call(read: set[str], made: set[str]) -> Extern:
        args = tuple(TensorRef(n, type) for n in sorted(read))
        return Extern("aten.cat.default", args, (), tuple((n, type) for n in sorted(made)))

    rng = random.Random(0)
    merges = 0
    for _ in range(60):
        nodes = []
        for n in range(24):
            read = {f"b{rng.randrange(max(0, n - 9), n)}" for _ in range(rng.randrange(3)) if n}
            nodes.append(call(read, {f"b{n}"}))
        deps = Dependencies(Graph("g", (), tuple(nodes), ()))
        for _ in range(16):
            first, second = sorted(rng.sample(list(deps.nodes), 2), key=lambda n: deps.order[n])
            if deps.between(first, second) is not None:
                continue
            one, two = deps.nodes[first], deps.nodes[second]
            made = {*writes(one), *writes(two)}
            deps.merge(first, second, call({*reads(one), *reads(two)} - made, made))
            merges += 1
            assert deps.order.keys() == deps.nodes.keys()
            assert len(set(deps.order.values())) == len(deps.nodes)
            for number, later in deps.after.items():
                assert all(deps.order[number] < deps.order[n] for n in later)
    assert merges > 300
