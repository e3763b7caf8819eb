"""A module, function or exported program, as one flat ATen graph."""

from typing import TYPE_CHECKING

from compile_cli.capture.without_gpu import capture_kernels
from multikernel import imported_later

if TYPE_CHECKING:
    from compile_cli.capture.accepted import require_inputs, require_model
    from compile_cli.capture.aliases import retyped_input, view_written_inputs
    from compile_cli.capture.graph import Captured, capture, export, input_names
    from compile_cli.capture.overlaps import order_matters, share_elements
    from compile_cli.capture.user_code import FunctionModule, where

__all__ = [
    "Captured",
    "FunctionModule",
    "capture",
    "export",
    "input_names",
    "order_matters",
    "require_inputs",
    "require_model",
    "retyped_input",
    "share_elements",
    "view_written_inputs",
    "where",
]

#: What Dynamo's graphs are asked is imported without what exports models.
__getattr__ = imported_later(__name__, ("aliases", "overlaps", "accepted", "user_code", "graph"))

# Before Dynamo meets a kernel: whatever captures imports this package.
capture_kernels()
