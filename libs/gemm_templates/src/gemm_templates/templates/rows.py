# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""Rows copied to where they begin at other places."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_tile(src, out, rows, columns, src_stride, out_stride, height, width,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """`out[:height, :width] = src[:rows, :columns]`, zeros beyond: a tile a program, all of whose
    loads are under way at once."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    value = tl.load(src + i * src_stride + j, mask=(i < rows) & (j < columns), other=0)
    tl.store(out + i * out_stride + j, value, mask=(i < height) & (j < width))
