"""Loads among which places choose: which become one, what that computes, how it is written."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import Kernel, Load, interpret_kernel, parse_kernel
from loop_ir.ir import statements
from triton_emit import Schedule, emit
from triton_emit.joined_loads import join_loads
from triton_emit.ssa import clean

HALVES = """
kernel k(
    x: f32[6, 16] cuda:0,
    z: f32[6, 16] cuda:0,
    out y: f32[6, 16] cuda:0,
):
  parallel i0 < 6, i1 < 16:
    once:
      v0 = index i1 : i64
      v1 = const 0 : i64
      v2 = const {middle} : i64
      v3 = const 16 : i64
      v4 = ge(v0, v1) : bool
      v5 = lt(v0, v2) : bool
      v6 = and(v4, v5) : bool
      v7 = load x[{first}] if v6 else 0 : f32
      v8 = neg(v7) : f32
      v9 = const 0.0 : f32
{more}
      v10 = where(v6, {chosen}, v9) : f32
      v11 = {above} : bool
      v12 = lt(v0, v3) : bool
      v13 = and(v11, v12) : bool
      v14 = load {other}[{second}] if v13 else 0 : f32
      v15 = where(v13, v14, {rest}) : f32
      v16 = load z[i0*16 + i1] : f32
      v17 = add(v15, {added}) : f32
      store y[i0*16 + i1] = v17
"""
# fmt: off
PLAIN = {"middle": 8, "first": "i0*16 + i1 + 8", "second": "i0*16 + i1 - 8", "other": "x",
         "above": "ge(v0, v2)", "rest": "v10", "added": "v16", "chosen": "v8", "more": ""}
# fmt: on
# Each reads the one before twice: there are 2**64 ways from the first to the last.
DOUBLED = "\n".join(f"      d{n + 1} = add(d{n}, d{n}) : f32" for n in range(64))


def halves(**changes: object) -> Kernel:
    return clean(parse_kernel(HALVES.format(**PLAIN | changes)))


def loads(kernel: Kernel) -> list[Load]:
    return [s for s in statements(kernel) if isinstance(s, Load)]


def same(kernel: Kernel, other: Kernel) -> None:
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((6, 16)).astype(np.float32) for n in "xz"}
    (want,), (got,) = (interpret_kernel(k, inputs).values() for k in (kernel, other))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"middle": 5, "first": "i0*16 + i1 + 11", "second": "i0*16 + i1 - 5"},
        {"rest": "v7"},
        {"more": DOUBLED.replace("d0", "v8"), "chosen": "d64"},
    ],
)
def test_halves_are_read_once(changes: dict[str, object]) -> None:
    """Also where the first half is what is left when the second is not chosen."""
    kernel = halves(**changes)
    joined = join_loads(kernel)
    assert [s.mask for s in loads(joined)] == [None, None]
    same(kernel, joined)


@pytest.mark.parametrize(
    "changes",
    [
        {"other": "z"},  # of another tensor
        {"second": "i0*16 - i1 + 15"},  # walked the other way
        {"added": "v7"},  # what is read for one half is used at all points
        {"above": "gt(v0, v2)"},  # one point takes neither
        {"above": "ge(v0, v1)"},  # some points could take both
    ],
)
def test_what_is_not_joined(changes: dict[str, object]) -> None:
    kernel = halves(**changes)
    assert join_loads(kernel) == kernel


def test_sections_are_chosen_by_place() -> None:
    """One load without a mask, at a place that Triton knows to be the same for eight neighbours;
    the rest of the index is written as if nothing were chosen."""
    source = emit(halves(), Schedule("flat", 64)).source
    assert source.count("tl.load(") == 2
    assert "tl.load(in0 + tl.where(i1 < 8, 8, -8) + xindex, xmask)" in source
    assert source.count("tl.where(") == 2
