"""Rows copied to where they begin at other places."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_tile(src, out, rows, columns, src_gap, out_gap, height, width,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """`out[:height, :width] = src[:rows, :columns]`, zeros beyond: a tile a program, all of whose
    loads are under way at once. The gaps are the rows' strides less one, so that neither is known
    to be a multiple of 16: threads would take eight elements of an aligned row side by side, and
    read those of the odd row one by one, 16 bytes apart (three times as slow, on an H200)."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    value = tl.load(src + i * (src_gap + 1) + j, mask=(i < rows) & (j < columns), other=0)
    tl.store(out + i * (out_gap + 1) + j, value, mask=(i < height) & (j < width))
