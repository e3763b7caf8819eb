"""What IRs over tensors share: element types, devices, layouts, references, symbols, their text,
errors, and passes.

`loop_ir` and `wrapper_ir` are built on it; neither knows the other."""

from tensor_ir.dtypes import BY_TEXT as BY_TEXT
from tensor_ir.dtypes import BY_TRITON_SHORT as BY_TRITON_SHORT
from tensor_ir.dtypes import DType as DType
from tensor_ir.errors import IRError as IRError
from tensor_ir.errors import ParseError as ParseError
from tensor_ir.errors import PassError as PassError
from tensor_ir.errors import VerifyError as VerifyError
from tensor_ir.kept import once as once
from tensor_ir.passes import Decided as Decided
from tensor_ir.passes import Pass as Pass
from tensor_ir.passes import run_passes as run_passes
from tensor_ir.printer import print_plain as print_plain
from tensor_ir.printer import print_symbol as print_symbol
from tensor_ir.printer import print_tuple as print_tuple
from tensor_ir.printer import print_type as print_type
from tensor_ir.repeats import Run as Run
from tensor_ir.repeats import longest_run as longest_run
from tensor_ir.scanner import FLOAT as FLOAT
from tensor_ir.scanner import MAX_DEPTH as MAX_DEPTH
from tensor_ir.scanner import NAME as NAME
from tensor_ir.scanner import TARGET as TARGET
from tensor_ir.scanner import Scanner as Scanner
from tensor_ir.scanner import parse_symbol as parse_symbol
from tensor_ir.scanner import parse_type as parse_type
from tensor_ir.types import Device as Device
from tensor_ir.types import TensorType as TensorType
from tensor_ir.types import contiguous_strides as contiguous_strides
from tensor_ir.values import TYPICAL_SIZE as TYPICAL_SIZE
from tensor_ir.values import Arg as Arg
from tensor_ir.values import Plain as Plain
from tensor_ir.values import Ref as Ref
from tensor_ir.values import Symbol as Symbol
from tensor_ir.values import TorchEnum as TorchEnum
