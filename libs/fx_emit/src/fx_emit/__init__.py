"""Host programs as torch.fx graph modules.

What consumes FX graphs (other backends, printers, tools) gets the compiled program in the form it
knows; what only wants to run it gets Python that reads as if written by hand."""

from fx_emit.backend import FxBackend
from fx_emit.emitter import emit
from fx_emit.errors import FxEmitError
from fx_emit.hop import is_impure
from fx_emit.host import STEPS
from fx_emit.run import Run
from fx_emit.runtime import TorchRuntime
from fx_emit.torch_types import IR_DTYPE, TORCH_DTYPE

__all__ = [
    "IR_DTYPE",
    "STEPS",
    "TORCH_DTYPE",
    "FxBackend",
    "FxEmitError",
    "Run",
    "TorchRuntime",
    "emit",
    "is_impure",
]
