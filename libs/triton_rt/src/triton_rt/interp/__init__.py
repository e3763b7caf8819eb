"""Runs Triton kernels on CPU tensors, beside the compiler and without touching it."""

from triton_rt.interp.executor import InterpretedKernel
from triton_rt.interp.load import load_jit
