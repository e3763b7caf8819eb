"""Each pass: before, after, and what it must leave alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import sympy

from loop_ir import (
    Axis,
    DType,
    Graph,
    OrderNodes,
    PassError,
    interpret_kernel,
    parse_graph,
    parse_kernel,
    print_kernel,
    run_passes,
    verify,
)
from loop_ir.passes import cse, drop_round_casts, merge_axes, order_axes, simplify_indices
from loop_ir.passes.dead_code import DeadCode
from symexpr import FloorDiv, Mod, symbol


def kernel(head, *lines, axes="i0 < 4, i1 < 8"):
    buffers = "".join(f"    {b} cuda:0,\n" for b in head.split("; "))
    body = "".join(f"      {line}\n" for line in lines)
    out = parse_kernel(f"kernel k(\n{buffers}):\n  parallel {axes}:\n    once:\n{body}")
    verify(out)
    return out


def lines(k):
    text = print_kernel(k).split("\n")
    return [" ".join(t.split()) for t in text if " = " in t]


XY = "x: f32[4, 8]; out y: f32[4, 8]"


def test_cse_computes_once():
    k = kernel(
        XY,
        "a = load x[i0*8 + i1] : f32",
        "b = load x[i0*8 + i1] : f32",
        "c = add(a, b) : f32",
        "d = add(b, a) : f32",
        "e = sub(c, d) : f32",
        "store y[i0*8 + i1] = e",
    )
    assert lines(cse.eliminate(k)) == [
        "a = load x[i0*8 + i1] : f32",
        "c = add(a, a) : f32",
        "e = sub(c, c) : f32",
        "store y[i0*8 + i1] = e",
    ]


def test_cse_tells_minus_zero_true_and_one_apart():
    k = kernel(
        "out y: f32[4, 8]",
        "a = const 0.0 : f32",
        "b = const -0.0 : f32",
        "c = div(a, b) : f32",
        "p = const true : bool",
        "d = where(p, c, b) : f32",
        "store y[i0*8 + i1] = d",
    )
    assert cse.eliminate(k) == k


def test_cse_merges_indirect_symbols():
    k = kernel(
        "ids: i64[4]; t: f32[9, 8]; out y: f32[4, 8]",
        "a = load ids[i0] : i64",
        "t0 = indirect a < 9",
        "b = load ids[i0] : i64",
        "t1 = indirect b < 9",
        "c = load t[t0*8 + i1] : f32",
        "d = load t[t1*8 + i1] : f32",
        "e = add(c, d) : f32",
        "store y[i0*8 + i1] = e",
    )
    assert lines(cse.eliminate(k))[1:4] == [
        "t0 = indirect a < 9", "c = load t[t0*8 + i1] : f32", "e = add(c, c) : f32"
    ]  # fmt: skip


def test_cse_leaves_loads_of_a_buffer_that_changes():
    k = kernel(
        "out y: f32[4, 8]",
        "a = load y[i0*8 + i1] : f32",
        "b = load y[i0*8 + i1] : f32",
        "c = add(a, b) : f32",
        "store y[i0*8 + i1] = c",
    )
    assert cse.eliminate(k) == k


def test_drop_round_casts():
    k = kernel(
        "x: f32[4, 8]; h: bf16[4, 8]; out y: f32[4, 8]",
        "a = load x[i0*8 + i1] : f32",
        "b = cast(a) : bf16",
        "c = cast(b) : f32",
        "g = load h[i0*8 + i1] : bf16",
        "d = cast(g) : f32",
        "e = cast(d) : i32",
        "f = cast(e) : f32",
        "s = add(c, f) : f32",
        "store y[i0*8 + i1] = s",
    )
    after = lines(drop_round_casts.drop(k))
    assert "s = add(a, f) : f32" in after
    assert "f = cast(e) : f32" in after  # an integer cast is no rounding to skip


def test_what_is_stored_is_what_is_computed_with():
    k = kernel(
        "x: f32[4, 8]; out y: f32[4, 8]; out z: bf16[4, 8]",
        "a = load x[i0*8 + i1] : f32",
        "b = cast(a) : bf16",
        "c = cast(b) : f32",
        "store y[i0*8 + i1] = c",
        "store z[i0*8 + i1] = b",
    )
    assert drop_round_casts.drop(k) == k


def test_what_is_compared_with_an_infinity_is_not_rounded_for_it():
    text = """a = load x[i0*8 + i1] : f32
