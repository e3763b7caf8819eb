"""Which rows programs do best to hold together."""

from __future__ import annotations

import pytest

from loop_ir import can_hold_together, parse_kernel, programs_of_row

NORM = """
kernel norm(
    x: f32[{rows}, {width}] cuda:0,
    out y: f32[{rows}, {width}] cuda:0,
):
  parallel i0 < {rows}:
    over r0 < {width}:
      v0 = load x[i0*{width} + r0] : f32
      v1 = reduce {op}(v0) : f32
    over r0 < {width}:
      v2 = sub(v0, v1) : f32
      store y[i0*{width} + r0] = v2
"""


@pytest.mark.parametrize(
    ("rows", "width", "programs"),
    [
        (1024, 100000, 13),  # pieces of 8192
        (65536, 1024, 1),  # a program holds some of these
        (4096, 32768, 1),  # read again from the cache
        (4, 100000, 1),  # moved in less time than programs take to speak
        (64, 1 << 24, 1),  # more programs than run at once
    ],
)
def test_programs(rows: int, width: int, programs: int) -> None:
    kernel = parse_kernel(NORM.format(rows=rows, width=width, op="sum"))
    assert programs_of_row(kernel, {}) == programs


@pytest.mark.parametrize("element", [True, False])
def test_rows_of_which_a_number_is_stored(element: bool) -> None:
    """They have the cache for themselves until they are read again."""
    text = NORM.format(rows=4096, width=65536, op="sum")
    if not element:
        text = text.replace("65536] cuda:0,\n):", "1] cuda:0,\n):")
        text = text.replace("store y[i0*65536 + r0] = v2", "v3 = reduce sum(v2) : f32")
        text += "    once:\n      store y[i0] = v3\n"
    assert (programs_of_row(parse_kernel(text), {}) > 1) == element


@pytest.mark.parametrize(
    ("old", "new", "can"),
    [
        ("", "", True),
        ("load x", "load y", False),  # a late program would read what others have written
        ("x[i0*{width} + r0]", "x[{rows}*r0 + i0]", False),
    ],
)
def test_what_can_be_held_together(old: str, new: str, can: bool) -> None:
    text = NORM.replace(old, new).format(rows=8, width=100, op="max")
    assert can_hold_together(parse_kernel(text)) == can
