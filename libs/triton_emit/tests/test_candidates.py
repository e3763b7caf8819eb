"""The short list for a tuner: what is in it, and that all of it computes the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from loop_ir import parse_kernel
from triton_emit import as_kind, candidate_schedules, default_schedule
from triton_emit.candidates import MOST_CANDIDATES

FLAT = """
kernel odd(
    x: f32[3001] cuda:0,
    out y: f32[3001] cuda:0,
):
  parallel i0 < 3001:
    once:
      v0 = load x[i0] : f32
      store y[i0] = v0
"""
TRANSPOSED = """
kernel transpose(
    x: f32[40, 70] cuda:0,
    out y: f32[70, 40] cuda:0,
):
  parallel i0 < 70, i1 < 40:
    once:
      v0 = load x[i1*70 + i0] : f32
      store y[i0*40 + i1] = v0
"""
PICKED = """
kernel pick(
    x: f32[9, 300] cuda:0,
    i: i64[5] cuda:0,
    out y: f32[5, 300] cuda:0,
):
  parallel i0 < 5, i1 < 300:
    once:
      v0 = load i[i0] : i64
      t0 = indirect v0 < 9
      v1 = load x[t0*300 + i1] : f32
      store y[i0*300 + i1] = v1
"""
ROWS = """
kernel rows(
    x: f32[{rows}, {width}] cuda:0,
    out y: f32[{rows}, {width}] cuda:0,
):{where}
  parallel i0 < {rows}:
    over r0 < {width}:
      v0 = load x[i0*{width} + r0] : f32
      v1 = reduce max(v0) : f32
    over r0 < {width}:
      v2 = sub(v0, v1) : f32
      store y[i0*{width} + r0] = v2
"""
COLUMNS = """
kernel columns(
    x: f32[{width}, 90] cuda:0,
    out y: f32[90] cuda:0,
):{where}
  parallel i0 < 90:
    over r0 < {width}:
      v0 = load x[r0*90 + i0] : f32
      v1 = reduce sum(v0) : f32
    once:
      store y[i0] = v1
"""
SCAN = """
kernel scan(
    x: f32[6, 2100] cuda:0,
    out y: f32[6, 2100] cuda:0,
):
  parallel i0 < 6:
    over r0 < 2100:
      v0 = load x[i0*2100 + r0] : f32
      v1 = scan sum(v0) : f32
      store y[i0*2100 + r0] = v1
"""
SCANNED_COLUMNS = """
kernel scan(
    x: f32[600, 40] cuda:0,
    out y: f32[600, 40] cuda:0,
):
  parallel i0 < 40:
    over r0 < 600:
      v0 = load x[r0*40 + i0] : f32
      v1 = scan sum(v0) : f32
      store y[r0*40 + i0] = v1
"""
WALK = """
kernel walk(
    x: f32[40, 24] cuda:0,
    out y: f32[40] cuda:0,
    out a: f32[5, 24] cuda:0,
):
  parallel i1 < 5, i0 < 8:
    over r0 < 24:
      v0 = load x[i1*192 + i0*24 + r0] : f32
      v1 = reduce sum(v0) : f32
      store a[i1*24 + r0] sum= v0
    once:
      store y[i1*8 + i0] = v1
"""
BOUNDED, ENDLESS = "\n  where s0 in [1, 4096] hint {}", "\n  where s0 in [1, *] hint 700"

# Text, the kind of the default, and a kind that is tried besides.
CASES = {
    "flat": (FLAT, "flat", "flat"),
    "transposed": (TRANSPOSED, "tiled", "flat"),
    "picked": (PICKED, "tiled", "flat"),
    "short rows": (ROWS.format(rows=30, width=50, where=""), "persistent", "persistent"),
    "rows": (ROWS.format(rows=3, width=2100, where=""), "persistent", "looped"),
    "long rows": (ROWS.format(rows=3, width=9000, where=""), "persistent", "looped"),
    "one long row": (ROWS.format(rows=1, width=17000, where=""), "looped", "persistent"),
    "dynamic rows": (
        ROWS.format(rows=3, width="s0", where=BOUNDED.format(100)), "looped", "persistent",
    ),
    "columns": (COLUMNS.format(width=100, where=""), "persistent", "looped"),
    "long columns": (COLUMNS.format(width=700, where=""), "looped", "looped"),
    "dynamic columns": (COLUMNS.format(width="s0", where=ENDLESS), "looped", "looped"),
    "scan": (SCAN, "looped", "persistent"),
    "scanned columns": (SCANNED_COLUMNS, "looped", "persistent"),
    "walk": (WALK, "persistent", "persistent"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_all_compute_the_same(tools: SimpleNamespace, name: str) -> None:
    text, kind, other = CASES[name]
    kernel = parse_kernel(text.strip())
    sizes = {s.name: s.hint or 700 for s in kernel.symbols}
    found = candidate_schedules(kernel, sizes)
    assert found[0] == default_schedule(kernel, sizes) and found[0].kind == kind
    assert 2 <= len(found) <= MOST_CANDIDATES and len(set(found)) == len(found)
    assert other in {s.kind for s in found[1:]}
    assert all(s.index_bits == found[0].index_bits for s in found)
    places = {"i": np.array([3, 0, 8, 3, 1])} if name == "picked" else {}
    for schedule in found:
        tools.check(kernel, schedule, places, sizes, ulp=200)  # sums in another order


def test_what_a_launch_does_besides_stays(tools: SimpleNamespace) -> None:
    """A tuner replaces blocks and warps, and nothing that the caller has decided."""
    kernel = parse_kernel(CASES["rows"][0].strip())
    schedule = default_schedule(kernel, {})
    assert schedule.kind == "persistent"
    looped = as_kind(kernel, replace(schedule, overlap=True), "looped")
    assert looped is not None and looped.kind == "looped" and looped.overlap
    back = as_kind(kernel, looped, "persistent")
    assert back is not None and back.kind == schedule.kind and back.overlap
    assert as_kind(kernel, looped, "looped") == looped
    tools.check(kernel, replace(looped, overlap=False))


def test_kinds_that_a_kernel_does_not_have() -> None:
    walk, flat = (parse_kernel(CASES[name][0].strip()) for name in ("walk", "flat"))
    assert as_kind(walk, default_schedule(walk, {}), "looped") is None
    assert as_kind(flat, default_schedule(flat, {}), "persistent") is None
    endless = parse_kernel(ROWS.format(rows=3, width="s0", where=ENDLESS).strip())
    assert as_kind(endless, default_schedule(endless, {"s0": 700}), "persistent") is None
