"""CUDA graphs around the host program: which inputs it writes; nothing changes without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.errors import UnknownOption
from compile_cli.hosts.cuda_graphs import mutated_inputs


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


def test_without_a_gpu_it_is_refused_or_does_nothing(tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path), "cuda_graphs": True}
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), torch.randn(4, 8)
    with pytest.raises(UnknownOption, match="does nothing on CPU tensors"):
        compile_cli.compile(model, (x,), options=options)
    compiled = torch.compile(model, backend="compile_cli", options=options)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
