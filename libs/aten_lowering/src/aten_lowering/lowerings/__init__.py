"""One file a family; `TABLE` is their union."""

from __future__ import annotations

from aten_lowering.lowerings import (
    activations,
    batch_norm,
    creation,
    indexing,
    matmul,
    normalizations,
    pointwise,
    pooling,
    random,
    rearrange,
    reductions,
    resampling,
    scans,
    scatters,
    selection,
    special,
)
from aten_lowering.registry import Table

TABLE = Table()
for _family in (
    pointwise,
    selection,
    activations,
    special,
    creation,
    random,
    rearrange,
    indexing,
    scatters,
    reductions,
    resampling,
    scans,
    pooling,
    normalizations,
    batch_norm,
    matmul,
):
    TABLE.update(_family.table)
