"""Training as it is done around a compiled function: eager's numbers, or a clear refusal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aten_lowering.lower_graph as lower_graph
from aten_lowering.layers import fold
from compile_cli import pipeline
from compile_cli.hosts import inputs
from compile_cli.result import CompiledGraph
from loop_ir import Matmul
from loop_ir.fusion import take_over
from loop_ir.ir import writes


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.down = nn.Linear(16, 4)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.down(F.gelu(self.norm(self.up(x)))), target)


Step = Callable[[Callable[..., Tensor], nn.Module, torch.optim.Optimizer, Tensor, Tensor], None]


def plain(loss: Any, net: nn.Module, optimizer: Any, x: Tensor, target: Tensor) -> None:
    loss(x, target).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()


def accumulated(loss: Any, net: nn.Module, optimizer: Any, x: Tensor, target: Tensor) -> None:
    for half in (slice(3), slice(3, 6)):
        (loss(x[half], target[half]) / 2).backward()
    optimizer.step()


def scaled(loss: Any, net: nn.Module, optimizer: Any, x: Tensor, target: Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)  # type: ignore[attr-defined]  # not in stubs
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(x, target)
    scaler.scale(value).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("step", [pytest.param(plain, marks=pytest.mark.slow), accumulated, scaled])
def test_steps(step: Step) -> None:
    """Three of them, after which the parameters are eager's."""
    torch.manual_seed(0)
    nets = [Net()]
    nets.append(copy.deepcopy(nets[0]))
    batches = [(torch.randn(6, 8), torch.randint(4, (6,))) for _ in range(3)]
    compiled = torch.compile(nets[0], backend="compile_cli")
    for net, loss in zip(nets, (compiled, nets[1]), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for batch in batches:
            optimizer.zero_grad()
            step(loss, net, optimizer, *batch)
    near = {"rtol": 2e-2, "atol": 2e-3} if step is scaled else {"rtol": 1e-4, "atol": 1e-5}
    for got, want in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(got, want, **near)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    x = torch.randn(8, requires_grad=True)
    out = torch.compile(lambda x: x.sin().exp(), backend="compile_cli")(x)
    (slope,) = torch.autograd.grad(out.sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        slope.sum().backward()


@pytest.mark.parametrize(
    "how",
    [
        "plain",
        pytest.param("cpp", marks=pytest.mark.slow),
        "retained",
        "hooks",
        "numpy",
        "returned",
    ],
)
def test_gradients_lie_where_what_was_kept_lay(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another holds it: a graph that is retained, a hook, numpy, the caller."""
    monkeypatch.setattr(take_over, "LEAST", 0)
    copied, made = [], []
    compile_graph, copy_of = pipeline.compile_graph, inputs._copied
    monkeypatch.setattr(inputs, "_copied", lambda x: copied.append(x) or copy_of(x))
    monkeypatch.setattr(
        pipeline, "compile_graph", lambda *a, **m: made.append(compile_graph(*a, **m)) or made[-1]
    )
    torch.manual_seed(0)
    x, w, v = (torch.randn(8, 8, requires_grad=True) for _ in range(3))

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).tanh()
        return ((y @ v).exp().sum(), y) if how == "returned" else ((y @ v).exp().sum(), x)

    compiled = torch.compile(
        f, backend="compile_cli", options={"emit": how} if how == "cpp" else {}
    )
    held: list[tuple[Tensor, Tensor]] = []

    def keep(x: Tensor) -> Any:
        held.append((x, x.clone()))
        return x.detach().numpy() if how == "numpy" else x

    hooks = torch.autograd.graph.saved_tensors_hooks(
        keep, torch.from_numpy if how == "numpy" else lambda x: x
    )
    if how == "retained":
        compiled(x)[0].backward()  # which torch itself would let no other one be retained after
    with hooks if how in ("hooks", "numpy") else nullcontext():
        loss, y = compiled(x)
    before = y.detach().clone()
    retained = how == "retained"
    got = [torch.autograd.grad(loss, (x, w, v), retain_graph=retained) for _ in range(1 + retained)]
    for each in got:
        torch.testing.assert_close(each, torch.autograd.grad(f(x)[0], (x, w, v)))
    assert torch.equal(y, before) and all(torch.equal(*pair) for pair in held)
    taken = len(made[-1].taken)
    assert taken == (1 if how == "returned" else 2)
    assert len(copied) == {"retained": 2 * taken, "hooks": taken, "numpy": taken}.get(how, 0)


def test_compiled_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of a backward pass is one graph more, which this backend compiles; where there are
    gradients, products are added to them where these lie, by the products' own kernels."""
    torch.manual_seed(0)
    nets = [Net()]
    nets.append(copy.deepcopy(nets[0]))
    x, target = torch.randn(6, 8), torch.randint(4, (6,))
    graphs: list[CompiledGraph] = []
    compile_graph = pipeline.compile_graph

    def counted(*args: Any, **more: Any) -> CompiledGraph:
        graphs.append(compile_graph(*args, **more))
        return graphs[-1]

    monkeypatch.setattr(pipeline, "compile_graph", counted)

    def train(net: nn.Module) -> None:
        net(x, target).backward()

    counts = torch._dynamo.utils.counters["compiled_autograd"]
    before = counts["captures"]
    with torch._dynamo.config.patch(compiled_autograd=True):
        step = torch.compile(train, backend="compile_cli", options={"gemm": "template"})
        for _ in range(2):
            step(nets[0])
    assert counts["captures"] == before + 2
    for _ in range(2):
        train(nets[1])
    for got, want in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
    matmuls = [n for n in graphs[-1].fused.nodes if isinstance(n, Matmul)]
    inputs = {i.name for i in graphs[-1].fused.inputs}
    assert sum(not inputs.isdisjoint(writes(m)) for m in matmuls) == 2  # of the weights


def test_several_graphs_after_a_break() -> None:
    torch.manual_seed(0)

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).tanh()
        torch._dynamo.graph_break()
        return (y @ w).sin().sum()

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    grads = []
    for run in (torch.compile(f, backend="compile_cli"), f):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        grads.append(torch.autograd.grad(run(*leaves), leaves))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_what_is_computed_again_is_rounded_as_it_was() -> None:
    """Logits of 30 in bf16 are numbers 1/8 apart: gradients of their logsumexp are as far from the
    exact ones as eager's, not the exponential of that further."""

    def fn(x: Tensor) -> Tensor:
        a, b, c = x.unbind(-1)
        return (a.log_softmax(-1) - b.square() * c).logsumexp(-1)

    torch.manual_seed(0)
    x = (torch.randn(100, 60, 3) * 1.5).bfloat16().requires_grad_()
    seed = torch.randn(100).bfloat16()
    exact = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(fn(exact), exact, seed.double())
    compiled = torch.compile(fn, backend="compile_cli")
    errors = []
    for run in (fn, compiled):
        (got,) = torch.autograd.grad(run(x), x, seed)
        errors.append(float((got.double() - want).abs().max()))
    assert errors[1] <= 2 * errors[0]


def test_norms_of_nothing() -> None:
    x = torch.randn(0, 4, requires_grad=True)
    w, b = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    compiled = torch.compile(lambda *a: F.group_norm(a[0], 2, *a[1:]).exp(), backend="compile_cli")
    y = compiled(x, w, b)
    gradients = torch.autograd.grad(y, (x, w, b), torch.ones_like(y))
    assert y.shape == (0, 4)
    assert [g.abs().sum().item() for g in gradients] == [0, 0, 0]


@pytest.mark.parametrize(
    ("weighted", "dtype"),
    [(True, torch.float32), (True, torch.bfloat16), (False, torch.bfloat16), (True, torch.half)],
)
def test_gradients_of_groups_whose_elements_are_near_each_other(
    weighted: bool, dtype: torch.dtype
) -> None:
    """Sums of products with the elements lose what these do not have in common, and statistics of
    16 bits lose more: eager's gradients are off by a thousandth, and by a hundred."""
    values = [2.0, 2.02, 0.9, -0.6, 0.1, 0.2]
    x, w, b = (torch.tensor(values[i : i + 2], dtype=dtype).requires_grad_() for i in (0, 2, 4))

    def fn(x: Tensor, *more: Tensor) -> Tensor:
        return F.group_norm(x[None], 1, *more, eps=1e-6)

    def gradients(fn: Any, *given: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(fn(*given), given, given[0].detach()[None].flip(1)))

    given = (x, w, b) if weighted else (x,)
    exact = gradients(fn, *(t.double() for t in given))
    eager, ours = (
        max(float((a - e).abs().max()) for a, e in zip(gradients(f, *given), exact, strict=True))
        for f in (fn, torch.compile(fn, backend="compile_cli"))
    )
    assert ours < eager / 10


def test_a_backward_pass_inside_of_a_compiled_function() -> None:
    """What torch tells the backend of a compilation, it tells under a lock that tracing takes: this
    waited for itself."""

    def step(x: Tensor, w: Tensor) -> Tensor:
        loss = (x @ w).square().mean()
        loss.backward()
        return loss.detach()

    x, one = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    two = one.detach().clone().requires_grad_()
    compiled = torch.compile(step, backend="compile_cli")
    for _ in range(2):
        torch.testing.assert_close(compiled(x, one), step(x, two))
        torch.testing.assert_close(one.grad, two.grad)


def test_batch_norm_of_running_statistics_keeps_none() -> None:
    """The operator gives empty ones on the CPU."""

    def fn(x: Tensor, *more: Tensor) -> Tensor:
        return torch.ops.aten._native_batch_norm_legit(x, *more, False, 0.1, 1e-5)[0].exp()

    x, w, b = (torch.rand(s, requires_grad=True) for s in ((3, 2, 4), (2,), (2,)))
    given = x, w, b, torch.rand(2), torch.rand(2) + 1
    want = torch.autograd.grad(fn(*given).sum(), (x, w, b))
    got = torch.autograd.grad(torch.compile(fn, backend="compile_cli")(*given).sum(), (x, w, b))
    torch.testing.assert_close(got, want)


def test_sums_of_several_puts() -> None:
    """All three are put onto the last, one after the other."""

    def fn(*rows: Tensor) -> Tensor:
        def put(first: int) -> Tensor:
            places = (torch.arange(2)[:, None], torch.arange(3) * 2 % 6 + first)
            return torch.zeros(2, 9).index_put(places, rows[first], accumulate=True)

        return put(0) + put(1) + put(2)

    rows = [torch.full((2, 3), 10.0**n) for n in range(3)]
    torch.testing.assert_close(torch.compile(fn, backend="compile_cli")(*rows), fn(*rows))


def test_gradients_of_buffers_that_the_forward_pass_writes() -> None:
    """`n + 1` is kept: computed again by the backward pass, it would be `n + 2`."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = nn.Buffer(torch.zeros(2, dtype=torch.long))
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.n.add_(1)
            self.n[0].mul_(3)
            return x * self.w * self.n.view(2, 1).sum(0)

    grads = []
    for compiled in (False, True):
        model = Counts()
        run = torch.compile(model, backend="compile_cli") if compiled else model
        for _ in range(2):
            run(torch.ones(3)).sum().backward()
        grads.append(model.w.grad)
    torch.testing.assert_close(*grads)


def test_layers_that_draw_are_folded_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward graph: each draws a mask of its own, which its gradient knows again."""
    folded = []

    def noted(graph: Any) -> Any:
        folded.append(fold(graph))
        return folded[-1]

    monkeypatch.setattr(lower_graph, "fold", noted)
    weights = [torch.full((64,), 0.5 + i / 8, requires_grad=True) for i in range(9)]

    def f(x: Tensor) -> Tensor:
        for w in weights:
            x = F.dropout((x * w).sin().asin(), 0.1)
        return x

    x = torch.full((40, 64), 1e-3, requires_grad=True)
    y = torch.compile(f, backend="compile_cli")(x)
    y.sum().backward()
    assert folded[0] is not None
    kept = (y != 0).float().mean()
    assert abs(float(kept) - 0.9**9) < 0.05
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach())
    for w in weights:
        assert w.grad is not None
        torch.testing.assert_close(w.grad * w.detach(), y.detach().sum(0))
