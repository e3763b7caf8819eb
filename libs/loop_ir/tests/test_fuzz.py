"""Fused graphs mean what the unfused ones mean, for graphs that nobody thought of."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loop_ir import (
    DType,
    FuseOptions,
    OrderNodes,
    Symbol,
    bytes_moved,
    fuse,
    interpret_graph,
    parse_graph,
    print_graph,
    verify,
)
from loop_ir.ir.analysis import reads
from symexpr import symbol

UNARY = ("neg", "abs", "tanh", "sigmoid", "exp")
BINARY = ("add", "mul", "sub", "maximum")


def broadcastable(a, b):
    if len(a) < len(b):
        a, b = b, a
    return all(m in (n, 1) for n, m in zip(a[len(a) - len(b) :], b, strict=True))


@st.composite
def programs(draw, builder_class):
    """Random pointwise, broadcast, row reduction, transposed copy, view and extern operations."""
    symbolic = draw(st.booleans())
    lead = symbol("s0") if symbolic else sympy.Integer(draw(st.sampled_from((1, 2, 5))))
    dtype = draw(st.sampled_from((DType.f32, DType.f32, DType.bf16)))
    b = builder_class("fuzz", (Symbol("s0", 0, 9, 3),) if symbolic else ())
    four, three, two = map(sympy.Integer, (4, 3, 2))
    pool = [
        b.input("x", dtype, lead, three, four),
        b.input("y", dtype, lead, three, four),
        b.input("w", dtype, four),
        b.input("row", dtype, lead, three, 1),
        b.input("flat", dtype, lead * 3, four),
        b.input("square", dtype, lead, four, four),
    ]
    weight = b.input("weight", dtype, four, four)
    for _ in range(draw(st.integers(4, 10))):
        kind = draw(
            st.sampled_from(
                ("unary", "unary", "binary", "binary", "binary", "softmax", "norm", "reduce",
                 "transpose", "reshape", "flatten", "residual", "slice", "scale", "shift",
                 "pad", "flip", "rows", "linear", "scan", "columns")
            )
        )  # fmt: skip
        x = pool[-1 - draw(st.sampled_from((0, 0, 0, 1, 2, 3, 4, 5)))]
        if kind == "unary":
            pool.append(b.unary(draw(st.sampled_from(UNARY)), x))
        elif kind == "binary":
            partners = [p for p in pool if broadcastable(p.size, x.size)]
            y = draw(st.sampled_from(partners))
            big, small = (x, y) if len(x.size) >= len(y.size) else (y, x)
            if len(big.size) == len(small.size) and small.size != big.size:
                if all(n in (m, 1) for n, m in zip(big.size, small.size, strict=True)):
                    big, small = small, big
                elif not all(n in (m, 1) for n, m in zip(small.size, big.size, strict=True)):
                    continue
            pool.append(b.binary(draw(st.sampled_from(BINARY)), big, small))
        elif kind == "softmax":
            pool.append(b.softmax(x))
        elif kind == "norm" and x.size[-1] == 4:
            pool.append(b.layer_norm(x, pool[2], pool[2]))
        elif kind == "reduce" and x.size[-1] != 1:
            pool.append(b.reduce(draw(st.sampled_from(("sum", "max"))), x))
        elif kind == "columns" and len(x.size) > 1 and x.size[-2] != 1:
            pool.append(b.reduce("sum", x.transpose(len(x.size) - 2, len(x.size) - 1)))
        elif kind == "scan" and x.size[-1] != 1:
            op, turned = draw(st.sampled_from((("sum", False), ("sum", True), ("max", False))))
            y = b.flip(x) if turned and x.size[-1].is_Integer else x
            y = b.scan(op, y, draw(st.booleans()))
            pool.append(b.flip(y) if y is not x and turned and x.size[-1].is_Integer else y)
        elif kind == "transpose" and len(x.size) >= 2:
            i = draw(st.integers(0, len(x.size) - 2))
            pool.append(b.copy("clone", x.transpose(i, len(x.size) - 1)))
        elif kind == "reshape" and x.type.is_contiguous and x.size[-1] == 4:
            pool.append(x.reshape(*x.size[:-1], 2, 2))
        elif kind == "flatten" and x.type.is_contiguous and len(x.size) >= 2:
            pool.append(x.reshape(x.size[0] * x.size[1], *x.size[2:]))
        elif kind == "linear" and x.size[-1] == 4 and len(x.size) > 1 and x.type.is_contiguous:
            y = b.linear(x, weight, pool[2])
            pool.append(draw(st.sampled_from((b.gelu, lambda t: b.unary("tanh", t))))(y))
        elif kind == "pad" and x.size[-1].is_Integer:
            pool.append(b.pad(x, 1, draw(st.sampled_from((0, 2)))))
        elif kind == "flip" and x.size[-1].is_Integer and x.size[-1] != 1:
            pool.append(b.flip(x))
        elif kind == "rows":
            ids = b.pointwise(
                "ids", lambda v, e: e.op("cast", e.op("ge", v[0], e.const(0.5)), dtype=DType.i64),
                pool[3], dtype=DType.i64,
            )  # fmt: skip
            table = b.unary("tanh", b.pad(pool[4], 0, 0)) if lead.is_Integer else None
            if table is not None:
                pool.append(b.gather(ids, table))
        elif kind == "residual" and x.type.is_contiguous:
            y = b.unary(draw(st.sampled_from(UNARY)), x)
            z = b.extern("aten.neg.default", y.type, y)
            pool.append(b.binary("add", y, z))
        elif kind == "scale" and x.size[-1] == 4:
            pool.append(b.binary("mul", x, b.unary("tanh", pool[2])))
        elif kind == "shift" and x.size[:2] == (lead, three) and len(x.size) == 3:
            pool.append(b.binary("add", x, b.unary("exp", pool[3])))
        elif kind == "slice" and x.type.is_contiguous and x.size[-1] == 4:
            pool.append(x.view((*x.size[:-1], two), x.type.stride))
    last = pool[-1]
    if not b.nodes:
        last = b.unary("neg", last)
    read = {n for node in b.nodes for n in reads(node)} | {n.name for n in b.inputs}
    unread = {p.name: p for p in pool if p.name not in read}
    others = [p for p in pool if p.name in read and p.name not in {i.name for i in b.inputs}]
    extra = draw(st.lists(st.sampled_from(others), max_size=1)) if others else []
    return b.graph(last, *unread.values(), *extra)


def run(graph, size):
    rng = np.random.default_rng(7)
    env = {symbol("s0"): sympy.Integer(size)}
    inputs = []
    for item in graph.inputs:
        shape = tuple(int(sympy.sympify(n).xreplace(env)) for n in item.type.size)
        inputs.append(rng.standard_normal(shape).astype(np.float32).round(2))
    return interpret_graph(graph, inputs, extern=lambda t, a, k: -a[0], symbols={"s0": size})


@pytest.mark.spread(2)
@pytest.mark.parametrize("options", [
    FuseOptions(drop_round_casts=False),
    FuseOptions(drop_round_casts=False, inline=False, launch_bytes=0),
    FuseOptions(drop_round_casts=False, vertical=False),
    FuseOptions(drop_round_casts=False, epilogue=True),
])  # fmt: skip
@pytest.mark.parametrize("examples", [12, pytest.param(30, marks=pytest.mark.slow)])
def test_fused_equals_unfused(options, examples, make_builder):
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(programs(make_builder))
    def check(graph):
        verify(graph)
        fused = OrderNodes().run(fuse(graph, options))
        verify(fused)
        assert parse_graph(print_graph(fused)) == fused
        assert bytes_moved(fused) <= bytes_moved(graph) + (1 << 20)
        for size in (3, 1, 0) if graph.symbols else (3,):
            if size == 0 and any("max" in str(n) for n in graph.nodes):
                continue
            for a, b in zip(run(graph, size), run(fused, size), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)

    check()


def test_programs_in_f32_have_no_rounding_to_drop(make_builder):
    @settings(
        max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(programs(make_builder))
    def check(graph):
        if all(n.type.dtype != DType.bf16 for n in graph.inputs):
            assert fuse(graph) == fuse(graph, FuseOptions(drop_round_casts=False))

    check()
