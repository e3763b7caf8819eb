"""Rewrites of programs: valid in, valid out, one a file."""

from wrapper_ir.passes.assert_finite import AssertFinite
from wrapper_ir.passes.dedupe_kernels import DedupeKernels
from wrapper_ir.passes.insert_frees import InsertFrees
from wrapper_ir.passes.overlap_branches import OverlapBranches
from wrapper_ir.passes.overlap_collectives import OverlapCollectives
from wrapper_ir.passes.partition import Partition
from wrapper_ir.passes.pipeline import Pass, run_passes
from wrapper_ir.passes.plan_memory import FRESH, PlanMemory
