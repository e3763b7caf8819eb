"""Two hundred steps of small models, and steps that two processes share: the losses are eager's."""

from __future__ import annotations

import copy
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor, nn

from compile_cli import pipeline


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Transformer(nn.Module):
    """A layer that learns to continue sequences which count up."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, width), nn.Embedding(8, width)
        self.one, self.two, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids[:, :-1]) + self.places.weight
        parts = self.qkv(self.one(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.two(x))))
        logits = self.last(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def batch(self) -> Tensor:
        return (torch.randint(12, (4, 1)) + torch.arange(9) * torch.randint(1, 3, (4, 1))) % 12


class Convnet(nn.Module):
    """Which learns in which half of an image the mean is larger."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.out = nn.BatchNorm2d(4), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.one(x))), 2)
        y = F.adaptive_avg_pool2d(F.silu(self.two(y)), 2)
        larger = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
        return F.cross_entropy(self.out(y.flatten(1)), larger)

    def batch(self) -> Tensor:
        return torch.randn(8, 1, 8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Transformer, Convnet])
def test_losses_of_two_hundred_steps(kind: type[Transformer | Convnet]) -> None:
    torch.manual_seed(0)
    nets = [kind()]
    nets.append(copy.deepcopy(nets[0]))
    batches = [nets[0].batch() for _ in range(200)]
    curves = []
    compiled = torch.compile(nets[0], backend="compile_cli")
    for net, run in zip(nets, (compiled, nets[1]), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        curve = []
        for batch in batches:
            optimizer.zero_grad()
            loss = run(batch)
            loss.backward()
            optimizer.step()
            curve.append(loss.detach())
        curves.append(torch.stack(curve))
    got, want = curves
    assert want[-20:].mean() < 0.8 * want[:20].mean()  # it learns
    torch.testing.assert_close(got[:50], want[:50], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(
        got.view(-1, 20).mean(1), want.view(-1, 20).mean(1), rtol=0.05, atol=0.01
    )


def exchange(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    group = dist.group.WORLD
    there = collectives.all_reduce(x.sin(), "sum", group)
    part = collectives.reduce_scatter_tensor(x * 2, "sum", 0, group)
    here = torch.relu(x @ w) + 1
    return there + here, collectives.all_gather_tensor(part + 1, 0, group) * here


def test_what_a_graph_sends_is_sent_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process: two compute the same (`test_two_processes_share_a_batch`)."""
    graphs, compile_graph = [], pipeline.compile_graph

    def counted(*args: Any, **more: Any) -> Any:
        graphs.append(compile_graph(*args, **more))
        return graphs[-1]

    monkeypatch.setattr(pipeline, "compile_graph", counted)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        args = torch.randn(6, 8), torch.randn(8, 8)
        run = torch.compile(exchange, backend="compile_cli", fullgraph=True)
        torch.testing.assert_close(run(*args), exchange(*args))
    finally:
        dist.destroy_process_group()
    called = [getattr(op, "target", "").split(".")[1:2] for op in graphs[-1].program.ops]
    assert called.index(["all_reduce_"]) < called.index(["mm"]) < called.index(["wait_tensor"])


def test_two_processes_share_a_batch() -> None:
    """Each has a half, and the parameters are those of steps of the whole, also where each process
    holds a half of every parameter (FSDP2)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = Path(__file__).parents[3] / "tests" / "two_ranks.py"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), port, "ddp,fsdp2", "cpu"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
