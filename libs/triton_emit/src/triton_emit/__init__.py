"""Loop nests printed as Triton kernels."""
