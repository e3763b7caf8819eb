"""Rewrites of the FX graph before lowering, one a file, in the order of `PASSES`."""

from typing import TYPE_CHECKING

from multikernel import imported_later

if TYPE_CHECKING:
    from aten_lowering.passes.base import FxPass as FxPass
    from aten_lowering.passes.base import lint as lint
    from aten_lowering.passes.order import PASSES as PASSES


#: Those of Dynamo's graph are imported without the others.
__getattr__ = imported_later(__name__, ("base", "order"))
