"""Fusion: which kernels become one, in which order, and why others do not."""

from loop_ir.fusion.dependencies import Dependencies
from loop_ir.fusion.explain import explain, why_not
from loop_ir.fusion.fuse import FusionReport, fuse, fuse_with_report
from loop_ir.fusion.gates import GatedPair, gated_halves, gated_pairs
from loop_ir.fusion.options import FuseOptions
from loop_ir.fusion.prologue import Prologue, over_operand
from loop_ir.fusion.whole_epilogue import is_plain, whole_epilogue
