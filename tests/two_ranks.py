"""Steps of two processes that share a batch, each with a half of it, beside steps of the whole.

    python tests/two_ranks.py PORT (ddp | fsdp2 | ddp,fsdp2) (cpu | cuda)

One forks the other after the imports or, as CUDA survives no fork, starts it with its number behind
the arguments. Fails where parameters are not those of steps of the whole, other graphs are compiled
than expected, or what graphs exchange differs from eager."""

import faulthandler
import os
import sys
from typing import Any

import torch
import torch._functorch.config
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.nn.parallel import DistributedDataParallel

from compile_cli import pipeline
from wrapper_ir import print_program

torch._functorch.config.enable_autograd_cache = False  # what is compiled is counted


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.out = Block(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.block(x))
        return out


def train(net: nn.Module, run: Any, x: Tensor, target: Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(run(x), target)
        loss.backward()
        optimizer.step()


def exchange(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    group = dist.group.WORLD
    there = collectives.all_reduce(x.sin(), "sum", group)
    part = collectives.reduce_scatter_tensor(x * 2, "sum", 0, group)
    here = torch.relu(x @ w) + 1
    return there + here, collectives.all_gather_tensor(part + 1, 0, group) * here


port, kinds, on, *number = sys.argv[1:]
torch.set_num_threads(1)
other = 0
if on == "cpu":
    other = os.fork()  # imports are done once
elif not number:
    other = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, *sys.argv, "1"])
faulthandler.dump_traceback_later(100, exit=True)
rank = int(other == 0)
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
device = torch.device("cpu") if on == "cpu" else torch.device(on, rank)
if on == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("gloo" if on == "cpu" else "nccl", rank=rank, world_size=2)
graphs: list[Any] = []
compile_graph = pipeline.compile_graph


def counted(gm: Any, *args: Any, **more: Any) -> Any:
    graphs.append(compile_graph(gm, *args, **more))
    return graphs[-1]


pipeline.compile_graph = counted


def share(kind: str) -> None:
    graphs.clear()
    torch.manual_seed(0)
    net, alone = Net().to(device), Net().to(device)
    alone.load_state_dict(net.state_dict())
    x, target = torch.randn(12, 8).to(device), torch.randint(4, (12,)).to(device)
    own = slice(6 * rank, 6 * rank + 6)
    if kind == "ddp":
        dist._DEFAULT_FIRST_BUCKET_BYTES = 64  # of gradients, of which a graph is cut into buckets
        wrapped = DistributedDataParallel(net, bucket_cap_mb=64 / 2**20)
        run: Any = torch.compile(wrapped, backend="compile_cli")
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(on, (2,))
        fully_shard(net.block, mesh=mesh)
        run = torch.compile(fully_shard(net, mesh=mesh), backend="compile_cli")
    train(net, run, x[own], target[own])
    train(alone, alone, x, target)
    found: Any = [p if kind == "ddp" else p.full_tensor() for p in net.parameters()]  # type: ignore[attr-defined]  # DTensor
    torch.testing.assert_close(found, list(alone.parameters()), rtol=1e-4, atol=1e-5)
    # Three buckets of gradients; FSDP's hooks part the block from the rest. Programs are the first
    # rank's.
    assert len(graphs) == (0 if rank else 6 if kind == "ddp" else 4), len(graphs)
    if kind == "ddp":
        args = x[own] + rank, torch.randn(8, 8).to(device)
        want = exchange(*args)
        for shared in (False, True)[: 1 + (on == "cuda")]:
            if shared:
                enable_symm_mem_for_group(dist.group.WORLD.group_name)
            run = torch.compile(exchange, backend="compile_cli", fullgraph=True)
            for _ in range(20):
                torch.testing.assert_close(run(*args), want)
            if rank == 0:
                assert ("sum_at_once" in print_program(graphs[-1].program)) == shared
                assert ("comm_alloc" in print_program(graphs[-1].program)) == shared
            torch._dynamo.reset()
        assert len(graphs) == (0 if rank else 7 + (on == "cuda"))


for kind in kinds.split(","):
    share(kind)
    torch._dynamo.reset()
dist.destroy_process_group()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
