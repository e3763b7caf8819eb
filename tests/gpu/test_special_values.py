"""Every pointwise operator at special values, on a GPU, in every element type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compile_cli import Options
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
GROUP = 40  # calls in one graph: a kernel of hundreds of results takes ptxas long


@pytest.mark.parametrize("name", [
    "float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
])  # fmt: skip
def test_every_operator_at_special_values(
    special_values: Any, name: str, options: dict[str, Any]
) -> None:
    dtype = getattr(torch, name)
    tensors = special_values.tensors(dtype, "cuda")
    cases = [c for c in special_values.cases(dtype) if special_values.runs(c, tensors)]
    found: list[str] = []
    for start in range(0, len(cases), GROUP):
        traced = special_values.trace(cases[start : start + GROUP], tensors)
        graph = compile_graph(traced.graph, Options.from_mapping(options), Record())
        results = graph.run(*(t.clone() for t in tensors.values()))
        found += special_values.faults(traced.cases, results, tensors)
    assert not found, "\n".join(found)
