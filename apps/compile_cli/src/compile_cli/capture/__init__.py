"""A module, function or exported program, as one flat ATen graph."""

from typing import TYPE_CHECKING

from compile_cli.capture.without_gpu import capture_kernels
from multikernel import imported_later

if TYPE_CHECKING:
    from compile_cli.capture.accepted import require_inputs as require_inputs
    from compile_cli.capture.accepted import require_model as require_model
    from compile_cli.capture.aliases import retyped_input as retyped_input
    from compile_cli.capture.aliases import view_written_inputs as view_written_inputs
    from compile_cli.capture.graph import Captured as Captured
    from compile_cli.capture.graph import capture as capture
    from compile_cli.capture.graph import export as export
    from compile_cli.capture.graph import input_names as input_names
    from compile_cli.capture.overlaps import order_matters as order_matters
    from compile_cli.capture.overlaps import share_elements as share_elements
    from compile_cli.capture.user_code import FunctionModule as FunctionModule
    from compile_cli.capture.user_code import where as where


#: What Dynamo's graphs are asked is imported without what exports models.
__getattr__ = imported_later(__name__, ("aliases", "overlaps", "accepted", "user_code", "graph"))

# Before Dynamo meets a kernel: whatever captures imports this package.
capture_kernels()
