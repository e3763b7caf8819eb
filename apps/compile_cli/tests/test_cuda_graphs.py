"""CUDA graphs around the host program: which inputs it writes; nothing changes without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.errors import UnknownOption
from compile_cli.hosts import cuda_graphs as host
from compile_cli.hosts.cuda_graphs import mutated_inputs
from cuda_graphs import GraphedCallable


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


def test_what_training_keeps_is_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[GraphedCallable] = []

    class Seen(GraphedCallable):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr(host, "GraphedCallable", Seen)
    options = {"cache_dir": str(tmp_path), "cuda_graphs": True}
    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    torch.compile(layer, backend="compile_cli", options=options)(torch.randn(4, 8)).sum().backward()
    forward, backward = made
    lent, got = forward.lending, backward.lending
    assert lent.loans is got.loans and not got.positions
    assert 0 not in lent.positions and 1 in lent.positions, "the result is the caller's own"
