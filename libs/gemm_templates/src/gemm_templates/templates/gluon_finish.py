# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""What a group of warps of `gluon_mm` does with its sums: bias, gate, epilogue, store."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from gemm_templates.templates.gluon_parts import (
    in_layout,
    lines,
    places_of,
    split_columns,
    store_lines,
    store_part,
)


@gluon.jit
def finish_tile(
    acc,
    bias,
    first_m,
    first_n,
    buffer,
    out_ptr,
    out_desc,
    out_memory,
    M,
    N,
    stride_om,
    stride_on,
    operands,
    EPILOGUE: gl.constexpr,
    GATE: gl.constexpr,
    PARTS: gl.constexpr,
    BUFFERS: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    WIDE: gl.constexpr,
    STORE: gl.constexpr,
    STORE_TMA: gl.constexpr,
    BY_LINES: gl.constexpr,
    LINES: gl.constexpr,
):
    """Bias, epilogue and store of a group's tile, or of its rows of one, in PARTS."""
    PRODUCTS: gl.constexpr = 1 if GATE is None else 2
    PART: gl.constexpr = acc.shape[1] // (PRODUCTS * PARTS)
    if HAS_BIAS:
        acc += gl.expand_dims(bias.to(gl.float32), 0)
    parts = split_columns(acc, PRODUCTS * PARTS)  # the second product's after the first's
    for i in gl.static_range(PARTS):
        finish_part(
            parts[i], parts[(PRODUCTS - 1) * PARTS + i], buffer + i % BUFFERS, first_m,
            first_n + i * PART, out_ptr, out_desc, out_memory, M, N, stride_om, stride_on,
            operands, EPILOGUE, GATE, BUFFERS, EDGE_M, EDGE_N, WIDE, STORE, STORE_TMA, BY_LINES,
            LINES,
        )  # fmt: skip


@gluon.jit
def finish_part(
    part,
    other,
    buffer,
    first_m,
    first_n,
    out_ptr,
    out_desc,
    out_memory,
    M,
    N,
    stride_om,
    stride_on,
    operands,
    EPILOGUE: gl.constexpr,
    GATE: gl.constexpr,
    BUFFERS: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    WIDE: gl.constexpr,
    STORE: gl.constexpr,
    STORE_TMA: gl.constexpr,
    BY_LINES: gl.constexpr = False,
    LINES: gl.constexpr = False,
):
    """Epilogue and store of `part`, which starts at (first_m, first_n); `other` is the same part
    of the second product."""
    ROWS: gl.constexpr = part.shape[0]
    PART: gl.constexpr = part.shape[1]
    multiplied: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    layout: gl.constexpr = lines(ROWS, PART, 16) if BY_LINES else multiplied
    part = in_layout(part, layout, BY_LINES)
    rm, rn, mask = places_of(first_m, first_n, M, N, ROWS, PART, layout, EDGE_M, EDGE_N, WIDE)
    if GATE is not None:
        other = in_layout(other, layout, BY_LINES)
        part = GATE(part, rm, rn, mask, ()) * other
    value = EPILOGUE(part, rm, rn, mask, operands)
    if STORE:
        result = value.to(out_desc.dtype if STORE_TMA else out_ptr.dtype.element_ty)
        if STORE_TMA:
            staged = out_memory.index(buffer)
            store_part(result, [first_m, first_n], staged, out_desc, BUFFERS)
        elif LINES:
            store_lines(
                result, first_m, first_n, M, N, out_ptr, stride_om, EDGE_M, EDGE_N, WIDE
            )  # fmt: skip
        else:
            gl.store(out_ptr + (rm * stride_om + rn * stride_on), result, mask=mask)
