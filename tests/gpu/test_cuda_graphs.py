"""Compiled models replayed as CUDA graphs: fresh inputs, mutation, several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.cli.measure import relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("emit", ["fx", "cpp"])
@torch.no_grad()
def test_fresh_inputs_give_fresh_results(options: dict[str, Any], example: Any, emit: str) -> None:
    torch.manual_seed(0)
    model = example.Encoder(vocab=1000, hidden=256, heads=4, layers=2, mlp=1024).eval().cuda()
    settings = {**options, "emit": emit, "cuda_graphs": True, "gemm": "extern"}
    ids = [torch.randint(1, 1000, (4, 64), device="cuda") for _ in range(6)]
    mask = torch.ones(4, 64, dtype=torch.bool, device="cuda")
    compiled = compile_cli.compile(
        model, (ids[0], mask), dynamic={0: {0}, 1: {0}}, options=settings
    )
    results = [compiled(x, mask) for x in ids]  # an earlier result must not change later
    for x, result in zip(ids, results, strict=True):
        assert relative_error(result, model(x, mask)) < 1e-4
    for batch in (1, 2, 4, 2, 1):
        out = compiled(ids[0][:batch].clone(), mask[:batch].clone())
        assert relative_error(out, model(ids[0][:batch], mask[:batch])) < 1e-4
    report = compiled.graph.graphs.explain()
    assert "replays" in report and "capture failed" not in report, report


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x.mul_(2)
        return x + self.calls


def test_what_is_written_is_written_at_every_replay(options: dict[str, Any]) -> None:
    model = Counter().cuda()
    x = torch.ones(4, 8, device="cuda")
    compiled = compile_cli.compile(model, (x,), options={**options, "cuda_graphs": True})
    model.calls.zero_()
    for call in range(1, 6):
        given = torch.full((4, 8), float(call), device="cuda")
        out = compiled(given)
        assert torch.equal(given, torch.full_like(given, 2.0 * call))
        assert torch.equal(out, given + call)
    assert torch.equal(model.calls, torch.full_like(model.calls, 5.0))


def test_torch_compile(options: dict[str, Any]) -> None:
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).eval().cuda()
    compiled = torch.compile(
        net, backend="compile_cli", options={**options, "cuda_graphs": True}, dynamic=False
    )
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(8, 64, device="cuda")
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def test_training_steps(options: dict[str, Any]) -> None:
    """Fresh inputs at every step, then two forward passes before their backward passes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 32)).cuda()
    settings = {**options, "cuda_graphs": True, "gemm": "extern"}
    compiled = torch.compile(net, backend="compile_cli", options=settings, dynamic=False)

    def check(results: list[tuple[Tensor, Tensor]]) -> None:
        for x, out in results:
            asked, seed = [x, *net.parameters()], torch.randn_like(out)
            expected = torch.autograd.grad(net(x), asked, seed)
            for got, wanted in zip(torch.autograd.grad(out, asked, seed), expected, strict=True):
                assert relative_error(got, wanted) < 1e-4

    for count in (1, 1, 1, 1, 1, 2, 2, 1, 2, 1):
        given = [torch.randn(16, 64, device="cuda", requires_grad=True) for _ in range(count)]
        check([(x, compiled(x)) for x in given])
