"""Convolutions on channels-last tensors: the same numbers and strides of results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import compile_cli
import gemm_templates
from aten_lowering.passes import channels_last as module
from aten_lowering.passes.channels_last import channels_last, lines_as_planes
from compile_cli import pipeline
from compile_cli.cli.measure import relative_error
from compile_cli.errors import UnknownOption
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record
from compile_cli.result import CompiledGraph
from loop_ir import Extern, TensorRef
from planner import convolution as convolutions

aten = torch.ops.aten
LAST = torch.channels_last


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEVICES", frozenset({"cpu"}))


def rewritten(fn: Any, *args: Tensor) -> torch.fx.GraphModule:
    gm = make_fx(fn, tracing_mode="fake")(*args)
    lines_as_planes(gm.graph)
    channels_last(gm.graph)
    gm.graph.lint()
    gm.recompile()
    return gm


def conv(x: Tensor, w: Tensor, *more: Any) -> Tensor:
    out: Tensor = aten.convolution(
        x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], *(more or (1,))
    )
    return out


def nodes(gm: torch.fx.GraphModule, target: Any) -> list[torch.fx.Node]:
    return [node for node in gm.graph.nodes if node.target == target]


def check(gm: torch.fx.GraphModule, fn: Any, *args: Tensor) -> None:
    """The same numbers and strides, and fake tensors that say how the real ones lie."""
    out, wanted = gm(*args), fn(*args)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)
    assert out.stride() == wanted.stride()

    class Followed(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor) and n.op == "call_function":
                assert value.stride() == n.meta["val"].stride(), n.format_node()
            return value

    Followed(gm).run(*args)


X, W, V = torch.randn(2, 8, 12, 10), torch.randn(16, 8, 3, 3), torch.randn(8, 16, 3, 3)


def chain(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.relu(conv(F.relu(conv(x, w)) * 2, v)) + x


def pooled(x: Tensor, w: Tensor) -> Tensor:
    y, _ = aten.max_pool2d_with_indices(conv(x, w), [3, 3], [2, 2], [1, 1])
    return aten.mean(y, [2, 3])


def viewed(x: Tensor, w: Tensor) -> Tensor:
    out: Tensor = aten.view(conv(x, w), [2, -1])
    return out


def one_by_one(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(
        aten.convolution(x, w[:, :, :1, :1], None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
    )


def by_groups(x: Tensor, w: Tensor) -> Tensor:
    return conv(x, w[:8, :4], 2)


def halves(x: Tensor, w: Tensor) -> Tensor:
    first, second = aten.split.Tensor(conv(x, w), 8, 1)
    return torch.cat([second, first], 1)


def backwards(x: Tensor, w: Tensor) -> Tensor:
    return F.conv_transpose2d(x, w[:8].transpose(0, 1)[:8])


def line(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x[:, :, 0], w[:, :, 0], padding=1) * 2


def turned_line(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x[:, :, 0].permute(0, 2, 1).contiguous().permute(0, 2, 1), w[:, :, 0]) * 2


def volume(x: Tensor, w: Tensor) -> Tensor:
    return F.conv3d(x.unflatten(2, (3, 4)), w[..., None], padding=1).relu()


@pytest.mark.parametrize(
    "fn",
    [conv, pooled, viewed, one_by_one, by_groups, halves, backwards, line, turned_line, volume],
)
def test_the_same_numbers_and_strides(anywhere: None, fn: Any) -> None:
    gm = rewritten(fn, X, W)
    (node,) = nodes(gm, aten.convolution.default)
    form = torch.channels_last_3d if fn is volume else LAST
    assert all(arg.meta["val"].is_contiguous(memory_format=form) for arg in node.args[:2])
    assert node.meta["val"].is_contiguous(memory_format=form)
    check(gm, fn, X, W)


def test_only_the_first_of_a_chain_is_rearranged(anywhere: None) -> None:
    gm = rewritten(chain, X, W, V)
    copies = [node.args[0].name for node in nodes(gm, aten.clone.default)]
    # the input, both weights, and the result
    assert sorted(copies)[1:] == ["v_1", "w_1", "x_1"] and len(copies) == 4
    second = nodes(gm, aten.convolution.default)[1]
    assert second.args[0].target != aten.clone.default
    check(gm, chain, X, W, V)


def test_what_is_channels_last_already_stays(anywhere: None) -> None:
    x, w = X.to(memory_format=LAST), W.to(memory_format=LAST)
    gm = rewritten(conv, x, w)
    assert not nodes(gm, aten.clone.default)
    check(gm, conv, x, w)


def strided(x: Tensor, w: Tensor) -> Tensor:
    out: Tensor = aten.as_strided(conv(x, w), [2, 16], [1920, 120])
    return out


def transposed(x: Tensor, w: Tensor) -> Tensor:
    return conv(x, w).transpose(2, 3)


def noisy(x: Tensor, w: Tensor) -> Tensor:
    y = conv(x, w)
    return y + torch.rand_like(y)


def plain(x: Tensor, w: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize("fn", [strided, transposed, plain])
def test_graphs_that_stay_as_they_are(anywhere: None, fn: Any) -> None:
    before = make_fx(fn, tracing_mode="fake")(X, W).code
    assert rewritten(fn, X, W).code == before


def test_random_numbers_follow_each_other_as_they_did(anywhere: None) -> None:
    gm = rewritten(noisy, X, W)
    assert [n.meta["val"].stride()[1] for n in nodes(gm, aten.convolution.default)] == [1]
    torch.manual_seed(0)
    found = gm(X, W)
    torch.manual_seed(0)
    torch.testing.assert_close(found, noisy(X, W), rtol=1e-5, atol=1e-5)


def test_other_devices_stay_as_they_are() -> None:
    assert not nodes(rewritten(conv, X, W), aten.clone.default)


class Net(nn.Module):
    """Two residual blocks, as a ResNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (16, 16, 32, 32))
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(16, 16, 3, 1, 1),
                nn.Conv2d(16, 32, 3, 2, 1),
                nn.Conv2d(32, 32, 3, 1, 1, groups=32),
            ]
        )
        self.shorter = nn.Conv2d(16, 32, 1, 2)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 3, 2, 1)
        x = x + F.relu(self.norms[1](self.convs[0](x)))
        y = F.relu(self.norms[2](self.convs[1](x)))
        x = self.shorter(x) + self.norms[3](self.convs[2](y))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1)), x


