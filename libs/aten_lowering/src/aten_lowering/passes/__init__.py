"""Rewrites of the FX graph before lowering, one a file, in the order of `PASSES`."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from aten_lowering.passes.common_subexpressions import common_subexpressions
from aten_lowering.passes.dead_code import dead_code
from aten_lowering.passes.exclusive_scans import exclusive_scans
from aten_lowering.passes.no_ops import no_ops
from aten_lowering.passes.prims import prims

PASSES: tuple[Callable[[fx.Graph], None], ...] = (
    prims, no_ops, exclusive_scans, common_subexpressions, dead_code,
)  # fmt: skip
