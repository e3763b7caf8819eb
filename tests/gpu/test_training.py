"""Training on a GPU: curves of losses, whole steps and steps of optimizers are eager's."""

from __future__ import annotations

import copy
import math
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compile_cli.result import CompiledGraph
from wrapper_ir import Launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
GPU = torch.device("cuda")


class Layer(nn.Module):
    """Of torch; a module of another file, because Dynamo starts in none of torch's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.layer(x, mask, is_causal=True)
        return out


class Transformer(nn.Module):
    """Two layers that learn to continue sequences which count up."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(32, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.last = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids[:, :-1]) + self.places.weight
        mask = torch.triu(torch.full((32, 32), -torch.inf, device=ids.device), 1)
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.last(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def batch(self) -> Tensor:
        return (torch.randint(50, (16, 1)) + torch.arange(33) * torch.randint(1, 4, (16, 1))) % 50


class Convnet(nn.Module):
    """Which learns in which half of an image the mean is larger."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norm, self.last, self.out = nn.BatchNorm2d(16), nn.BatchNorm2d(32), nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.one(x))), 2)
        y = F.adaptive_avg_pool2d(F.silu(self.last(self.two(y))), 2)
        larger = (x[:, 0, :8].mean((1, 2)) > x[:, 0, 8:].mean((1, 2))).long()
        return F.cross_entropy(self.out(y.flatten(1)), larger)

    def batch(self) -> Tensor:
        return torch.randn(32, 3, 16, 16)


def curve(run: Callable[..., Tensor], net: nn.Module, batches: Tensor, dtype: Any) -> Tensor:
    """Losses of a step of each batch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = run(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float())
    return torch.stack(losses)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [Transformer, Convnet])
def test_losses_of_two_hundred_steps(
    kind: Any,
    dtype: torch.dtype,
    found: list[CompiledGraph],
    record_property: Callable[[str, Any], None],
) -> None:
    """bf16 is under autocast. Eager's own noise is a curve of weights that are 1e-6 others."""
    nets = [kind().to(GPU)]
    nets += [copy.deepcopy(nets[0]) for _ in range(2)]
    batches = torch.stack([nets[0].batch() for _ in range(200)]).to(GPU)
    with torch.no_grad():
        for p in nets[2].parameters():
            p.mul_(1 + 1e-6)
    compiled = torch.compile(nets[0], backend="compile_cli", fullgraph=True)
    runs: tuple[Callable[..., Tensor], ...] = (compiled, nets[1], nets[2])
    got, want, noisy = (curve(r, n, batches, dtype) for r, n in zip(runs, nets, strict=True))
    assert len(found) == 2
    means = [c.view(-1, 20).mean(1) for c in (got, want, noisy)]
    off, noise = (((m - means[1]) / means[1]).abs().max().item() for m in (means[0], means[2]))
    first = ((got - want) / want)[:20].abs().max().item()
    record_property(
        "curve",
        f"loss {want[:20].mean():.4f} to {want[-20:].mean():.4f}, ours {got[-20:].mean():.4f};"
        f" means of 20 steps {off:.1e} apart, eager's noise {noise:.1e}; first steps {first:.1e}",
    )
    assert want[-20:].mean() < 0.8 * want[:20].mean()  # it learns
    assert first < (2e-2 if dtype is torch.bfloat16 else 1e-3)
    assert off < 0.02 + 3 * noise


SIZES = [(64, 32), (64,), (5,), (1,), (2, 2, 8), (3, 1, 7)]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw capturable": lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True),
    "adamw each": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw tensor rate": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(1e-2, device=GPU), capturable=True
    ),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_optimizers(
    name: str, found: list[CompiledGraph], record_property: Callable[[str, Any], None]
) -> None:
    """Five, of twelve parameters; counts of steps lie on the CPU but for capturable ones. All but
    Adafactor's step are at most four launches on the GPU."""
    results = []
    for compiled in (True, False):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(s, device=GPU)) for s in SIZES * 2]
        optimizer = OPTIMIZERS[name](params)
        step: Any = optimizer.step
        if compiled:
            step = torch.compile(step, backend="compile_cli")
        for _ in range(5):
            for p in params:
                p.grad = torch.randn_like(p)
            with torch._dynamo.config.patch(capture_scalar_outputs=name == "adafactor"):
                step()
        results.append(params)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert found or name == "adamw fused"
    counts = [sum(isinstance(o, Launch) for o in g.program.ops) for g in found]
    record_property("launches", counts)
    if name != "adafactor":
        assert all(count <= 4 for count in counts)


