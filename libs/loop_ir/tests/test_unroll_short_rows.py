"""Reductions of a few elements become a pointwise kernel."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import Compute, Graph, Kernel, Reduce, interpret_kernel, parse_kernel, print_kernel
from loop_ir.ir.analysis import is_pointwise, statements
from loop_ir.ir.verify_kernel import KernelVerifier
from loop_ir.passes.unroll_short_rows import UnrollShortRows, rewrite

TEXT = """
kernel k(
    x: f32[5, 2, 2] cuda:0,
    t: i64[5, 4] cuda:0,
    w: f32[9] cuda:0,
    out y: f32[5] cuda:0,
    out z: f32[5] cuda:0,
):
  parallel i0 < 5:
    over r0 < 2, r1 < 2:
      v0 = load x[i0*4 + r0*2 + r1] : f32
      v1 = load t[i0*4 + r0*2 + r1] : i64
      t0 = indirect v1 < 9
      v2 = load w[t0] : f32
      v3 = index r0 + 3*r1 : i64
      v4 = cast(v3) : f32
      v5 = mul(v2, v4) : f32
      v6 = add(v0, v5) : f32
      v7 = reduce sum(v6) : f32
    over r0 < 2, r1 < 2:
      v8 = sub(v6, v5) : f32
      v9 = reduce max(v8) : f32
    once:
      v10 = mul(v9, v7) : f32
      store y[i0] = v10
      store z[i0] = v7
"""


def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 2, 2)).astype(np.float32)
    x[0], x[1, 0, 1] = -0.0, np.nan
    return {"x": x, "t": rng.integers(-9, 9, (5, 4)), "w": rng.random(9).astype(np.float32)}


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_the_same_numbers(op: str, length: int) -> None:
    kernel = parse_kernel(TEXT.replace("reduce max", f"reduce {op}").replace("< 2", f"< {length}"))
    flat = rewrite(kernel)
    assert is_pointwise(flat) and not any(isinstance(s, Reduce) for s in statements(flat))
    KernelVerifier(flat).run()
    assert parse_kernel(print_kernel(flat)) == flat
    want, got = interpret_kernel(kernel, given()), interpret_kernel(flat, given())
    for name in ("y", "z"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)


def test_the_sum_of_zeros_below_0_is_0() -> None:
    lone = TEXT.replace("add(v0, v5)", "add(v0, v0)")
    zeros = interpret_kernel(rewrite(parse_kernel(lone)), given())["z"]
    assert zeros[0] == 0 and not np.signbit(zeros[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("over r0 < 2, r1 < 2", "over r0 < 3, r1 < 2"),
        ("v9 = reduce max", "v9, v11 = reduce welford"),
        ("      v9 = reduce", "      store w[r0] = v8\n      v9 = reduce"),
    ],
)
def test_what_keeps_its_rows(old: str, new: str) -> None:
    kernel = parse_kernel(TEXT.replace(old, new))
    assert rewrite(kernel) == kernel


PLACES = """
kernel k(
    x: KIND[6, 3] cuda:0,
    out y: i64[6] cuda:0,
    out z: i64[6] cuda:0,
):
  parallel i0 < 6:
    over r0 < 3:
      v0 = load x[i0*3 + r0] : KIND
      v1 = reduce argmax(v0) : i64
      v2 = reduce argmin(v0) : i64
    once:
      store y[i0] = v1
      store z[i0] = v2
"""


@pytest.mark.parametrize("kind", ["f32", "i64"])
def test_places_of_extremes(kind: str) -> None:
    """The first of equal ones, or of those that are NaN."""
    kernel = parse_kernel(PLACES.replace("KIND", kind))
    flat = rewrite(kernel)
    KernelVerifier(flat).run()
    assert is_pointwise(flat)
    nan = np.nan if kind == "f32" else 7
    rows = [[1, 2, 3], [3, 3, 1], [2, 2, 2], [1, nan, 9], [nan, 1, nan], [-5, -9, -9]]
    x = {"x": np.array(rows, np.float32 if kind == "f32" else np.int64)}
    want, got = interpret_kernel(kernel, x), interpret_kernel(flat, x)
    for name in ("y", "z"):
        np.testing.assert_array_equal(got[name], want[name])


def test_a_limit_of_one_element() -> None:
    """Before fusion: more of them would be computed again by each reader."""
    kernel = parse_kernel(TEXT)
    assert rewrite(kernel, 1) == kernel
    assert is_pointwise(
        rewrite(parse_kernel(TEXT.replace("over r0 < 2, r1 < 2", "over r0 < 1, r1 < 1")), 1)
    )


def test_products_are_added_before_they_are_rounded() -> None:
    """A compiler takes either of two products for that, another one in another kernel."""
    flat = rewrite(parse_kernel(TEXT.replace("reduce sum(v6)", "reduce sum(v5)")))
    made = [s.op for s in statements(flat) if isinstance(s, Compute)]
    assert made.count("fma") == 4
    want = interpret_kernel(parse_kernel(TEXT.replace("reduce sum(v6)", "reduce sum(v5)")), given())
    np.testing.assert_allclose(interpret_kernel(flat, given())["z"], want["z"], rtol=1e-6)


BAGS = """
kernel k(
    ids: i64[3, 6] cuda:0,
    m: bf16[3, 6] cuda:0,
    w: f32[9, 32] cuda:0,
    out y: f32[3, 32] cuda:0,
):
  parallel i0 < 3, i1 < 32:
    over r0 < 6:
      v0 = load ids[i0*6 + r0] : i64
      t0 = indirect v0 < 9
      v1 = load w[t0*32 + i1] : f32
      v2 = load m[i0*6 + r0] : bf16
      v3 = cast(v2) : f32
      v4 = mul(v1, v3) : f32
      v5 = reduce sum(v4) : f32
    once:
      store y[i0*32 + i1] = v5
