"""Weights that lie on the host, copied while the layer before is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compile_cli.result import CompiledGraph
from wrapper_ir import print_program

pytestmark = pytest.mark.gpu


class Offloaded(nn.Module):
    def __init__(self, layers: int, width: int, pinned: bool) -> None:
        super().__init__()
        made = (torch.randn(width, width) / width**0.5 for _ in range(layers))
        self.weights = [w.pin_memory() if pinned else w for w in made]
        self.biases = [torch.randn(width).pin_memory() for _ in range(layers)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for w, b in zip(self.weights, self.biases, strict=True):
            w, b = (t.to("cuda", non_blocking=True) for t in (w, b))
            x = F.gelu(F.linear(x, w, b)) + x
        return x


@pytest.mark.parametrize("emit", ["fx", "cpp"])
@pytest.mark.parametrize("pinned", [True, False])
def test_layers(
    emit: str,
    pinned: bool,
    found: list[CompiledGraph],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each call sees what the host has by then. (Graphs of pinned and of other weights are one to
    the cache, and what it has is not compiled: the test has one of its own.)"""
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model = Offloaded(6, 1024, pinned)
    x = torch.randn(2048, 1024, device="cuda")
    compiled = torch.compile(model, backend="compile_cli", options={"emit": emit})
    with torch.no_grad():
        for _ in range(5):
            got = [compiled(x) for _ in range(3)]
            want = model(x)
            for y in got:
                torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-3)
            torch.cuda.synchronize()
            for w in model.weights:
                w.mul_(0.9)
    assert print_program(found[-1].program).count("= extern aten_lowering.fetched") == 12


def test_a_copy_whose_tensor_dies_writes_nothing_else() -> None:
    """An operator raised before anybody waited; and a tensor that is another's view is waited for
    too."""
    ours = torch.ops.aten_lowering
    host = torch.ones(1 << 26).pin_memory()
    device = torch.device("cuda", torch.cuda.current_device())
    for _ in range(3):
        begun = ours.fetch(host, device)
        at = begun.data_ptr()
        del begun
        other = torch.full((1 << 26,), 7.0, device=device)
        assert other.data_ptr() == at
        torch.cuda.synchronize()
        assert bool((other == 7).all())
        del other
    there = ours.fetched(ours.fetch(host, device).view(-1))
    assert bool((there == 1).all())