b = cast(a) : bf16
c = cast(b) : f32
d = abs(c) : f32
e = const inf : f32
f = eq(d, e) : bool
store y[i0*8 + i1] = f"""
    head = "x: f32[4, 8]; out y: bool[4, 8]"
    assert "d = abs(a) : f32" in lines(drop_round_casts.drop(kernel(head, *text.split("\n"))))
    of_one = kernel(head, *text.replace("inf", "1.0").split("\n"))
    assert drop_round_casts.drop(of_one) == of_one


def test_a_rounding_stays_where_a_number_of_its_type_is_subtracted():
    k = kernel(
        "x: f32[4, 8]; m: bf16[4]; h: f16[4]; out y: f32[4, 8]; out z: f32[4, 8]",
        "a = load x[i0*8 + i1] : f32",
        "b = cast(a) : bf16",
        "c = cast(b) : f32",
        "d = load m[i0] : bf16",
        "e = cast(d) : f32",
        "f = sub(c, e) : f32",
        "store y[i0*8 + i1] = f",
        "g = exp(a) : f32",
        "k = cast(g) : bf16",
        "l = cast(k) : f32",
        "n = load h[i0] : f16",
        "o = cast(n) : f32",
        "p = sub(l, o) : f32",  # of another type
        "store z[i0*8 + i1] = p",
    )
    after = lines(drop_round_casts.drop(k))
    assert "f = sub(c, e) : f32" in after
    assert "p = sub(g, o) : f32" in after


def test_a_cast_that_rounds_nothing_is_dropped_everywhere():
    k = kernel(
        "x: bf16[4, 8]; h: f16[4, 8]; out y: i8[4, 8]; out z: bf16[4, 8]",
        "v = load x[i0*8 + i1] : bf16",
        "a = cast(v) : f32",
        "b = abs(a) : f32",
        "c = cast(b) : bf16",
        "store z[i0*8 + i1] = c",
        "d = cast(c) : f32",
        "w = load h[i0*8 + i1] : f16",
        "e = cast(w) : f32",
        "f = neg(e) : f32",
        "g = cast(f) : bf16",  # of another type
        "m = cast(g) : f32",
        "n = maximum(d, m) : f32",
        "o = cast(n) : bf16",
        "p = cast(o) : f32",
        "q = maximum(b, f) : f32",  # of two types
        "r = cast(q) : bf16",
        "s = cast(r) : f32",
        "t = add(p, s) : f32",
        "u = cast(t) : i8",
        "store y[i0*8 + i1] = u",
    )
    after = lines(drop_round_casts.drop(k))
    assert "store z[i0*8 + i1] = c" in after
    assert "n = maximum(b, m) : f32" in after
    assert "t = add(n, s) : f32" in after


@pytest.mark.parametrize("high", [15.0, 15.1])
@pytest.mark.parametrize("type", ["bf16", "f16"])
def test_integers_clamped_to_numbers_of_a_type_are_such(type, high):
    k = kernel(
        f"x: {type}[4, 8]; out y: u8[4, 8]",
        f"v = load x[i0*8 + i1] : {type}",
        "a = cast(v) : f32",
        "b = round(a) : f32",
        f"c = cast(b) : {type}",
        "d = cast(c) : f32",
        f"n = const {high} : f32",
        "e = minimum(d, n) : f32",
        f"f = cast(e) : {type}",
        "g = cast(f) : u8",
        "store y[i0*8 + i1] = g",
    )
    after = lines(drop_round_casts.drop(k))
    assert "e = minimum(b, n) : f32" in after
    assert f"g = cast({'e' if high == 15.0 else 'f'}) : u8" in after


def test_a_rounding_that_the_program_asks_for_stays():
    k = kernel(
        "x: f32[4, 8]; out y: f32[4, 8]",
        "a = load x[i0*8 + i1] : f32",
        "b = narrow(a) : bf16",
        "c = cast(b) : f32",
        "store y[i0*8 + i1] = c",
    )
    assert drop_round_casts.drop(k) == k


@pytest.mark.parametrize("step", ["floor", "lt", "i32"])
def test_a_rounding_stays_where_its_value_reaches_a_step(step):
    last = {
        "floor": "t = floor(s) : f32",
        "lt": "t = lt(s, a) : bool",
        "i32": "t = cast(s) : i32",
    }
    type = {"lt": "bool", "i32": "i32"}.get(step, "f32")
    k = kernel(
        f"x: f32[4, 8]; out y: {type}[4, 8]; out z: f32[4, 8]",
        "a = load x[i0*8 + i1] : f32",
        "b = cast(a) : bf16",
        "c = cast(b) : f32",
        "s = add(c, a) : f32",
        last[step],
        "e = exp(a) : f32",
        "f = cast(e) : f16",
        "g = cast(f) : f32",
        "store y[i0*8 + i1] = t",
        "store z[i0*8 + i1] = g",
    )
    after = lines(drop_round_casts.drop(k))
    assert "s = add(c, a) : f32" in after
    assert "store z[i0*8 + i1] = e" in after


def test_dead_code_drops_statements_stores_and_nodes(make_builder):
    b = make_builder()
    x = b.input("x", DType.f32, 4)
    unused = b.unary("tanh", x)
    b.extern("aten.neg.default", unused.type, unused)
    kept = b.unary("exp", x)
    mutating = b.extern("aten.add_.Tensor", x.type, x)
    b.nodes[-1] = replace(b.nodes[-1], mutates=("x",))
    graph = b.graph(kept)
    after = DeadCode().run(graph)
    assert [n.name if hasattr(n, "name") else n.target for n in after.nodes] == [
        "op_exp_3", "aten.add_.Tensor"
    ]  # fmt: skip
    assert mutating.name == "add__4"
    assert DeadCode().run(after) is after


OVERWRITTEN = """\
graph g(
    x: f32[4, 8] cuda:0,
):
  kernel early(
      x: f32[4, 8] cuda:0,
      out y: f32[4, 8] cuda:0,
      out z: f32[4, 8] cuda:0,
  ):
    parallel i0 < 4, i1 < 8:
      once:
        a = load x[i0*8 + i1] : f32
        store y[i0*8 + i1] = a
        store z[i0*8 + i1] = a
  kernel late(
      z: f32[4, 8] cuda:0,
      out y: f32[4, 8] cuda:0,
  ):
    parallel i0 < 4, i1 < 8:
      once:
        a = load z[i0*8 + i1] : f32
        store y[PLACE] = a
  return (y: f32[4, 8] cuda:0)