"""


def test_rows_that_data_picks_for_neighbours() -> None:
    kernel = parse_kernel(BAGS)
    assert rewrite(kernel) == rewrite(kernel, picked=5) == kernel
    flat = rewrite(kernel, picked=6)
    assert is_pointwise(flat)
    rng = np.random.default_rng(0)
    inputs = {"ids": rng.integers(-9, 9, (3, 6)), "w": rng.random((9, 32)).astype(np.float32)}
    inputs["m"] = rng.random((3, 6)).astype(np.float32)
    want, got = interpret_kernel(kernel, inputs), interpret_kernel(flat, inputs)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-6)
    text = BAGS.replace("load ids[i0*6 + r0]", "index i1//2 + r0").replace("t0*32 + i1", "t0")
    assert is_pointwise(rewrite(parse_kernel(text), picked=6))  # near each other's


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("t0*32 + i1", "t0*32 + 2*i1"),  # no neighbours
        ("ids[i0*6 + r0]", "ids[i1*6 + r0]"),  # each column's own place
        ("m[i0*6 + r0]", "m[i1*7 + r0]"),  # neighbours far apart
        ("i1 < 32", "i1 < 16"),
    ],
)
def test_rows_that_lanes_would_not_share(old: str, new: str) -> None:
    kernel = parse_kernel(BAGS.replace("[3, 6]", "[40, 7]").replace(old, new))
    assert rewrite(kernel, picked=6) == kernel


COLUMNS = """
kernel k(
    x: f32[2, 5] cuda:0,
    out y: f32[2, 5] cuda:0,
):
  parallel i0 < 5:
    over r0 < 2:
      v0 = load x[r0*5 + i0] : f32
      v1 = scan prod(v0) : f32
      v2 = scan sum(v0) reverse : f32
      v3 = sub(v1, v2) : f32
      store y[r0*5 + i0] = v3
"""


def test_short_columns_that_are_scanned() -> None:
    """Where that moves along memory; not where neighbouring rows would store apart."""
    kernel = parse_kernel(COLUMNS)
    flat = rewrite(kernel, stores=True)
    assert is_pointwise(flat) and rewrite(kernel) == kernel
    x = {"x": np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)}
    np.testing.assert_array_equal(interpret_kernel(flat, x)["y"], interpret_kernel(kernel, x)["y"])
    apart = parse_kernel(COLUMNS.replace("r0*5 + i0", "i0*2 + r0"))
    assert rewrite(apart, stores=True) == apart


IN_PLACE = """
kernel k(
    out x: f32[2, 5] cuda:0,
):
  parallel i0 < 5:
    over r0 < 2:
      v0 = load x[r0*5 + i0] : f32
      v1 = reduce max(v0) : f32
    over r0 < 2:
      v2 = sub(v0, v1) : f32
      store x[r0*5 + i0] = v2
"""
DYNAMIC = """
kernel k(
    x: f32[s1, 3, s0] cuda:0,
    out y: f32[s1, 3, s0] cuda:0,
):
  where s0 in [1, 100] hint 5
  where s1 in [1, 100] hint 5
  parallel i0 < s1, i1 < s0:
    over r0 < 3:
      v0 = load x[i0*s0*3 + r0*s0 + i1] : f32
      v1 = scan prod(v0) : f32
      store y[i0*s0*3 + r0*s0 + i1] = v1
"""


def test_short_columns_whose_stores_may_meet() -> None:
    """What is read of what another store of the row writes."""
    kernel = parse_kernel(IN_PLACE)
    assert rewrite(kernel, stores=True) == kernel


def test_short_columns_of_a_dynamic_size() -> None:
    kernel = parse_kernel(DYNAMIC)
    flat = rewrite(kernel, stores=True)
    assert is_pointwise(flat)
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 7)).astype(np.float32)}
    sizes = {"s0": 7, "s1": 2}
    results = (interpret_kernel(k, x, sizes)["y"] for k in (flat, kernel))
    np.testing.assert_allclose(*results, rtol=1e-6)


CLASSES = """
kernel k(
    x: f32[7, 9] cuda:0,
    out y: f32[7] cuda:0,
):
  parallel i0 < 7:
    over r0 < 9:
      v0 = load x[i0*9 + r0] : f32
      v1 = reduce max(v0) : f32
    over r0 < 9:
      v2 = sub(v0, v1) : f32
      v3 = {op}(v2) : f32
      v4 = reduce sum(v3) : f32
    once:
      v5 = log(v4) : f32
      store y[i0] = v5
"""


@pytest.mark.parametrize(
    ("op", "length", "written_out"),
    [(op, n, n < 13 and (op == "exp" or n > 8)) for op in ("exp", "abs") for n in (8, 9, 13)],
)
def test_rows_of_which_a_tile_takes_longer(op: str, length: int, written_out: bool) -> None:
    """They leave lanes idle, or are folded again after their exponentials."""
    kernel = parse_kernel(CLASSES.format(op=op).replace("9", str(length)))
    (flat,) = UnrollShortRows().run(Graph("g", (), (kernel,), ())).nodes
    assert isinstance(flat, Kernel) and is_pointwise(flat) == written_out
    x = {"x": np.random.default_rng(0).standard_normal((7, length)).astype(np.float32)}
    want, got = interpret_kernel(kernel, x), interpret_kernel(flat, x)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-6)
