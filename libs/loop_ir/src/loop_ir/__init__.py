"""Loop nests over typed buffers, and the fusion scheduler.

A graph of kernels, extern calls and matmuls is data: it prints and parses back, is verified, has
a reference meaning (`interpret_graph`), and `fuse` turns many small kernels into few, moving
fewer bytes, with a report of what it did and why not more."""

from loop_ir.errors import Irregular, LoopIRError, ParseError, PassError, VerifyError
from loop_ir.fusion.explain import explain, why_not
from loop_ir.fusion.fuse import FusionReport, fuse, fuse_with_report
from loop_ir.fusion.gates import GatedPair, gated_halves, gated_pairs
from loop_ir.fusion.options import FuseOptions
from loop_ir.fusion.prologue import Prologue, over_operand
from loop_ir.fusion.whole_epilogue import is_plain, whole_epilogue
from loop_ir.ir.analysis import bytes_moved, identity, reaching_steps
from loop_ir.ir.interpreter import interpret_graph, interpret_kernel
from loop_ir.ir.nodes import (
    ATOMICS,
    LEAST,
    OPS,
    REDUCTIONS,
    SCANS,
    Axis,
    Buffer,
    Compute,
    Const,
    CopyBack,
    Extern,
    Graph,
    GraphArg,
    GraphInput,
    Index,
    Indirect,
    Kernel,
    Load,
    Matmul,
    Node,
    Operand,
    Origin,
    Phase,
    Reduce,
    Scales,
    Scan,
    Stmt,
    Store,
    TensorRef,
    UserKernel,
)
from loop_ir.ir.parser import parse_graph, parse_kernel
from loop_ir.ir.printer import print_graph, print_kernel
from loop_ir.ir.strides import (
    HELD_ROW,
    across,
    beside,
    columns_at_once,
    columns_part,
    divides_lines,
    picks_along,
    picks_rows,
    reduces_columns,
)
from loop_ir.ir.verify import verify
from loop_ir.passes.base import Pass, run_passes
from loop_ir.passes.serve_one import serve_one
from loop_ir.passes.unfold import LayerResult, Layers, unfold
from loop_ir.splitting.online_softmax import pair_softmax
from loop_ir.splitting.row_pieces import in_pieces, row_of_pieces
from loop_ir.splitting.shared_rows import can_hold_together, programs_of_row
from loop_ir.splitting.split_reductions import shares_scans
from loop_ir.splitting.split_scans import can_split_scans
from tensor_ir import Device, DType, Ref, Symbol, TensorType, TorchEnum, contiguous_strides

__all__ = [
    "ATOMICS",
    "HELD_ROW",
    "LEAST",
    "OPS",
    "REDUCTIONS",
    "SCANS",
    "Axis",
    "Buffer",
    "Compute",
    "Const",
    "CopyBack",
    "DType",
    "Device",
    "Extern",
    "FuseOptions",
    "FusionReport",
    "GatedPair",
    "Graph",
    "GraphArg",
    "GraphInput",
    "Index",
    "Indirect",
    "Irregular",
    "Kernel",
    "LayerResult",
    "Layers",
    "Load",
    "LoopIRError",
    "Matmul",
    "Node",
    "Operand",
    "Origin",
    "ParseError",
    "Pass",
    "PassError",
    "Phase",
    "Prologue",
    "Reduce",
    "Ref",
    "Scales",
    "Scan",
    "Stmt",
    "Store",
    "Symbol",
    "TensorRef",
    "TensorType",
    "TorchEnum",
    "UserKernel",
    "VerifyError",
    "across",
    "beside",
    "bytes_moved",
    "can_hold_together",
    "can_split_scans",
    "columns_at_once",
    "columns_part",
    "contiguous_strides",
    "divides_lines",
    "explain",
    "fuse",
    "fuse_with_report",
    "gated_halves",
    "gated_pairs",
    "identity",
    "in_pieces",
    "interpret_graph",
    "interpret_kernel",
    "is_plain",
    "over_operand",
    "pair_softmax",
    "parse_graph",
    "parse_kernel",
    "picks_along",
    "picks_rows",
    "print_graph",
    "print_kernel",
    "programs_of_row",
    "reaching_steps",
    "reduces_columns",
    "row_of_pieces",
    "run_passes",
    "serve_one",
    "shares_scans",
    "unfold",
    "verify",
    "whole_epilogue",
    "why_not",
]
