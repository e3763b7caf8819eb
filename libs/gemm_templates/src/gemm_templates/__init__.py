"""Matmul kernels with fused epilogues, chosen by measurement."""
