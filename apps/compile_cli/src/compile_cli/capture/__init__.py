"""A module, function or exported program, as one flat ATen graph."""

from compile_cli.capture.accepted import require_inputs, require_model
from compile_cli.capture.aliases import retyped_input, view_written_inputs
from compile_cli.capture.graph import Captured, capture, export, input_names
from compile_cli.capture.overlaps import order_matters, share_elements
from compile_cli.capture.user_code import FunctionModule, where
from compile_cli.capture.without_gpu import capture_kernels

# Before Dynamo meets a kernel: whatever captures imports this package.
capture_kernels()
