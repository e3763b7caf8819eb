# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""Rows copied to where they begin at other places."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_row(src, out, rows, columns, src_stride, out_stride, width, BLOCK: tl.constexpr):
    """One row a program: `out[i, :width] = src[i, :columns]`, zeros behind, and for i >= rows."""
    row = tl.program_id(0).to(tl.int64)
    inside = tl.where(row < rows, columns, 0)
    for first in tl.range(0, width, BLOCK):
        j = first + tl.arange(0, BLOCK)
        value = tl.load(src + row * src_stride + j, mask=j < inside, other=0)
        tl.store(out + row * out_stride + j, value, mask=j < width)
