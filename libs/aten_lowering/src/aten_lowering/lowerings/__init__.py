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
    scans,
    scatters,
    selection,
)
from aten_lowering.registry import Table

TABLE = Table()
for _family in (
    pointwise,
    selection,
    activations,
    creation,
    random,
    rearrange,
    indexing,
    scatters,
    reductions,
    scans,
    pooling,
    normalizations,
    batch_norm,
    matmul,
):
    TABLE.update(_family.table)
