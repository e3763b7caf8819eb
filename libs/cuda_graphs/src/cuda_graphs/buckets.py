"""Sizes that share a graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_graphs.errors import GraphError


@dataclass(frozen=True)
class Buckets:
    """Sizes that share a graph: a dimension is padded up to the next of `sizes`.

    `inputs` and `outputs` say which dimension of which argument and result that is, by position.
    The callable must treat the entries along it independently: what it computes for the padding,
    which holds old values of earlier calls, is cut off. Sizes past the last run without a graph."""

    sizes: tuple[int, ...]
    inputs: Mapping[int, int]
    outputs: Mapping[int, int]

    def __post_init__(self) -> None:
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            raise GraphError(f"bucket sizes must ascend from 1 or more, got {self.sizes}")
        if not self.inputs:
            raise GraphError("buckets need at least one argument whose dimension is padded")

    def size_of(self, args: Sequence[Any]) -> int:
        """The padded dimension of these arguments. Raises `GraphError` where they differ."""
        found = {i: int(args[i].shape[d]) for i, d in self.inputs.items()}
        if len(set(found.values())) != 1:
            raise GraphError(f"the arguments' bucketed dimensions differ, by position: {found}")
        return next(iter(found.values()))

    def bucket(self, size: int) -> int | None:
        """The smallest bucket that holds a size."""
        return next((s for s in self.sizes if s >= size), None)
