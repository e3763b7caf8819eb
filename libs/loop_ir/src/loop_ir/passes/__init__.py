"""Passes that rewrite one kernel at a time, one a file: frozen dataclasses with `run(graph)`."""

from loop_ir.passes.base import Pass, run_passes
from loop_ir.passes.cse import eliminate

__all__ = ["Pass", "eliminate", "run_passes"]
