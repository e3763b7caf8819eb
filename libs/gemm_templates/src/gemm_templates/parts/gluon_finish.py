"""What a group of warps of a Gluon kernel does with its sums: bias, gate, epilogue, store."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from gemm_templates.parts.gluon_parts import (
    in_layout,
    lines,
    places_of,
    split_columns,
    store_lines,
    store_part,
)


@gluon.jit
def finish_tile(acc, bias, place, desc, buffers, sizes, tile, ending, pipeline):
    """Bias, epilogue and store, in parts, of a group's tile or of its rows of one, at `place`:
    (row, column), or (row, column, number of the product) of a batch.

    buffers: the shared memory by which parts are stored, the group's first place in it, and how
    many tiles went that way before."""
    PRODUCTS: gl.constexpr = 1 if ending.GATE is None else 2
    PARTS: gl.constexpr = pipeline.PARTS
    if ending.bias is not None:
        acc += gl.expand_dims(bias.to(gl.float32), 0)
    parts = split_columns(acc, PRODUCTS * PARTS)  # the second product's after the first's
    for i in gl.static_range(PARTS):
        other = parts[(PRODUCTS - 1) * PARTS + i]
        finish_part(parts[i], other, i, place, desc, buffers, sizes, tile, ending, pipeline)


@gluon.jit
def finish_part(part, other, i: gl.constexpr, place, desc, buffers, sizes, tile, ending, pipeline):
    """Epilogue and store of part number `i`; `other` is the same part of the second product."""
    ROWS: gl.constexpr = part.shape[0]
    PART: gl.constexpr = part.shape[1]
    multiplied: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    layout: gl.constexpr = lines(ROWS, PART, 16) if pipeline.BY_LINES else multiplied
    part = in_layout(part, layout, pipeline.BY_LINES)
    first_m = place[0]
    first_n = place[1] + i * PART
    rm, rn, mask = places_of(first_m, first_n, sizes, tile, ROWS, PART, layout)
    if ending.GATE is not None:
        other = in_layout(other, layout, pipeline.BY_LINES)
        part = ending.GATE(part, rm, rn, mask, ()) * other
    if ending.BATCHED:
        given = (place[2].to(gl.int64),) + ending.operands  # noqa: RUF005  (Triton does not unpack)
        value = ending.EPILOGUE(part, rm, rn, mask, given)
    else:
        value = ending.EPILOGUE(part, rm, rn, mask, ending.operands)
    # Not by names of their own, which would make values of their constants.
    if ending.out is not None:
        if desc is not None:
            result = value.to(desc.dtype)
            turn = (buffers[2] * pipeline.PARTS + i) % pipeline.BUFFERS
            staged = buffers[0].index(buffers[1] + turn)
            if len(place) == 2:
                store_part(result, [first_m, first_n], staged, desc, pipeline.BUFFERS)
            elif not ending.out.SHARED:
                store_part(result, [place[2], first_m, first_n], staged, desc, pipeline.BUFFERS)
            # A descriptor knows no end of a group: a tile that it ends in is stored by address.
            elif first_m + ROWS <= sizes.M:
                store_part(result, [0, first_m, first_n], staged, desc, pipeline.BUFFERS)
            else:
                gl.store(ending.out.ptr + offsets_of(rm, rn, ending.out), result, mask=mask)
        else:
            result = value.to(ending.out.ptr.dtype.element_ty)
            if pipeline.LINES:
                store_lines(result, first_m, first_n, sizes, tile, ending.out)
            elif len(place) == 2 or ending.out.SHARED:
                gl.store(ending.out.ptr + offsets_of(rm, rn, ending.out), result, mask=mask)
            else:
                start = ending.out.ptr + place[2].to(gl.int64) * ending.out.stride_batch
                gl.store(start + offsets_of(rm, rn, ending.out), result, mask=mask)


@gluon.jit
def offsets_of(rm, rn, matrix):
    """Of rows and columns, in elements from the first."""
    return rm * matrix.stride_row + rn * matrix.stride_column
