"""Programs on a GPU that is not the current one, and on two."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def mixed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = F.gelu(x @ w)
    return F.layer_norm(y, y.shape[-1:]), y.sum(0).cumsum(0), torch.arange(5, device=x.device) + 1


def crossing(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Half of the work on each GPU, and what goes over joins in."""
    there = (x * 2).to("cuda:1").sin() + w
    return there.to("cuda:0").exp() + x, there.sum(-1)


def both(fn: Any, options: dict[str, Any], *args: Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="compile_cli", options=options, fullgraph=True)
    for _ in range(4):
        new = [torch.randn_like(a) for a in args]
        got, want = compiled(*new), fn(*new)
        assert [g.device for g in got] == [w.device for w in want]
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("options", [{}, {"emit": "cpp"}, {"cuda_graphs": True}], ids=str)
def test_a_gpu_that_is_not_the_current_one(options: dict[str, Any]) -> None:
    both(mixed, options, *torch.randn(2, 256, 256, device="cuda:1").unbind())


@pytest.mark.parametrize("options", [{}, {"emit": "hop"}, {"emit": "cpp"}], ids=str)
def test_two_gpus_in_a_program(options: dict[str, Any]) -> None:
    both(
        crossing, options, torch.randn(64, 300, device="cuda:0"), torch.randn(300, device="cuda:1")
    )


def test_two_gpus_one_after_the_other() -> None:
    """One compiled function, called for tensors of each."""
    compiled = torch.compile(mixed, backend="compile_cli")
    for device in ("cuda:0", "cuda:1", "cuda:0", "cuda:1"):
        x, w = torch.randn(2, 64, 64, device=device).unbind()
        torch.testing.assert_close(compiled(x, w), mixed(x, w), rtol=2e-2, atol=2e-2)


def test_models_on_another_gpu() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    model = model.to("cuda:1").eval()
    x = torch.randn(6, 64, device="cuda:1")
    compiled = compile_cli.compile(model, (x,), dynamic={0: {0}})
    for n in (6, 1, 33):
        x = torch.randn(n, 64, device="cuda:1")
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_gpus_share_a_batch(kind: str) -> None:
    """Through NCCL, a process each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = Path(__file__).parents[1] / "two_ranks.py"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), port, kind, "cuda"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
