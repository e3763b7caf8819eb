"""Kernels as data: the text of a module, what its function takes, and rewrites of both.

Imports neither torch nor Triton until a text is executed."""

from triton_rt.source.flat_tuples import flatten
from triton_rt.source.kernel_source import Constant, KernelParam, KernelSource, Ref
from triton_rt.source.overlap import overlapped
from triton_rt.source.reached_globals import globals_of
from triton_rt.source.standalone import standalone_text
