"""Errors of this library."""


class GraphError(Exception):
    """A CUDA graph was asked for in a way that cannot work (buckets, devices, outputs)."""
