"""The host program of a compiled model as data.

What runs around the kernels (allocate, launch, call, free, return) is worth a language of its
own: passes rewrite it, two emitters print it, and one interpreter says what it means.
"""

from tensor_ir import (
    Arg,
    Device,
    DType,
    Ref,
    Symbol,
    TensorType,
    TorchEnum,
    contiguous_strides,
    parse_symbol,
    parse_type,
    print_symbol,
    print_type,
)
from wrapper_ir.errors import ParseError, VerifyError, WrapperIRError
from wrapper_ir.interpreter import Descriptor, Runtime, interpret
from wrapper_ir.ops import (
    Allocate,
    Assert,
    Comment,
    Constant,
    CopyBack,
    DefineControl,
    DefineKernel,
    DefineSubgraph,
    Describe,
    ExternCall,
    Free,
    If,
    KernelParam,
    Launch,
    Op,
    Param,
    Program,
    Return,
    Reuse,
    SymbolDef,
    View,
)
from wrapper_ir.parser import parse_program
from wrapper_ir.printer import print_op, print_program
from wrapper_ir.verifier import verify

__all__ = [
    "Allocate",
    "Arg",
    "Assert",
    "Comment",
    "Constant",
    "CopyBack",
    "DType",
    "DefineControl",
    "DefineKernel",
    "DefineSubgraph",
    "Describe",
    "Descriptor",
    "Device",
    "ExternCall",
    "Free",
    "If",
    "KernelParam",
    "Launch",
    "Op",
    "Param",
    "ParseError",
    "Program",
    "Ref",
    "Return",
    "Reuse",
    "Runtime",
    "Symbol",
    "SymbolDef",
    "TensorType",
    "TorchEnum",
    "VerifyError",
    "View",
    "WrapperIRError",
    "contiguous_strides",
    "interpret",
    "parse_program",
    "parse_symbol",
    "parse_type",
    "print_op",
    "print_program",
    "print_symbol",
    "print_type",
    "verify",
]
