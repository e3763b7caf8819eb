"""CUDA graphs around the host program: which inputs it writes; nothing changes without a GPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.cuda_graphs import mutated_inputs


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_written_inputs_are_found(tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path)}
    compiled = compile_cli.compile(Counter(), (torch.randn(2, 3),), options=options)
    program = compiled.graph.program
    (written,) = mutated_inputs(program)
    assert "calls" in program.params[written].name


def test_without_a_gpu_the_program_runs_as_it_is(tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path), "cuda_graphs": True}
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), torch.randn(4, 8)
    compiled = compile_cli.compile(model, (x,), options=options)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
    assert compiled.graph.graphs is not None
    assert "3 calls without a graph: its tensors are on cpu" in compiled.graph.graphs.explain()