def clipped(
    params: list[Tensor], grads: list[Tensor], rows: list[Tensor], columns: list[Tensor]
) -> None:
    """Factored second moments, the update clipped by its norm."""
    for p, g, r, c in zip(params, grads, rows, columns, strict=True):
        squares = g.to(c.dtype).square() + 1e-30
        if p.dim() < 2:
            u = g * c.lerp_(squares, 0.1).rsqrt()
        else:
            r.lerp_(squares.mean(-1), 0.1)
            c.lerp_(squares.mean(-2), 0.1)
            u = g * (r / r.mean(-1, keepdim=True)).rsqrt()[:, None] * c.rsqrt()
        p.add_(u / u.square().mean().sqrt().clamp(min=1.0), alpha=-1e-2)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_of_many_parameters(
    offset: int, dtype: torch.dtype, found: list[CompiledGraph]
) -> None:
    """Arguments of a launch that are more than 4 KB; parts of one flat tensor begin at odd places,
    and at multiples of 16 bytes. Large matrices are shared between programs."""
    sizes = [(768, 512), (512,), (64, 48), (33, 7), (13,), (1,), (3072, 768), (1000,)] * 24
    steps = [-(-math.prod(s) // 64) * 64 for s in sizes]

    def make(kind: torch.dtype) -> tuple[list[Tensor], ...]:
        torch.manual_seed(0)
        flat = [torch.randn(sum(steps) + offset, device=GPU).to(dtype)[offset:] for _ in range(2)]
        params, grads = (
            [t[: math.prod(s)].view(s).to(kind) for t, s in zip(f.split(steps), sizes, strict=True)]
            for f in flat
        )
        state = torch.float64 if kind == torch.float64 else torch.float32
        rows = [torch.rand(s[:1], device=GPU, dtype=torch.float32).to(state) for s in sizes]
        columns = [torch.rand(s[-1:], device=GPU, dtype=torch.float32).to(state) for s in sizes]
        return params, grads, rows, columns

    given, wanted = make(dtype), make(torch.float64)
    step = torch.compile(clipped, backend="compile_cli", dynamic=False)
    for _ in range(2):
        step(*given)
        clipped(*wanted)
    near = 2e-5 if dtype is torch.float32 else 2e-2
    for got, want in zip(given, wanted, strict=True):
        torch.testing.assert_close(got, want, check_dtype=False, rtol=near, atol=near)
    (graph,) = found
    assert sum(isinstance(o, Launch) for o in graph.program.ops) <= 4


def test_a_whole_step(found: list[CompiledGraph]) -> None:
    """Forward, loss, backward, clipping and optimizer in one function, with compiled autograd."""
    nets = [Transformer().to(GPU)]
    nets.append(copy.deepcopy(nets[0]))
    batches = [nets[0].batch().to(GPU) for _ in range(4)]

    def training(net: nn.Module) -> Callable[[Tensor], None]:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True)

        def step(batch: Tensor) -> None:
            net(batch).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

        return step

    with torch._dynamo.config.patch(compiled_autograd=True):
        step = torch.compile(training(nets[0]), backend="compile_cli")
        for batch in batches:
            step(batch)
    plain = training(nets[1])
    for batch in batches:
        plain(batch)
    assert found
    for got, want in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=2e-3)


