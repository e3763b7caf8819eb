"""Compiled models replayed as CUDA graphs: fresh inputs, mutation, several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from compile_cli import pipeline
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
    (graph,) = compiled.graph.graphs
    report = graph.explain()
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


@torch.library.custom_op("gpu_tests::looked_up", mutates_args=())
def looked_up(x: Tensor, table: Tensor) -> Tensor:
    """Work of the host: no graph can hold it."""
    return (x.cpu() + table).cuda()


@looked_up.register_fake
def _(x: Tensor, table: Tensor) -> Tensor:
    return torch.empty_like(x)


class Cut(nn.Module):
    """Layers around what is not captured, a counter, and noise between them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(12))
        self.register_buffer("calls", torch.zeros(32))
        self.register_buffer("table", torch.arange(32.0))

    def deep(self, x: Tensor, at: int) -> Tensor:
        for layer in self.layers[at : at + 4]:
            x = torch.tanh(layer(x))
        return x

    def forward(self, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        y = self.deep(x, 0) + self.calls
        if self.kind == "host":
            z = looked_up(y, table)
        elif self.kind == "data":
            z = y[(y[:, 0] > self.calls[0]).nonzero().squeeze(1)]
        elif self.kind == "cpu":
            z = (y.cpu() * table).to(x.device)
        elif self.kind == "random":
            z = torch.ops.gpu_tests.looked_up(torch.dropout(y, 0.5, True), table)
        z = self.deep(z, 4)
        if self.kind == "random":
            z = torch.dropout(z, 0.5, True)
        return self.deep(z, 8), y


@pytest.mark.parametrize("kind", ["host", "data", "cpu", "random"])
@pytest.mark.parametrize("emit", ["fx", "cpp"])
@torch.no_grad()
def test_programs_that_no_graph_holds(options: dict[str, Any], kind: str, emit: str) -> None:
    """In reduce-overhead's words: parts are replayed, and what is between them runs as it does."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, plain = Cut(kind).cuda(), Cut(kind).cuda()
    plain.load_state_dict(net.state_dict())
    seen: list[Any] = []
    compile_graph = pipeline.compile_graph

    def noted(*args: Any, **more: Any) -> Any:
        seen.append(compile_graph(*args, **more))
        return seen[-1]

    settings = {**options, "emit": emit, "gemm": "extern", "not_captured": ["gpu_tests.looked_up"]}
    dynamo: Any = torch._dynamo.config
    with pytest.MonkeyPatch.context() as patch, dynamo.patch(capture_dynamic_output_shape_ops=True):
        patch.setattr(pipeline, "compile_graph", noted)
        how = {"backend": "compile_cli", "dynamic": False, "fullgraph": True}
        ours = torch.compile(net, **how, options={**settings, "cuda_graphs": True})
        theirs: Any = plain
        if kind == "random":
            theirs = torch.compile(plain, **how, options=settings)
        table, kept = torch.arange(32.0), []
        for call in range(8):
            x = torch.randn(16 if call < 6 else 8, 32, device="cuda")
            torch.manual_seed(call)
            got = ours(x, table)
            torch.manual_seed(call)
            kept.append((got, theirs(x, table)))
    for got, wanted in kept:  # an earlier result is nobody else's memory
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert torch.equal(net.calls, plain.calls)
    graphs = seen[0].graphs
    reports = "\n".join(graph.explain() for graph in graphs)
    assert len(graphs) == 2 and reports.count("replays") >= 2, reports
    assert "capture failed" not in reports and "GPU" not in reports, reports


def test_parts_of_training(options: dict[str, Any]) -> None:
    """Forward and backward are cut, and what one keeps for the other lies where it was captured."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.ops.gpu_tests.looked_up(x, torch.zeros(32)) * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.ops.gpu_tests.looked_up(g * 2, torch.zeros(32))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (
                nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())])
                for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b(Doubled.apply(self.a(x)))
            return out

    torch.manual_seed(0)
    net = Net().cuda()
    settings = {**options, "cuda_graphs": True, "gemm": "extern"}
    settings["not_captured"] = ["gpu_tests.looked_up"]
    compiled = torch.compile(net, backend="compile_cli", options=settings, dynamic=False)
    for count in (1, 1, 1, 1, 2, 1, 2, 1):
        given = [torch.randn(16, 32, device="cuda", requires_grad=True) for _ in range(count)]
        for x, out in [(x, compiled(x)) for x in given]:
            asked, seed = [x, *net.parameters()], torch.randn_like(out)
            expected = torch.autograd.grad(net(x), asked, seed)
            for got, wanted in zip(torch.autograd.grad(out, asked, seed), expected, strict=True):
                assert relative_error(got, wanted) < 1e-4
