"""Passes that rewrite one kernel at a time, one a file: functions of a kernel
(`EachKernel`), or frozen dataclasses with `run(graph)`."""

from loop_ir.passes.base import Pass, run_passes
from loop_ir.passes.cse import eliminate
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.passes.fold_tests import fold
