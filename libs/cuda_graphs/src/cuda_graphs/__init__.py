"""CUDA graphs of callables: captured by the layout of their arguments, replayed from then on."""

from cuda_graphs.buckets import Buckets
from cuda_graphs.errors import GraphError
from cuda_graphs.graph_pool import GraphPool
from cuda_graphs.graphed_callable import GraphedCallable
from cuda_graphs.results import Lending, Loans

__all__ = ["Buckets", "GraphError", "GraphPool", "GraphedCallable", "Lending", "Loans"]
