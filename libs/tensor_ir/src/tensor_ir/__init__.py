"""What IRs over tensors share: element types, devices, layouts, references, symbols, their text,
errors, and passes.

`loop_ir` and `wrapper_ir` are built on it; neither knows the other."""

from tensor_ir.dtypes import BY_TEXT, BY_TRITON_SHORT, DType
from tensor_ir.errors import IRError, ParseError, PassError, VerifyError
from tensor_ir.passes import Decided, Pass, run_passes
from tensor_ir.printer import print_plain, print_symbol, print_tuple, print_type
from tensor_ir.repeats import Run, longest_run
from tensor_ir.scanner import FLOAT, MAX_DEPTH, NAME, TARGET, Scanner, parse_symbol, parse_type
from tensor_ir.types import Device, TensorType, contiguous_strides
from tensor_ir.values import TYPICAL_SIZE, Arg, Plain, Ref, Symbol, TorchEnum

__all__ = [
    "BY_TEXT",
    "BY_TRITON_SHORT",
    "FLOAT",
    "MAX_DEPTH",
    "NAME",
    "TARGET",
    "TYPICAL_SIZE",
    "Arg",
    "DType",
    "Decided",
    "Device",
    "IRError",
    "ParseError",
    "Pass",
    "PassError",
    "Plain",
    "Ref",
    "Run",
    "Scanner",
    "Symbol",
    "TensorType",
    "TorchEnum",
    "VerifyError",
    "contiguous_strides",
    "longest_run",
    "parse_symbol",
    "parse_type",
    "print_plain",
    "print_symbol",
    "print_tuple",
    "print_type",
    "run_passes",
]
