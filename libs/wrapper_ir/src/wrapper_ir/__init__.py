"""The host program of a compiled model as data.

What runs around the kernels (allocate, launch, call, free, return) is worth a language of its
own: passes rewrite it, two emitters print it, and one interpreter says what it means."""

from tensor_ir import Arg as Arg
from tensor_ir import Device as Device
from tensor_ir import DType as DType
from tensor_ir import Ref as Ref
from tensor_ir import Symbol as Symbol
from tensor_ir import TensorType as TensorType
from tensor_ir import TorchEnum as TorchEnum
from tensor_ir import contiguous_strides as contiguous_strides
from tensor_ir import parse_symbol as parse_symbol
from tensor_ir import parse_type as parse_type
from tensor_ir import print_symbol as print_symbol
from tensor_ir import print_type as print_type
from wrapper_ir.errors import ParseError as ParseError
from wrapper_ir.errors import VerifyError as VerifyError
from wrapper_ir.errors import WrapperIRError as WrapperIRError
from wrapper_ir.interpreter import Descriptor as Descriptor
from wrapper_ir.interpreter import Runtime as Runtime
from wrapper_ir.interpreter import interpret as interpret
from wrapper_ir.ops import Allocate as Allocate
from wrapper_ir.ops import Assert as Assert
from wrapper_ir.ops import CommAllocate as CommAllocate
from wrapper_ir.ops import Comment as Comment
from wrapper_ir.ops import CommFree as CommFree
from wrapper_ir.ops import Constant as Constant
from wrapper_ir.ops import CopyBack as CopyBack
from wrapper_ir.ops import DefineControl as DefineControl
from wrapper_ir.ops import DefineKernel as DefineKernel
from wrapper_ir.ops import DefineSubgraph as DefineSubgraph
from wrapper_ir.ops import Describe as Describe
from wrapper_ir.ops import DeviceGuard as DeviceGuard
from wrapper_ir.ops import ExternCall as ExternCall
from wrapper_ir.ops import Free as Free
from wrapper_ir.ops import If as If
from wrapper_ir.ops import KernelParam as KernelParam
from wrapper_ir.ops import Launch as Launch
from wrapper_ir.ops import Op as Op
from wrapper_ir.ops import Param as Param
from wrapper_ir.ops import Program as Program
from wrapper_ir.ops import Return as Return
from wrapper_ir.ops import Reuse as Reuse
from wrapper_ir.ops import StreamSwitch as StreamSwitch
from wrapper_ir.ops import StreamWait as StreamWait
from wrapper_ir.ops import SymbolDef as SymbolDef
from wrapper_ir.ops import View as View
from wrapper_ir.ops import Workspace as Workspace
from wrapper_ir.parser import parse_program as parse_program
from wrapper_ir.printer import print_op as print_op
from wrapper_ir.printer import print_program as print_program
from wrapper_ir.verifier import verify as verify
