"""The passes that every graph goes through, in this order."""

from aten_lowering.passes.base import FxPass
from aten_lowering.passes.common_subexpressions import common_subexpressions
from aten_lowering.passes.dead_code import dead_code
from aten_lowering.passes.depthwise_gradients import depthwise_gradients
from aten_lowering.passes.diagonal_products import diagonal_products
from aten_lowering.passes.exclusive_scans import exclusive_scans
from aten_lowering.passes.fetch_ahead import fetch_ahead
from aten_lowering.passes.joined_gradients import joined_gradients
from aten_lowering.passes.known_masks import known_masks
from aten_lowering.passes.no_ops import no_ops
from aten_lowering.passes.numbers_alone import numbers_alone
from aten_lowering.passes.prims import prims
from aten_lowering.passes.regular_bags import regular_bags
from aten_lowering.passes.sums_at_once import sums_at_once

PASSES = tuple(
    map(
        FxPass,
        (
            sums_at_once,
            prims,
            numbers_alone,
            known_masks,
            no_ops,
            exclusive_scans,
            regular_bags,
            diagonal_products,
            depthwise_gradients,
            joined_gradients,
            common_subexpressions,
            dead_code,
            fetch_ahead,
        ),
    )
)
