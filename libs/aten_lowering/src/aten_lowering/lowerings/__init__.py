"""One file a family; `TABLE` is their union."""

from aten_lowering.lowerings import (
    activations,
    arithmetic,
    batch_norm,
    bessel,
    creation,
    depthwise,
    division,
    grid_samples,
    indexing,
    logic,
    matmul,
    normalizations,
    pooling,
    random,
    rearrange,
    reductions,
    resampling,
    scans,
    scatters,
    selection,
    special,
    unfolding,
)
from aten_lowering.registry import Table

TABLE = Table()
for _family in (
    arithmetic,
    division,
    logic,
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
    grid_samples,
    scans,
    pooling,
    unfolding,
    depthwise,
    normalizations,
    batch_norm,
    bessel,
    matmul,
):
    TABLE.update(_family.table)