def test_scaled_losses_of_half_precision(fresh_dynamo: None) -> None:
    nets = [Convnet().to(GPU)]
    nets.append(copy.deepcopy(nets[0]))
    batches = [nets[0].batch().to(GPU) for _ in range(6)]
    compiled = torch.compile(nets[0], backend="compile_cli", fullgraph=True)
    for net, run in zip(nets, (compiled, nets[1]), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**30, growth_interval=2)  # type: ignore[attr-defined]  # not in stubs
        for batch in batches * 3:
            with torch.autocast("cuda", torch.float16):
                loss = run(batch)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() < 2.0**30  # steps whose gradients were infinite were left out
    for got, want in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-3)


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.25),
    "bernoulli": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "noise": lambda x: x * torch.rand_like(x),
}


@pytest.mark.parametrize("how", ["checkpoint", 0.0])
@pytest.mark.parametrize("name", DRAWS)
def test_what_was_drawn_is_not_drawn_anew(name: str, how: Any, fresh_dynamo: None) -> None:
    """The function is linear in x, so it is the sum of x times its gradient: in a checkpoint, and
    with a budget of memory."""
    x = torch.rand(64, 64, device=GPU, requires_grad=True)
    weight = (torch.randn(64, 64, device=GPU) / 8).requires_grad_()

    def inside(x: Tensor, w: Tensor) -> Tensor:
        return DRAWS[name](DRAWS[name](x @ w) @ w)

    def f(x: Tensor, w: Tensor) -> Any:
        again = how == "checkpoint"
        return checkpoint(inside, x, w, use_reentrant=False) if again else inside(x, w)

    config = torch._functorch.config  # type: ignore[attr-defined]  # torch does not name it
    with config.patch(activation_memory_budget=1.0 if isinstance(how, str) else how):
        run = torch.compile(f, backend="compile_cli", fullgraph=True)
        for _ in range(3):
            out = run(x, weight).sum()
            (got,) = torch.autograd.grad(out, [x])
            torch.testing.assert_close((got * x).sum(), out, rtol=1e-3, atol=1e-2)


def test_gradients_lie_where_what_was_kept_lay(found: list[CompiledGraph]) -> None:
    """Of logits: a step needs no more than them beside what it had; retained, it is as right."""
    x, w = (torch.randn(n, 256, device=GPU, requires_grad=True) for n in (4096, 32000))
    target = torch.randint(32000, (4096,), device=GPU)

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy((x @ w.t()).float(), target)

    run = torch.compile(f, backend="compile_cli", fullgraph=True)
    want, got = (torch.autograd.grad(each(x), (x, w)) for each in (f, run))
    assert [len(g.taken) for g in found] == [0, 1]
    torch.cuda.reset_peak_memory_stats()
    before, logits = torch.cuda.memory_allocated(), 4096 * 32000 * 2
    loss = run(x)
    torch.autograd.grad(loss, (x, w), retain_graph=True)
    assert torch.cuda.max_memory_allocated() - before > 2 * logits
    again = torch.autograd.grad(loss, (x, w))
    del loss
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(run(x), (x, w))
    assert torch.cuda.max_memory_allocated() - before < 1.9 * logits
    for each in (got, again):
        for a, b in zip(each, want, strict=True):
            assert (a - b).norm() < 1e-2 * b.norm()


def test_parameters_that_processes_share(found: list[CompiledGraph]) -> None:
    """FSDP2 of one process, whose collectives are NCCL's; layers are compiled one by one, since its
    hooks part what calls them."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        nets = [Transformer().to(GPU)]
        nets.append(copy.deepcopy(nets[0]))
        batches = [nets[0].batch().to(GPU) for _ in range(3)]
        mesh = init_device_mesh("cuda", (1,))
        for layer in nets[0].layers:
            layer.compile(backend="compile_cli", fullgraph=True)
            fully_shard(layer, mesh=mesh)
        fully_shard(nets[0], mesh=mesh)
        for net in nets:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for batch in batches:
                optimizer.zero_grad()
                net(batch).backward()
                optimizer.step()
        full = [p.full_tensor() for p in nets[0].parameters()]
        torch.testing.assert_close(full, list(nets[1].parameters()), rtol=1e-3, atol=1e-4)
        assert found
    finally:
        dist.destroy_process_group()