"""


@pytest.mark.parametrize(("place", "dead"), [("i0*8 + i1", True), ("i1", False)])
def test_what_is_overwritten_is_not_stored(place, dead):
    graph = parse_graph(OVERWRITTEN.replace("PLACE", place))
    early, late = DeadCode().run(graph).nodes
    assert [b.name for b in early.buffers if b.written] == (["z"] if dead else ["y", "z"])
    assert late == graph.nodes[1]


def test_what_frees_memory_runs_first(make_builder):
    b = make_builder()
    x = b.input("x", DType.f32, 1000, 8)
    large = b.unary("exp", x)
    other = b.unary("tanh", x)
    small = b.reduce("sum", large)
    graph = b.graph(small, other)
    names = [node.name for node in OrderNodes().run(graph).nodes]
    assert names == [graph.nodes[n].name for n in (0, 2, 1)]
    talks = b.extern("_c10d_functional.wait_tensor.default", small.type, small)
    graph = b.graph(talks, other)
    assert OrderNodes().run(graph) is graph


def test_simplify_indices():
    k = kernel(XY, "a = load x[0] : f32", "store y[i0*8 + i1] = a")
    i0, i1 = symbol("i0"), symbol("i1")
    flat = 8 * i0 + i1
    index = 8 * FloorDiv(flat, 8) + Mod(flat, 8)
    (phase,) = k.phases
    load = replace(phase.body[0], index=index)
    k = replace(k, phases=(replace(phase, body=(load, *phase.body[1:])),))
    assert lines(simplify_indices.simplify(k))[0] == "a = load x[i0*8 + i1] : f32"


PARTS = """
kernel k(
    x: f32[s0, s1, s1] cuda:0,
    out y: f32[6, s0//6, s1**2] cuda:0,
):
  where s0 in [0, *]
  where s1 in [0, *]
  parallel i0 < 6, i1 < s0//6, i2 < s1**2:
    once:
      v0 = load x[(s0//6*i0 + i1 + i2//s1**2)%s0*s1**2 + i2//s1%s1*s1 + i2%s1] : f32
      store y[s0//6*i0*s1**2 + i1*s1**2 + i2] = v0
"""


def test_places_in_parts_of_sizes_that_are_not_known():
    """Where there is a point, `s1` is no 0, and six parts of `s0//6` are within `s0`."""
    load = simplify_indices.simplify(parse_kernel(PARTS)).phases[0].body[0]
    s0, s1, i0, i1, i2 = map(symbol, ("s0", "s1", "i0", "i1", "i2"))
    assert sympy.expand(load.index - s1**2 * (FloorDiv(s0, 6) * i0 + i1) - i2) == 0


def test_index_values_in_range_are_no_indirection():
    text = ["a = index i0", "t0 = indirect a < 4", "v = load x[t0*8 + i1] : f32"]
    k = kernel(XY, text[0] + " : i64", *text[1:], "store y[i0*8 + i1] = v")
    assert lines(simplify_indices.simplify(k)) == [
        "v = load x[i0*8 + i1] : f32", "store y[i0*8 + i1] = v"
    ]  # fmt: skip
    k = kernel(XY, "a = index i0 - 1 : i64", *text[1:], "store y[i0*8 + i1] = v")
    assert simplify_indices.simplify(k) == k  # -1 counts from the end


@pytest.mark.parametrize(("shift", "op", "direct"), [
    (3, "fmod", True), (3, "mod", True), (-3, "mod", True), (-3, "fmod", False),
    (2**31, "mod", False),
])  # fmt: skip
def test_arithmetic_of_places_in_range_is_no_indirection(shift: int, op: str, direct: bool):
    k = kernel(
        XY, "a = index i0 : i64", "b = cast(a) : i32", f"c = const {shift} : i32",
        "d = add(b, c) : i32", "n = const 4 : i32", f"e = {op}(d, n) : i32",
        "t0 = indirect e < 4", "v = load x[t0*8 + i1] : f32", "store y[i0*8 + i1] = v",
    )  # fmt: skip
    made = simplify_indices.simplify(k)
    assert (made != k) is direct
    if direct:
        assert lines(made)[0] == f"v = load x[(i0 {'+-'[shift < 0]} 3)%4*8 + i1] : f32"


ROLLED = """
kernel k(
    x: f32[s0] cuda:0,
    out y: f32[s0] cuda:0,
):
  where s0 in [0, *]
  parallel i0 < {extent}:
    once:
      v0 = index i0 : i64
      v1 = index {shift} : i64
      v2 = add(v0, v1) : i64
      v3 = index s0 : i64
      v4 = fmod(v2, v3) : i64
      t0 = indirect v4 < s0
      v5 = load x[t0] : f32
      store y[i0] = v5
"""


@pytest.mark.parametrize(
    ("extent", "shift", "direct"), [("s0", "-3%s0", True), ("s0", "-3", False), ("8", "3", False)]
)
def test_what_is_rolled_by_a_size_is_no_indirection(extent: str, shift: str, direct: bool):
    """Where there is a point, that size is no 0."""
    k = parse_kernel(ROLLED.format(extent=extent, shift=shift))
    made = simplify_indices.simplify(k)
    assert (made != k) is direct
    assert not direct or lines(made)[0] == "v5 = load x[(i0 - 3)%s0] : f32"


@pytest.mark.parametrize("size", [True, False])
def test_places_by_an_integer_that_is_no_size_stay_as_wide_as_it_is(size: bool):
    """An index may be in 32 bits, which hold every size of memory that these reach; 2**40 read from
    a tensor is refused there."""
    text = ROLLED.format(extent="s0" if size else "8", shift="0").replace("[s0]", "[8]")
    text = text.replace("v4 < s0", "v4 < 8").replace("index 0 :", "index s0 :")
    text = text.replace("v3 = index s0", "v3 = index 8")
    k = parse_kernel(text)
    assert (simplify_indices.simplify(k) != k) is size


def test_a_distance_that_is_cut_off_is_no_indirection():
    k = kernel(
        XY, "a = index i0 - i1 : i32", "b = abs(a) : i32", "n = const 3 : i32",
        "c = minimum(b, n) : i32", "t0 = indirect c < 4", "v = load x[t0*8] : f32",
        "store y[i0*8 + i1] = v",
    )  # fmt: skip
    made = lines(simplify_indices.simplify(k))
    assert made[0] == "v = load x[Min(3, Max(0, i0 - i1, i1 - i0))*8] : f32"


def test_merge_axes():
    k = kernel(XY, "a = load x[i0*8 + i1] : f32", "store y[i0*8 + i1] = a")
    merged = merge_axes.merge(k)
    assert merged.axes == (Axis(symbol("i0"), sympy.Integer(32)),)
    assert lines(merged) == ["a = load x[i0] : f32", "store y[i0] = a"]
    row = kernel("x: f32[8]; out y: f32[4, 8]", "a = load x[i1] : f32", "store y[i0*8 + i1] = a")
    assert merge_axes.merge(row) == row
    unit = kernel(XY, "a = load x[i0*8 + i2 + i1] : f32", "store y[i0*8 + i2] = a",
                  axes="i0 < 4, i1 < 1, i2 < 8")  # fmt: skip
    assert merge_axes.merge(unit) == merged


def test_order_axes_by_stride():
    """Channels-last tensors under axes in the order of their sizes; a broadcast has no vote."""
    flat = "x: f32[192]; w: f32[8]; out y: f32[192]"
    body = [
        "a = load x[i0*48 + i1 + i2*8] : f32",
        "b = load w[i1] : f32",
        "c = mul(a, b) : f32",
    ]
    axes = "i0 < 4, i1 < 8, i2 < 6"
    store = "store y[i0*48 + i1 + i2*8] = c"
    k = kernel(flat, *body, store, axes=axes)
    ordered = order_axes.order(k)
    verify(ordered)
    assert [str(a.extent) for a in ordered.axes] == ["4", "6", "8"]
    assert lines(ordered)[-1] == "store y[i0*48 + i1*8 + i2] = c"
    assert [str(a.extent) for a in merge_axes.merge(ordered).axes] == ["24", "8"]
    given = {"x": np.arange(192, dtype=np.float32), "w": np.arange(8, dtype=np.float32)}
    for name, value in interpret_kernel(k, given).items():
        np.testing.assert_array_equal(interpret_kernel(ordered, given)[name], value)
    # the store decides a draw
    transposed = kernel(flat, *body, "store y[i0*48 + i1*6 + i2] = c", axes=axes)
    assert order_axes.order(transposed) == transposed


def test_merge_axes_inside_of_reductions():
    k = parse_kernel("""\
kernel k(
    x: f32[4, 2, 3] cuda:0,
    out y: f32[4] cuda:0,
    out p: i64[4] cuda:0,
):
  parallel i0 < 4:
    over r0 < 2, r1 < 3:
      v0 = load x[i0*6 + r0*3 + r1] : f32
      v1 = reduce sum(v0) : f32
      v2 = reduce argmax(v0) : i64
    once:
      store y[i0] = v1
      store p[i0] = v2
""")
    merged = merge_axes.merge(k)
    assert [str(a.extent) for a in merged.phases[0].axes] == ["6"]
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32)
    for name, value in interpret_kernel(k, {"x": x}).items():
        np.testing.assert_array_equal(interpret_kernel(merged, {"x": x})[name], value)


@dataclass(frozen=True)
class Break:
    """A pass with a bug: forgets the first node."""

    name = "break"

    def run(self, graph: Graph) -> Graph:
        return replace(graph, nodes=graph.nodes[1:])


def test_a_broken_pass_is_named(make_builder):
    b = make_builder()
    graph = b.graph(b.unary("exp", b.unary("tanh", b.input("x", DType.f32, 4))))
    with pytest.raises(PassError, match="pass break made an invalid graph: op_exp_2: tanh_1"):
        run_passes(graph, [Break()])
    seen = []
    run_passes(graph, [DeadCode()], on_pass=lambda name, g: seen.append(name))
    assert seen == ["dead_code"]


@pytest.mark.parametrize("asked", ["argmax", "argmin", "max"])
def test_what_an_extreme_is_subtracted_from_is_rounded_as_it_is(asked):
    """Where its place is asked for, roundings stay, and stay there too."""
    kind = "f32" if asked == "max" else "i64"
    k = parse_kernel(
        f"""\
kernel k(
    x: bf16[4, 8] cpu,
    out y: f32[4] cpu,
    out z: {kind}[4] cpu,
):
  parallel i0 < 4:
    over r0 < 8:
      a = load x[i0*8 + r0] : bf16
      b = cast(a) : f32
      c = mul(b, b) : f32
      d = cast(c) : bf16
      e = cast(d) : f32
      m = reduce min(e) : f32
      p = reduce {asked}(e) : {kind}
    once:
      f = load x[i0*8] : bf16
      g = cast(f) : f32
      h = mul(g, g) : f32
      i = cast(h) : bf16
      j = cast(i) : f32
      n = sub(m, j) : f32
      store y[i0] = n
      store z[i0] = p
""".strip()
    )
    assert (drop_round_casts.drop(k) == k) == (asked != "max")
