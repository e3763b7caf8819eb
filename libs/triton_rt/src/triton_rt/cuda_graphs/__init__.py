"""CUDA graphs of callables: captured by the layout of their arguments, replayed from then on."""

from triton_rt.cuda_graphs.graph_pool import GraphPool
from triton_rt.cuda_graphs.graphed_callable import Buckets, GraphedCallable

__all__ = ["Buckets", "GraphPool", "GraphedCallable"]
