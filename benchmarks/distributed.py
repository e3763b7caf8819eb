"""Programs that several GPUs share, through `torch.compile`: eager, Inductor and compile_cli.

    python benchmarks/distributed.py [--only exchange tensor] [--out rows.json] [--device cpu]
        [--shared]

One process a GPU (two with `--device cpu`, through gloo). With `--shared`, the ranks share memory:
torch's symmetric memory is enabled for them, and Inductor is told to use it. Times are medians over
interleaved calls, of the slowest rank's time from a barrier to the end of the GPU's work, in
milliseconds. Results are compared with eager's. A case that fails or is wrong is a row that says
so, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import compile_cli  # noqa: F401  # the backend

BACKENDS = ("eager", "inductor", "compile_cli")
Call = Callable[[], Any]


class Block(nn.Module):
    """A transformer's layer: attention and an MLP of gates, each with a norm and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        q, k, v = (
            f(h).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Layers(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def compiled(run: Any, backend: str, **more: Any) -> Any:
    return run if backend == "eager" else torch.compile(run, backend=backend, **more)


class Cases:
    """Each method makes the call of a case for a backend."""

    def __init__(self, device: torch.device, scale: int) -> None:
        self.device, self.scale = device, scale
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.mesh: DeviceMesh = init_device_mesh(device.type, (dist.get_world_size(),))
        self.width = 2048 // scale

    def _model(self, layers: int) -> nn.Module:
        torch.manual_seed(0)
        made = Layers(layers, self.width, max(2, self.width // 128))
        return made.to(self.device, self.dtype)

    def _tokens(self, batch: int, seed: int = 1) -> Tensor:
        torch.manual_seed(seed)
        tokens = torch.randn(batch, 1024 // self.scale, self.width)
        return tokens.to(self.device, self.dtype)

    def exchange(self, backend: str) -> Call:
        group = dist.group.WORLD
        x = self._tokens(4 * (2 << 20) // (1024 * 2048), dist.get_rank()).flatten(0, 1)

        def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            whole = collectives.all_gather_tensor(x * 2, 0, group)
            part = collectives.reduce_scatter_tensor(x + 1, "sum", 0, group)
            turned = collectives.all_to_all_single(x - 1, None, None, group)
            return whole.relu(), part * 2, turned.neg()

        call = compiled(run, backend)
        return lambda: call(x)

    def sums(self, backend: str) -> Call:
        """Small sums in a chain, as of tensor-parallel layers that decode a token."""
        group = dist.group.WORLD
        x = self._tokens(1)[:, :8].clone()

        def run(x: Tensor) -> Tensor:
            for _ in range(16):
                x = F.rms_norm(collectives.all_reduce(x * 0.5, "sum", group), x.shape[-1:])
            return x

        call = compiled(run, backend)
        return lambda: call(x)

    def independent(self, backend: str) -> Call:
        """A sum that matmuls need not wait for."""
        group = dist.group.WORLD
        x = self._tokens(4).flatten(0, 1)
        torch.manual_seed(2)
        w = (torch.randn(self.width, self.width) / 45).to(x)

        def run(x: Tensor, w: Tensor) -> Tensor:
            there = collectives.all_reduce(x * 0.5, "sum", group)
            here = ((x @ w).relu() @ w).relu() @ w
            return there + here

        call = compiled(run, backend)
        return lambda: call(x, w)

    def _tensor_parallel(self) -> nn.Module:
        model = self._model(2)
        plan = dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel())
        more = dict.fromkeys(("o", "down"), RowwiseParallel())
        for layer in model.layers:
            parallelize_module(layer, self.mesh, {**plan, **more})
        return model

    def tensor(self, backend: str) -> Call:
        model, x = self._tensor_parallel(), self._tokens(4)
        call = compiled(model, backend)

        def run() -> Tensor:
            with torch.no_grad():
                return call(x)

        return run

    def tensor_training(self, backend: str) -> Call:
        model, x = self._tensor_parallel(), self._tokens(4)
        return self._step(model, compiled(model, backend), x)

    def data(self, backend: str) -> Call:
        model = self._model(4)
        ids = [self.device.index] if self.device.type == "cuda" else None
        whole = DistributedDataParallel(model, device_ids=ids)
        return self._step(model, compiled(whole, backend), self._tokens(4, dist.get_rank()))

    def sharded(self, backend: str) -> Call:
        model = self._model(4)
        for layer in model.layers:
            fully_shard(layer, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        if backend != "eager":
            for layer in model.layers:
                layer.compile(backend=backend)
        return self._step(model, model, self._tokens(4, dist.get_rank()))

    def _step(self, model: nn.Module, call: Any, x: Tensor) -> Call:
        def run() -> Tensor:
            model.zero_grad()
            loss = call(x).float().square().mean()
            loss.backward()
            return loss.detach()

        return run


NAMES = [n for n in vars(Cases) if not n.startswith("_")]


def slowest_ms(call: Call, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    dist.barrier()
    wait()
    start = time.perf_counter()
    call()
    wait()
    taken = torch.tensor([time.perf_counter() - start], device=device)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item() * 1e3


def row(cases: Cases, name: str, repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {"case": name}
    calls: dict[str, Call] = {}
    want: Any = None
    for backend in BACKENDS:
        torch._dynamo.reset()
        start = time.perf_counter()
        try:
            calls[backend] = getattr(cases, name)(backend)
            got = copy.deepcopy(calls[backend]())
            for _ in range(3):
                calls[backend]()
        except Exception as error:  # a compiler's failure is a row; all ranks fail alike
            found.setdefault("failed", {})[backend] = f"{type(error).__name__}: {error}"[:200]
            calls.pop(backend, None)
            continue
        found[f"{backend} first s"] = time.perf_counter() - start
        want = got if want is None else want
        try:
            torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
        except AssertionError as error:
            found.setdefault("wrong", {})[backend] = str(error).splitlines()[0]
    times: dict[str, list[float]] = {n: [] for n in calls}
    for _ in range(repeats):
        for backend, call in calls.items():
            times[backend].append(slowest_ms(call, cases.device))
    return found | {n: statistics.median(t) for n, t in times.items()}


def work(rank: int, world: int, options: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
    device = torch.device(options.device, rank if options.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=world
    )
    if options.shared:
        torch._inductor.config._collective.auto_select = True
        enable_symm_mem_for_group(dist.group.WORLD.group_name)
    rows = []
    cases = Cases(device, options.scale)
    for name in options.only or NAMES:
        found = row(cases, name, options.repeats)
        rows.append(found)
        if rank == 0:
            text = " ".join(f"{found.get(b, float('nan')):11.3f}" for b in BACKENDS)
            print(
                f"{name:18}{text}  {found.get('failed', '')} {found.get('wrong', '')}", flush=True
            )
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1))
    dist.destroy_process_group()
    if any("failed" in r or "wrong" in r for r in rows):
        sys.exit(1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=NAMES)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--scale", type=int, default=1, help="sizes are divided by this")
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        options.port = free.getsockname()[1]
    world = torch.cuda.device_count() if options.device == "cuda" else 2
    print(f"{world} ranks, torch {torch.__version__}; ms")
    print(f"{'':18}" + " ".join(f"{b:>11}" for b in BACKENDS))
    context = torch.multiprocessing.spawn(work, (world, options), world, join=False)
    try:
        while not context.join():
            pass
    except torch.multiprocessing.ProcessExitedException as error:
        return int(error.exit_code or 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
