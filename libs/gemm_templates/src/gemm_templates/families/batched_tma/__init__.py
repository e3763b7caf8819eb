"""Batches over tensor descriptors of rank 3: Hopper and later."""