class Stem(nn.Module):
    """How a ResNet begins, and one residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = x + F.relu(self.conv(x))
        return x.mean((2, 3)), x


@pytest.mark.parametrize(
    "emit", ["fx", *(pytest.param(emit, marks=pytest.mark.slow) for emit in ("hop", "cpp"))]
)
@torch.no_grad()
def test_a_net(anywhere: None, options: dict[str, Any], emit: str) -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 18, 14)
    record = Record(keep=True)
    settings = {**options, "emit": emit, "channels_last": "on"}
    compiled = compile_cli.compile(net, (x,), options=settings, record=record)
    assert ("aten", "channels_last") in [(stage, name) for stage, name, _ in record.trace]
    for found, wanted, exact in zip(
        compiled(x), net(x), copy.deepcopy(net).double()(x.double()), strict=True
    ):
        assert found.stride() == wanted.stride()
        assert relative_error(found, exact) < 1e-5
    calls = [n for n in compiled.graph.fused.nodes if isinstance(n, Extern)]
    assert sum("convolution" in n.target for n in calls) == 4  # one by depth is a kernel


def orders(compiled: compile_cli.CompiledModel) -> set[str]:
    """Of what its convolutions give."""
    calls = [n for n in compiled.graph.fused.nodes if isinstance(n, Extern)]
    outs = [out for n in calls if "convolution" in n.target for out in n.outs if out is not None]
    return {"channels last" if type.stride[1] == 1 else "as given" for _, type in outs}


@torch.no_grad()
def test_a_dynamic_batch(anywhere: None, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net, x = Stem().eval(), torch.randn(2, 3, 18, 14)
    compiled = compile_cli.compile(
        net, (x,), dynamic={"x": {0}}, options={**options, "channels_last": "on"}
    )
    assert orders(compiled) == {"channels last"}
    for batch in (2, 5):
        more = torch.randn(batch, 3, 18, 14)
        for found, wanted in zip(compiled(more), net(more), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            assert found.stride() == wanted.stride()


def test_a_training_step(
    anywhere: None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What forward keeps lies as backward wants it: one input and the weights are rearranged."""
    graphs: list[CompiledGraph] = []

    def keeping(*args: Any, **more: Any) -> CompiledGraph:
        graphs.append(compile_graph(*args, **more))
        return graphs[-1]

    monkeypatch.setattr(pipeline, "compile_graph", keeping)
    torch.manual_seed(0)
    net, x = Stem(), torch.randn(2, 3, 18, 14)
    settings = {**options, "channels_last": "on"}
    run = torch.compile(copy.deepcopy(net), backend="compile_cli", options=settings)
    exact = copy.deepcopy(net).double()
    out, wanted = run(x), exact(x.double())
    sum(o.square().sum() for o in out).backward()
    sum(o.square().sum() for o in wanted).backward()
    for found, want in zip(out, wanted, strict=True):
        assert relative_error(found, want) < 1e-5
    forward, backward = graphs
    for graph, targets in ((forward, {"convolution"}), (backward, {"convolution_backward"})):
        calls = [n for n in graph.fused.nodes if isinstance(n, Extern)]
        found = [n for n in calls if any(t in n.target for t in targets)]
        assert len(found) == 2
        images = [a.type for n in found for a in n.args if isinstance(a, TensorRef)]
        assert all(t.stride[1] == 1 for t in images if len(t.size) == 4)
    for (name, p), q in zip(run.named_parameters(), exact.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert p.grad.stride() == p.stride(), name
        assert relative_error(p.grad, q.grad) < 1e-4, name


@torch.no_grad()
def test_unknown_sizes_stay_as_they_are(anywhere: None, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net, x = Stem().eval(), torch.randn(2, 3, 18, 14)
    settings = {**options, "channels_last": "on"}
    compiled = compile_cli.compile(net, (x,), dynamic={"x": {2, 3}}, options=settings)
    more = torch.randn(2, 3, 22, 26)
    torch.testing.assert_close(compiled(more), net(more), rtol=1e-4, atol=1e-4)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a convolution takes as given and channels-last, as if a GPU had measured it;
    each measurement adds one more item."""
    found = [100e-6, 50e-6]

    def measure(runs: Any, info: Any, rounds: int) -> list[float]:
        found.append(len(runs))
        first, second = (run() for run in runs)
        assert not first.is_contiguous(memory_format=LAST)
        assert second.is_contiguous(memory_format=LAST)
        return found[:2]

    monkeypatch.setattr(convolutions, "added_seconds", measure)
    monkeypatch.setattr(convolutions, "_measurable", lambda device: True)
    monkeypatch.setattr(gemm_templates, "device_info", lambda device: gemm_templates.H200)
    return found


@torch.no_grad()
def test_auto_takes_what_measures_faster(
    anywhere: None, times: list[float], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    net, x = Stem().eval(), torch.randn(2, 3, 18, 14)
    state = torch.get_rng_state()
    for measured in (2, 2):  # the second time the store has all kinds
        compiled = compile_cli.compile(net, (x,), dynamic={"x": {0}}, options=options)
        assert len(times) - 2 == measured
        assert orders(compiled) == {"channels last"}
        text = compiled.graph.explain()
        assert "2 convolutions of 2 kinds: 200.0 us as given" in text
        assert text.rstrip().endswith("-> channels last")
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", [99e-6, 150e-6])
def test_auto_leaves_what_measures_no_faster(
    anywhere: None, times: list[float], options: dict[str, Any], last: float
) -> None:
    times[1] = last
    for measured in (2, 2):
        compiled = compile_cli.compile(chain, (X, W, V), options=options)
        assert len(times) - 2 == measured
        assert orders(compiled) == {"as given"}
        assert compiled.graph.explain().rstrip().endswith("-> as given")
    torch.testing.assert_close(compiled(X, W, V), chain(X, W, V), rtol=1e-4, atol=1e-4)


def test_equal_convolutions_are_measured_once(
    anywhere: None, times: list[float], options: dict[str, Any]
) -> None:
    def twice(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return conv(F.relu(conv(x, w)), v), conv(x, w * 2)

    compiled = compile_cli.compile(twice, (X, W, V), options=options)
    assert len(times) - 2 == 2
    assert "3 convolutions of 2 kinds: 300.0 us as given; channels last 150.0 us" in (
        compiled.graph.explain()
    )


@pytest.mark.parametrize(
    ("last", "tune", "count"), [(50e-6, "auto", 3), (99e-6, "auto", 5), (50e-6, "max", 5)]
)
def test_what_reads_little_is_measured_where_it_may_matter(
    anywhere: None, times: list[float], options: dict[str, Any], last: float, tune: str, count: int
) -> None:
    """Of five convolutions of about the same bytes three are enough where one way is twice as
    fast."""

    def five(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(conv(x[..., n:], w) for n in range(5))

    times[1] = last
    settings = {**options, "tune": tune, "gemm": "extern"}
    compiled = compile_cli.compile(five, (X, W), options=settings)
    assert len(times) - 2 == count
    said = compiled.graph.explain()
    assert ("(3 measured)" in said) == (count == 3)
    assert "5 convolutions of 5 kinds" in said


def test_an_expanded_tensor_is_measured(
    anywhere: None, times: list[float], options: dict[str, Any]
) -> None:
    x = X[..., :1].expand(2, 8, 12, 10)
    compiled = compile_cli.compile(conv, (x, W), options=options)
    assert len(times) - 2 == 1
    torch.testing.assert_close(compiled(x, W), conv(x, W), rtol=1e-4, atol=1e-4)


def test_copies_are_charged(anywhere: None, times: list[float], options: dict[str, Any]) -> None:
    """A launch of 2 us for each of three, for what takes 10 us less; the sum writes its result in
    the order that is wanted."""
    times[:] = [20e-6, 15e-6]
    compiled = compile_cli.compile(chain, (X, W, V), options=options)
    assert "40.0 us as given; channels last 30.0 us, and at most 6.0 us for 4 copies" in (
        compiled.graph.explain()
    )


def test_nothing_is_measured_without_a_gpu(anywhere: None, options: dict[str, Any]) -> None:
    compiled = compile_cli.compile(conv, (X, W), options=options)
    assert "1 convolutions of 1 kinds: as given (no GPU to measure on)" in compiled.graph.explain()


def test_nothing_is_measured_for_deterministic_algorithms(
    anywhere: None, times: list[float], options: dict[str, Any]
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        compiled = compile_cli.compile(conv, (X, W), options=options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "as given (nothing is measured for deterministic" in compiled.graph.explain()
    assert len(times) == 2


def test_no_memory_to_measure_with(
    anywhere: None, times: list[float], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> list[float]:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(convolutions, "added_seconds", full)
    compiled = compile_cli.compile(conv, (X, W), options=options)
    assert "as given (no memory to measure with)" in compiled.graph.explain()


def test_it_is_an_option() -> None:
    with pytest.raises(UnknownOption, match="channels_last='yes'"):
        compile_cli.Options(channels_last="yes")  # type: ignore[arg-type]
