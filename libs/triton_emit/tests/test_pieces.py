"""Rows that are held in pieces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loop_ir import DType, Kernel, parse_kernel
from loop_ir.ir import varying
from triton_emit import BadSchedule, Schedule, candidate_schedules, default_schedule, emit
from triton_emit.forms import kernel as kernel_form

SOFTMAX = """\
kernel softmax(
    x: f32[5, 45] cuda:0,
    out y: f32[5, 45] cuda:0,
):
  parallel i0 < 5:
    over r0 < 45:
      v0 = load x[i0*45 + r0] : f32
      v1 = reduce max(v0) : f32
    over r0 < 45:
      v2 = sub(v0, v1) : f32
      v3 = exp(v2) : f32
      v4 = reduce sum(v3) : f32
    over r0 < 45:
      v5 = div(v3, v4) : f32
      store y[i0*45 + r0] = v5
"""
WALK = """\
kernel walk(
    x: bf16[40, 24] cuda:0,
    w: bf16[24] cuda:0,
    out y: bf16[40, 24] cuda:0,
    out a: f32[5, 24] cuda:0,
):
  parallel i1 < 5, i0 < 8:
    over r0 < 24:
      v1 = load x[i1*192 + i0*24 + r0] : bf16
      v2 = cast(v1) : f32
      v3 = load w[r0] : bf16
      v4 = cast(v3) : f32
      v5 = mul(v2, v4) : f32
      v6 = reduce sum(v5) : f32
      store a[i1*24 + r0] sum= v2
    over r0 < 24:
      v8 = sub(v5, v6) : f32
      v9 = cast(v8) : bf16
      store y[i1*192 + i0*24 + r0] = v9
"""


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("text", "rblock", "pieces"), [(SOFTMAX, 32, 2), (SOFTMAX, 16, 3), (WALK, 16, 2)]
)
def test_pieces(rows: int, text: str, rblock: int, pieces: int, tools: SimpleNamespace) -> None:
    emitted = tools.check(parse_kernel(text), Schedule("persistent", rows, rblock))
    assert emitted.source.count("= tl.load(in0 + ") == pieces
    assert ("xmask" in emitted.source) == (rows > 1 and text is SOFTMAX)


PLACE = """\
kernel place(
    x: KIND[37, 21] cuda:0,
    out y: i64[37] cuda:0,
    out z: i64[37] cuda:0,
):
  parallel i0 < 37:
    over r0 < 21:
      v0 = load x[i0*21 + r0] : KIND
      v1 = reduce argmax(v0) : i64
      v2 = reduce argmin(v0) : i64
    once:
      store y[i0] = v1
      store z[i0] = v2
"""


@pytest.mark.parametrize("rblock", [8, 64])
def test_places_in_rows_of_booleans(rblock: int, tools: SimpleNamespace) -> None:
    """Those of rows of which all are alike, too."""
    x = np.arange(37)[:, None] == np.arange(21) // 3
    x[1], x[2] = True, False
    tools.check(
        parse_kernel(PLACE.replace("KIND", "bool")), Schedule("persistent", 4, rblock), {"x": x}
    )


def test_what_moves_along_a_row_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each load: 16 pieces of 150 operations took two seconds to write."""
    asked: list[Any] = []

    def counted(body: Any, symbol: Any, over: bool = True) -> set[Any]:
        asked.append(symbol)
        return varying(body, symbol, over)

    monkeypatch.setattr(kernel_form, "varying", counted)
    emit(parse_kernel(SOFTMAX.replace("45", "501")), Schedule("persistent", 4, 32))
    assert len(asked) == len({*asked}) == 2


def test_all_of_a_row_is_read_before_its_threads_wait() -> None:
    source = emit(parse_kernel(SOFTMAX), Schedule("persistent", 1, 32)).source
    assert source.rindex("tl.load(in0") < source.index("tl.reduce(")


def _dynamic(high: str) -> Kernel:
    where = f"  where s0 in [0, {high}] hint 45\n  parallel"
    return parse_kernel(SOFTMAX.replace("45", "s0").replace("  parallel", where))


