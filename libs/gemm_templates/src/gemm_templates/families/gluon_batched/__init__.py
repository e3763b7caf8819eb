"""Batches, and groups of rows, by warps that have roles: Hopper."""
