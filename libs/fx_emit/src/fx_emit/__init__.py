"""Host programs as torch.fx graph modules.

What consumes FX graphs (other backends, printers, tools) gets the compiled program in the form it
knows; what only wants to run it gets Python that reads as if written by hand."""

from fx_emit.backend import FxBackend as FxBackend
from fx_emit.emitter import emit as emit
from fx_emit.errors import FxEmitError as FxEmitError
from fx_emit.hop import is_impure as is_impure
from fx_emit.host import STEPS as STEPS
from fx_emit.host import KernelCall as KernelCall
from fx_emit.run import Run as Run
from fx_emit.runtime import TorchRuntime as TorchRuntime
from fx_emit.torch_types import IR_DTYPE as IR_DTYPE
from fx_emit.torch_types import TORCH_DTYPE as TORCH_DTYPE
from fx_emit.torch_types import may_alias as may_alias
from fx_emit.torch_types import operator_of as operator_of
