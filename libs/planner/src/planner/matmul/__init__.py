"""Matmuls: as problems of gemm_templates, the ways to run them, and the decision between these."""
