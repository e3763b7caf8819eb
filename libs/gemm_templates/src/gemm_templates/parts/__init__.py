"""The kernels: plain `@triton.jit` files."""
