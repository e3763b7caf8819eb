"""Compile, cache, load and launch Triton kernels."""