@pytest.mark.parametrize("rblock", [8, 32])
@pytest.mark.parametrize("row", [1, 8, 33, 45])
def test_rows_of_several_lengths(row: int, rblock: int, tools: SimpleNamespace) -> None:
    emitted = tools.check(_dynamic("45"), Schedule("persistent", 2, rblock), symbols={"s0": row})
    assert emitted.source.count("= tl.load(in0 + ") == -(-45 // rblock)


def test_rows_of_any_length_are_whole() -> None:
    with pytest.raises(BadSchedule, match="at least the inner extent None"):
        emit(_dynamic("*"), Schedule("persistent", 1, 32))


TWO = """\
kernel two(
    x: f32[8192, WIDTH] cuda:0,
    g: f32[8192, WIDTH] cuda:0,
    out y: f32[8192, WIDTH] cuda:0,
):
  parallel i0 < 8192:
    over r0 < WIDTH:
      a = load x[i0*WIDTH + r0] : f32
      b = load g[i0*WIDTH + r0] : f32
      c = exp(a) : f32
      d = log(b) : f32
      e = mul(c, d) : f32
      f = reduce sum(e) : f32
    over r0 < WIDTH:
      h = mul(c, f) : f32
      store y[i0*WIDTH + r0] = h
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Schedule("persistent", 1, 4096, 8)),
        ({"mul(c, f) : f32": "mul(c, f) : f32\n      j = add(d, h) : f32\n"
          "      k = sub(a, j) : f32\n      l = mul(e, k) : f32",
          "= h": "= l"}, Schedule("persistent", 1, 4096, 16)),
        ({"WIDTH": "3000"}, Schedule("persistent", 1, 2048, 4)),
        ({"WIDTH": "7168"}, Schedule("persistent", 1, 8192, 8)),
        ({"WIDTH": "1536"}, Schedule("persistent", 1, 2048, 4)),
        ({"b = load g[i0*WIDTH + r0]": "b = const 2.0"}, Schedule("persistent", 1, 4096, 8)),
    ],
    ids=str,
)  # fmt: skip
def test_long_rows_that_leave_much_of_a_tile_empty(
    changes: dict[str, str], expected: Schedule
) -> None:
    text = TWO
    for old, new in (changes | {"WIDTH": changes.get("WIDTH", "5000")}).items():
        text = text.replace(old, new)
    kernel = parse_kernel(text)
    assert default_schedule(kernel, {}) == expected
    held = {s.rblock for s in candidate_schedules(kernel, {}) if s.kind == "persistent"}
    assert len(held) == (1 if changes.get("WIDTH") in ("7168", "1536") else 2)


@pytest.mark.parametrize(
    ("width", "dtype", "expected"),
    [
        (10000, "f32", Schedule("looped", 1, 2048, 16)),
        (10000, "bf16", Schedule("looped", 1, 2048, 16)),
        (12800, "f32", Schedule("looped", 1, 2048, 16)),
        (12800, "bf16", Schedule("persistent", 1, 16384, 16)),
        (16384, "f32", Schedule("looped", 1, 8192, 16)),
        (20000, "f32", Schedule("looped", 1, 4096, 32)),
    ],
)
def test_long_rows_that_are_read_again(width: int, dtype: str, expected: Schedule) -> None:
    """In chunks of which the last one is not mostly empty, or in one tile."""
    text = SOFTMAX.replace("45", str(width)).replace("[5,", "[8192,").replace("< 5:", "< 8192:")
    text = text.replace("x: f32", f"x: {dtype}").replace("v0 = load", "v6 = load")
    text = text.replace("r0] : f32", f"r0] : {dtype}\n      v0 = cast(v6) : f32", 1)
    assert default_schedule(parse_kernel(text), {}) == expected


def test_rows_that_are_read_three_times() -> None:
    text = TWO.replace("exp(a)", "abs(a)").replace("log(b)", "neg(b)")
    text = text.replace("load g[i0*WIDTH + r0]", "const 2.0").replace("WIDTH", "8000")
    text = text.replace(
        "    over r0 < 8000:\n      h = mul(c, f)",
        "    over r0 < 8000:\n      i = sub(c, f) : f32\n      j = reduce max(i) : f32\n"
        "    over r0 < 8000:\n      h = div(i, j)",
    )
    assert default_schedule(parse_kernel(text), {}) == Schedule("looped", 1, 2048, 16)


@pytest.mark.parametrize(
    ("width", "function", "expected"),
    [
        (12800, "exp", Schedule("persistent", 1, 8192, 16)),
        (12800, "neg", Schedule("looped", 1, 4096, 32)),
        (17000, "exp", Schedule("looped", 1, 4096, 32)),
    ],
)
def test_functions_of_long_rows_are_computed_once(
    width: int, function: str, expected: Schedule
) -> None:
    text = TWO.replace("WIDTH", str(width)).replace("exp(", f"{function}(")
    assert default_schedule(parse_kernel(text), {}) == expected


@pytest.mark.parametrize("kind", ["f32", "bf16", "i16"])
def test_places_of_extremes(kind: str, tools: SimpleNamespace) -> None:
    """The first of equal ones, or of those that are NaN."""
    x = np.random.default_rng(0).integers(-3, 3, (37, 21)).astype(np.float32)
    if kind != "i16":
        x[3, 4], x[5, 20], x[6, 2:20], x[7], x[8] = np.nan, np.nan, np.nan, -np.inf, np.inf
    dtype = DType(kind)
    given = tools.to_numpy(
        tools.to_torch(x.astype("int16" if kind == "i16" else np.float32), dtype), dtype
    )
    kernel = parse_kernel(PLACE.replace("KIND", kind))
    assert default_schedule(kernel, {}).rblock == 8
    for rblock in (4, 8, 16):
        tools.check(kernel, Schedule("persistent", 8, rblock), {"x": given})
