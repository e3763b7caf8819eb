"""Errors of this library."""

from __future__ import annotations


class GraphError(Exception):
    """A CUDA graph was asked for in a way that cannot work (buckets, devices, outputs)."""
